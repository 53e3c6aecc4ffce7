// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package partitions_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/dryrun"
	"github.com/fettle-dev/fettle/kubeletplugin/foreigndevices"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/nodeview"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/partitions"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	left "github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/pcisim"
)

// nvmlCommand is a fettle-nvml for simulated machines, whose file is the library's.
var nvmlCommand string //nolint:gochecknoglobals // TestMain gives it to the tests

func TestMain(m *testing.M) { os.Exit(main(m)) }

func main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fettle-nvml-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	nvmlCommand = filepath.Join(dir, "fettle-nvml")
	if err := nvmlsim.Build(context.Background(), nvmlCommand); err != nil {
		panic(err)
	}
	return pcisim.Run(m)
}

// node is a node with simulated GPUs and the plugin's files.
type node struct {
	t testing.TB
	// machine is NVIDIA's, the zero value where there is no library. pci is what reacts to writes to sysfs, nil for plain files.
	machine     nvmlsim.Machine
	pci         *pcisim.Sim
	readOnly    bool
	root, state string
	boot        string
	// counters says whether the API server keeps counters.
	counters bool
	kube     *fake.Clientset
	policies *dynamicfake.FakeDynamicClient
	records  *record.Store
	// foreign leaves GPUs to other drivers.
	foreign []left.Entry
	// quiesced says that the vendor's driver is being changed; nil: never.
	quiesced *atomic.Bool
}

const gpu = "nvidia-0000-18-00-0"

var policyResource = schema.GroupVersionResource{Group: v1alpha1.GroupName, Version: "v1alpha1", Resource: "partitionpolicies"}

// start makes a node with eight H100 whose API server keeps counters or not.
func start(t testing.TB, counters bool) *node {
	t.Helper()
	root := t.TempDir()
	nodefixture.ExpandInto(t, "8xh100-iommu", root)
	machine, err := nvmlsim.Adopt(filepath.Join(t.TempDir(), "machine.json"), root, nvmlsim.H100)
	check.Must(t, err)
	n := startAt(t, root, counters)
	n.machine = machine
	return n
}

// startAt makes a node with a host tree.
func startAt(t testing.TB, root string, counters bool) *node {
	t.Helper()
	n := &node{t: t, root: root, state: filepath.Join(t.TempDir(), "state"), boot: "boot-1", counters: counters}
	n.kube = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Node}})
	n.kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		slice := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if !counters {
			slice.Spec.SharedCounters = nil
			for i := range slice.Spec.Devices {
				slice.Spec.Devices[i].ConsumesCounters = nil
			}
		}
		return true, slice, nil
	})
	n.policies = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{policyResource: "PartitionPolicyList"})
	records, err := record.Open(disk.OS{}, n.state)
	check.Must(t, err)
	n.records = records
	return n
}

// policy makes or replaces a policy.
func (n *node) policy(name, spec string) {
	n.t.Helper()
	u := &unstructured.Unstructured{}
	text := "apiVersion: " + v1alpha1.GroupVersion.String() + "\nkind: PartitionPolicy\nmetadata: {name: " + name + "}\nspec:\n" + spec
	check.Must(n.t, yaml.Unmarshal([]byte(text), &u.Object))
	client := n.policies.Resource(policyResource)
	_ = client.Delete(n.t.Context(), name, metav1.DeleteOptions{})
	_, err := client.Create(n.t.Context(), u, metav1.CreateOptions{})
	check.Must(n.t, err)
}

// process is a process of the plugin: the feature and the scanner whose snapshots it reviews.
type process struct {
	*partitions.Feature
	node    *node
	holder  *inventory.Holder
	requery notify.Signal
	rescan  notify.Signal
	review  notify.Signal
	// end ends the process and waits for it.
	end      func()
	registry *prometheus.Registry
	// events are the Events that nothing waited for yet.
	events chan string
}

// event keeps an Event. Like the plugin's, it never blocks.
func (p *process) event(_, _, reason, note string) {
	select {
	case p.events <- reason + ": " + note:
	default:
	}
}

// says waits for an Event with a text.
func (p *process) says(text string) {
	p.node.t.Helper()
	ctx, cancel := context.WithTimeout(p.node.t.Context(), check.Patience)
	defer cancel()
	var said []string
	for {
		select {
		case e := <-p.events:
			if strings.Contains(e, text) {
				return
			}
			said = append(said, e)
		case <-ctx.Done():
			p.node.t.Fatalf("there was no Event with %q, but %q", text, said)
		}
	}
}

