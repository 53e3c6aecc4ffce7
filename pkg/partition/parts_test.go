// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/test/check"
)

// other is a GPU of another vendor under the name of the first.
func other(t testing.TB, vendor string) device.Device {
	t.Helper()
	d := h100().whole(t, 0)
	d.Attributes[device.AttributeVendor], d.Attributes[device.AttributeDriver] = text(t, vendor), text(t, "amdgpu")
	delete(d.Capacity, device.CapacityMultiprocessors)
	d.Capacity[device.CapacityMemory], d.Capacity[device.CapacityComputeUnits] = device.Bytes(192<<30), device.Count(304)
	return d
}

func modes(compute, memory string) *partition.AMDModes {
	return &partition.AMDModes{
		Compute: compute, AvailableCompute: []string{"SPX", "DPX", "QPX", "CPX"}, Memory: memory, AvailableMemory: []string{"NPS1", "NPS4"},
	}
}

func amd(compute, memory string) partition.Settings {
	return partition.Settings{AMD: &partition.AMD{Compute: compute, Memory: memory}}
}

func numbered(pattern string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(pattern, i))
	}
	return out
}

func TestAMD(t *testing.T) {
	for _, tc := range []struct {
		name       string
		modes      *partition.AMDModes
		settings   partition.Settings
		held       []string
		noCounters bool
		want       []string
		reasons    []string
		plain      bool
	}{
		{name: "no policy", modes: modes("SPX", "NPS1"), want: under("-"), plain: true},
		{name: "no policy in CPX", modes: modes("CPX", "NPS1"), reasons: []string{"ModePending 1"}, plain: true},
		{name: "no policy and a mode that nobody knows", modes: modes("XPX", "NPS1"), reasons: []string{"ModePending 1"}, plain: true},
		{name: "CPX", modes: modes("SPX", "NPS4"), settings: amd("CPX", "NPS4"), want: under(append(numbered("cpx-nps4-p%d", 8), "-")...)},
		{name: "CPX there", modes: modes("CPX", "NPS1"), settings: amd("CPX", ""), want: under(append(numbered("cpx-nps1-p%d", 8), "-")...)},
		{name: "DPX", modes: modes("SPX", "NPS1"), settings: amd("DPX", "NPS1"), want: under("-", "dpx-nps1-p0", "dpx-nps1-p1")},
		{name: "SPX", modes: modes("CPX", "NPS1"), settings: amd("SPX", "NPS1"), want: under("-"), plain: true},
		{
			name: "memory mode to be changed", modes: modes("SPX", "NPS1"), settings: amd("CPX", "NPS4"), want: under("-"), plain: true,
			reasons: []string{"ModePending 8"},
		},
		{
			name: "a memory mode that the GPU does not have", modes: modes("SPX", "NPS1"), settings: amd("DPX", "NPS2"), want: under("-"),
			plain:   true,
			reasons: []string{"NotDivisible 0"},
		},
		{
			name: "a compute mode that the GPU does not have", modes: modes("SPX", "NPS1"), settings: amd("TPX", "NPS1"), want: under("-"),
			plain:   true,
			reasons: []string{"NotDivisible 0"},
		},
		{
			name: "modes that do not go together", modes: modes("SPX", "NPS4"), settings: amd("DPX", ""), want: under("-"), plain: true,
			reasons: []string{"NotDivisible 0"},
		},
		{name: "no modes", settings: amd("CPX", ""), want: under("-"), plain: true, reasons: []string{"NotDivisible 0"}},
		{
			name: "no counters in the mode", modes: modes("QPX", "NPS1"), settings: amd("QPX", "NPS1"), noCounters: true, plain: true,
			want: under(numbered("qpx-nps1-p%d", 4)...), reasons: []string{"NoCounters 1"},
		},
		{
			name: "no counters in another mode", modes: modes("SPX", "NPS1"), settings: amd("QPX", "NPS1"), noCounters: true, plain: true,
			reasons: []string{"NoCounters 1", "ModePending 4"},
		},
		{
			name: "the mode of what is held stays", modes: modes("CPX", "NPS1"), settings: amd("DPX", "NPS1"), held: under("cpx-nps1-p5"),
			want: under("-", "cpx-nps1-p5"), reasons: []string{"ModePending 0"},
		},
		{
			name: "what is held outlives its policy", modes: modes("CPX", "NPS1"), held: under("cpx-nps1-p5"), want: under("cpx-nps1-p5"),
			reasons: []string{"ModePending 1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := partition.Physical{Device: other(t, "amd"), AMD: tc.modes, Held: map[string]bool{}}
			for _, name := range tc.held {
				p.Held[name] = true
			}
			got := partition.Divide(p, tc.settings, partition.Kept{Counters: !tc.noCounters})
			valid(t, got)
			if diff := cmp.Diff(tc.want, names(got.Devices)) + cmp.Diff(tc.reasons, reasons(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Reasons)
			}
			checkCard(t, got, tc.plain)
		})
	}
}

