// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package partitions_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/pcisim"
)

// startPCI makes a node with a machine of test/machines whose sysfs reacts to writes.
func startPCI(t testing.TB, machine string, counters bool) *node {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../test/machines", machine+".txtar"))
	check.Must(t, err)
	host, err := sim.Parse(text)
	check.Must(t, err)
	served := pcisim.Start(t, host, nil)
	n := startAt(t, served.Root, counters)
	n.pci = served
	return n
}

// attribute reads an attribute of a PCI function.
func (n *node) attribute(function, name string) string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.root, sysfs.PCIDevice(function), name))
	check.Must(n.t, err)
	return strings.TrimSpace(string(data))
}

// reads waits for the value of an attribute that the node writes while what it publishes stays.
func (n *node) reads(function, name, want string) {
	n.t.Helper()
	check.Eventually(n.t, fmt.Sprintf("%s of %s is %q", name, function, want), func() bool { return n.attribute(function, name) == want })
}

// driver is the driver of a PCI function, empty for none.
func (n *node) driver(function string) string {
	n.t.Helper()
	to, err := os.Readlink(filepath.Join(n.root, sysfs.PCIDevice(function), "driver"))
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// made are the paths of the nodes that a container gets for a part.
func (p *process) made(name string) []string {
	p.node.t.Helper()
	edits, err := p.Made(name)
	check.Must(p.node.t, err)
	var paths []string
	for _, one := range edits.Nodes {
		paths = append(paths, strings.TrimPrefix(one.Path, "/dev/"))
	}
	slices.Sort(paths)
	return paths
}

// drop deletes a policy.
func (n *node) drop(name string) {
	n.t.Helper()
	check.Must(n.t, n.policies.Resource(policyResource).Delete(n.t.Context(), name, metav1.DeleteOptions{}))
}

func problem(reason string) func(*inventory.Snapshot) bool {
	return func(s *inventory.Snapshot) bool {
		return slices.ContainsFunc(s.Problems, func(p discover.Problem) bool { return p.Reason == reason })
	}
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const (
	amd         = "amd-0000-05-00-0"
	amdFunction = "0000:05:00.0"
	computeMode = "current_compute_partition"
)

// eight are the names of the eight partitions of AMD's mode CPX.
func eight() []string {
	var out []string
	for i := range 8 {
		out = append(out, fmt.Sprintf("cpx-nps1-p%d", i))
	}
	return out
}

// TestAMD: two claims have partitions of one GPU, each with its own render node, and then one has the whole GPU.
func TestAMD(t *testing.T) {
	n := startPCI(t, "8xmi300x", true)
	n.policy("cpx", "  devices: {amd: {compute: CPX}}")
	p := n.process()
	s := p.until("partitions", has(amd+"-cpx-nps1-p0"))
	same(t, "devices", append([]string{""}, eight()...), names(s, amd))
	if len(s.Cards) != 8 {
		t.Errorf("%d cards with counters", len(s.Cards))
	}
	same(t, "mode while nobody claims anything", "SPX", n.attribute(amdFunction, computeMode))

	first, second := p.hold("uid-1", amd+"-cpx-nps1-p0"), p.hold("uid-2", amd+"-cpx-nps1-p3")
	same(t, "mode", "CPX", n.attribute(amdFunction, computeMode))
	same(t, "nodes of partition 0", []string{"dri/renderD128", "kfd"}, p.made(amd+"-cpx-nps1-p0"))
	same(t, "nodes of partition 3", []string{"dri/renderD131", "kfd"}, p.made(amd+"-cpx-nps1-p3"))
	same(t, "mode of another GPU", "SPX", n.attribute("0000:26:00.0", computeMode))
	p.rescan.Send()
	s = p.until("a look at the divided GPU", func(s *inventory.Snapshot) bool {
		i := slices.IndexFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == amd })
		return i >= 0 && s.Physical[i].AMD.Compute == "CPX"
	})
	same(t, "devices while two are held", append([]string{""}, eight()...), names(s, amd))
	if problem(discover.ReasonPartitioned)(s) {
		t.Errorf("problems %v", s.Problems)
	}

	p.release(first)
	same(t, "mode while one is held", "CPX", n.attribute(amdFunction, computeMode))
	same(t, "its nodes", []string{"dri/renderD131", "kfd"}, p.made(amd+"-cpx-nps1-p3"))
	p.release(second)
	whole := p.hold("uid-3", amd)
	same(t, "mode of the whole GPU", "SPX", n.attribute(amdFunction, computeMode))
	d, _ := s.Find(device.KindGPU, amd)
	if len(d.Edits.Nodes) != 2 || len(d.Edits.Made) != 0 {
		t.Errorf("the whole GPU has %+v", d.Edits)
	}
	p.release(whole)

	// A claim leaves the GPU in another mode than it was in, and then the policy goes.
	third := p.hold("uid-4", amd+"-cpx-nps1-p7")
	same(t, "mode", "CPX", n.attribute(amdFunction, computeMode))
	p.release(third)
	n.drop("cpx")
	p.until("the GPU as it was", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{""}, names(s, amd)) && len(s.Cards) == 0 && len(s.Problems) == 0
	})
	n.reads(amdFunction, computeMode, "SPX")
}