func (n *node) process() *process {
	n.t.Helper()
	p := &process{node: n, holder: inventory.NewHolder(), requery: notify.New(), rescan: notify.New(), review: notify.New()}
	p.events, p.registry = make(chan string, 100), prometheus.NewRegistry()
	prober := nvml.NewProber(nvml.Command{Path: nvmlCommand, LibraryPath: n.machine.File, Timeout: time.Minute, State: []string{os.TempDir()}})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"})
	view, err := nodeview.New(n.kube, nodefixture.Node, 0, clock.RealClock{})
	check.Must(n.t, err)
	p.Feature, err = partitions.New(partitions.Config{
		Node: nodefixture.Node, HostRoot: n.root, StateDir: n.state, BootID: n.boot, PCI: !n.readOnly, Interval: time.Minute,
		ReadNode: view.Node, Kube: n.kube,
		CounterForm: func(ctx context.Context) (partition.Form, error) {
			return dryrun.CounterForm(ctx, n.kube, nodefixture.Node)
		},
		KeepsShares: func(ctx context.Context) (bool, error) { return dryrun.KeepsShares(ctx, n.kube, nodefixture.Node) },
		Registry:    p.registry,
		Dynamic:     n.policies, Records: n.records, Library: prober, Recheck: p.review, Requery: p.requery, Errors: failures,
		Event: p.event, Quiesced: func(string) bool { return n.quiesced != nil && n.quiesced.Load() },
	})
	check.Must(n.t, err)
	var query func(context.Context) (nvml.Report, error)
	if n.machine.File != "" {
		query = p.Query(prober.Query)
	}
	file := nodeconfig.File{}.WithDefaults()
	scanner := inventory.NewScanner(inventory.Config{
		Node: nodefixture.Node, HostRoot: n.root, File: &file, Query: query, Holder: p.holder, Rescan: p.rescan,
		Requery: p.requery, Review: p.review, Reviewers: []inventory.Reviewer{
			foreigndevices.New(foreigndevices.Config{
				Node: nodefixture.Node, Entries: n.foreign, Records: n.records, PartsHeld: partitions.HoldingsOf(p.Feature).Parts,
				Absent: partitions.HoldingsOf(p.Feature).Absent, Recheck: p.review,
			}), p.Feature,
		},
		Recovering:    func() map[[2]string]string { return nil },
		HeldByDeleted: func() map[[2]string]*record.Record { return nil },
		Metrics:       inventory.NewMetrics(prometheus.NewRegistry(), failures, prometheus.DefBuckets),
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	stopped := p.Watch(ctx)
	done := make(chan struct{}, 2)
	go func(f *partitions.Feature) { f.Run(ctx); done <- struct{}{} }(p.Feature)
	go func() { scanner.Run(ctx, nil); done <- struct{}{} }()
	p.end = sync.OnceFunc(func() { cancel(); <-done; <-done; stopped() })
	n.t.Cleanup(p.end)
	return p
}

// until waits for a snapshot.
func (p *process) until(what string, is func(*inventory.Snapshot) bool) *inventory.Snapshot {
	p.node.t.Helper()
	ctx, cancel := context.WithTimeout(p.node.t.Context(), check.Patience)
	defer cancel()
	for {
		s, changed := p.holder.Get()
		if s != nil && is(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.node.t.Fatalf("there was no snapshot with %s; the last has %v, problems %v", what, names(s, ""), s.Problems)
		}
	}
}

// names lists the devices of a GPU, without its own name.
func names(s *inventory.Snapshot, gpu string) []string {
	out := []string{}
	if s == nil {
		return out
	}
	for _, d := range s.Devices {
		if rest, ok := strings.CutPrefix(d.Name, gpu); ok {
			out = append(out, strings.TrimPrefix(rest, "-"))
		}
	}
	slices.Sort(out)
	return out
}

func has(name string) func(*inventory.Snapshot) bool {
	return func(s *inventory.Snapshot) bool { _, ok := s.Find(device.KindGPU, name); return ok }
}

// steps plans a claim for devices.
func (p *process) steps(uid string, devices ...string) []step.Step {
	p.node.t.Helper()
	s, _ := p.holder.Get()
	r := prepare.Request{
		Claim: nodefixture.Allocated(uid),
		Find:  func(r *claim.Result) (device.Device, bool) { return s.Find(r.Kind, r.Device) },
	}
	for _, name := range devices {
		r.Allocation.Results = append(r.Allocation.Results, claim.Result{
			Request: "r", Kind: device.KindGPU, Device: name, Config: claim.Effective{GPU: &claim.GPUEffective{AllowPassthrough: true}},
		})
	}
	c, err := p.Plan(p.node.t.Context(), r)
	check.Must(p.node.t, err)
	return c.Steps
}

// hold records that a claim has a device, and applies its steps.
func (p *process) hold(uid, name string) *record.Record {
	p.node.t.Helper()
	steps := p.steps(uid, name)
	r := &record.Record{
		UID: uid, Namespace: "team-a", Name: uid, BootID: p.node.boot, Phase: record.Intended,
		Devices: []record.Device{{Request: "r", Pool: device.PoolName(nodefixture.Node, device.KindGPU), Name: name}},
	}
	if len(steps) == 0 {
		r.Phase = record.Prepared
	}
	for _, s := range steps {
		r.Steps = append(r.Steps, record.Step{Step: s, State: step.Intended})
	}
	check.Must(p.node.t, p.node.records.Create(r))
	check.Must(p.node.t, p.node.records.Acquire(r))
	var changes []record.Change
	for i, s := range steps {
		check.Must(p.node.t, p.Kinds().Apply(p.node.t.Context(), s))
		changes = append(changes, record.Change{Step: i, State: step.Done})
	}
	if len(steps) > 0 {
		check.Must(p.node.t, p.node.records.Advance(r, append(changes, record.Change{Phase: record.Prepared})...))
	}
	p.review.Send()
	return r
}

// release undoes what hold did.
func (p *process) release(r *record.Record) {
	p.node.t.Helper()
	changes := []record.Change{{Phase: record.Releasing}}
	for i, s := range slices.Backward(r.Steps) {
		check.Must(p.node.t, p.Kinds().Undo(p.node.t.Context(), s.Step))
		changes = append(changes, record.Change{Step: i, State: step.Undone})
	}
	check.Must(p.node.t, p.node.records.Advance(r, changes...))
	check.Must(p.node.t, p.node.records.Release(r, record.Change{}))
	check.Must(p.node.t, p.node.records.Remove(r))
	p.review.Send()
}

// occupied are the instances of the first card as the simulator has them, by profile id: "19@0".
func (n *node) occupied() []string {
	n.t.Helper()
	s, err := n.machine.Look()
	check.Must(n.t, err)
	out := []string{}
	for _, one := range s.Cards[0].Instances {
		out = append(out, fmt.Sprintf("%d@%d", one.Profile, one.Start))
	}
	return out
}

// mode is the MIG mode of the first card.
func (n *node) mode() bool {
	n.t.Helper()
	s, err := n.machine.Look()
	check.Must(n.t, err)
	return s.Cards[0].MIG
}

const dynamic = "  devices: {nvidia: {mig: {mode: Dynamic, profiles: [1g.10gb, 3g.40gb]}}}"

func TestDynamic(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	p := n.process()
	small, large := gpu+"-mig-1g-10gb-s0", gpu+"-mig-3g-40gb-s4"
	s := p.until("instances", has(small))
	want := []string{
		"", "mig-1g-10gb-s0", "mig-1g-10gb-s1", "mig-1g-10gb-s2", "mig-1g-10gb-s3", "mig-1g-10gb-s4", "mig-1g-10gb-s5", "mig-1g-10gb-s6",
		"mig-3g-40gb-s0", "mig-3g-40gb-s4",
	}
	if diff := cmp.Diff(want, names(s, gpu)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if len(s.Cards) != 8 || s.Counters == "" {
		t.Errorf("%d cards with counters in form %q", len(s.Cards), s.Counters)
	}
	if p := s.PartitionPolicies; len(p) != 1 || p[0].Devices != 8 || p[0].Waiting != 0 {
		t.Errorf("policies %+v", p)
	}
	r := p.hold("uid-1", small)
	edits, err := p.Made(small)
	check.Must(t, err)
	if len(edits.Nodes) != 3 || !slices.Contains(edits.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("a container gets %+v", edits)
	}
	if diff := cmp.Diff([]string{"19@0"}, n.occupied()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	q := p.hold("uid-2", large)
	// The policy goes: what is held stays published.
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "mig", metav1.DeleteOptions{}))
	s = p.until("held devices only", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 2 })
	if diff := cmp.Diff([]string{"mig-1g-10gb-s0", "mig-3g-40gb-s4"}, names(s, gpu)); diff != "" {
		t.Errorf("devices without a policy (-want +got):\n%s", diff)
	}
	p.release(r)
	p.release(q)
	// Then the GPU is what it was before there was a policy.
	s = p.until("the whole GPU", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{""}, names(s, gpu)) && len(s.Problems) == 0
	})
	if len(s.Cards) != 0 {
		t.Errorf("there are counters without a policy: %v", s.Cards)
	}
	if got := n.occupied(); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	if n.mode() {
		t.Error("the GPU stays in MIG mode")
	}
}