// TestMemoryMode: the reason says what a change of the memory mode takes, since Fettle does not do it.
func TestMemoryMode(t *testing.T) {
	got := partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: modes("SPX", "NPS1")}, amd("CPX", "NPS4"), gateOn())
	if len(got.Reasons) != 1 {
		t.Fatalf("reasons %v", got.Reasons)
	}
	message := got.Reasons[0].Message
	for _, part := range []string{
		"is NPS1, not NPS4", "NoExecute", "Write NPS4 to current_memory_partition", "load it again, or restart the node", "numbered anew",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("the reason %q does not say %q", message, part)
		}
	}
	if len(message) > 800 {
		t.Errorf("the reason has %d characters, and in an AcceleratorNode it has room for 1024, with the names of the device", len(message))
	}
}

// TestAMDPartition is one of eight: its share of the GPU, and one of as many as there are.
func TestAMDPartition(t *testing.T) {
	got := partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: modes("SPX", "NPS4")}, amd("CPX", "NPS4"), gateOn())
	d := got.Devices[3]
	if d.Name != gpu0+"-cpx-nps4-p3" || device.StringOf(d.Attributes[device.AttributeProfile]) != "cpx-nps4" {
		t.Errorf("got %s, %v", d.Name, d.Attributes)
	}
	memory, units := d.Capacity[device.CapacityMemory], d.Capacity[device.CapacityComputeUnits]
	if memory.Value.String() != "24Gi" || units.Value.Value() != 38 {
		t.Errorf("memory %s, compute units %s", memory.Value.String(), units.Value.String())
	}
	one, all := d.Consumes["partitions"], got.Card.Counters["partitions"]
	if one.Value.Value() != 1 || all.Value.Value() != 8 || len(d.Consumes) != 1 {
		t.Errorf("consumes %v of %v", d.Consumes, got.Card.Counters)
	}
	if part := got.Parts[d.Name]; part.Index != 3 || part.Type != device.TypePartition {
		t.Errorf("got %+v", part)
	}
	for n, available := range map[int][]string{8: {"SPX", "DPX", "QPX", "CPX"}, 6: {"SPX", "TPX", "CPX"}, 4: {"SPX", "DPX", "CPX"}} {
		m := &partition.AMDModes{Compute: "CPX", Memory: "NPS1", AvailableCompute: available}
		if got := partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: m}, amd("CPX", ""), gateOn()); len(got.Devices) != n+1 {
			t.Errorf("%v: %v, want %d partitions", available, names(got.Devices), n)
		}
	}
}

func vfs(t testing.TB, total, enabled int) *partition.Functions {
	t.Helper()
	f := &partition.Functions{Total: total}
	for i := range enabled {
		address, err := pci.Parse(fmt.Sprintf("0000:1b:%02x.%x", (i+1)/8, (i+1)%8))
		check.Must(t, err)
		f.Enabled = append(f.Enabled, address)
	}
	return f
}

func sriov(n int) partition.Settings {
	return partition.Settings{SRIOV: &partition.SRIOV{VirtualFunctions: n}}
}

