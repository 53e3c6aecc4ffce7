// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package partitions_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

const shared = "  devices: {sharing: {maxClaims: 4, memory: {default: 10Gi, range: {min: 2Gi, step: 2Gi}}}}"

// sharesOf is how many shares a GPU has, 0 if one claim has it.
func sharesOf(s *inventory.Snapshot, name string) int64 {
	d, _ := s.Find(device.KindGPU, name)
	if shares, ok := d.Capacity[device.CapacityShares]; ok && d.Shared {
		return shares.Value.Value()
	}
	return 0
}

func withShares(name string, n int64) func(*inventory.Snapshot) bool {
	return func(s *inventory.Snapshot) bool { return sharesOf(s, name) == n }
}

// take records that a claim has a GPU for itself, or a share of it.
func (p *process) take(uid, name, share string, memory int64) *record.Record {
	p.node.t.Helper()
	r := &record.Record{
		UID: uid, Namespace: "team-a", Name: uid, BootID: p.node.boot, Phase: record.Prepared,
		Devices: []record.Device{{
			Request: "r", Pool: device.PoolName(nodefixture.Node, device.KindGPU), Name: name, ShareID: share, Effect: "same", Memory: memory,
		}},
	}
	if share == "" {
		r.Devices[0].Effect = ""
	}
	check.Must(p.node.t, p.node.records.Create(r))
	check.Must(p.node.t, p.node.records.Acquire(r))
	p.review.Send()
	return r
}

// TestSharing: GPUs are shared once no claim has them for itself, and are one claim's alone again once no claim has a share. Meanwhile they
// stay as claims have them, over a restart too.
func TestSharing(t *testing.T) {
	n := start(t, false)
	p := n.process()
	p.until("the GPUs", has(gpu))
	own := p.take("uid-own", gpu, "", 0)
	n.policy("shares", shared)
	const other = "nvidia-0000-19-00-0"
	s := p.until("shares of another GPU", withShares(other, 4))
	if sharesOf(s, gpu) != 0 || !p.Settling(gpu) || p.Settling(other) {
		t.Errorf("a GPU that a claim has for itself: %d shares, settling %t", sharesOf(s, gpu), p.Settling(gpu))
	}
	if p := s.PartitionPolicies; len(p) != 1 || p[0].Reason != partition.ReasonSharingPending || p[0].Waiting != 1 {
		t.Errorf("policies %+v", p)
	}
	p.release(own)
	p.until("shares", withShares(gpu, 4))
	first, second := p.take("uid-1", gpu, "share-1", 10<<30), p.take("uid-2", gpu, "share-2", 6<<30)
	const want = `
# HELP fettle_device_granted_memory_bytes Memory of a device that was granted to claims.
# TYPE fettle_device_granted_memory_bytes gauge
fettle_device_granted_memory_bytes{device="nvidia-0000-18-00-0"} 1.7179869184e+10
# HELP fettle_device_shares_held Shares of a device that claims have.
# TYPE fettle_device_shares_held gauge
fettle_device_shares_held{device="nvidia-0000-18-00-0"} 2
`
	n.policy("shares", "  devices: {deviceSelector: {cel: 'device.attributes[\"fettle.dev\"].pciAddress == \"0000:18:00.0\"'}, "+
		"sharing: {maxClaims: 5, memory: {default: 4Gi}}}")
	p.until("other shares, of one GPU only", func(s *inventory.Snapshot) bool { return sharesOf(s, gpu) == 5 && sharesOf(s, other) == 0 })
	if err := testutil.GatherAndCompare(p.registry, strings.NewReader(want), "fettle_device_granted_memory_bytes",
		"fettle_device_shares_held"); err != nil {
		t.Error(err)
	}
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "shares", metav1.DeleteOptions{}))
	p.until("a GPU without shares for further claims", withShares(gpu, 1))
	p.end()
	p = n.process()
	if s := p.until("the same after a restart", withShares(gpu, 1)); !p.Settling(gpu) {
		t.Errorf("after a restart: %d shares, not settling", sharesOf(s, gpu))
	}
	p.release(first)
	p.release(second)
	p.until("the GPU as it was", func(s *inventory.Snapshot) bool { return has(gpu)(s) && sharesOf(s, gpu) == 0 && len(s.Problems) == 0 })
}

// TestSharesDropped: an API server that drops what makes a device one of several claims gets GPUs for one claim each; the node says why.
func TestSharesDropped(t *testing.T) {
	n := start(t, true)
	n.kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		slice := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			d.AllowMultipleAllocations = nil
			for name, capacity := range d.Capacity {
				capacity.RequestPolicy = nil
				d.Capacity[name] = capacity
			}
		}
		return true, slice, nil
	})
	n.policy("shares", shared)
	s := n.process().until("a decision", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 1 })
	if sharesOf(s, gpu) != 0 || !has(gpu)(s) {
		t.Errorf("%d shares are published", sharesOf(s, gpu))
	}
	if !slices.ContainsFunc(s.Problems, func(p discover.Problem) bool { return p.Reason == partition.ReasonNoShares }) {
		t.Errorf("problems %v", s.Problems)
	}
	if diff := cmp.Diff(partition.ReasonNoShares, s.PartitionPolicies[0].Reason); diff != "" {
		t.Errorf("reason (-want +got):\n%s", diff)
	}
}