// TestLeftGPU: no policy changes a GPU that is left to another driver. An instance of it that a claim has stays until the claim ends, and
// the GPU then stays as it is.
func TestLeftGPU(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	small := gpu + "-mig-1g-10gb-s0"
	first := n.process()
	first.until("instances", has(small))
	r := first.hold("uid-1", small)
	first.end()
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "mig", metav1.DeleteOptions{}))
	n.policy("layout", "  devices: {nvidia: {mig: {mode: Static, layout: [{profile: 3g.40gb, count: 1}]}}}")
	n.foreign = []left.Entry{{Owner: "NVIDIA device plugin", PCIAddresses: []string{"0000:18:00.0"}}}

	second := n.process()
	s := second.until("the layout of another GPU", func(s *inventory.Snapshot) bool {
		return slices.ContainsFunc(s.Devices, func(d device.Device) bool { return strings.HasPrefix(d.Name, "nvidia-0000-19-00-0-mig-3g") })
	})
	if _, there := s.Find(device.KindGPU, small); !there || s.Withheld[small] == "" {
		t.Errorf("the instance of the claim: found %v, withheld %q", there, s.Withheld[small])
	}
	for _, d := range s.Published(device.KindGPU) {
		if strings.HasPrefix(d.Name, gpu) {
			t.Errorf("%s is published", d.Name)
		}
	}
	second.release(r)
	second.until("nothing of the GPU", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 0 })
	if got := n.occupied(); len(got) != 0 {
		t.Errorf("instances of the GPU: %v, want none, since the layout is not for it", got)
	}

	s = second.until("all layouts but one", func(s *inventory.Snapshot) bool {
		return len(s.PartitionPolicies) == 1 && s.PartitionPolicies[0].Waiting == 1
	})
	said := s.PartitionPolicies[0]
	if said.Devices != 8 || said.Reason != policy.ReasonForeign || !strings.Contains(said.Message, "NVIDIA device plugin") {
		t.Errorf("policy %+v", said)
	}
}

