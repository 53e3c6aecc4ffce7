// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const gib = 1 << 30

// sharing is a policy with shares of 10 GiB, or 2 GiB and steps of 2 up to 40.
func sharing(claims int) partition.Settings {
	return partition.Settings{Sharing: &partition.Sharing{MaxClaims: claims, Memory: &partition.SharedMemory{
		Default: 10 * gib, Min: 2 * gib, Max: 40 * gib, Step: 2 * gib,
	}}}
}

func shares(kept bool) partition.Kept { return partition.Kept{Counters: true, Shares: kept} }

// capacities writes what claims may have of a device: "memory 10Gi of 80Gi in 2Gi..40Gi/2Gi".
func capacities(d device.Device) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		c := d.Capacity[name]
		text := string(name) + " " + c.Value.String()
		if p := c.RequestPolicy; p != nil {
			text += " by " + p.Default.String()
			for _, v := range p.ValidValues {
				text += " " + v.String()
			}
			if r := p.ValidRange; r != nil {
				text += fmt.Sprintf(" %s..%s/%s", written(r.Min), written(r.Max), written(r.Step))
			}
		}
		out = append(out, text)
	}
	return out
}

func written(q *resource.Quantity) string {
	if q == nil {
		return ""
	}
	return q.String()
}

// TestShare: whole GPUs and static instances are shared, where the API server and the scheduler can do it, in the form in which claims have
// them.
func TestShare(t *testing.T) {
	layout := static(partition.Instances{Profile: "3g.40gb", Count: 2})
	layout.Sharing = sharing(3).Sharing
	instances := h100().mig(true)
	const second = gpu0 + "-mig-3g-40gb-s4"
	instances.Instances = []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1"), instance(2, 9, 0, 4, "MIG-2")}
	through := sharing(2)
	through.Passthrough = true
	without := partition.Settings{Sharing: &partition.Sharing{MaxClaims: 4}}
	tooMuch := partition.Settings{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{Default: 100 * gib}}}
	values := partition.Settings{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{
		Default: 20 * gib, Values: []int64{20 * gib, 40 * gib, 100 * gib},
	}}}
	ofAll := partition.Settings{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{
		Default: 79 * gib, Min: 79 * gib, Step: 2 * gib,
	}}}
	byRange := []string{"memory 81559Mi by 10Gi 2Gi..40Gi/2Gi", "multiprocessors 132 by 0 0", "shares 4 by 1 1"}
	alone := []string{"memory 81559Mi", "multiprocessors 132"}
	for name, tc := range map[string]struct {
		settings partition.Settings
		kept     partition.Kept
		p        partition.Physical
		device   string
		shared   bool
		want     []string
		reasons  []string
		card     bool
		settling []string
	}{
		"range": {settings: sharing(4), kept: shares(true), shared: true, want: byRange},
		"values": {settings: values, kept: shares(true), shared: true, want: []string{
			"memory 81559Mi by 20Gi 20Gi 40Gi", "multiprocessors 132 by 0 0", "shares 2 by 1 1",
		}},
		"no room for a step": {settings: ofAll, kept: shares(true), shared: true, want: []string{
			"memory 81559Mi by 79Gi 79Gi", "multiprocessors 132 by 0 0", "shares 2 by 1 1",
		}},
		"without memory": {settings: without, kept: shares(true), shared: true, want: []string{
			"memory 81559Mi by 0 0", "multiprocessors 132 by 0 0", "shares 4 by 1 1",
		}},
		"more than there is": {settings: tooMuch, kept: shares(true), want: alone, reasons: []string{"SharingImpossible 0"}},
		"fields dropped":     {settings: sharing(4), kept: shares(false), want: alone, reasons: []string{"NoShares 0"}},
		"beside counters before 1.37": {
			settings: through, kept: shares(true), p: partition.Physical{IOMMU: true}, card: true, want: alone,
			reasons: []string{"NoShares 0"},
		},
		"beside counters": {
			settings: through, kept: partition.Kept{Counters: true, Shares: true, Both: true},
			p: partition.Physical{IOMMU: true}, card: true, shared: true, want: []string{
				byRange[0], byRange[1], "shares 2 by 1 1",
			},
		},
		"static instance before 1.37": {
			settings: layout, kept: shares(true), p: partition.Physical{MIG: instances}, device: second, shared: true,
			want: []string{"memory 40448Mi by 10Gi 2Gi../2Gi", "multiprocessors 60 by 0 0", "shares 3 by 1 1"},
		},
		"held by one": {
			settings: sharing(4), kept: shares(true), p: partition.Physical{Held: map[string]bool{gpu0: true}}, want: alone,
			reasons: []string{"SharingPending 0"}, settling: []string{gpu0},
		},
		"held in shares": {
			settings: sharing(4), kept: shares(true), shared: true, want: byRange,
			p: partition.Physical{Held: map[string]bool{gpu0: true}, Shares: map[string]bool{gpu0: true}},
		},
		"held in shares and the fields dropped": {
			settings: sharing(4), kept: shares(false), shared: true, want: byRange,
			p: partition.Physical{Held: map[string]bool{gpu0: true}, Shares: map[string]bool{gpu0: true}},
		},
		"held in shares without a policy": {
			kept: shares(true), shared: true,
			p:    partition.Physical{Held: map[string]bool{gpu0: true}, Shares: map[string]bool{gpu0: true}},
			want: []string{"memory 81559Mi by 81559Mi 81559Mi", "multiprocessors 132 by 0 0", "shares 1 by 1 1"}, settling: []string{gpu0},
		},
		"held in shares and to be for virtual machines": {
			settings: partition.Settings{Passthrough: true}, kept: shares(true), shared: true,
			p:    partition.Physical{IOMMU: true, Held: map[string]bool{gpu0: true}, Shares: map[string]bool{gpu0: true}},
			want: []string{"memory 81559Mi by 81559Mi 81559Mi", "multiprocessors 132 by 0 0", "shares 1 by 1 1"}, settling: []string{gpu0},
			reasons: []string{"NoCounters 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.p.Device = h100().whole(t, 0)
			d := partition.Divide(tc.p, tc.settings, tc.kept)
			valid(t, d)
			if tc.device == "" {
				tc.device = gpu0
			}
			i := slices.IndexFunc(d.Devices, func(d device.Device) bool { return d.Name == tc.device })
			if i < 0 {
				t.Fatalf("%s is not published, but %v; %v", tc.device, names(d.Devices), d.Reasons)
			}
			got := d.Devices[i]
			if diff := cmp.Diff(tc.want, capacities(got)); diff != "" {
				t.Errorf("capacity (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.reasons, reasons(d)); diff != "" {
				t.Errorf("reasons (-want +got):\n%s\n%v", diff, d.Reasons)
			}
			if got.Shared != tc.shared || (d.Card != nil) != tc.card || !cmp.Equal(tc.settling, d.Settling) {
				t.Errorf("shared %t, card %v, settling %v", got.Shared, d.Card, d.Settling)
			}
		})
	}
}

