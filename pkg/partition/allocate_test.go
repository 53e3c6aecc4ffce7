// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// scheduler is the scheduler's own allocator over one node's slices.
type scheduler struct {
	slices    []*resourceapi.ResourceSlice
	devices   map[string]device.Device
	parts     map[string]partition.Part
	allocated sets.Set[structured.DeviceID]
	cache     *cel.Cache
}

// newScheduler publishes in the newer of the forms: this allocator takes a pool of the older one for a broken one, as it says itself. The
// two differ only in which slice has what.
func newScheduler(t testing.TB, divisions ...partition.Division) *scheduler {
	t.Helper()
	s := &scheduler{
		devices: map[string]device.Device{}, parts: map[string]partition.Part{}, allocated: sets.New[structured.DeviceID](),
		cache: cel.NewCache(32, cel.Features{}),
	}
	var cards []device.Card
	var devices []device.Device
	for _, d := range divisions {
		cards, devices = append(cards, *d.Card), append(devices, d.Devices...)
		for name, part := range d.Parts {
			s.parts[name] = part
		}
	}
	for i, d := range devices {
		s.devices[d.Name] = d
		// So that a test can ask for one of them.
		devices[i].Attributes = maps.Clone(d.Attributes)
		devices[i].Attributes["testName"] = text(t, d.Name)
	}
	s.slices = resourceSlices(t, cards, devices, partition.FormSeparate)
	return s
}

type noClasses struct{}

func (noClasses) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (noClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// allocate gives the name of the device that a claim gets, empty if there is none.
func (s *scheduler) allocate(t testing.TB, selector string) string {
	t.Helper()
	got := s.allocatePod(t, selector)
	if len(got) == 0 {
		return ""
	}
	return got[0]
}

// allocatePod gives the names of the devices that the claims of one pod get, each for one device: all of them or none.
func (s *scheduler) allocatePod(t testing.TB, selectors ...string) []string {
	t.Helper()
	var claims []*resourceapi.ResourceClaim
	for i, selector := range selectors {
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), Namespace: "default"},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
					Selectors: objects.Selectors(selector),
				},
			}}}},
		})
	}
	allocator, err := structured.NewAllocator(t.Context(), structured.Features{PartitionableDevices: true},
		structured.AllocatedState{AllocatedDevices: s.allocated}, noClasses{}, s.slices, s.cache)
	check.Must(t, err)
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}, claims)
	check.Must(t, err)
	var got []string
	for _, result := range results {
		r := result.Devices.Results[0]
		s.allocated.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		got = append(got, r.Device)
	}
	return got
}

func (s *scheduler) free(name string) {
	s.allocated.Delete(structured.MakeDeviceID(testDriver, testPool, name))
}

func typed(kind string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].type == %q`, kind)
}

func exactly(name string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].testName == %q`, name)
}