// TestStatic: the node makes the layout once nothing of the GPU is held, a claim gets an instance as it is, and another layout follows when
// the claims are gone.
func TestStatic(t *testing.T) {
	n := start(t, false)
	n.policy("layout", "  devices: {nvidia: {mig: {mode: Static, layout: [{profile: 3g.40gb, count: 1}, {profile: 1g.10gb, count: 2}]}}}")
	p := n.process()
	s := p.until("the layout", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 3 })
	if diff := cmp.Diff([]string{"mig-1g-10gb-s4", "mig-1g-10gb-s5", "mig-3g-40gb-s0"}, names(s, gpu)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if len(s.Cards) != 0 {
		t.Errorf("there are counters although the API server drops them: %v", s.Cards)
	}
	d, _ := s.Find(device.KindGPU, gpu+"-mig-3g-40gb-s0")
	if device.StringOf(d.Attributes[device.AttributeUUID]) == "" {
		t.Error("a static instance has no uuid")
	}
	if steps := p.steps("uid-1", d.Name); len(steps) > 0 {
		t.Errorf("a claim for a static instance has steps %v", steps)
	}
	edits, err := p.Made(d.Name)
	check.Must(t, err)
	if len(edits.Nodes) != 3 {
		t.Errorf("a container gets %+v", edits)
	}
	r := p.hold("uid-1", d.Name)
	n.policy("layout", "  devices: {nvidia: {mig: {mode: Static, layout: [{profile: 7g.80gb, count: 1}]}}}")
	p.until("nothing but what is held", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{"mig-3g-40gb-s0"}, names(s, gpu)) && len(s.PartitionPolicies) == 1 && s.PartitionPolicies[0].Waiting > 0
	})
	if diff := cmp.Diff([]string{"9@0", "19@4", "19@5"}, n.occupied()); diff != "" {
		t.Errorf("instances while one is held (-want +got):\n%s", diff)
	}
	p.release(r)
	p.until("the other layout", has(gpu+"-mig-7g-80gb-s0"))
	if diff := cmp.Diff([]string{"0@0"}, n.occupied()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "layout", metav1.DeleteOptions{}))
	p.until("the whole GPU", func(s *inventory.Snapshot) bool {
		return cmp.Equal([]string{""}, names(s, gpu)) && len(s.Problems) == 0
	})
	if got := n.occupied(); len(got) != 0 || n.mode() {
		t.Errorf("without a policy: instances %v, MIG mode %t", got, n.mode())
	}
}

