// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/nodeview"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// reporting is a node whose plugin keeps its AcceleratorNode in a model of an API server.
type reporting struct {
	t   *testing.T
	api *dynamicfake.FakeDynamicClient
	// kube has the node's slices. What the plugin has at hand is of before it published any.
	kube *kubefake.Clientset
	// emptied counts how often the node was emptied, refusals how often a write was refused while refuses.
	emptied, refusals atomic.Int64
	refuses           atomic.Bool
	// caches is how many kernel caches the node has, changed tells the plugin of it, and writes counts how often it wrote.
	caches, writes atomic.Int64
	changed        notify.Signal
	// quiesce follows the annotations of a driver that is changed.
	quiesce *quiesce.State
	mu      sync.Mutex
	// streams are the watches that were begun.
	streams []watch.Interface
}

func nodeResource() schema.GroupVersionResource {
	return v1alpha1.GroupVersion.WithResource("acceleratornodes")
}

// startReporting runs the plugin's part of a node until the test ends.
func startReporting(t *testing.T) *reporting {
	t.Helper()
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{nodeResource(): "AcceleratorNodeList"})
	out := &reporting{t: t, api: api, kube: kubefake.NewClientset(), changed: notify.New()}
	api.PrependReactor("patch", "acceleratornodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if out.refuses.Load() {
			out.refusals.Add(1)
			return true, nil, errors.New("refused by a policy")
		}
		out.writes.Add(1)
		o, err := apply(api.Tracker(), a)
		return true, o, err
	})
	api.PrependWatchReactor("acceleratornodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		stream, err := api.Tracker().Watch(nodeResource(), "")
		out.mu.Lock()
		defer out.mu.Unlock()
		out.streams = append(out.streams, stream)
		return true, stream, err
	})
	records, err := record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	state, holder := retirement.New(), inventory.NewHolder()
	holder.Set(nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0)))
	view, err := nodeview.New(out.kube, nodefixture.Node, 0, clock.RealClock{})
	check.Must(t, err)
	before := func(context.Context) ([]resourceapi.ResourceSlice, error) { return nil, nil }
	out.quiesce, err = quiesce.Open(quiesce.Config{Dir: t.TempDir(), Review: notify.New(), Requery: notify.New(), Proc: t.TempDir()})
	check.Must(t, err)
	r := NewReporter(ReporterConfig{
		Node: nodefixture.Node, ReadSlices: before, SlicesNow: view.SlicesNow, Dynamic: api, Holder: holder, Retirement: state, Records: records,
		Quiesce: out.quiesce,
		Changed: out.changed, Registry: prometheus.NewRegistry(), Errors: prometheus.NewCounterVec(prometheus.CounterOpts{}, []string{"source"}),
		Bitstreams: func() ([]string, error) { return nil, nil },
		Presets:    func([]*record.Record) []v1alpha1.NodePreset { return nil },
		KernelCaches: func([]device.Device, []*record.Record) (all []v1alpha1.NodeCache) {
			for i := range out.caches.Load() {
				all = append(all, v1alpha1.NodeCache{Name: fmt.Sprint("c", i), Phase: v1alpha1.NodeCacheExtracted})
			}
			return all
		},
		UpToDate:  func(string, *inventory.Snapshot, []resourceapi.ResourceSlice) bool { return true },
		Published: func() {}, Ready: func() error { return nil },
		Empty: func(context.Context) (bool, error) { out.emptied.Add(1); return true, nil },
	})
	nothing := func(context.Context, string) {}
	go state.Watch(t.Context(), api, nodefixture.Node, retirement.Requests{
		Recover: nothing, Quiesce: out.quiesce.Set, Upgrade: out.quiesce.SetUpgrade, ClaimDeleted: func() {},
		Waiting: func(string) {},
	})
	go r.Run(t.Context())
	t.Cleanup(out.endWatches)
	return out
}

func (r *reporting) endWatches() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		s.Stop()
	}
}

// unwatched has something happen between two watches.
func (r *reporting) unwatched(happens func()) {
	r.endWatches()
	synctest.Wait()
	happens()
}