func profiled(slices string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].?profile.orValue("").startsWith(%q)`, slices+"g.")
}

// share is what a device has of its card: memory slices, all of them for the whole, or one of several virtual functions or partitions.
type share struct {
	all      bool
	slice    map[uint32]bool
	numbered bool
}

func (s *scheduler) share(name string) (card string, of share) {
	part, ok := s.parts[name]
	if !ok {
		return name, share{all: true}
	}
	switch part.Type {
	case device.TypeVFIO:
		return part.Parent, share{all: true}
	case device.TypeVF, device.TypePartition:
		return part.Parent, share{numbered: true}
	}
	taken := map[uint32]bool{}
	for i := part.Placement.Start; i < part.Placement.Start+part.Placement.Size; i++ {
		taken[i] = true
	}
	return part.Parent, share{slice: taken}
}

// check wants that no two claims have the same part of a card.
func (s *scheduler) check(t *testing.T, held []string) {
	t.Helper()
	for i, a := range held {
		for _, b := range held[:i] {
			if s.overlap(a, b) {
				t.Fatalf("%s and %s are both allocated", a, b)
			}
		}
	}
}

// overlap says whether two devices have the same part of a card.
func (s *scheduler) overlap(a, b string) bool {
	cardA, shareA := s.share(a)
	cardB, shareB := s.share(b)
	if cardA != cardB {
		return false
	}
	overlap := a == b || shareA.all || shareB.all
	for slice := range shareA.slice {
		overlap = overlap || shareB.slice[slice]
	}
	return overlap
}

// TestRandomClaims: whatever claims come and go, no two have the same memory slice. What is refused would indeed have overlapped: there is
// no free place for it on any card.
func TestRandomClaims(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 4815))
	selectors := map[string]string{
		"1g": profiled("1"), "3g": profiled("3"), "whole": typed("gpu"), "vf": typed("vf"), "vfio": typed("vfio"), "2g": profiled("2"),
	}
	kinds := []string{"1g", "1g", "1g", "1g", "2g", "3g", "3g", "vf", "vf", "vfio", "whole"}
	through := dynamic("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb")
	through.Passthrough = true
	given, refused := map[string]int{}, map[string]int{}
	for _, cards := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprintf("%d cards", cards), func(t *testing.T) {
			var divisions []partition.Division
			for i := range cards {
				p := partition.Physical{Device: h100().whole(t, i), MIG: h100().mig(true), IOMMU: true}
				divisions = append(divisions, partition.Divide(p, through, gateOn()))
			}
			intel := other(t, "intel")
			intel.Name = "intel-0000-f0-00-0"
			both := sriov(3)
			both.Passthrough = true
			divisions = append(divisions, partition.Divide(partition.Physical{Device: intel, Functions: vfs(t, 7, 3), IOMMU: true}, both, gateOn()))
			s := newScheduler(t, divisions...)
			var held []string
			for range 150 {
				if len(held) > 0 && random.IntN(100) < 45 {
					i := random.IntN(len(held))
					s.free(held[i])
					held = slices.Delete(held, i, i+1)
					continue
				}
				kind := kinds[random.IntN(len(kinds))]
				name := s.allocate(t, selectors[kind])
				if name == "" {
					refused[kind]++
					s.checkRefused(t, kind, held)
					continue
				}
				given[kind]++
				held = append(held, name)
				s.check(t, held)
			}
		})
	}
	t.Logf("given %v, refused %v", given, refused)
	for _, kind := range kinds {
		if given[kind] == 0 || refused[kind] == 0 {
			t.Errorf("%s: given %d times, refused %d times: want both", kind, given[kind], refused[kind])
		}
	}
}

// checkRefused wants that no device of a kind could have been given.
func (s *scheduler) checkRefused(t *testing.T, kind string, held []string) {
	t.Helper()
	for name := range s.devices {
		part, isPart := s.parts[name]
		matches := isPart && (part.Type == kind || strings.HasPrefix(part.Profile, kind+".")) || !isPart && kind == "whole"
		if !matches {
			continue
		}
		card, want := s.share(name)
		free := true
		for _, h := range held {
			other, has := s.share(h)
			if other != card {
				continue
			}
			free = free && !want.all && !has.all && h != name
			for slice := range want.slice {
				free = free && !has.slice[slice]
			}
		}
		if free {
			t.Errorf("%s was refused although %s is free beside %v", kind, name, held)
		}
	}
}

// TestOneWinner: of the forms of one card the first claim gets its own, and the others wait until it is gone. Instances keep out whole and
// VFIO, virtual functions too; whole and VFIO keep out everything.
func TestOneWinner(t *testing.T) {
	through := dynamic("3g.40gb")
	through.Passthrough = true
	functions := sriov(2)
	functions.Passthrough = true
	for name, tc := range map[string]struct {
		division partition.Division
		forms    map[string]string
	}{
		"instances": {
			partition.Divide(partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false), IOMMU: true}, through, gateOn()),
			map[string]string{"whole": typed("gpu"), "mig": typed("mig"), "vfio": typed("vfio")},
		},
		"functions": {
			partition.Divide(partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 7, 2), IOMMU: true}, functions, gateOn()),
			map[string]string{"whole": typed("gpu"), "vf": typed("vf"), "vfio": typed("vfio")},
		},
		"partitions": {
			partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: modes("SPX", "NPS1"), IOMMU: true},
				partition.Settings{AMD: &partition.AMD{Compute: "DPX"}, Passthrough: true}, gateOn()),

			map[string]string{"whole": typed("gpu"), "partition": typed("partition"), "vfio": typed("vfio")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			orders := 0
			for _, order := range permutations(sets.List(sets.KeySet(tc.forms))) {
				orders++
				s := newScheduler(t, tc.division)
				winner := s.allocate(t, tc.forms[order[0]])
				if winner == "" {
					t.Fatalf("%s gets nothing of an empty card", order[0])
				}
				for _, loser := range order[1:] {
					if got := s.allocate(t, tc.forms[loser]); got != "" {
						t.Errorf("%v: %s is given beside %s", order, got, winner)
					}
				}
				s.free(winner)
				if got := s.allocate(t, tc.forms[order[2]]); got == "" {
					t.Errorf("%v: %s waits although %s is gone", order, order[2], winner)
				}
			}
			if orders != 6 {
				t.Errorf("%d orders, want 6", orders)
			}
		})
	}
}

// TestEveryPair: of any two devices of a card, in either order and also as two claims of one pod, both are given exactly if they have
// nothing in common: neither a memory slice nor, of NVIDIA's +me profiles, the one set of media engines. Whichever came first is left
// alone, and the other is given once the first is gone.
func TestEveryPair(t *testing.T) {
	through := withPassthrough(dynamic())
	functions := withPassthrough(sriov(3))
	for name, d := range map[string]partition.Division{
		"A30":       partition.Divide(partition.Physical{Device: a30().whole(t, 0), MIG: a30().mig(true), IOMMU: true}, through, gateOn()),
		"H100":      partition.Divide(partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false), IOMMU: true}, through, gateOn()),
		"functions": partition.Divide(partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 7, 3), IOMMU: true}, functions, gateOn()),

		"partitions": partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: modes("SPX", "NPS1"), IOMMU: true},
			withPassthrough(amd("CPX", "NPS1")), gateOn()),
	} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, d)
			both := 0
			for _, first := range d.Devices {
				for _, second := range d.Devices {
					if first.Name == second.Name {
						continue
					}
					want := !s.conflict(first.Name, second.Name)
					if want {
						both++
					}
					s.pair(t, first.Name, second.Name, want)
				}
			}
			if all := len(d.Devices) * (len(d.Devices) - 1); both == 0 || both == all {
				t.Errorf("%d of %d pairs go together: want some, and not all", both, all)
			}
		})
	}
}

// pair gives two devices one after the other, and to one pod.
func (s *scheduler) pair(t *testing.T, first, second string, want bool) {
	t.Helper()
	if got := s.allocate(t, exactly(first)); got != first {
		t.Fatalf("an empty card does not give %s", first)
	}
	if got := s.allocate(t, exactly(second)); (got == second) != want {
		t.Errorf("%s after %s: given %q, want it to be given: %t", second, first, got, want)
	}
	s.free(first)
	if got := s.allocate(t, exactly(second)); !want && got != second {
		t.Errorf("%s waits although %s is gone", second, first)
	}
	s.free(second)
	if got := s.allocatePod(t, exactly(first), exactly(second)); (len(got) == 2) != want {
		t.Errorf("%s and %s for one pod: given %v, want both: %t", first, second, got, want)
	}
	s.free(first)
	s.free(second)
}

// conflict says whether two devices of one card have something in common, as their places and names say.
func (s *scheduler) conflict(a, b string) bool {
	if s.overlap(a, b) {
		return true
	}
	media := func(name string) bool { return strings.HasSuffix(s.parts[name].Profile, "+me") }
	return media(a) && media(b)
}

func permutations(of []string) [][]string {
	if len(of) == 0 {
		return [][]string{nil}
	}
	var out [][]string
	for i := range of {
		rest := slices.Delete(slices.Clone(of), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]string{of[i]}, p...))
		}
	}
	return out
}

// TestHeldOfWithdrawnPolicy: counters of an instance that no policy wants any more are still taken.
func TestHeldOfWithdrawnPolicy(t *testing.T) {
	p := partition.Physical{
		Device: h100().whole(t, 0), MIG: h100().mig(false), Held: map[string]bool{gpu0 + "-mig-3g-40gb-s4": true}, IOMMU: true,
	}
	s := newScheduler(t, partition.Divide(p, dynamic("1g.10gb"), gateOn()))
	s.allocated.Insert(structured.MakeDeviceID(testDriver, testPool, gpu0+"-mig-3g-40gb-s4"))
	if got := s.allocate(t, typed("gpu")); got != "" {
		t.Errorf("%s is given beside an instance of it", got)
	}
	for i := range 5 {
		if got := s.allocate(t, profiled("1")); (got == "") != (i == 4) || strings.HasSuffix(got, "-s4") {
			t.Errorf("claim %d: %s", i, got)
		}
	}
}