// TestPreparedMeanwhile: a policy goes while a claim is being prepared that got an instance of its layout. The instance stays the claim's.
func TestPreparedMeanwhile(t *testing.T) {
	n := start(t, false)
	n.policy("layout", fmt.Sprintf(layout, "", "3g.40gb", ""))
	p := n.process()
	name := gpu + "-mig-3g-40gb-s0"
	p.until("the layout", has(name))
	preparing, err := n.records.LockClaim(t.Context(), "uid-1")
	check.Must(t, err)
	check.Must(t, preparing.Devices(t.Context(), []string{device.PoolName(nodefixture.Node, device.KindGPU) + "/" + name}))
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "layout", metav1.DeleteOptions{}))
	p.until("no policy", func(s *inventory.Snapshot) bool { return !has(name)(s) })
	check.Eventually(t, "the node begins to take the layout back", func() bool {
		idle, err := n.records.TryLockClaim("node-" + gpu)
		check.Must(t, err)
		if idle != nil {
			idle.Release()
		}
		return idle == nil
	})
	r := p.take("uid-1", name, "", 0)
	preparing.Release()
	p.until("what is held", has(name))
	if diff := cmp.Diff([]string{"9@0"}, n.occupied()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	p.release(r)
	p.until("the whole GPU", func(s *inventory.Snapshot) bool { return cmp.Equal([]string{""}, names(s, gpu)) })
}

// TestCountersDropped: without counters nothing is published that shares a GPU, and the node says why.
func TestCountersDropped(t *testing.T) {
	n := start(t, false)
	n.policy("mig", dynamic)
	s := n.process().until("a decision", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 1 })
	if diff := cmp.Diff([]string{""}, names(s, gpu)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(s.Problems, func(p discover.Problem) bool { return p.Reason == partition.ReasonNoCounters }) {
		t.Errorf("problems %v", s.Problems)
	}
	if p := s.PartitionPolicies[0]; p.Waiting != 8 || p.Reason != partition.ReasonNoCounters {
		t.Errorf("policy %+v", p)
	}
}

// TestForeign: an instance that somebody else made withholds what it overlaps, is named, and is never destroyed.
func TestForeign(t *testing.T) {
	n := start(t, true)
	check.Must(t, n.machine.SwitchOn())
	_, err := n.machine.Foreign(0, 9, 0)
	check.Must(t, err)
	p := n.process()
	p.until("nothing of the GPU", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 0 })
	n.policy("mig", dynamic)
	s := p.until("instances", has(gpu+"-mig-3g-40gb-s4"))
	want := []string{"mig-1g-10gb-s4", "mig-1g-10gb-s5", "mig-1g-10gb-s6", "mig-3g-40gb-s4"}
	if diff := cmp.Diff(want, names(s, gpu)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(s.Problems, func(p discover.Problem) bool { return p.Reason == partition.ReasonForeignInstance }) {
		t.Errorf("problems %v", s.Problems)
	}
	r := p.hold("uid-1", gpu+"-mig-3g-40gb-s4")
	p.requery.Send()
	p.release(r)
	p.requery.Send()
	n.policy("mig", "  devices: {nvidia: {mig: {mode: Disabled}}}")
	p.until("the other policy", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 0 && len(s.PartitionPolicies) == 1 })
	if diff := cmp.Diff([]string{"9@0"}, n.occupied()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

// TestForeignAppears: an instance that somebody makes or destroys while the plugin runs is noticed, by what the kernel shows. A claim's own
// coming and going has the library asked no further time.
func TestForeignAppears(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	p := n.process()
	p.until("instances", has(gpu+"-mig-3g-40gb-s4"))
	check.Must(t, n.machine.SwitchOn())
	_, err := n.machine.Foreign(0, 9, 4)
	check.Must(t, err)
	p.review.Send()
	p.until("the place withheld", func(s *inventory.Snapshot) bool {
		return !has(gpu+"-mig-3g-40gb-s4")(s) && has(gpu+"-mig-3g-40gb-s0")(s) && !has(gpu)(s)
	})
	check.Must(t, n.machine.Change(func(s *nvmlsim.State) error {
		s.Cards[0].Instances = nil
		return nil
	}))
	p.review.Send()
	p.until("the place again", has(gpu+"-mig-3g-40gb-s4"))
	check.Must(t, n.machine.Script())
	r := p.hold("uid-1", gpu+"-mig-3g-40gb-s4")
	p.review.Send()
	p.release(r)
	s, err := n.machine.Look()
	check.Must(t, err)
	if asked := s.Calls["DeviceGetCount"]; asked > 0 {
		t.Errorf("the library was asked for all GPUs %d times", asked)
	}
}

// listed says whether the library listed so many instances of the GPU.
func listed(instances int) func(*inventory.Snapshot) bool {
	return func(s *inventory.Snapshot) bool {
		i := slices.IndexFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == gpu })
		return i >= 0 && s.Physical[i].MIG != nil && len(s.Physical[i].MIG.Instances) == instances
	}
}

