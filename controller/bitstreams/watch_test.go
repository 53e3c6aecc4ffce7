// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/trust"
)

func nodeWith(name string, digests ...string) *v1alpha1.AcceleratorNode {
	return &v1alpha1.AcceleratorNode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.AcceleratorNodeStatus{Bitstreams: digests},
	}
}

func imagesOf(layers ...string) (out []v1alpha1.BitstreamImage) {
	for _, layer := range layers {
		out = append(out, v1alpha1.BitstreamImage{Layer: layer, Manifest: "of " + layer})
	}
	return out
}

func TestHolders(t *testing.T) {
	nodes := []v1alpha1.AcceleratorNode{
		*nodeWith("none"), *nodeWith("a", "a"), *nodeWith("both", "a", "b"), *nodeWith("c", "c"), *nodeWith("manifest", "of a"),
	}
	for _, test := range []struct {
		layers []string
		want   int32
	}{{[]string{"a"}, 2}, {[]string{"a", "b"}, 2}, {[]string{"b", "c"}, 2}, {[]string{"d"}, 0}, {nil, 0}} {
		if got := holders(nodes, imagesOf(test.layers...)); got != test.want {
			t.Errorf("%q: %d nodes, want %d", test.layers, got, test.want)
		}
	}
	digest := func(n int) string { return fmt.Sprintf("sha256:%02x%062x", n, 0) }
	short := nodeWith("short")
	short.Status.Rest = &v1alpha1.NodeRest{Bitstreams: v1alpha1.AddRestBitstream(v1alpha1.AddRestBitstream("", digest(1)), digest(2))}
	for n, want := range []int32{0, 1, 1, 0} {
		if got := holders([]v1alpha1.AcceleratorNode{*short}, imagesOf(digest(n))); got != want {
			t.Errorf("file %d in short: %d nodes, want %d", n, got, want)
		}
	}
}

// counter is a reconciler whose registry counts how often it is asked.
type counter struct {
	reconciler.Queue

	client client.WithWatch
	clock  *clocktesting.FakeClock
	asked  int
}

func newCounter(t *testing.T, objects ...client.Object) *counter {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{
		clock: clocktesting.NewFakeClock(time.Now()),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithStatusSubresource(&v1alpha1.FPGABitstream{}, &v1alpha1.ClusterFPGABitstream{}, &v1alpha1.AcceleratorNode{}).Build(),
	}
	services := reconciler.Services{Client: c.client, Recorder: events.NewFakeRecorder(100), Clock: c.clock, Namespace: "fettle"}
	resolve := func(_ context.Context, _ *artifacts.Kind, a artifacts.Artifact, _ []*trust.Policy) (*artifacts.Outcome, error) {
		c.asked++
		o, _ := a.(*object)
		if o.Spec.Image == "" {
			return &artifacts.Outcome{}, nil
		}
		o.images = imagesOf("a", "b")
		return &artifacts.Outcome{Digest: "sha256:top"}, nil
	}
	policies := trustpolicies.NewReader(c.client, nil, nil).All
	c.Queue = newRow(services, Options{Interval: time.Minute, Policies: policies}, resolve).Queues[0]
	return c
}

// reconciled is what the status says of nodes afterwards, how often the registry was asked until then, and when the next turn is.
func (c *counter) reconciled(t *testing.T, object client.Object) (nodes *int32, asked int, next time.Duration) {
	t.Helper()
	key := client.ObjectKeyFromObject(object)
	result, err := c.Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	switch b := object.(type) {
	case *v1alpha1.FPGABitstream:
		nodes = b.Status.Nodes
	case *v1alpha1.ClusterFPGABitstream:
		nodes = b.Status.Nodes
	}
	return nodes, c.asked, result.RequeueAfter
}