// TestStrategies: a policy that only lists strategies changes nothing of what is published. They hold as long as the policy does.
func TestStrategies(t *testing.T) {
	n := start(t, false)
	p := n.process()
	before := names(p.until("the GPUs", has(gpu)), "")
	n.policy("turns", "  devices: {deviceSelector: {cel: 'device.attributes[\"fettle.dev\"].pciAddress == \"0000:18:00.0\"'}, "+
		"sharing: {strategies: [TimeSlicing]}}")
	s := p.until("the policy", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 1 })
	if diff := cmp.Diff(before, names(s, "")); diff != "" || sharesOf(s, gpu) != 0 {
		t.Errorf("%d shares, devices (-before +now):\n%s", sharesOf(s, gpu), diff)
	}
	allowed := func(name string) string {
		strategies, interval := p.Allowed(name)
		return strings.Join(strategies, " ") + " " + interval
	}
	if got := allowed(gpu); got != "TimeSlicing " {
		t.Errorf("allowed: %s", got)
	}
	if other := allowed("nvidia-0000-19-00-0"); other != " " {
		t.Errorf("allowed on another GPU: %v", other)
	}
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "turns", metav1.DeleteOptions{}))
	p.until("no policy", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 0 })
	if got := allowed(gpu); got != " " {
		t.Errorf("allowed without a policy: %v", got)
	}
}

// TestFormerLayoutShared: two claims have shares of an instance of a layout that the policy does not want any more. One of them is prepared
// then. It makes nothing and ends without destroying what the other has, nor does it if its record is lost. After the last the node
// destroys the instance.
func TestFormerLayoutShared(t *testing.T) {
	n := start(t, false)
	n.policy("layout", fmt.Sprintf(layout, "", "3g.40gb", ", sharing: {maxClaims: 4}"))
	p := n.process()
	instance := gpu + "-mig-3g-40gb-s0"
	p.until("shares", withShares(instance, 4))
	first, second := p.take("uid-1", instance, "share-1", 0), p.take("uid-2", instance, "share-2", 0)
	n.policy("layout", fmt.Sprintf(layout, "", "7g.80gb", ", sharing: {maxClaims: 4}"))
	p.until("no share for further claims", withShares(instance, 1))
	if steps := p.steps("uid-2", instance); len(steps) > 0 {
		t.Errorf("the second claim has the steps %v", steps)
	}
	d := device.Device{Kind: device.KindGPU, Name: instance}
	if steps, err := p.Leftovers(t.Context(), "uid-2", d); err != nil || len(steps) > 0 {
		t.Errorf("left over: %v, %v", steps, err)
	}
	if edits, err := p.Made(instance); err != nil || len(edits.Nodes) != 3 {
		t.Errorf("a container gets %+v, %v", edits, err)
	}
	p.release(second)
	same(t, "instances while the first has its share", []string{"9@0"}, n.occupied())
	p.release(first)
	p.until("the other layout", has(gpu+"-mig-7g-80gb-s0"))
	same(t, "instances", []string{"0@0"}, n.occupied())
}

// TestLayoutAfterReboot: claims that had instances of a layout get them again after a reboot, which ended the instances and MIG mode,
// although they hold them meanwhile. The end of one claim leaves another its share.
func TestLayoutAfterReboot(t *testing.T) {
	for name, shares := range map[string]string{"one claim": "", "two claims": ", sharing: {maxClaims: 4}"} {
		t.Run(name, func(t *testing.T) {
			n := start(t, false)
			n.policy("layout", fmt.Sprintf(layout, "", "3g.40gb", shares))
			p := n.process()
			instance := gpu + "-mig-3g-40gb-s0"
			p.until("the layout", has(instance))
			claims := map[string]string{"uid-1": ""}
			if shares != "" {
				claims = map[string]string{"uid-1": "share-1", "uid-2": "share-2"}
			}
			for uid, share := range claims {
				p.take(uid, instance, share, 0)
			}
			p.end()
			check.Must(t, n.machine.Reboot())
			n.boot = "boot-2"
			p = n.process()
			p.until("what is held", has(instance))
			for uid := range claims { // a step of one claim would end with it, and without the instance nobody knows its UUID
				if steps := p.steps(uid, instance); len(steps) > 0 {
					t.Errorf("claim %s has the steps %v", uid, steps)
				}
			}
			p.until("the instance", func(s *inventory.Snapshot) bool {
				d, _ := s.Find(device.KindGPU, instance)
				return device.StringOf(d.Attributes[device.AttributeUUID]) != ""
			})
			check.Eventually(t, "the nodes of the instance", func() bool {
				edits, err := p.Made(instance)
				return err == nil && len(edits.Nodes) == 3
			})
			same(t, "instances", []string{"9@0"}, n.occupied())
		})
	}
}