// TestAMDBusy: a GPU that a process computes on is not switched, and the message says so.
func TestAMDBusy(t *testing.T) {
	n := startPCI(t, "8xmi300x", false)
	n.pci.Set(pcisim.Set{Function: amdFunction, Users: new(1)})
	selector := "{cel: 'device.attributes[\"fettle.dev\"].pciAddress == \"" + amdFunction + "\"'}"
	n.policy("cpx", "  devices: {deviceSelector: "+selector+", amd: {compute: CPX}}")
	p := n.process()
	s := p.until("the reason", problem(partition.ReasonModePending))
	same(t, "devices", []string{}, names(s, amd))
	same(t, "mode", "SPX", n.attribute(amdFunction, computeMode))
}

// TestAMDWithoutCounters: the node switches, and publishes partitions only.
func TestAMDWithoutCounters(t *testing.T) {
	n := startPCI(t, "8xmi300x", false)
	n.policy("cpx", "  devices: {amd: {compute: CPX}}")
	p := n.process()
	s := p.until("partitions", has(amd+"-cpx-nps1-p7"))
	same(t, "mode", "CPX", n.attribute(amdFunction, computeMode))
	same(t, "devices", eight(), names(s, amd))
	if len(s.Cards) != 0 {
		t.Errorf("cards with counters: %v", s.Cards)
	}
	r := p.hold("uid-1", amd+"-cpx-nps1-p7")
	same(t, "nodes", []string{"dri/renderD135", "kfd"}, p.made(amd+"-cpx-nps1-p7"))
	// Another mode follows once the claim is gone.
	n.policy("cpx", "  devices: {amd: {compute: DPX}}")
	p.until("what is held", func(s *inventory.Snapshot) bool { return cmp.Equal([]string{"cpx-nps1-p7"}, names(s, amd)) })
	same(t, "mode while one is held", "CPX", n.attribute(amdFunction, computeMode))
	p.release(r)
	p.until("the other mode", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{"dpx-nps1-p0", "dpx-nps1-p1"}, names(s, amd))
	})
	same(t, "mode", "DPX", n.attribute(amdFunction, computeMode))
	n.drop("cpx")
	p.until("the whole GPU", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{""}, names(s, amd)) && len(s.Problems) == 0
	})
	n.reads(amdFunction, computeMode, "SPX")
}

const (
	intel         = "intel-0000-4b-00-0"
	intelFunction = "0000:4b:00.0"
	foreign       = "intel-0000-99-00-0"
	numVFs        = "sriov_numvfs"
)

// TestVirtualFunctions: the node makes them, a claim gets one, and they are removed when the policy says so. Those of somebody else stay.
func TestVirtualFunctions(t *testing.T) {
	n := startPCI(t, "2xb60-sriov", true)
	n.policy("vfs", "  devices: {sriov: {virtualFunctions: 4, xe: {execQuantumMS: 20, schedPriority: low}}}")
	p := n.process()
	first := intel + "-vf0"
	s := p.until("virtual functions", has(first))
	same(t, "devices", []string{"", "vf0", "vf1", "vf2", "vf3"}, names(s, intel))
	n.reads(intelFunction, numVFs, "4") // the kernel shows functions before it counts them
	same(t, "what a function may run", "20", n.attribute(intelFunction, "sriov_admin/vf1/profile/exec_quantum_ms"))
	d, _ := s.Find(device.KindGPU, first)
	same(t, "type", device.TypeVF, device.StringOf(d.Attributes[device.AttributeType]))
	same(t, "address", "0000:4b:00.1", device.StringOf(d.Attributes["resource.kubernetes.io/pciBusID"]))
	same(t, "devices of the other GPU", []string{}, names(s, foreign))
	if !problem(partition.ReasonFunctionsPending)(s) {
		t.Errorf("problems %v", s.Problems)
	}
	p.says("has virtual functions that Fettle did not make")
	same(t, "functions of somebody else", "2", n.attribute("0000:99:00.0", numVFs))

	r := p.hold("uid-1", first)
	n.policy("vfs", "  devices: {sriov: {virtualFunctions: 0}}")
	p.until("what is held", func(s *inventory.Snapshot) bool { return cmp.Equal([]string{"vf0"}, names(s, intel)) })
	same(t, "functions while one is held", "4", n.attribute(intelFunction, numVFs))
	p.release(r)
	p.until("the whole GPU", func(s *inventory.Snapshot) bool { return cmp.Equal([]string{""}, names(s, intel)) })
	same(t, "functions", "0", n.attribute(intelFunction, numVFs))
	same(t, "what a function may run", "0", n.attribute(intelFunction, "sriov_admin/vf1/profile/exec_quantum_ms"))
	same(t, "functions of somebody else", "2", n.attribute("0000:99:00.0", numVFs))
	same(t, "devices of the other GPU", []string{}, names(s, foreign))
}