// cluster is the scheduler's allocator over the slices of one node, with claims as the API server would have them.
type cluster struct {
	slices []*resourceapi.ResourceSlice
	claims map[string]*resourceapi.ResourceClaim
	cache  *cel.Cache
	next   int
}

// state is what the scheduler makes of the claims: devices that one has, and the sums of what shares take.
func (c *cluster) state() structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range c.claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				out.AllocatedDevices.Insert(id)
				continue
			}
			out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	return out
}

// claim allocates one device, with an amount of memory unless it is empty. It returns the claim's name, empty if there is no device.
func (c *cluster) claim(t testing.TB, memory string) string {
	t.Helper()
	c.next++
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", c.next), Namespace: "default"}}
	request := &resourceapi.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: objects.Selectors(typed("gpu")),
	}
	if memory != "" {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			device.CapacityMemory: resource.MustParse(memory),
		}}
	}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}
	gates := structured.Features{PartitionableDevices: true, ConsumableCapacity: true}
	allocator, err := structured.NewAllocator(t.Context(), gates, c.state(), noClasses{}, c.slices, c.cache)
	check.Must(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}
	results, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
	check.Must(t, err)
	if len(results) == 0 {
		return ""
	}
	claim.Status.Allocation = &results[0]
	c.claims[claim.Name] = claim
	return claim.Name
}