func TestFunctionsAndPassthrough(t *testing.T) {
	through := partition.Settings{Passthrough: true}
	both := sriov(2)
	both.Passthrough = true
	for _, tc := range []struct {
		name       string
		functions  *partition.Functions
		settings   partition.Settings
		noIOMMU    bool
		held       []string
		noCounters bool
		want       []string
		reasons    []string
		plain      bool
	}{
		{name: "functions without a policy", functions: vfs(t, 7, 2), want: under("-"), plain: true},
		{name: "two", functions: vfs(t, 7, 2), settings: sriov(2), want: under("-", "vf0", "vf1")},
		{name: "all", functions: vfs(t, 63, 63), settings: sriov(63), want: under(append(numbered("vf%d", 63), "-")...)},
		{name: "to be made", functions: vfs(t, 7, 0), settings: sriov(2), reasons: []string{"FunctionsPending 1"}, plain: true},
		{
			name: "to be removed while one is held", functions: vfs(t, 7, 2), settings: sriov(0), held: under("vf1"), want: under("vf1"),
			reasons: []string{"FunctionsPending 1"},
		},
		{
			name: "gone while it is held", functions: vfs(t, 7, 0), settings: sriov(2), held: under("vf1"), want: under("vf1"),
			reasons: []string{"FunctionsPending 1"},
		},
		{name: "none is wanted", functions: vfs(t, 7, 0), settings: sriov(0), want: under("-"), plain: true},
		{name: "too many", functions: vfs(t, 7, 0), settings: sriov(8), want: under("-"), reasons: []string{"NotDivisible 0"}, plain: true},
		{name: "none at all", settings: sriov(1), want: under("-"), reasons: []string{"NotDivisible 0"}, plain: true},
		{
			name: "no counters", functions: vfs(t, 7, 2), settings: sriov(2), noCounters: true, want: under("vf0", "vf1"),
			reasons: []string{"NoCounters 1"},
			plain:   true,
		},
		{name: "passthrough", settings: through, want: under("-", "vfio")},
		{name: "passthrough beside functions", functions: vfs(t, 7, 2), settings: both, want: under("-", "vf0", "vf1", "vfio")},
		{name: "passthrough without an IOMMU", settings: through, noIOMMU: true, want: under("-"), reasons: []string{"NoIOMMU 1"}, plain: true},
		{
			name: "passthrough without an IOMMU that is held", settings: through, noIOMMU: true, held: under("vfio"), want: under("-", "vfio"),
		},
		{
			name: "passthrough without counters", settings: through, noCounters: true, want: under("-"), reasons: []string{"NoCounters 1"},
			plain: true,
		},
		{name: "held by a machine after the policy went", held: under("vfio"), want: under("-", "vfio")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := partition.Physical{Device: other(t, "intel"), Functions: tc.functions, IOMMU: !tc.noIOMMU, Held: map[string]bool{}}
			for _, name := range tc.held {
				p.Held[name] = true
			}
			got := partition.Divide(p, tc.settings, partition.Kept{Counters: !tc.noCounters})
			valid(t, got)
			if diff := cmp.Diff(tc.want, names(got.Devices)) + cmp.Diff(tc.reasons, reasons(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Reasons)
			}
			checkCard(t, got, tc.plain)
			for _, d := range got.Devices {
				checkOwn(t, got, d)
			}
		})
	}
}

// checkOwn wants a virtual function to have its own address, and the device of a virtual machine that of the whole.
func checkOwn(t *testing.T, got partition.Division, d device.Device) {
	t.Helper()
	address, bus := device.StringOf(d.Attributes[device.AttributePCIAddress]), device.StringOf(d.Attributes["resource.kubernetes.io/pciBusID"])
	own := strings.HasPrefix(address, "0000:1b:00.0")
	switch got.Parts[d.Name].Type {
	case device.TypeVF:
		if own || address != bus {
			t.Errorf("%s is at %q, %q", d.Name, address, bus)
		}
	case device.TypeVFIO:
		if _, driver := d.Attributes[device.AttributeDriver]; !own || address != bus || driver {
			t.Errorf("%s: %v", d.Name, d.Attributes)
		}
	}
}