// TestForeignFunctions: a policy that wants none says that it does not remove what somebody else made.
func TestForeignFunctions(t *testing.T) {
	n := startPCI(t, "2xb60-sriov", true)
	n.policy("vfs", "  devices: {sriov: {virtualFunctions: 0}}")
	p := n.process()
	p.until("the reason", problem(partition.ReasonFunctionsPending))
	p.says("PartitionFailed: GPU " + foreign + ": PCI function 0000:99:00.0 has virtual functions that Fettle did not make (2)")
	same(t, "functions of somebody else", "2", n.attribute("0000:99:00.0", numVFs))
	// A policy for as many as there are takes them as they are, and leaves them.
	n.policy("vfs", "  devices: {sriov: {virtualFunctions: 2}}")
	s := p.until("virtual functions", has(foreign+"-vf1"))
	same(t, "devices", []string{"", "vf0", "vf1"}, names(s, foreign))
	same(t, "nodes", []string{"dri/card2", "dri/renderD130"}, p.made(foreign+"-vf0"))
	n.drop("vfs")
	p.until("the first GPU as it was", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{""}, names(s, intel)) && len(s.Cards) == 0
	})
	n.reads(intelFunction, numVFs, "0")
	same(t, "functions of somebody else", "2", n.attribute("0000:99:00.0", numVFs))
}

// TestFunctionsAfterReboot: claims that had virtual functions get them again after a reboot, which ended them, although they hold them
// meanwhile.
func TestFunctionsAfterReboot(t *testing.T) {
	n := startPCI(t, "2xb60-sriov", true)
	n.policy("vfs", "  devices: {sriov: {virtualFunctions: 4}}")
	p := n.process()
	first := intel + "-vf0"
	p.until("virtual functions", has(first))
	n.reads(intelFunction, numVFs, "4")
	p.hold("uid-1", first)
	p.end()
	n.pci.Set(pcisim.Set{Function: intelFunction, VFs: new(0)})
	n.reads(intelFunction, numVFs, "0")
	n.boot = "boot-2"
	p = n.process()
	p.until("what is held", has(first))
	n.reads(intelFunction, numVFs, "4")
	same(t, "nodes", 2, len(p.made(first)))
}

// TestFunctionsUntold: virtual functions that claims have stay published, and keep the whole GPU from others, while the kernel does not
// tell how many there can be, or its driver allows none any more.
func TestFunctionsUntold(t *testing.T) {
	for name, total := range map[string]string{"none": "0\n", "no number": "?\n"} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			nodefixture.ExpandInto(t, "2xb60-sriov", root)
			n := startAt(t, root, true)
			n.policy("vfs", "  devices: {sriov: {virtualFunctions: 2}}")
			p := n.process()
			before := names(p.until("virtual functions", has(foreign+"-vf1")), foreign)
			r := p.hold("uid-1", foreign+"-vf0")
			check.Must(t, os.WriteFile(filepath.Join(root, sysfs.PCIDevice("0000:99:00.0"), "sriov_totalvfs"), []byte(total), 0o600))
			p.rescan.Send()
			s := p.until("the look", func(s *inventory.Snapshot) bool {
				i := slices.IndexFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == foreign })
				return i >= 0 && s.Physical[i].VirtualFunctions == 0
			})
			same(t, "devices", before, names(s, foreign))
			if d, _ := s.Find(device.KindGPU, foreign); d.Card == "" {
				t.Error("the whole GPU takes no counters")
			}
			p.release(r)
		})
	}
}

const (
	rtx      = "nvidia-0000-16-00-0"
	rtxGPU   = "0000:16:00.0"
	rtxAudio = "0000:16:00.1"
	override = "driver_override"
)

