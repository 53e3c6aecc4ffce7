// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fleet"
	"github.com/fettle-dev/fettle/test/objects"
)

// crowd is a cluster of many nodes and claims, which are made page by page. The last nodes have two FPGAs each, the others eight GPUs.
type crowd struct {
	nodes, fpgas, claims, perNode int
	// slices counts the lists of slices, most is how many objects a page had.
	slices, most int
}

const gpus = 8

func (c *crowd) kind(i int) (name string, devices int) {
	if i >= c.nodes-c.fpgas {
		return "fpga", 2
	}
	return "gpu", max(gpus, c.perNode)
}

func (c *crowd) node(i int) *corev1.Node {
	n := fleet.Node(i)
	n.Annotations = map[string]string{"large": strings.Repeat("a", 5000)}
	return n
}

func (c *crowd) slice(i int) *resourceapi.ResourceSlice {
	kind, devices := c.kind(i)
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fleet.Name(i)}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: new(fleet.Name(i)),
		Pool: resourceapi.ResourcePool{Name: fleet.Name(i) + "/" + kind, Generation: 1, ResourceSliceCount: 1},
	}}
	for d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("%s-%d", kind, d), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
		})
	}
	return s
}

// claim is a large one that has a device of a node.
func (c *crowd) claim(i int) resourceapi.ResourceClaim {
	node, device := i/c.perNode, i%c.perNode
	kind, _ := c.kind(node)
	out := objects.Claim("team-"+strconv.Itoa(i%50), fmt.Sprintf("claim-%05d", i), objects.Request("r", "gpu.fettle.dev"))
	out.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config("fettle.dev", `"`+strings.Repeat("x", 6000)+`"`)}
	held := objects.Result("r", v1alpha1.DriverName, fleet.Name(node)+"/"+kind, fmt.Sprintf("%s-%d", kind, device))
	out.Status.Allocation = objects.Allocation(held)
	out.Status.ReservedFor = objects.ReservedFor("pod", "uid")
	return *out
}

// list answers lists of the cluster's kinds, others are the client's.
func (c *crowd) list(ctx context.Context, other client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	selected := -1
	if o.FieldSelector != nil {
		for _, r := range o.FieldSelector.Requirements() {
			if _, err := fmt.Sscanf(r.Value, "node-%d", &selected); err != nil {
				selected = c.nodes
			}
		}
	}
	some := func(most int, add func(int)) {
		for i := range most {
			if selected < 0 || selected == i {
				add(i)
			}
		}
	}
	switch list := into.(type) {
	case *corev1.NodeList:
		some(c.nodes, func(i int) { list.Items = append(list.Items, *c.node(i)) })
	case *resourceapi.ResourceSliceList:
		c.slices++
		some(c.nodes, func(i int) { list.Items = append(list.Items, *c.slice(i)) })
	case *v1alpha1.AcceleratorNodeList:
		some(c.nodes, func(i int) {
			kind, devices := c.kind(i)
			n := v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: fleet.Name(i)}}
			n.Status.Pools = []v1alpha1.PoolStatus{{Kind: kind, Devices: int32(devices)}}
			list.Items = append(list.Items, n)
		})
	case *resourceapi.ResourceClaimList:
		if o.FieldSelector != nil {
			return other.List(ctx, into, options...)
		}
		from, _ := strconv.Atoi(o.Continue)
		for i := from; i < min(from+int(o.Limit), c.claims); i++ {
			list.Items = append(list.Items, c.claim(i))
		}
		if next := from + int(o.Limit); next < c.claims {
			list.Continue = strconv.Itoa(next)
		}
		c.most = max(c.most, len(list.Items))
	default:
		return other.List(ctx, into, options...)
	}
	return nil
}

// crowded is a world with the cluster, a pod that waits for a GPU, and one that waits for three FPGAs.
func crowded(t *testing.T, c *crowd) *world {
	t.Helper()
	w := newWorld(t, objects.Class("gpu.fettle.dev", `device.attributes["fettle.dev"].type == "gpu"`),
		objects.Class("fpga.fettle.dev", `device.attributes["fettle.dev"].type == "fpga"`))
	for name, class := range map[string]string{"train": "gpu.fettle.dev", "route": "fpga.fettle.dev"} {
		for _, o := range w.pod(name, class) {
			if claim, is := o.(*resourceapi.ResourceClaim); is && name == "route" {
				claim.Spec.Devices.Requests[0].Exactly.Count = 3
			}
			check.Must(t, w.client.Create(t.Context(), o))
		}
	}
	reader := interceptor.NewClient(w.client, interceptor.Funcs{List: c.list})
	w.Live, w.Client = reader, reader
	return w
}

// TestManyLargeClaims: in a cluster of 3,255 nodes with 26,000 large claims, waiting pods are explained by 100 nodes, also one that waits
// for what few nodes have.
func TestManyLargeClaims(t *testing.T) {
	c := &crowd{nodes: 3255, fpgas: 5, claims: 26_000, perNode: gpus}
	w := crowded(t, c)
	said := w.pass(t, 40*time.Second)
	slices.Sort(said)
	want := []string{
		"Warning WaitingForDevices of 3255 nodes 100 were looked at: all 760 GPUs that would do on nodes node-00000, node-00001",
		"Warning WaitingForDevices of 3255 nodes 100 were looked at: request gpu wants 3 FPGAs on one node, and node-03250",
	}
	for i := range want {
		if len(said) != len(want) || !strings.HasPrefix(said[i], want[i]) {
			t.Fatalf("said %q, want %q", said, want)
		}
	}
}