// TestOneWay: instances and virtual functions of one card could not keep each other out.
func TestOneWay(t *testing.T) {
	s := dynamic("4g.40gb")
	s.SRIOV = &partition.SRIOV{VirtualFunctions: 1}
	p := partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false), Functions: vfs(t, 7, 1)}
	got := partition.Divide(p, s, gateOn())
	if diff := cmp.Diff(under("-", "mig-4g-40gb-s0"), names(got.Devices)) + cmp.Diff([]string{"NotDivisible 0"}, reasons(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestDivideChangesNothing: the maps of the whole device are not those of its parts.
func TestDivideChangesNothing(t *testing.T) {
	p := partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false), IOMMU: true}
	s := dynamic()
	s.Passthrough = true
	first := partition.Divide(p, s, gateOn())
	for _, d := range first.Devices {
		if d.Name != gpu0 {
			d.Attributes["spoilt"], d.Capacity["spoilt"] = resourceapi.DeviceAttribute{}, resourceapi.DeviceCapacity{}
		}
	}
	if diff := cmp.Diff(h100().whole(t, 0), p.Device); diff != "" {
		t.Errorf("the device changed:\n%s", diff)
	}
	if second := partition.Divide(p, s, gateOn()); len(second.Devices) != len(first.Devices) {
		t.Errorf("%d devices, then %d", len(first.Devices), len(second.Devices))
	}
}

// TestFabricIsTheWholeGPUs: an instance uses the machine's memory as its GPU does and has no NVLink. What the driver says of the two ends
// with the driver, so that the device of a virtual machine has neither.
func TestFabricIsTheWholeGPUs(t *testing.T) {
	p := partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false), IOMMU: true}
	fabric := []resourceapi.QualifiedName{device.AttributeFabricState, device.AttributeFabricClusterUUID, device.AttributeFabricClique}
	for _, name := range append(fabric, device.AttributeAddressingMode) {
		value, err := device.String("a")
		check.Must(t, err)
		p.Device.Attributes[name] = value
	}
	s := dynamic()
	s.Passthrough = true
	got := partition.Divide(p, s, gateOn())
	for _, d := range got.Devices {
		has := func(name resourceapi.QualifiedName) bool { return d.Attributes[name].StringValue != nil }
		kind := got.Parts[d.Name].Type
		if has(device.AttributeAddressingMode) == (kind == device.TypeVFIO) {
			t.Errorf("%s of type %q: %v", d.Name, kind, d.Attributes)
		}
		for _, name := range fabric {
			if has(name) != (d.Name == gpu0) {
				t.Errorf("%s of type %q has %s: %t", d.Name, kind, name, has(name))
			}
		}
	}
	if len(got.Devices) < 3 {
		t.Errorf("%d devices, want the GPU, its instances and that of a virtual machine", len(got.Devices))
	}
}

// TestHeldWithoutCounters: whatever a claim has and whatever the settings are by now, without counters the whole device and a part of it
// are never both there for another claim.
func TestHeldWithoutCounters(t *testing.T) {
	type situation struct {
		physical partition.Physical
		held     []string
	}
	situations := []situation{
		{partition.Physical{Device: other(t, "amd"), AMD: modes("CPX", "NPS1")}, under("cpx-nps1-p3", "-")},
		{partition.Physical{Device: other(t, "amd"), AMD: modes("SPX", "NPS1")}, under("cpx-nps1-p3", "-", "vfio")},
		{partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 7, 2)}, under("vf1", "-", "vfio")},
		{partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 7, 0)}, under("vf1", "-", "vfio")},
		{partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(true)}, under("mig-1g-10gb-s0", "vfio")},
		{partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false)}, under("mig-1g-10gb-s0", "-", "vfio")},
	}
	through := sriov(2)
	through.Passthrough = true
	for _, s := range situations {
		for _, held := range s.held {
			for i, settings := range []partition.Settings{
				{}, amd("CPX", "NPS1"), amd("DPX", "NPS1"), amd("SPX", ""), sriov(0), sriov(2), through, dynamic(),
			} {
				s.physical.Held = map[string]bool{held: true}
				s.physical.IOMMU = true
				got := partition.Divide(s.physical, settings, partition.Kept{})
				valid(t, got)
				published := names(got.Devices)
				if !slices.Contains(published, held) {
					t.Errorf("%s is held and not published with settings %d: %v", held, i, published)
				}
				wholes := slices.DeleteFunc(slices.Clone(published), func(name string) bool { return name != gpu0 && name != gpu0+"-vfio" })
				if len(wholes) > 0 && len(published) > 1 || got.Card != nil {
					t.Errorf("%s is held, settings %d: %v are published, card %v", held, i, published, got.Card)
				}
			}
		}
	}
}