// apply applies an object or its status as an API server does: a status needs an object.
func apply(tracker clienttesting.ObjectTracker, a clienttesting.Action) (runtime.Object, error) {
	patch, ok := a.(clienttesting.PatchAction)
	if !ok {
		return nil, errors.New("no patch")
	}
	var sent unstructured.Unstructured
	if err := json.Unmarshal(patch.GetPatch(), &sent.Object); err != nil {
		return nil, err
	}
	live, err := tracker.Get(nodeResource(), "", patch.GetName())
	if apierrors.IsNotFound(err) && patch.GetSubresource() == "" {
		return &sent, tracker.Create(nodeResource(), &sent, "")
	}
	if err != nil {
		return nil, err
	}
	object, ok := live.(*unstructured.Unstructured)
	if !ok {
		return nil, errors.New("no object")
	}
	object = object.DeepCopy()
	object.Object["status"] = sent.Object["status"]
	return object, tracker.Update(nodeResource(), object, "")
}

// object returns the node's AcceleratorNode; nil: there is none.
func (r *reporting) object() *v1alpha1.AcceleratorNode {
	r.t.Helper()
	found, err := r.api.Resource(nodeResource()).Get(r.t.Context(), nodefixture.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	check.Must(r.t, err)
	var node v1alpha1.AcceleratorNode
	check.Must(r.t, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &node))
	return &node
}

// annotate sets the annotation that retires the node; empty: removes it.
func (r *reporting) annotate(value string) {
	r.t.Helper()
	object, err := r.api.Resource(nodeResource()).Get(r.t.Context(), nodefixture.Node, metav1.GetOptions{})
	check.Must(r.t, err)
	object.SetAnnotations(nil)
	if value != "" {
		object.SetAnnotations(map[string]string{retirement.Annotation: value})
	}
	_, err = r.api.Resource(nodeResource()).Update(r.t.Context(), object, metav1.UpdateOptions{})
	check.Must(r.t, err)
}

func (r *reporting) delete() {
	r.t.Helper()
	check.Must(r.t, r.api.Resource(nodeResource()).Delete(r.t.Context(), nodefixture.Node, metav1.DeleteOptions{}))
}

// TestRetiredAndGone: an uninstall that deleted the AcceleratorNode of a retired node did not end if the plugin still runs minutes later.
// The object comes back as it was, so that the retirement can be taken back, and the node serves again.
func TestRetiredAndGone(t *testing.T) {
	for _, value := range []string{v1alpha1.RetireByUninstall, v1alpha1.RetireByAdmin} {
		synctest.Test(t, func(t *testing.T) {
			r := startReporting(t)
			retired := func() bool {
				node := r.object()
				return node != nil && meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionRetired)
			}
			time.Sleep(time.Minute)
			if node := r.object(); node == nil || retired() {
				t.Fatalf("in the beginning: %+v", node)
			}
			r.annotate(value)
			time.Sleep(time.Minute)
			if !retired() {
				t.Fatalf("the node has not retired: %+v", r.object())
			}
			for range 2 {
				r.delete()
				time.Sleep(goneFor - time.Second)
				if node := r.object(); node != nil {
					t.Fatalf("the object is back before the plugin could have ended: %+v", node)
				}
				time.Sleep(time.Minute)
				if node := r.object(); node == nil || node.Annotations[retirement.Annotation] != value || !retired() {
					t.Fatalf("%s later the object is %+v", goneFor+time.Minute, node)
				}
			}
			r.annotate("")
			time.Sleep(time.Minute)
			if node := r.object(); node == nil || retired() {
				t.Fatalf("the node does not serve again: %+v", node)
			}
			r.delete()
			time.Sleep(time.Minute)
			if node := r.object(); node == nil || len(node.Annotations) > 0 {
				t.Fatalf("a node that serves has the object %+v", node)
			}
		})
	}
}