// TestOwnInstanceIsNotForeign: what the library listed while a claim had it, and what is destroyed since, is nobody's.
func TestOwnInstanceIsNotForeign(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	p := n.process()
	small := gpu + "-mig-1g-10gb-s0"
	p.until("instances", has(small))
	r := p.hold("uid-1", small)
	p.requery.Send()
	p.until("the instance", listed(1))
	p.release(r)
	p.until("all places", func(s *inventory.Snapshot) bool { return len(names(s, gpu)) == 10 && len(s.Problems) == 0 })
}

// TestRestart: what a claim holds stays published, with its counters, while neither the API server nor NVIDIA's library answers the next
// process.
func TestRestart(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	small := gpu + "-mig-1g-10gb-s0"
	first := n.process()
	first.until("instances", has(small))
	r := first.hold("uid-1", small)
	before := first.until("instances", has(small))
	check.Must(t, n.machine.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.Unknown}))
	second := n.process()
	s := second.until("what is held", has(small))
	was, _ := before.Find(device.KindGPU, small)
	is, _ := s.Find(device.KindGPU, small)
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("the held device (-before +after):\n%s", diff)
	}
	check.Must(t, n.machine.Script())
	second.requery.Send()
	second.release(r)
	if got := n.occupied(); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

// askedAgain waits until a question to the library that began after the script was set has been answered and reviewed: the scanner asks the
// next one then.
func (p *process) askedAgain() {
	p.node.t.Helper()
	check.Eventually(p.node.t, "the library is asked more than twice", func() bool {
		p.requery.Send()
		s, err := p.node.machine.Look()
		check.Must(p.node.t, err)
		return s.Calls["DeviceGetCount"] > 2
	})
}

// disturb has the library fail to tell how GPUs are divided, as it does when the MIG mode changes meanwhile.
func (n *node) disturb() {
	n.t.Helper()
	check.Must(n.t, n.machine.Script(nvmlsim.Fault{
		Function: "Device.GetGpuInstanceProfileInfo", Do: nvmlsim.Fail, Return: nvmlsim.Unknown,
	}))
}

// disturbed says whether the library could not tell how a GPU is divided.
func disturbed(s *inventory.Snapshot) bool {
	return slices.ContainsFunc(s.Problems, func(p discover.Problem) bool { return strings.Contains(p.Message, " mig: ") })
}

// TestDisturbed: a GPU of which the library cannot say how it is divided stays published as it was. A claim for the whole GPU still has MIG
// mode switched off.
func TestDisturbed(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	small := gpu + "-mig-1g-10gb-s0"
	p := n.process()
	before := names(p.until("instances", has(small)), gpu)
	r := p.hold("uid-1", small)
	p.requery.Send()
	p.until("the instance", listed(1))
	p.release(r)
	n.disturb()
	p.askedAgain()
	s := p.until("what the library could not say", disturbed)
	if diff := cmp.Diff(before, names(s, gpu)); diff != "" {
		t.Errorf("devices (-before +meanwhile):\n%s", diff)
	}
	check.Must(t, n.machine.Script())
	if !n.mode() {
		t.Error("the instance's claim left MIG mode off, so the next check shows nothing")
	}
	p.hold("uid-2", gpu)
	if n.mode() {
		t.Error("a claim has the whole GPU in MIG mode")
	}
}

// TestNeverTold: a GPU of which the library never said how it is divided is not given whole, and is divided once the library says so.
func TestNeverTold(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	n.disturb()
	p := n.process()
	s := p.until("a decision", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 1 })
	if got := names(s, gpu); len(got) > 0 || !disturbed(s) {
		t.Errorf("published: %v; problems %v", got, s.Problems)
	}
	check.Must(t, n.machine.Script())
	p.rescan.Send() // as at the interval, or after a kernel's event
	p.until("instances", has(gpu+"-mig-1g-10gb-s0"))
}

// TestAnotherCard: what the library said of a GPU that was in the slot before is not taken for an answer about the one that is there now.
func TestAnotherCard(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	first := n.process()
	first.until("instances", has(gpu+"-mig-1g-10gb-s0"))
	first.end()
	n.boot = "boot-2"
	id := filepath.Join(n.root, "sys/bus/pci/devices/0000:18:00.0/device")
	check.Must(t, os.WriteFile(id, []byte("0x20b2\n"), 0o600)) // an A100
	n.disturb()
	s := n.process().until("a decision", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 1 })
	if got := names(s, gpu); len(got) > 0 || !disturbed(s) {
		t.Errorf("published: %v; problems %v", got, s.Problems)
	}
}

