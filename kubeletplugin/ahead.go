// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// aheadSpread is the time over which the nodes that want a file begin to fetch it.
	aheadSpread = 30 * time.Second
	// aheadTries is how often a file is asked for. Who needs it then fetches it itself.
	aheadTries = 6
	// aheadRetry is how long after the first try the second is; each later one waits twice as long.
	aheadRetry = 30 * time.Second
	// aheadTimeout bounds one try, since the others wait for it.
	aheadTimeout = 10 * time.Minute
	// idle is how long nothing is done where nothing is to be done.
	idle = time.Hour
)

// forerunner brings bitstreams that fit the node's regions into its store before a claim asks for them. That saves time and gives nobody
// anything: a claim is judged as if the file were not here. It evicts nothing and keeps nothing from being evicted.
type forerunner struct {
	node       string
	latest     *latest
	retired    *retirement
	bitstreams *bitstreams
	files      *artifacts
	clock      clock.Clock
	// fetched is called after a file came.
	fetched func()
	// objects are what the API server has of both kinds. changed carries a value after one changed.
	objects []cache.Store
	changed chan struct{}
	// errands are by the file and the way to it. Only run uses them.
	errands map[string]*errand
}

// errand is a file that the node should have.
type errand struct {
	params fetchParams
	due    time.Time
	tries  int
	// over: the file was here once, or it was tried often enough.
	over bool
}

func (p *Plugin) newForerunner() *forerunner {
	return &forerunner{
		node: p.config.Node, latest: p.latest, retired: p.retired, bitstreams: p.fpgas.bitstreams, files: p.fpgas.artifacts,
		clock: clock.RealClock{}, fetched: func() { signal(p.claims) }, changed: make(chan struct{}, 1),
	}
}

// run ends with ctx. A node without regions watches nothing.
func (f *forerunner) run(ctx context.Context) {
	for {
		v, changed := f.latest.get()
		if len(interfacesOf(v)) > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped, err := f.watch(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Bitstreams are fetched only when claims ask for them")
		cancel()
		return
	}
	defer stopped()
	defer cancel()
	for {
		_, looked := f.latest.get()
		retired := f.retired.wait()
		wait, ok := f.step(ctx)
		if !ok {
			wait = idle
		}
		timer := f.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-looked:
		case <-retired:
		case <-f.changed:
		case <-timer.C():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// watch follows both kinds of objects until ctx ends; stopped waits for that.
func (f *forerunner) watch(ctx context.Context) (stopped func(), err error) {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(f.bitstreams.dynamic, 0)
	wake := func(any) { signal(f.changed) }
	for _, resource := range []string{"clusterfpgabitstreams", "fpgabitstreams"} {
		informer := factory.ForResource(v1alpha1.GroupVersion.WithResource(resource)).Informer()
		_, failed := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: wake, UpdateFunc: func(_, now any) { wake(now) }, DeleteFunc: wake,
		})
		if err := errors.Join(informer.SetTransform(trimBitstream), failed); err != nil {
			return nil, fmt.Errorf("watch %s: %w", resource, err)
		}
		f.objects = append(f.objects, informer.GetStore())
	}
	factory.Start(ctx.Done())
	return factory.Shutdown, nil
}

// trimBitstream keeps of an object in memory only what says which files it has and how to fetch them.
func trimBitstream(object any) (any, error) {
	from, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range [][]string{
		{"apiVersion"},
		{"kind"},
		{"metadata", "namespace"},
		{"metadata", "name"},
		{"metadata", "uid"},
		{"metadata", "resourceVersion"},
		{"metadata", "generation"},
		{"spec", "image"},
		{"spec", "imagePullSecrets"},
		{"status", "observedGeneration"},
		{"status", "images"},
	} {
		if value, found, err := unstructured.NestedFieldNoCopy(from.Object, path...); found && err == nil {
			if err := unstructured.SetNestedField(kept.Object, value, path...); err != nil {
				return nil, fmt.Errorf("%s %s: %w", from.GetKind(), from.GetName(), err)
			}
		}
	}
	return kept, nil
}

// step fetches what is due first, and says how long to wait before the next step. Not ok: until something changes.
func (f *forerunner) step(ctx context.Context) (wait time.Duration, ok bool) {
	if f.retired.is() {
		f.errands = nil // its files are removed; should it come back it begins anew
		return 0, false
	}
	f.plan(f.wanted())
	e := f.next()
	if e == nil {
		return 0, false
	}
	if wait := e.due.Sub(f.clock.Now()); wait > 0 {
		return wait, true
	}
	err := f.fetch(ctx, &e.params)
	if ctx.Err() == nil && !f.retired.is() {
		f.settle(ctx, e, err)
	}
	return 0, true
}

// wanted are the files of all objects that fit one of the node's regions.
func (f *forerunner) wanted() []fetchParams {
	v, _ := f.latest.get()
	ids := interfacesOf(v)
	var out []fetchParams
	for _, store := range f.objects {
		for _, object := range store.List() {
			if o, ok := object.(*unstructured.Unstructured); ok {
				out = append(out, f.bitstreams.filesOf(o, ids)...)
			}
		}
	}
	return out
}

// filesOf are the files that claims of this node would fetch if they named the object: none of one that is not resolved, is for other
// interfaces, or whose files are on the hosts.
func (b *bitstreams) filesOf(o *unstructured.Unstructured, ids []string) []fetchParams {
	if image, _, _ := unstructured.NestedString(o.Object, "spec", "image"); image == "" {
		return nil
	}
	var of func(interfaceID string) (*bitstream, error)
	var err error
	if o.GetKind() == v1alpha1.KindClusterFPGABitstream {
		var object v1alpha1.ClusterFPGABitstream
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &object)
		of = func(id string) (*bitstream, error) { return b.ofCluster(&object, id) }
	} else {
		var object v1alpha1.FPGABitstream
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &object)
		of = func(id string) (*bitstream, error) { return ofNamespace(&object, id) }
	}
	if err != nil {
		return nil
	}
	var out []fetchParams
	for _, id := range ids {
		if found, err := of(id); err == nil && found.fetch != nil {
			out = append(out, *found.fetch)
		}
	}
	return out
}