// bound is the driver and the override of the GPU and of its audio function.
func (n *node) bound() []string {
	n.t.Helper()
	return []string{n.driver(rtxGPU), n.attribute(rtxGPU, override), n.driver(rtxAudio), n.attribute(rtxAudio, override)}
}

// TestPassthrough: a card goes to a virtual machine and comes back to its driver. Discovery does not see it meanwhile, and the card is
// published as what it was, by the next process of the plugin too.
func TestPassthrough(t *testing.T) {
	n := startPCI(t, "2xrtx-vfio", true)
	before := n.bound()
	n.policy("vm", "  devices: {passthrough: true}")
	p := n.process()
	name := rtx + "-vfio"
	s := p.until("the form for virtual machines", has(name))
	same(t, "devices", []string{"", "vfio"}, names(s, rtx))
	same(t, "devices of a card that shares its group", []string{""}, names(s, "nvidia-0000-38-00-0"))
	if !problem(partition.ReasonNoIOMMU)(s) {
		t.Errorf("problems %v", s.Problems)
	}
	was, _ := s.Find(device.KindGPU, name)
	same(t, "address", rtxGPU, device.StringOf(was.Attributes["resource.kubernetes.io/pciBusID"]))
	whole, _ := s.Find(device.KindGPU, rtx)

	r := p.hold("uid-1", name)
	same(t, "drivers", "vfio-pci vfio-pci", n.driver(rtxGPU)+" "+n.driver(rtxAudio))
	nodes := []string{"iommu", "vfio/20", "vfio/devices/vfio0", "vfio/vfio"}
	same(t, "nodes", nodes, p.made(name))
	look := func(p *process) {
		t.Helper()
		p.rescan.Send()
		s := p.until("the bound card", func(s *inventory.Snapshot) bool {
			return has(name)(s) && !slices.ContainsFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == rtx })
		})
		is, _ := s.Find(device.KindGPU, name)
		same(t, "the bound card", was, is)
		now, _ := s.Find(device.KindGPU, rtx)
		edits := now.Edits
		now.Edits = whole.Edits
		same(t, "the whole card", whole, now)
		same(t, "what virtual machines have", map[string]bool{rtx: true}, s.ForVMs)
		same(t, "edits of the whole card, for the version before", container.Edits{Made: []string{rtx}}, edits)
		if problem(discover.ReasonBoundToVFIO)(s) {
			t.Errorf("problems %v", s.Problems)
		}
		same(t, "nodes", nodes, p.made(name))
	}
	look(p)
	p.end()
	p = n.process()
	look(p)
	p.release(r)
	same(t, "drivers and overrides afterwards", before, n.bound())
	p.rescan.Send()
	s = p.until("the card", func(s *inventory.Snapshot) bool {
		d, ok := s.Find(device.KindGPU, rtx)
		return ok && len(d.Edits.Nodes) > 0
	})
	same(t, "devices afterwards", []string{"", "vfio"}, names(s, rtx))
	same(t, "what virtual machines have afterwards", map[string]bool{}, s.ForVMs)
	now, _ := s.Find(device.KindGPU, rtx)
	same(t, "the whole card", whole, now)
}

// TestPluginLetsGo: the step that gives a card to a virtual machine waits until no program has the card's own node open, and has the plugin
// look which cards are leaving, whose library it must leave alone until they are gone. A node that all cards have in common tells nothing.
func TestPluginLetsGo(t *testing.T) {
	n := startPCI(t, "2xrtx-vfio", true)
	n.policy("vm", "  devices: {passthrough: true}")
	p := n.process()
	name := rtx + "-vfio"
	s := p.until("the form for virtual machines", has(name))
	whole, _ := s.Find(device.KindGPU, rtx)
	var own []sysfs.Number
	for _, node := range whole.Edits.Nodes {
		if node.Path == "/dev/nvidia0" {
			own = append(own, sysfs.Number{Major: node.Major, Minor: node.Minor})
		}
	}
	steps := p.steps("uid-1", name)
	if len(steps) != 1 || len(own) != 1 || len(whole.Edits.Nodes) < 2 {
		t.Fatalf("steps %v, nodes %+v", steps, whole.Edits.Nodes)
	}
	bind, err := step.Decode[vfio.Params](steps[0].Params)
	check.Must(t, err)
	same(t, "nodes by which a program uses the card", own, bind.Nodes)

	r := &record.Record{
		UID: "uid-1", Namespace: "team-a", Name: "uid-1", BootID: n.boot, Phase: record.Intended,
		Devices: []record.Device{{Request: "r", Pool: device.PoolName(nodefixture.Node, device.KindGPU), Name: name}},
		Steps:   []record.Step{{Step: steps[0], State: step.Intended}},
	}
	check.Must(t, n.records.Create(r), n.records.Acquire(r))
	check.Must(t, p.Kinds().Apply(t.Context(), steps[0]))
	p.until("a card that leaves", func(s *inventory.Snapshot) bool { return cmp.Equal(map[string]bool{"nvidia": true}, s.Unbinding) })
	p.rescan.Send()
	p.until("the bound card", func(s *inventory.Snapshot) bool { return len(s.Unbinding) == 0 && s.ForVMs[rtx] })
}