// TestDriverGone: claims of a whole GPU and of an instance are given back while their driver is changed, and after it was unloaded under
// them: sysfs has no driver for the cards and the library fails. Otherwise pods end when the driver is back, and the driver comes back when
// the pods have ended (NVIDIA/k8s-driver-manager#213).
func TestDriverGone(t *testing.T) {
	const other = "nvidia-0000-3a-00-0"
	for _, gone := range []bool{false, true} {
		n := start(t, true)
		n.policy("mig", dynamic)
		n.quiesced = new(atomic.Bool)
		p := n.process()
		small := gpu + "-mig-1g-10gb-s0"
		p.until("instances", func(s *inventory.Snapshot) bool { return has(small)(s) && has(other)(s) })
		part, whole := p.hold("uid-1", small), p.hold("uid-2", other)
		n.quiesced.Store(true)
		p.review.Send()
		if gone {
			for _, address := range []string{"0000:18:00.0", "0000:3a:00.0"} {
				check.Must(t, os.Remove(filepath.Join(n.root, "sys/bus/pci/devices", address, "driver")))
			}
			check.Must(t, n.machine.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.DriverNotLoaded}))
			p.rescan.Send()
		}
		p.release(part)
		p.release(whole)
		if left, err := n.records.UIDs(); err != nil || len(left) > 0 {
			t.Errorf("driver gone: %t: records %v are left, error %v", gone, left, err)
		}
		if gone {
			continue
		}
		if got := n.occupied(); len(got) != 0 {
			t.Errorf("quiesced: left behind: %v", got)
		}
	}
}

// TestVersions: an instance that a claim left while the library was of another driver than the kernel's, and that no policy wants, is not
// taken for destroyed. The library would be asked about it again and again, without a pause.
func TestVersions(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	p := n.process()
	small := gpu + "-mig-1g-10gb-s0"
	p.until("instances", has(small))
	r := p.hold("uid-1", small)
	p.requery.Send()
	p.until("the instance", listed(1))
	check.Must(t, n.machine.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.LibRMVersionMismatch}))
	check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "mig", metav1.DeleteOptions{}))
	p.until("no policy", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 0 })
	p.release(r)
	p.says(": destroy its instance: ")
	check.Must(t, n.machine.Script())
	p.requery.Send()
	check.Eventually(t, "the instance is destroyed", func() bool { p.review.Send(); return len(n.occupied()) == 0 })
}

