// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

const gib = 1 << 30

// sharedGPUs are the slices of a node with so many H100, as the plugin divides them for a policy with five shares of each.
func sharedGPUs(t *testing.T, name string, gpus int) []client.Object {
	t.Helper()
	settings := partition.Settings{Sharing: &partition.Sharing{
		MaxClaims: 5, Memory: &partition.SharedMemory{Default: 10 * gib, Min: 2 * gib, Max: 40 * gib, Step: 2 * gib},
	}}
	model := (&nvmlsim.Card{Model: nvmlsim.H100}).Kind()
	var devices []device.Device
	for i := range gpus {
		whole := device.Device{
			Kind: device.KindGPU, Name: fmt.Sprintf("nvidia-0000-%02x-00-0", 0x10*i+0x0b),
			Attributes: attributes(device.AttributeType, "gpu", device.AttributeVendor, "nvidia"),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				device.CapacityMemory: device.Bytes(int64(model.MemoryMiB) << 20),
			},
		}
		d := partition.Divide(partition.Physical{Device: whole}, settings, partition.Kept{Counters: true, Shares: true})
		if len(d.Reasons) > 0 {
			t.Fatalf("a GPU is not shared: %v", d.Reasons)
		}
		devices = append(devices, d.Devices...)
	}
	cut, err := partition.Slices(nil, devices, partition.FormSeparate)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for i, s := range cut {
		one := part(fmt.Sprintf("%s-%d", name, i), name, int64(len(cut)))
		for _, d := range s.Devices {
			one.Spec.Devices = append(one.Spec.Devices, d.Resource())
		}
		out = append(out, one)
	}
	return out
}

// churn has pods with random amounts of memory come and go.
type churn struct {
	*cluster
	scenario scenario
	random   *rand.Rand
	slices   []resourceapi.ResourceSlice
	// live are the pods by name, which are those of their claims.
	live []string
	made int
	// given are the claims that had a share at some time, waited the pods that found none, most the shares of the fullest GPU.
	given, waited map[string]bool
	most          int64
}

const liveClaims = 64

// playRandomShares has 64 claims with random amounts on 8 GPUs. Whatever the API server says meanwhile, no GPU is overcommitted. How many
// of a round's pods find a share before the next one depends on the scheduler's speed, so rounds go on until the test has seen enough.
func (c *cluster) playRandomShares(t *testing.T) {
	const seed, leastRounds, mostRounds = 2105075, 8, 40
	t.Logf("seed %d", seed)
	s := scenario{name: "random shares", objects: cat(node("a"), sharedGPUs(t, "a", 8), class("gpu"))}.placed()
	defer c.clear(t, s)
	c.arrange(t, s)
	ch := &churn{cluster: c, scenario: s, random: rand.New(rand.NewPCG(seed, 0)), given: map[string]bool{}, waited: map[string]bool{}}
	var list resourceapi.ResourceSliceList
	if err := c.client.List(t.Context(), &list, client.HasLabels{scenarioLabel}); err != nil {
		t.Fatal(err)
	}
	ch.slices = list.Items
	round := 0
	for ; round < leastRounds || round < mostRounds && !ch.enough(); round++ {
		for len(ch.live) < liveClaims {
			ch.come(t)
		}
		ch.settled(t)
		ch.someGo(t)
	}
	t.Logf("%d rounds, %d claims, %d with a share, %d pods waited, at most %d shares of a GPU",
		round, ch.made, len(ch.given), len(ch.waited), ch.most)
	if !ch.enough() {
		t.Error("want many more claims with shares than there are at once, many that wait, and a GPU with all of its shares given")
	}
}

// enough says whether the GPUs were full, and given to others since.
func (ch *churn) enough() bool {
	return len(ch.given) >= 2*liveClaims && len(ch.waited) >= liveClaims/4 && ch.most == 5
}

// come adds a claim and its pod. Amounts are no steps of the policy; some claims name none.
func (ch *churn) come(t *testing.T) {
	t.Helper()
	ch.made++
	name := fmt.Sprintf("p%03d", ch.made)
	asked := exactly("r", 1)
	if ch.random.IntN(8) > 0 {
		asked = needing("memory", fmt.Sprintf("%dMi", 1+ch.random.IntN(40<<10)), asked)
	}
	for _, o := range with(claim(name, asked)) {
		o.SetNamespace(ch.scenario.namespace())
		ch.write(t, o)
	}
	ch.live = append(ch.live, name)
}

// settled waits until each pod has a node or the scheduler said that it waits, and judges all that it sees meanwhile.
func (ch *churn) settled(t *testing.T) {
	t.Helper()
	poll(t, 4*patience, func() string {
		ch.judge(t)
		var pods corev1.PodList
		if err := ch.client.List(t.Context(), &pods, client.InNamespace(ch.scenario.namespace())); err != nil {
			t.Fatal(err)
		}
		open := 0
		for i := range pods.Items {
			p := &pods.Items[i]
			said := false
			for _, condition := range p.Status.Conditions {
				said = said || condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse
			}
			switch {
			case p.Spec.NodeName != "":
			case said:
				ch.waited[p.Name] = true
			default:
				open++
			}
		}
		if open > 0 {
			return fmt.Sprintf("%d pods have not settled", open)
		}
		return ""
	})
	ch.judge(t)
}

// judge looks at all claims at one moment.
func (ch *churn) judge(t *testing.T) {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	if err := ch.client.List(t.Context(), &claims, client.InNamespace(ch.scenario.namespace())); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range overcommitted(ch.slices, claims.Items) {
		t.Fatal(wrong)
	}
	shares := map[string]int64{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		ch.given[claim.Name] = true
		for _, r := range claim.Status.Allocation.Devices.Results {
			shares[r.Device]++
			ch.most = max(ch.most, shares[r.Device])
		}
	}
}

// someGo removes a third of the pods with their claims. Kubernetes' controller gives the devices back.
func (ch *churn) someGo(t *testing.T) {
	t.Helper()
	gone := map[string]bool{}
	var stay []string
	for _, name := range ch.live {
		if ch.random.IntN(3) > 0 {
			stay = append(stay, name)
			continue
		}
		gone[name] = true
		for _, o := range with(claim(name, exactly("r", 1))) {
			o.SetNamespace(ch.scenario.namespace())
			if _, ok := o.(*corev1.Pod); ok {
				ch.removed(t, ch.client.Delete(t.Context(), o, client.GracePeriodSeconds(0)))
				continue
			}
			ch.removed(t, ch.client.Delete(t.Context(), o))
		}
	}
	ch.live = stay
	poll(t, 4*patience, func() string {
		ch.judge(t)
		var claims resourceapi.ResourceClaimList
		if err := ch.client.List(t.Context(), &claims, client.InNamespace(ch.scenario.namespace())); err != nil {
			t.Fatal(err)
		}
		left := 0
		for i := range claims.Items {
			if gone[claims.Items[i].Name] {
				left++
			}
		}
		if left > 0 {
			return fmt.Sprintf("%d claims of pods that are gone are left", left)
		}
		return ""
	})
}
