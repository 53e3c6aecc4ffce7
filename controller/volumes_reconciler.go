// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// volumesInterval is how often pods are looked at while a volume waits: nothing tells of them.
const volumesInterval = 15 * time.Second

// volumesReconciler makes the claims and Jobs of caches that are put into volumes. It never writes a cache: what became of the volumes is
// written by cacheReconciler, which reads the same plan and carries none out. What it makes goes with its cache by the owner references.
type volumesReconciler struct {
	client   client.Client
	reader   volumes.Reader
	recorder events.EventRecorder
	pause    pauser
	options  volumes.Options
	faults   *volumeFaults
}

func newVolumesReconciler(mgr manager.Manager, pause pauser, faults *volumeFaults, o Options) *volumesReconciler {
	return &volumesReconciler{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), pause: pause, options: o.KernelCacheVolumes,
		reader: volumesReader(mgr), faults: faults,
	}
}

// volumeFaults are what kept the last plan of a cache from being carried out, a quota of the namespace say, for its status.
type volumeFaults struct {
	mu sync.Mutex
	of map[types.NamespacedName]string
}

// note is about a cache, of which one of the cluster has no namespace. No error: nothing keeps it.
func (f *volumeFaults) note(cache types.NamespacedName, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, cache)
	if err == nil {
		return
	}
	if f.of == nil {
		f.of = map[types.NamespacedName]string{}
	}
	f.of[cache] = strings.ReplaceAll(err.Error(), "\n", "; ")
}

// add puts it into a plan.
func (f *volumeFaults) add(cache types.NamespacedName, p *volumes.Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fault := f.of[cache]; fault != "" {
		p.Stuck = append(p.Stuck, fault)
	}
}

// volumesReader reads what plans of volumes need.
func volumesReader(mgr manager.Manager) volumes.Reader {
	return volumes.Reader{Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}}
}

// register adds the reconciler of both kinds to the manager, where the option is on; the CRDs must be established.
func (r *volumesReconciler) register(mgr manager.Manager) error {
	if !r.options.Enabled {
		return nil
	}
	var faults []error
	for name, kind := range map[string]client.Object{
		"gpukernelcachevolumes": &v1alpha1.GPUKernelCache{}, "clustergpukernelcachevolumes": &v1alpha1.ClusterGPUKernelCache{},
	} {
		faults = append(faults, watchVolumes(builder.ControllerManagedBy(mgr).Named(name).For(kind), mgr, kind).Complete(r))
	}
	return errors.Join(faults...)
}

// watchVolumes adds what the volumes of a kind of caches follow from, beside the caches themselves and pods.
func watchVolumes(b *builder.Builder, mgr manager.Manager, kind client.Object) *builder.Builder {
	owned := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), kind, handler.OnlyControllerOwner())
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return withVolumes(ctx, mgr.GetClient(), kind)
	})
	comesOrGoes := builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}})
	b = b.Watches(&corev1.PersistentVolumeClaim{}, owned).
		Watches(&batchv1.Job{}, owned).
		Watches(&v1alpha1.AcceleratorNode{}, all, comesOrGoes).
		Watches(metadata("Node", "v1"), all, builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{}))
	if _, ofCluster := kind.(*v1alpha1.ClusterGPUKernelCache); ofCluster {
		b = b.Watches(metadata("Namespace", "v1"), all, builder.OnlyMetadata, comesOrGoes)
	}
	return b
}

// withVolumes are the caches of a kind that are put into volumes.
func withVolumes(ctx context.Context, reader client.Reader, kind client.Object) (requests []reconcile.Request) {
	add := func(o volumes.Object) {
		if o.Wants() {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}})
		}
	}
	var err error
	if _, ofCluster := kind.(*v1alpha1.ClusterGPUKernelCache); ofCluster {
		var list v1alpha1.ClusterGPUKernelCacheList
		err = reader.List(ctx, &list)
		for i := range list.Items {
			add(volumes.Of(list.Items[i].Common()))
		}
	} else {
		var list v1alpha1.GPUKernelCacheList
		err = reader.List(ctx, &list)
		for i := range list.Items {
			add(volumes.Of(list.Items[i].Common()))
		}
	}
	if err != nil { // it is the manager's cache, which has them or is not running any more
		klog.FromContext(ctx).Error(err, "list caches whose volumes may change")
	}
	return requests
}

// Reconcile looks after the volumes of one cache; only a ClusterGPUKernelCache has no namespace.
func (r *volumesReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cache, o, err := r.read(ctx, req)
	if err != nil {
		r.faults.note(req.NamespacedName, nil)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	plan, err := r.reader.Plan(ctx, o, r.options)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = r.apply(ctx, plan)
	r.faults.note(req.NamespacedName, err)
	if err != nil {
		r.recorder.Eventf(cache, nil, corev1.EventTypeWarning, "VolumesNotMade", "MakeVolumes", "%s", err.Error())
		return reconcile.Result{}, fmt.Errorf("volumes of %s %s: %w", o.Kind, req, err)
	}
	if plan.Settled() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: volumesInterval}, nil
}

func (r *volumesReconciler) read(ctx context.Context, req reconcile.Request) (client.Object, volumes.Object, error) {
	if req.Namespace == "" {
		c := &v1alpha1.ClusterGPUKernelCache{}
		err := r.client.Get(ctx, req.NamespacedName, c)
		return c, volumes.Of(c.Common()), err
	}
	c := &v1alpha1.GPUKernelCache{}
	err := r.client.Get(ctx, req.NamespacedName, c)
	return c, volumes.Of(c.Common()), err
}

// apply does what is planned. What somebody did before is no fault: the next round sees it.
func (r *volumesReconciler) apply(ctx context.Context, p volumes.Plan) error {
	var faults []error
	for _, o := range p.Delete {
		// A Job goes after its pods: none may write to a claim when the next one does.
		err := r.client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())},
			client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			faults = append(faults, fmt.Errorf("delete %T %s: %w", o, klog.KObj(o), err))
		}
	}
	for _, m := range p.Mark {
		if err := r.mark(ctx, m); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 { // a claim that is still marked must not be filled with something else
		return errors.Join(faults...)
	}
	for _, o := range p.Create {
		if err := r.client.Create(ctx, o, client.FieldOwner(Name)); err != nil && !apierrors.IsAlreadyExists(err) {
			faults = append(faults, fmt.Errorf("make %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, klog.KObj(o), err))
		}
	}
	if made := len(p.Create); made > 0 {
		klog.FromContext(ctx).Info("made claims and Jobs of volumes", "count", made, "first", klog.KObj(p.Create[0]))
	}
	return errors.Join(faults...)
}

// mark notes at a claim what is in it.
func (r *volumesReconciler) mark(ctx context.Context, m volumes.Mark) error {
	claim := m.Claim.DeepCopy()
	for name, value := range map[string]string{volumes.DigestAnnotation: m.Digest, volumes.PathAnnotation: m.Path} {
		if value == "" {
			delete(claim.Annotations, name)
		} else {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, name, value)
		}
	}
	err := r.client.Patch(ctx, claim, client.MergeFrom(m.Claim), client.FieldOwner(Name))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("note what PersistentVolumeClaim %s has: %w", klog.KObj(claim), err)
	}
	return nil
}