// TestNodesNotSeenBack: after a virtual machine had the GPU, neither it nor an instance of it is given before the machine was looked at
// again: what the last look found has none of the driver's common nodes.
func TestNodesNotSeenBack(t *testing.T) {
	n := start(t, true)
	n.policy("mig", dynamic)
	p := n.process()
	small := gpu + "-mig-1g-10gb-s0"
	s := p.until("instances", has(small))
	for _, name := range []string{small, gpu} {
		_, err := p.Plan(t.Context(), prepare.Request{
			Claim: nodefixture.Allocated("uid-1", nodefixture.Result("r", device.KindGPU, name)),
			Find: func(r *claim.Result) (device.Device, bool) {
				d, found := s.Find(r.Kind, r.Device)
				d.Edits.Nodes = nil
				return d, found
			},
			Allocation: claim.Allocation{Results: []claim.Result{{Request: "r", Kind: device.KindGPU, Device: name}}},
		})
		if err == nil || !strings.Contains(err.Error(), "GPU "+name+" has no device nodes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPassthroughNeedsPolicy: a class must allow it.
func TestPassthroughNeedsPolicy(t *testing.T) {
	n := start(t, true)
	n.policy("vm", "  devices: {nvidia: {mig: {mode: Dynamic, profiles: [1g.10gb]}}, passthrough: true}")
	p := n.process()
	name := gpu + "-vfio"
	s := p.until("the form for virtual machines", has(name))
	_, err := p.Plan(t.Context(), prepare.Request{
		Claim:      nodefixture.Allocated("uid-1", nodefixture.Result("r", device.KindGPU, name)),
		Find:       func(r *claim.Result) (device.Device, bool) { return s.Find(r.Kind, r.Device) },
		Allocation: claim.Allocation{Results: []claim.Result{{Request: "r", Kind: device.KindGPU, Device: name}}},
	})
	if refused, ok := errors.AsType[*claim.RefusedError](err); !ok || refused.Reason != claim.ReasonForbiddenByPolicy {
		t.Errorf("a claim whose class does not allow passthrough: %v", err)
	}
}

// TestMemoryUntold: a claim keeps its instance while the library does not tell how much memory the GPU has, by which profiles are named.
// The GPU stays published as it was, with a policy and without one.
func TestMemoryUntold(t *testing.T) {
	for _, function := range []string{"Device.GetMemoryInfo", "Device.GetUUID"} {
		for _, ret := range []nvmlsim.Return{nvmlsim.Unknown, nvmlsim.NotSupported} {
			t.Run(fmt.Sprint(function, ret), func(t *testing.T) {
				n := start(t, true)
				n.policy("mig", dynamic)
				small := gpu + "-mig-1g-10gb-s0"
				p := n.process()
				before := names(p.until("instances", has(small)), gpu)
				r := p.hold("uid-1", small)
				p.requery.Send()
				p.until("the instance", listed(1))
				check.Must(t, n.machine.Script(nvmlsim.Fault{Function: function, Do: nvmlsim.Fail, Return: ret}))
				p.askedAgain()
				if s, _ := p.holder.Get(); !cmp.Equal(before, names(s, gpu)) {
					t.Errorf("devices (-before +meanwhile):\n%s", cmp.Diff(before, names(s, gpu)))
				}
				check.Must(t, n.policies.Resource(policyResource).Delete(t.Context(), "mig", metav1.DeleteOptions{}))
				p.until("no policy", func(s *inventory.Snapshot) bool { return len(s.PartitionPolicies) == 0 })
				if diff := cmp.Diff([]string{"19@0"}, n.occupied()); diff != "" {
					t.Errorf("instances (-want +got):\n%s", diff)
				}
				check.Must(t, n.machine.Script())
				p.release(r)
			})
		}
	}
}

const layout = "  devices: {%snvidia: {mig: {mode: Static, layout: [{profile: %s, count: 1}]}}%s}"

// TestMistakenPolicy: a policy with a mistake leaves the layout that it made, and what is published of it, as they are. The next policy
// does not get the GPU, and neither does a process that starts then.
func TestMistakenPolicy(t *testing.T) {
	for name, mistake := range map[string]string{
		"unknown mode":              "  devices: {nvidia: {mig: {mode: Sometimes}}}",
		"selector":                  fmt.Sprintf(layout, "deviceSelector: {cel: 'device.nothing'}, ", "3g.40gb", ""),
		"document without an entry": "  devices: {nvidia: {mig: {mode: MigParted, migParted: {config: x, document: 'version: v1'}}}}",
		"label selector of the nodes": "  nodeSelector: {matchExpressions: [{key: a, operator: Sometimes}]}\n" +
			fmt.Sprintf(layout, "", "3g.40gb", ""),
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, false)
			n.policy("layout", "  priority: 1\n"+fmt.Sprintf(layout, "", "3g.40gb", ""))
			n.policy("next", fmt.Sprintf(layout, "", "7g.80gb", ""))
			p := n.process()
			before := names(p.until("the layout", has(gpu+"-mig-3g-40gb-s0")), gpu)
			n.policy("layout", "  priority: 1\n"+mistake)
			said := func(s *inventory.Snapshot) bool {
				return len(s.PartitionPolicies) == 2 && s.PartitionPolicies[0].Reason == policy.ReasonInvalid
			}
			for range 2 {
				s := p.until("the mistake", said)
				same(t, "devices", before, names(s, gpu))
				if next := s.PartitionPolicies[1]; next.Overruled != 8 || next.Devices != 0 {
					t.Errorf("the next policy: %+v", next)
				}
				p.end()
				p = n.process()
			}
			p.end()
			same(t, "instances", []string{"9@0"}, n.occupied())
		})
	}
}

// TestUnansweredSelector: a policy that selects GPUs by what the library does not tell now holds for them as before.
func TestUnansweredSelector(t *testing.T) {
	for _, function := range []string{"Device.GetBrand", "Device.GetCudaComputeCapability", "DeviceGetCount"} {
		t.Run(function, func(t *testing.T) {
			n := start(t, false)
			selector := `deviceSelector: {cel: '"brand" in device.attributes["fettle.dev"] && ` +
				`"computeCapability" in device.attributes["fettle.dev"]'}, `
			n.policy("layout", fmt.Sprintf(layout, selector, "3g.40gb", ""))
			p := n.process()
			p.until("the layout", has(gpu+"-mig-3g-40gb-s0"))
			check.Must(t, n.machine.Script(nvmlsim.Fault{Function: function, Do: nvmlsim.Fail, Return: nvmlsim.Unknown}))
			for range 2 { // what is known outlives the first look without an answer
				p.askedAgain()
				s, _ := p.holder.Get()
				if policies := s.PartitionPolicies; len(policies) != 1 || policies[0].Devices != 8 {
					t.Errorf("policies %+v", policies)
				}
			}
			check.Must(t, n.machine.Script())
			p.requery.Send()
			p.until("the layout", has(gpu+"-mig-3g-40gb-s0"))
			p.end()
			same(t, "instances", []string{"9@0"}, n.occupied())
		})
	}
}