// sizes returns what is kept of claims, nodes and slices, in bytes.
func sizes(s *Snapshot) (claims, others int) {
	for _, claim := range s.Claims {
		claims += claim.Size()
	}
	for _, node := range s.Nodes {
		others += node.Size()
	}
	for _, slice := range s.Slices {
		others += slice.Size()
	}
	return claims, others
}

// TestKept: what is kept of 26,000 claims of 6 kB each is bounded, also where all of them have devices of the nodes that are looked at.
func TestKept(t *testing.T) {
	for name, test := range map[string]struct {
		crowd              crowd
		nodes, claims, max int
	}{
		"on many nodes":   {crowd{nodes: 3250, claims: 26_000, perNode: gpus}, 100, 100 * gpus, 300 << 10},
		"on the same 100": {crowd{nodes: 200, claims: 26_000, perNode: 260}, 100, 26_000, claimBytes},
	} {
		t.Run(name, func(t *testing.T) {
			c := &test.crowd
			w := crowded(t, c)
			devices, err := ReadDevices(t.Context(), w.Live)
			check.Must(t, err)
			s, err := Reader{Live: w.Live, Cached: w.Client}.Read(t.Context(), devices, []Asker{{Pod: &corev1.Pod{}}}, nil)
			check.Must(t, err)
			claims, others := sizes(s)
			t.Logf("%d claims of %d kB, nodes and slices of %d kB", len(s.Claims), claims>>10, others>>10)
			if len(s.Nodes) != test.nodes || len(s.Claims) != test.claims || claims > test.max || others > 2<<20 {
				t.Errorf("%d nodes, %d claims of %d bytes, others of %d bytes", len(s.Nodes), len(s.Claims), claims, others)
			}
			if c.most > 25 || c.slices > 101 {
				t.Errorf("%d claims in a page, %d lists of slices", c.most, c.slices)
			}
		})
	}
}

// TestDividedNodes: of nodes with 208 devices each, 100 are looked at.
func TestDividedNodes(t *testing.T) {
	f, err := fleet.New("../..", t.TempDir())
	check.Must(t, err)
	all := &sharedSlices{left: sliceBytes}
	w := newWorld(t)
	for i := range maxNodes {
		own, err := f.Slices(i)
		check.Must(t, err)
		live := interceptor.NewClient(w.client, interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				for _, slice := range own {
					list.(*resourceapi.ResourceSliceList).Items = append(list.(*resourceapi.ResourceSliceList).Items, *slice)
				}
				return nil
			},
		})
		if _, err := all.list(t.Context(), live); err != nil {
			t.Fatalf("after %d nodes: %v", i, err)
		}
	}
	t.Logf("%d MiB of %d", (sliceBytes-all.left)>>20, sliceBytes>>20)
}

// TestClaimOfAForeignOwner: a claim of another namespace that says that it is of a waiting pod, whatever its size, does not keep the pod
// from being explained.
func TestClaimOfAForeignOwner(t *testing.T) {
	forged := claim("secret-team", "forged", "gpu.fettle.dev")
	forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "train", UID: "train", Controller: new(true)}}
	forged.Spec.Devices.Requests = append(forged.Spec.Devices.Requests, largeSelectors(300<<10)...)
	w := newWorld(t, append(append(oneGPU(), forged), (*world)(nil).pod("train", "gpu.fettle.dev")...)...)
	said := w.pass(t, time.Minute)
	if len(said) != 1 || !strings.Contains(said[0], "is held: by a claim of another namespace") {
		t.Errorf("said %q, want that the GPU is held", said)
	}
}

// TestUnjudged: a pod that cannot be explained, since the cluster's or its own objects are too large, learns it, and is counted.
func TestUnjudged(t *testing.T) {
	for name, test := range map[string]struct {
		enlarge func(t *testing.T, w *world)
		want    string
	}{
		"namespaces": {func(t *testing.T, w *world) {
			t.Helper()
			for i := range 10 {
				n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
				n.Labels = map[string]string{"l": strings.Repeat("l", 1<<20)}
				check.Must(t, w.client.Create(t.Context(), n))
			}
		}, "the objects of the cluster that decide about devices take more than the 8192 KiB"},
		"its claim": {func(t *testing.T, w *world) {
			t.Helper()
			claim := &resourceapi.ResourceClaim{}
			check.Must(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: "research", Name: "train"}, claim))
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, largeSelectors(300<<10)...)
			check.Must(t, w.client.Update(t.Context(), claim))
		}, "its claims and their templates take more than the 256 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(oneGPU(), (*world)(nil).pod("train", "gpu.fettle.dev")...)...)
			test.enlarge(t, w)
			said := w.pass(t, time.Minute)
			if len(said) != 1 || !strings.Contains(said[0], test.want) {
				t.Errorf("said %q, want one with %q", said, test.want)
			}
			if got := testutil.ToFloat64(w.waiting.WithLabelValues("unjudged")); got != 1 {
				t.Errorf("%v pods are counted as not judged", got)
			}
		})
	}
}
