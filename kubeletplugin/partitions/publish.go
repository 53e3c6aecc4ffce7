// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// publish replaces the GPUs of a snapshot that are divided by what is published of them.
func (d *decision) publish(s *inventory.Snapshot, now *setting) {
	s.Counters = now.counters
	s.ForVMs, s.Unbinding = map[string]bool{}, map[string]bool{}
	reasons := map[string][]partition.Reason{}
	for _, c := range d.byName() {
		reasons[c.Device.Name] = c.division.Reasons
		for _, err := range c.unreadable {
			s.Problems = append(s.Problems, discover.Problem{
				Subject: c.Address.String(), Reason: discover.ReasonAttributeUnreadable, Message: err.Error(),
			})
		}
		replace(s, c)
		if name := c.Device.Name; c.held[partition.VFIOName(name)] {
			if c.absent {
				s.ForVMs[name] = true
			} else {
				s.Unbinding[device.StringOf(c.Device.Attributes[device.AttributeVendor])] = true
			}
		}
		report(s, c)
	}
	s.PartitionPolicies = outcomes(now.result.Policies, reasons)
}

// replace puts what is published of a card in the place of the whole GPU.
func replace(s *inventory.Snapshot, c *card) {
	published := slices.Clone(c.division.Devices)
	for i := range published {
		d := &published[i]
		switch {
		case d.Name != c.Device.Name:
			d.Edits = container.Edits{Nodes: c.sharedNodes(d.Name), Made: []string{d.Name}}
		case c.switchesMIG():
			d.Edits = container.Edits{Nodes: c.sharedNodes(d.Name), Mounts: d.Edits.Mounts, Env: d.Edits.Env, Made: []string{d.Name}}
		}
	}
	s.Devices = partition.Replace(s.Devices, c.Device, published)
	if c.division.Card != nil {
		s.Cards = append(s.Cards, *c.division.Card)
	}
}

// sharedNodes are the nodes of a device that are known before a step makes it: those that all of NVIDIA's GPUs have in common.
func (c *card) sharedNodes(name string) []container.Node {
	if part, ok := c.division.Parts[name]; c.MIG == nil || ok && part.Type != device.TypeMIG {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Device.Edits.Nodes), func(n container.Node) bool { return !discover.SharedNVIDIANode(n) })
}

// report adds why not all of a card is published, and takes away what discovery says of a GPU that nobody divides.
func report(s *inventory.Snapshot, c *card) {
	if !c.governed && !c.busy() {
		return // it is as discovery says until it is taken back
	}
	subject := c.Address.String()
	s.Problems = slices.DeleteFunc(s.Problems, func(p discover.Problem) bool {
		return p.Subject == subject && (p.Reason == discover.ReasonPartitioned || p.Reason == discover.ReasonBoundToVFIO && c.busy())
	})
	if !c.governed {
		return
	}
	for _, r := range c.division.Reasons {
		s.Problems = append(s.Problems, discover.Problem{
			Subject: subject, Reason: r.Reason, Message: fmt.Sprintf("GPU %s: %s", c.Device.Name, r.Message),
		})
	}
}

// outcomes says for the AcceleratorNode what became of the policies.
func outcomes(policies []policy.Outcome, reasons map[string][]partition.Reason) []v1alpha1.NodePartitionPolicy {
	var out []v1alpha1.NodePartitionPolicy
	for _, p := range policies {
		one := v1alpha1.NodePartitionPolicy{
			Name: p.Policy, Generation: p.Generation, Devices: count(len(p.Holds)), Overruled: count(len(p.Lost)),
		}
		say := func(reason, message string) {
			if one.Reason == "" {
				one.Reason, one.Message = reason, message
			}
		}
		if len(p.Lost) > 0 {
			one.By = p.Lost[0].By
		}
		waiting := map[string]bool{}
		for _, r := range p.Waits {
			waiting[r.Device] = true
			say(r.Reason, fmt.Sprintf("device %s: %s", r.Device, r.Message))
		}
		for _, name := range p.Holds {
			if why := reasons[name]; len(why) > 0 {
				waiting[name] = true
				say(why[0].Reason, fmt.Sprintf("device %s: %s", name, why[0].Message))
			}
		}
		one.Waiting = count(len(waiting))
		for _, r := range p.Failed { // such as a selector that fails on GPUs of another vendor
			say(r.Reason, r.Message)
		}
		out = append(out, one)
	}
	return out
}

func count(n int) int32 { return int32(min(n, 1<<31-1)) }