// check holds the allocations against the slices, with nothing but the API's own fields: no card's memory or number of shares is exceeded,
// and no device is one claim's alone and another's too. It returns how many claims share the fullest device.
func (c *cluster) check(t testing.TB) (most int64) {
	t.Helper()
	memory, number, whole := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for _, claim := range c.claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.ShareID == nil {
				whole[r.Device]++
				continue
			}
			granted := r.ConsumedCapacity["memory"]
			if granted.Sign() <= 0 {
				t.Errorf("%s has a share of %s without memory", claim.Name, r.Device)
			}
			memory[r.Device] += granted.Value()
			number[r.Device]++
		}
	}
	for _, s := range c.slices {
		for _, d := range s.Spec.Devices {
			has, limit := d.Capacity["memory"].Value, d.Capacity["shares"].Value
			if memory[d.Name] > has.Value() || number[d.Name] > limit.Value() || number[d.Name] > 0 && whole[d.Name] > 0 || whole[d.Name] > 1 {
				t.Fatalf("%s with %s: %d shares have %d bytes, and %d claims have it whole", d.Name, has.String(), number[d.Name], memory[d.Name],
					whole[d.Name])
			}
			most = max(most, number[d.Name])
		}
	}
	return most
}

func newCluster(t testing.TB, settings partition.Settings, cards int) *cluster {
	t.Helper()
	var devices []device.Device
	for i := range cards {
		d := partition.Divide(partition.Physical{Device: h100().whole(t, i)}, settings, shares(true))
		devices = append(devices, d.Devices...)
	}
	return &cluster{
		slices: resourceSlices(t, nil, devices, partition.FormSeparate), claims: map[string]*resourceapi.ResourceClaim{},
		cache: cel.NewCache(32, cel.Features{}),
	}
}

// TestRandomShares: 64 claims with random amounts come and go over 8 GPUs. The sum of what is granted never exceeds a card.
func TestRandomShares(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 5075))
	amounts := []string{"", "1Gi", "3Gi", "8Gi", "17Gi", "25Gi", "40Gi"}
	c := newCluster(t, sharing(5), 8)
	given, refused, most := 0, 0, int64(0)
	for range 40 {
		var new []string
		for len(c.claims) < 64 && len(new) < 24 {
			name := c.claim(t, amounts[random.IntN(len(amounts))])
			new = append(new, name)
			if name == "" {
				refused++
				continue
			}
			given++
			most = max(most, c.check(t))
		}
		for _, name := range slices.Sorted(maps.Keys(c.claims)) {
			if random.IntN(100) < 30 {
				delete(c.claims, name)
			}
		}
	}
	if given < 200 || refused < 20 || most != 5 {
		t.Errorf("%d given, %d refused, at most %d share a device: want many of both, and 5", given, refused, most)
	}
	t.Logf("%d given, %d refused", given, refused)
}

// TestSharesOneByOne: the scheduler counts claims and memory, rounds amounts up, and refuses what the policy does not have.
func TestSharesOneByOne(t *testing.T) {
	c := newCluster(t, sharing(3), 1)
	granted := func(name string) string {
		q := c.claims[name].Status.Allocation.Devices.Results[0].ConsumedCapacity[device.CapacityMemory]
		return q.String()
	}
	for memory, want := range map[string]string{"": "10Gi", "1Gi": "2Gi", "5Gi": "6Gi"} {
		name := c.claim(t, memory)
		if name == "" {
			t.Fatalf("no share for %q", memory)
		}
		if got := granted(name); got != want {
			t.Errorf("%q is granted %s, want %s", memory, got, want)
		}
	}
	if name := c.claim(t, "2Gi"); name != "" {
		t.Error("a fourth claim has a share of three")
	}
	if name := newCluster(t, sharing(3), 1).claim(t, "41Gi"); name != "" {
		t.Error("a claim has more than the policy's max")
	}
	without := newCluster(t, partition.Settings{Sharing: &partition.Sharing{MaxClaims: 2}}, 1)
	if name := without.claim(t, "1Gi"); name != "" {
		t.Error("a claim is granted memory that is not counted")
	}
	for i, want := range []bool{true, true, false} {
		if got := without.claim(t, "") != ""; got != want {
			t.Errorf("claim %d without memory: %t", i, got)
		}
	}
}

// TestClosedShares: a device whose shares are not wanted any more gets no further claim, and is one claim's alone once all are gone.
func TestClosedShares(t *testing.T) {
	c := newCluster(t, sharing(4), 1)
	first, second := c.claim(t, "2Gi"), c.claim(t, "2Gi")
	held := map[string]bool{gpu0: true}
	closing := partition.Divide(partition.Physical{Device: h100().whole(t, 0), Held: held, Shares: held}, partition.Settings{}, shares(true))
	c.slices = resourceSlices(t, nil, closing.Devices, partition.FormSeparate)
	for _, gone := range []string{first, second} {
		if name := c.claim(t, ""); name != "" {
			t.Errorf("%s has a share of a device that is to be one claim's alone", name)
		}
		delete(c.claims, gone)
	}
}
