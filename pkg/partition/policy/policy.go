// SPDX-License-Identifier: Apache-2.0

// Package policy decides which PartitionPolicy holds for each device of a node, and what it wants of the device.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// Node is a node and its whole devices, as discovery describes them undivided. All NVIDIA GPUs have to be among them, those that are
// withheld too, or mig-parted's numbers mean others.
type Node struct {
	Labels  map[string]string
	Devices []Device
}

// Device is a whole device.
type Device struct {
	device.Device
	// Model are the identifiers of its PCI function.
	Model migparted.Model
	// Former is the policy that held for the device before, empty if none did or it is not known.
	Former string
	// Foreign is the driver that the node's configuration leaves the device to. No policy changes it. Empty: it is Fettle's.
	Foreign string
}

// Result is what holds on a node.
type Result struct {
	// Settings are by the names of devices. A device is absent if no policy holds for it, or if the policy that does cannot be carried out.
	Settings map[string]partition.Settings
	// Holding is the name of the policy that holds for a device, by the device's name.
	Holding map[string]string
	// Policies say of each policy what became of it on the node, by name.
	Policies []Outcome
}

// OtherManager says whether a policy waits on a device because another program divides it.
func (r *Result) OtherManager(policy, device string) bool {
	return slices.ContainsFunc(r.Policies, func(o Outcome) bool {
		return o.Policy == policy && slices.ContainsFunc(o.Waits, func(w Reason) bool {
			return w.Device == device && w.Reason == ReasonOtherManager
		})
	})
}

// Outcome is what became of a policy on a node.
type Outcome struct {
	Policy     string
	Generation int64
	// Holds are the names of the devices that it holds for, sorted.
	Holds []string
	// Lost are the devices that it selects and another policy has, Waits those that it holds for and that stay as they are; both are sorted by
	// device.
	Lost, Waits []Reason
	// Failed says what is wrong with the policy or its selector on this node.
	Failed []Reason
}

// Reason is why a policy has no effect on a device. Device is empty where it is about all.
type Reason struct {
	Device, Reason, Message string
	// By is the policy that holds instead, if one does.
	By string
}

// The reasons.
const (
	// ReasonInvalid: the policy cannot be used as it is.
	ReasonInvalid = "InvalidPolicy"
	// ReasonOverruled: another policy holds for the device.
	ReasonOverruled = "Overruled"
	// ReasonOtherManager: the node's labels say that another program divides its devices.
	ReasonOtherManager = "OtherManager"
	// ReasonSelectorFailed: the device selector failed on the device.
	ReasonSelectorFailed = "SelectorFailed"
	// ReasonForeign: the node's configuration leaves the device to another driver.
	ReasonForeign = "LeftToAnotherDriver"
	// ReasonNoEntry: the configuration of mig-parted has no entry for the GPU.
	ReasonNoEntry = "NoEntry"
)

// Resolver decides for one node after the other. It keeps compiled selectors and parsed documents. The zero value is ready; it is not for
// use by several goroutines at once.
type Resolver struct {
	selectors selector.Compiled
	documents map[string]parsed
	// length is that of the documents' texts together.
	length int
}

type parsed struct {
	document *migparted.Document
	err      error
}

// maxLength limits the documents that a Resolver keeps. Policies are few, so more than this are from edited ones.
const maxLength = 1 << 20

// Check reports what is wrong with a policy, beyond what the API server finds: CEL that does not compile, and documents of mig-parted.
func (r *Resolver) Check(s *v1alpha1.PartitionPolicySpec, path *field.Path) field.ErrorList {
	faults := s.Validate(path)
	path = path.Child("devices")
	if selector := s.Devices.DeviceSelector; selector != nil {
		if err := r.selectors.Get(selector.CEL).Error; err != nil {
			faults = append(faults, field.Invalid(path.Child("deviceSelector", "cel"), selector.CEL, err.Error()))
		}
	}
	if s.Devices.NVIDIA == nil || s.Devices.NVIDIA.MIG.MigParted == nil {
		return faults
	}
	path = path.Child("nvidia", "mig", "migParted")
	m := s.Devices.NVIDIA.MIG.MigParted
	document, err := r.parse(m.Document)
	if err != nil {
		return append(faults, field.Invalid(path.Child("document"), field.OmitValueType{}, err.Error()))
	}
	if _, ok := document.Configs[m.Config]; !ok {
		faults = append(faults, field.NotSupported(path.Child("config"), m.Config, document.Names()))
	}
	return faults
}

// Resolve decides for the devices of a node. Of the policies that select a device, the one with the highest priority holds; of these the
// oldest; of these the first by name. A policy without devices is not asked. A policy that is not valid keeps its devices as they are, so
// that a mistake in it does not hand them to the next policy. If its selector is at fault, these are the devices that it held for before.
func (r *Resolver) Resolve(ctx context.Context, node Node, policies []v1alpha1.PartitionPolicy) Result {
	out := Result{Settings: map[string]partition.Settings{}, Holding: map[string]string{}}
	devices := slices.SortedFunc(slices.Values(node.Devices), func(a, b Device) int { return device.Compare(a.Device, b.Device) })
	indices := nvidiaIndices(devices)
	for _, p := range InOrder(policies) {
		if !p.Spec.DividesDevices() {
			continue // it is about nodes
		}
		c := candidate{Outcome: Outcome{Policy: p.Name, Generation: p.Generation}, spec: &p.Spec, labels: node.Labels}
		if faults := r.Check(&p.Spec, field.NewPath("spec")); len(faults) > 0 {
			c.fault = faults.ToAggregate().Error()
			c.Failed = append(c.Failed, Reason{Reason: ReasonInvalid, Message: c.fault})
		}
		selected, err := SelectsNode(p.Spec.NodeSelector, node.Labels)
		if err == nil && !selected {
			continue
		}
		c.blind = err != nil || !r.selectorCompiles(&p.Spec.Devices)
		for i := range devices {
			if !c.blind || devices[i].Former == p.Name {
				r.decide(ctx, &c, &devices[i], indices[devices[i].Name], &out)
			}
		}
		out.Policies = append(out.Policies, c.Outcome)
	}
	slices.SortFunc(out.Policies, func(a, b Outcome) int { return cmp.Compare(a.Policy, b.Policy) })
	return out
}