// TestNodesAreCounted: a node that gets or loses a file changes the count and asks no registry; the next look comes when it was to come.
func TestNodesAreCounted(t *testing.T) {
	object := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nlb0", UID: "1", Generation: 1}}
	object.Spec.Image = "registry.example/nlb0:v1"
	node := nodeWith("n1", "a")
	c := newCounter(t, object, node, nodeWith("n2", "b", "c"), nodeWith("n3", "c"))
	expect := func(what string, nodes int32, asked int) (next time.Duration) {
		t.Helper()
		got, gotAsked, next := c.reconciled(t, object)
		if diff := gocmp.Diff(&nodes, got); diff != "" || gotAsked != asked {
			t.Errorf("%s: asked %d times, want %d; nodes (-want +got):\n%s", what, gotAsked, asked, diff)
		}
		return next
	}
	first := expect("new", 2, 1)
	written := object.ResourceVersion
	c.clock.Step(10 * time.Second)
	if next := expect("nothing changed", 2, 1); next != first-10*time.Second {
		t.Errorf("the next look is in %v, want %v", next, first-10*time.Second)
	}
	if object.ResourceVersion != written {
		t.Error("written although nothing changed")
	}
	node.Status.Bitstreams = nil
	if err := c.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	expect("a node lost it", 1, 1)
	if object.Status.Digest != "sha256:top" ||
		!meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionResolved) {
		t.Errorf("the count changed what was resolved: %+v", object.Status)
	}
	c.clock.Step(first)
	expect("the interval is over", 1, 2)
	object.Generation = 2
	if err := c.client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	expect("another spec", 1, 3)
	if err := c.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)}); err != nil {
		t.Fatal(err)
	}
}

// TestNotCounted: files that are on the nodes anyway have no count.
func TestNotCounted(t *testing.T) {
	object := &v1alpha1.ClusterFPGABitstream{ObjectMeta: metav1.ObjectMeta{Name: "staged", UID: "1", Generation: 1}}
	object.Spec.HostFile = &v1alpha1.HostBitstream{Store: "/srv/fpga", ID: "00000000000000000000000000000001"}
	c := newCounter(t, object, nodeWith("n1", "a"))
	for range 2 {
		nodes, asked, next := c.reconciled(t, object)
		if nodes != nil || asked != 1 || next != 0 {
			t.Errorf("counted %v nodes, looked %d times, next look in %v", ptr.Deref(nodes, -1), asked, next)
		}
	}
}

// later is a queue that notes what comes after a while.
type later struct {
	reconciler.RequestQueue
	keys []string
}

func (l *later) AddAfter(r reconcile.Request, after time.Duration) {
	if after != reconciler.Gathering {
		l.keys = append(l.keys, "too soon")
	}
	l.keys = append(l.keys, r.String())
}

// TestChangedNodes: only the objects that are on more or fewer nodes now are queued.
func TestChangedNodes(t *testing.T) {
	own := func(name string, layers ...string) *v1alpha1.FPGABitstream {
		b := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
		b.Status.Images = imagesOf(layers...)
		return b
	}
	ofAll := &v1alpha1.ClusterFPGABitstream{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	ofAll.Status.Images = imagesOf("a")
	c := newCounter(t, own("x", "a", "b"), own("y", "b"), own("z", "c"), own("new"), ofAll)
	for _, test := range []struct {
		name        string
		before, now *v1alpha1.AcceleratorNode
		want        []string
	}{
		{"a node comes", nil, nodeWith("n", "a"), []string{"/all", "team-a/x"}},
		{"without files", nil, nodeWith("n"), nil},
		{"a node goes", nodeWith("n", "b"), nil, []string{"team-a/x", "team-a/y"}},
		{"one comes, one goes, one stays", nodeWith("n", "a", "c"), nodeWith("n", "a", "b"), []string{"team-a/y", "team-a/z"}},
		{"something else changes", nodeWith("n", "a"), nodeWith("n", "a"), nil},
		{"a file of no object", nodeWith("n"), nodeWith("n", "d"), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var q later
			for _, scope := range []pairs.Scope{pairs.OfNamespaces, pairs.OfCluster} {
				h := (&resolver{client: c.client}).onNodes(scope)
				switch {
				case test.before == nil:
					h.Create(t.Context(), event.CreateEvent{Object: test.now}, &q)
				case test.now == nil:
					h.Delete(t.Context(), event.DeleteEvent{Object: test.before}, &q)
				default:
					h.Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}, &q)
				}
			}
			slices.SortFunc(q.keys, cmp.Compare[string])
			if diff := gocmp.Diff(test.want, q.keys); diff != "" {
				t.Errorf("queued (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImagesChanged(t *testing.T) {
	object := func(layers ...string) *v1alpha1.ClusterFPGABitstream {
		b := &v1alpha1.ClusterFPGABitstream{}
		b.Status.Images = imagesOf(layers...)
		return b
	}
	p := imagesChanged()
	if !p.Update(event.UpdateEvent{ObjectOld: object(), ObjectNew: object("a")}) {
		t.Error("new images are not seen")
	}
	counted := object("a")
	counted.Status.Nodes = ptr.To[int32](3)
	if p.Update(event.UpdateEvent{ObjectOld: object("a"), ObjectNew: counted}) {
		t.Error("the count itself has it counted again")
	}
}