// TestOrphanOfPassthrough: a card that is bound for a claim of which the record is lost stays the claim's, and is given back by the steps
// that the plugin finds for it.
func TestOrphanOfPassthrough(t *testing.T) {
	n := startPCI(t, "2xrtx-vfio", true)
	before := n.bound()
	n.policy("vm", "  devices: {passthrough: true}")
	p := n.process()
	name := rtx + "-vfio"
	p.until("the form for virtual machines", has(name))
	r := p.hold("uid-1", name)
	p.end()
	check.Must(t, n.records.Release(r, record.Change{}))
	check.Must(t, n.records.Remove(r))
	p = n.process()
	p.until("the bound card", has(name))
	points, instances := filepath.Join(n.state, "restore-points"), filepath.Join(n.state, "mig")
	others := []string{filepath.Join(points, "pci.bind_0000:99:00.0.json"), filepath.Join(instances, "nvidia-0000-99-00-0-mig-1g-s0.json")}
	check.Must(t, os.MkdirAll(instances, 0o700))
	for _, file := range others { // of other GPUs
		check.Must(t, os.WriteFile(file, []byte("{"), 0o600))
	}
	found := p.Orphans(t.Context())
	if len(found) != 1 || found[0].UID != "uid-1" || found[0].Device.Name != name {
		t.Fatalf("orphans %+v", found)
	}
	steps, err := p.Leftovers(t.Context(), "uid-1", found[0].Device)
	check.Must(t, err)
	own, err := filepath.Glob(filepath.Join(points, "pci.bind_*.json"))
	check.Must(t, err)
	whole, err := os.ReadFile(own[0])
	check.Must(t, err, os.WriteFile(own[0], []byte("{"), 0o600))
	if _, err := p.Leftovers(t.Context(), "uid-1", found[0].Device); err == nil || !strings.Contains(err.Error(), own[0]) {
		t.Errorf("what is left of a restore point that cannot be read: %v", err)
	}
	check.Must(t, os.WriteFile(own[0], whole, 0o600))
	for _, file := range others {
		check.Must(t, os.Remove(file))
	}
	for _, s := range slices.Backward(steps) {
		check.Must(t, p.Kinds().Undo(t.Context(), s))
	}
	same(t, "drivers and overrides afterwards", before, n.bound())
	if left := p.Orphans(t.Context()); len(left) != 0 {
		t.Errorf("orphans %+v", left)
	}
	p.rescan.Send()
	p.until("the card", func(s *inventory.Snapshot) bool {
		d, ok := s.Find(device.KindGPU, rtx)
		return ok && len(d.Edits.Nodes) > 0
	})
}

// TestPCIForbidden: a node that may not write attributes of PCI devices says so, publishes its GPUs whole and changes nothing.
func TestPCIForbidden(t *testing.T) {
	for machine, settings := range map[string]string{
		"8xmi300x": "amd: {compute: CPX}", "2xb60-sriov": "sriov: {virtualFunctions: 2}", "2xrtx-vfio": "passthrough: true",
	} {
		t.Run(machine, func(t *testing.T) {
			n := startPCI(t, machine, false)
			n.readOnly = true
			p := n.process()
			before := p.until("devices", func(*inventory.Snapshot) bool { return true })
			n.policy("any", "  devices: {"+settings+"}")
			s := p.until("the reason", problem(partition.ReasonForbidden))
			same(t, "devices", names(before, ""), names(s, ""))
			if p := s.PartitionPolicies; len(p) != 1 || p[0].Reason != partition.ReasonForbidden || p[0].Waiting == 0 {
				t.Errorf("policies %+v", p)
			}
			for i := range s.Devices {
				if steps := p.steps("uid-1", s.Devices[i].Name); len(steps) != 0 {
					t.Errorf("a claim for %s has steps %v", s.Devices[i].Name, steps)
				}
			}
			p.end()
			if trace := n.pci.Trace(); len(trace) > 0 {
				t.Errorf("was written: %v", trace)
			}
		})
	}
}