// TestDeletedWhileDriverChanges: an AcceleratorNode that is deleted while its node's driver is changed comes back with what says so. Until
// that is taken off, the plugin does not use the devices.
func TestDeletedWhileDriverChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporting(t)
		time.Sleep(time.Minute)
		want := map[string]string{v1alpha1.QuiesceAnnotation: "nvidia", v1alpha1.UpgradeAnnotation: "stack 2026-01-01T00:00:00Z"}
		set := func(annotations map[string]string) {
			t.Helper()
			object, err := r.api.Resource(nodeResource()).Get(t.Context(), nodefixture.Node, metav1.GetOptions{})
			check.Must(t, err)
			object.SetAnnotations(annotations)
			_, err = r.api.Resource(nodeResource()).Update(t.Context(), object, metav1.UpdateOptions{})
			check.Must(t, err)
			time.Sleep(time.Minute)
		}
		set(want)
		for _, remove := range []func(){r.delete, func() { r.unwatched(r.delete) }} {
			remove()
			time.Sleep(2 * goneFor)
			node := r.object()
			if node == nil || !maps.Equal(node.Annotations, want) || !r.quiesce.Holds("nvidia") {
				t.Fatalf("the object is back as %+v, and the driver is quiesced: %v", node, r.quiesce.Holds("nvidia"))
			}
		}
		set(nil)
		if r.quiesce.Holds("nvidia") {
			t.Error("the driver is quiesced for good")
		}
		r.delete()
		time.Sleep(2 * goneFor)
		if node := r.object(); node == nil || len(node.Annotations) > 0 {
			t.Errorf("the object of a node that serves is %+v", node)
		}
	})
}

// TestNotEmptiedEarly: a retired node is emptied once the API server has none of its slices, whatever the copies at hand say.
func TestNotEmptiedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporting(t)
		slices := r.kube.ResourceV1().ResourceSlices()
		_, err := slices.Create(t.Context(), &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "own"},
			Spec:       resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: new(nodefixture.Node)},
		}, metav1.CreateOptions{})
		check.Must(t, err)
		time.Sleep(time.Minute)
		r.annotate(v1alpha1.RetireByUninstall)
		time.Sleep(time.Minute)
		if n := r.emptied.Load(); n > 0 {
			t.Errorf("emptied %d times while its slices are there", n)
		}
		check.Must(t, slices.Delete(t.Context(), "own", metav1.DeleteOptions{}))
		time.Sleep(time.Minute)
		if r.emptied.Load() == 0 {
			t.Error("not emptied after they are gone")
		}
	})
}

// TestGoneUnwatched: an object that was deleted while the plugin did not watch is made again.
func TestGoneUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporting(t)
		time.Sleep(time.Minute)
		r.unwatched(r.delete)
		time.Sleep(time.Minute)
		if r.object() == nil {
			t.Error("the object is not made again")
		}
	})
}

// TestRefusedReports: a status that the API server refuses, as a wrong admission policy has it do for all nodes at once, is tried once a
// minute after a while, and is written soon after that is over.
func TestRefusedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporting(t)
		time.Sleep(time.Minute)
		r.refuses.Store(true)
		r.delete() // so there is something to write
		time.Sleep(10 * time.Minute)
		if n := r.refusals.Load(); n < 5 || n > 20 {
			t.Errorf("tried %d times in ten minutes", n)
		}
		before := r.refusals.Load()
		time.Sleep(10 * time.Minute)
		if n := r.refusals.Load() - before; n < 5 || n > 10 {
			t.Errorf("tried %d times in the next ten", n)
		}
		r.refuses.Store(false)
		time.Sleep(longestRetry * 3 / 2)
		if r.object() == nil {
			t.Error("it is not written although nobody refuses it any more")
		}
	})
}

// TestManyCachesFewWrites: a hundred caches that come within a minute are told in a few writes, the first of them while the others come,
// and the last soon after the end.
func TestManyCachesFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporting(t)
		time.Sleep(time.Minute)
		before := r.writes.Load()
		for n := range int64(100) {
			r.caches.Store(n + 1)
			r.changed.Send()
			time.Sleep(600 * time.Millisecond)
			if n == 50 && len(r.object().Status.KernelCaches) == 0 {
				t.Error("the first are not told")
			}
		}
		time.Sleep(2*fetchedLongest + reportPause)
		if n := r.writes.Load() - before; n > 5 {
			t.Errorf("%d writes", n)
		}
		told := 0
		for i := range 100 {
			told += len(r.object().Status.CachesOf("", fmt.Sprint("c", i)))
		}
		if told != 100 {
			t.Errorf("%d of 100 are told", told)
		}
	})
}