// interfacesOf are the interface ids of the node's regions, sorted. There are none before the first look.
func interfacesOf(v *view) []string {
	if v == nil {
		return nil
	}
	ids := map[string]bool{}
	for _, d := range v.All() {
		if d.Region != nil && d.Region.InterfaceID != "" {
			ids[d.Region.InterfaceID] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// plan begins errands for what is new and forgets those that nothing asks for any more.
func (f *forerunner) plan(wanted []fetchParams) {
	errands := map[string]*errand{}
	for _, p := range wanted {
		key := fmt.Sprint(p)
		if old := f.errands[key]; old != nil {
			errands[key] = old
		} else if errands[key] == nil {
			errands[key] = &errand{params: p, due: f.clock.Now().Add(aheadDelay(f.node, p.Digest))}
		}
	}
	f.errands = errands
}

// aheadDelay is when within the spread a node fetches a file: not when all others do, nor when it fetches its other files.
func aheadDelay(node, digest string) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "/" + digest))
	return time.Duration(h.Sum64() % uint64(aheadSpread))
}

// next is the errand that is due first, nil where none is left.
func (f *forerunner) next() *errand {
	var first *errand
	for _, e := range f.errands {
		if e.over || first != nil && cmp.Or(first.due.Compare(e.due), cmp.Compare(first.params.Reference, e.params.Reference)) <= 0 {
			continue
		}
		first = e
	}
	return first
}

// fetch brings one file. It ends when the node is asked to retire, which waits for it.
func (f *forerunner) fetch(ctx context.Context, p *fetchParams) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	ctx, stop := f.retired.until(ctx)
	defer stop()
	return f.files.bringSpare(ctx, p)
}

// settle notes what became of a try.
func (f *forerunner) settle(ctx context.Context, e *errand, err error) {
	logger := klog.FromContext(ctx)
	if err == nil {
		e.over = true
		logger.V(2).Info("A bitstream is on the node", "reference", e.params.Reference, "digest", e.params.Digest)
		f.fetched()
		return
	}
	e.tries++
	e.over = e.tries >= aheadTries
	e.due = f.clock.Now().Add(max(aheadRetry<<(e.tries-1), artifact.RetryAfter(err)))
	if e.over {
		logger.Info("A bitstream is not fetched before a claim asks for it", "reference", e.params.Reference, "tries", e.tries, "reason", err)
		return
	}
	logger.V(2).Info("A bitstream cannot be fetched ahead now", "reference", e.params.Reference, "reason", err)
}