// candidate is a policy that selects the node.
type candidate struct {
	Outcome
	spec   *v1alpha1.PartitionPolicySpec
	labels map[string]string
	// fault is what is wrong with the policy.
	fault string
	// blind says that a selector of the policy is at fault, so that it selects what it held for before.
	blind bool
}

// decide asks a policy about one device, after those that come before it.
func (r *Resolver) decide(ctx context.Context, c *candidate, d *Device, index int, out *Result) {
	if !c.blind {
		ok, err := r.selects(ctx, &c.spec.Devices, &d.Device)
		if err != nil {
			c.Failed = append(c.Failed, Reason{Device: d.Name, Reason: ReasonSelectorFailed, Message: err.Error()})
		}
		if !ok {
			return
		}
	}
	if winner, taken := out.Holding[d.Name]; taken {
		c.Lost = append(c.Lost, Reason{
			Device: d.Name, Reason: ReasonOverruled, By: winner,
			Message: fmt.Sprintf("PartitionPolicy %s holds for the device: it has a higher priority, or is older", winner),
		})
		return
	}
	out.Holding[d.Name] = c.Policy
	c.Holds = append(c.Holds, d.Name)
	if d.Foreign != "" {
		c.Waits = append(c.Waits, Reason{Device: d.Name, Reason: ReasonForeign, Message: "the node's configuration leaves it to " + d.Foreign})
		return
	}
	settings, why := r.settings(c, d, index)
	if why != nil {
		c.Waits = append(c.Waits, *why)
		return
	}
	out.Settings[d.Name] = settings
}

func (r *Resolver) selectorCompiles(p *v1alpha1.PartitionDevices) bool {
	return p.DeviceSelector == nil || r.selectors.Get(p.DeviceSelector.CEL).Error == nil
}

// InOrder sorts policies so that the first that selects a device or node holds.
func InOrder(policies []v1alpha1.PartitionPolicy) []v1alpha1.PartitionPolicy {
	return slices.SortedFunc(slices.Values(policies), func(a, b v1alpha1.PartitionPolicy) int {
		return cmp.Or(cmp.Compare(b.Spec.Priority, a.Spec.Priority), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
}

// SelectsNode says whether a policy with this selector is for a node with these labels.
func SelectsNode(selector *metav1.LabelSelector, set map[string]string) (bool, error) {
	if selector == nil {
		return true, nil
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(set)), nil
}

// nvidiaIndices number the NVIDIA GPUs as mig-parted does, in the order of PCI addresses.
func nvidiaIndices(devices []Device) map[string]int {
	var addresses []pci.Address
	names := map[pci.Address]string{}
	for i := range devices {
		d := &devices[i].Device
		address, err := pci.Parse(device.StringOf(d.Attributes[device.AttributePCIAddress]))
		if err == nil && isGPU(d) && vendor(d) == vendorNVIDIA {
			addresses, names[address] = append(addresses, address), d.Name
		}
	}
	slices.SortFunc(addresses, pci.Address.Compare)
	indices := map[string]int{}
	for i, address := range addresses {
		indices[names[address]] = i
	}
	return indices
}

const (
	vendorNVIDIA = "nvidia"
	vendorAMD    = "amd"
)

func vendor(d *device.Device) string { return device.StringOf(d.Attributes[device.AttributeVendor]) }

// isGPU says whether a device is a whole GPU.
func isGPU(d *device.Device) bool {
	return d.Kind == device.KindGPU && device.StringOf(d.Attributes[device.AttributeType]) == string(device.KindGPU)
}

// selects says whether a policy is for a device.
func (r *Resolver) selects(ctx context.Context, p *v1alpha1.PartitionDevices, d *device.Device) (bool, error) {
	if !isGPU(d) || p.NVIDIA != nil && vendor(d) != vendorNVIDIA || p.AMD != nil && vendor(d) != vendorAMD {
		return false, nil
	}
	if p.DeviceSelector == nil {
		return true, nil
	}
	compiled := r.selectors.Get(p.DeviceSelector.CEL)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, cel.Device{Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity})
	if err != nil {
		return false, fmt.Errorf("CEL %q: %w", p.DeviceSelector.CEL, err)
	}
	return ok, nil
}

func (r *Resolver) parse(text string) (*migparted.Document, error) {
	if known, ok := r.documents[text]; ok {
		return known.document, known.err
	}
	document, err := migparted.Parse([]byte(text))
	if r.length += len(text); r.documents == nil || r.length > maxLength {
		r.documents, r.length = map[string]parsed{}, len(text)
	}
	r.documents[text] = parsed{document, err}
	return document, err
}

var errNoEntry = errors.New("has no entry for this GPU: it stays as it is")
