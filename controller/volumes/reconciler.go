// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/message"
)

// Interval is how often pods are listed while a volume waits: no watch tells of them.
const Interval = 15 * time.Second

// filler makes the claims and Jobs of caches that are put into volumes. It never writes a cache: the reconciler of caches writes the
// state of the volumes, from a plan that it does not carry out. Claims and Jobs are deleted with their cache by the owner references.
type filler struct {
	client   client.Client
	recorder events.EventRecorder
	planner  *Planner
}

// New returns the reconciler of the volumes of both kinds of caches. It has no queue if the planner's options are off.
func New(s reconciler.Services, p *Planner) reconciler.Row {
	f := &filler{client: s.Client, recorder: s.Recorder, planner: p}
	row := reconciler.Row{Name: "volumes of kernel caches"}
	if p.options.Enabled {
		row.Queues = []reconciler.Queue{
			f.queue("gpukernelcachevolumes", &v1alpha1.GPUKernelCache{}, pairs.OfNamespaces),
			f.queue("clustergpukernelcachevolumes", &v1alpha1.ClusterGPUKernelCache{}, pairs.OfCluster),
		}
	}
	return row
}

// queue returns the queue of one kind of caches.
func (f *filler) queue(name string, kind client.Object, scope pairs.Scope) reconciler.Queue {
	owned := handler.EnqueueRequestForOwner(f.client.Scheme(), f.client.RESTMapper(), kind, handler.OnlyControllerOwner())
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return f.withVolumes(ctx, scope)
	})
	comesOrGoes := []predicate.Predicate{predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}}
	watches := []reconciler.Watch{
		{Object: kind},
		{Object: &corev1.PersistentVolumeClaim{}, Handler: owned},
		{Object: &batchv1.Job{}, Handler: owned},
		{Object: &v1alpha1.AcceleratorNode{}, Handler: all, Predicates: comesOrGoes},
		{Object: &corev1.Node{}, Handler: all, Predicates: []predicate.Predicate{predicate.LabelChangedPredicate{}}},
	}
	if scope == pairs.OfCluster {
		watches = append(watches, reconciler.Watch{Object: reconciler.Metadata("v1", "Namespace"), Handler: all, Predicates: comesOrGoes})
	}
	return reconciler.Queue{Name: name, Watches: watches, Reconciler: f}
}

// withVolumes returns the caches of a scope that are put into volumes.
func (f *filler) withVolumes(ctx context.Context, scope pairs.Scope) (requests []reconcile.Request) {
	all, err := pairs.KernelCaches(ctx, f.client, scope)
	if err != nil { // the manager's cache fails only when it stops
		klog.FromContext(ctx).Error(err, "List the caches whose volumes may change")
	}
	for _, c := range all {
		if o := Of(c); o.Wants() {
			requests = append(requests, reconcile.Request{NamespacedName: o.key()})
		}
	}
	return requests
}

// Reconcile plans the volumes of one cache and carries the plan out. Only a ClusterGPUKernelCache has no namespace.
func (f *filler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c, err := pairs.KernelCache(ctx, f.client, req.NamespacedName)
	if err != nil {
		f.planner.note(req.NamespacedName, nil)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan, err := f.planner.reader.Plan(ctx, Of(c), f.planner.options)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = f.apply(ctx, plan)
	f.planner.note(req.NamespacedName, err)
	if err != nil {
		f.recorder.Eventf(c.Object, nil, corev1.EventTypeWarning, "VolumesNotMade", "MakeVolumes", "%s", message.EventNote(err.Error()))
		return reconcile.Result{}, fmt.Errorf("volumes of %s: %w", c, err)
	}
	if plan.Settled() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: Interval}, nil
}

// apply carries a plan out. It is no error if an object to delete is gone or an object to create exists: the next round sees that. A fault
// in one namespace keeps nothing from others.
func (f *filler) apply(ctx context.Context, p Plan) error {
	var faults []error
	failed := map[string]bool{} // by namespace: a claim that is still marked must not be filled with another digest
	note := func(o client.Object, err error) {
		if err != nil {
			faults, failed[o.GetNamespace()] = append(faults, err), true
		}
	}
	for _, o := range p.Delete {
		// A Job is deleted after its pods, so that they do not write to a claim together with those of the next Job.
		err := f.client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())},
			client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			note(o, fmt.Errorf("delete %T %s: %w", o, klog.KObj(o), err))
		}
	}
	for _, m := range p.Mark {
		note(m.Claim, f.mark(ctx, m))
	}
	create := slices.DeleteFunc(slices.Clone(p.Create), func(o client.Object) bool { return failed[o.GetNamespace()] })
	return errors.Join(append(faults, f.create(ctx, create)...)...)
}

// create makes claims and Jobs. A Job whose claim was not made has to wait: it would write to a claim of somebody who was faster, or would
// have to be deleted again.
func (f *filler) create(ctx context.Context, objects []client.Object) (faults []error) {
	var made []klog.ObjectRef
	without := map[Key]bool{}
	for _, o := range objects {
		if without[Key{o.GetNamespace(), o.GetAnnotations()[ClaimAnnotation]}] {
			continue
		}
		err := f.client.Create(ctx, o, client.FieldOwner(names.Controller))
		if err == nil {
			made = append(made, klog.KObj(o))
			continue
		}
		if _, claim := o.(*corev1.PersistentVolumeClaim); claim {
			without[Key{o.GetNamespace(), o.GetName()}] = true
		}
		if !apierrors.IsAlreadyExists(err) {
			faults = append(faults, fmt.Errorf("make %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, klog.KObj(o), err))
		}
	}
	if len(made) > 0 {
		klog.FromContext(ctx).Info("Made claims and Jobs of volumes", "count", len(made), "first", made[0])
	}
	return faults
}

// mark writes to a claim's annotations what it holds. The annotation of an unknown content is empty, so that the claim is not taken for one
// that was never filled.
func (f *filler) mark(ctx context.Context, m Mark) error {
	claim := m.Claim.DeepCopy()
	for name, value := range map[string]string{DigestAnnotation: m.Digest, PathAnnotation: m.Path} {
		if value == "" && name != DigestAnnotation {
			delete(claim.Annotations, name)
		} else {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, name, value)
		}
	}
	err := f.client.Patch(ctx, claim, client.MergeFrom(m.Claim), client.FieldOwner(names.Controller))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("note what PersistentVolumeClaim %s has: %w", klog.KObj(claim), err)
	}
	return nil
}

// Cached keeps the manager's cache to the claims and Jobs of caches, and of these to what a plan reads: whoever may make Jobs can give them
// the label.
func Cached(byObject map[client.Object]cache.ByObject) error {
	exists, err := labels.NewRequirement(UIDLabel, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select the volumes of caches: %w", err)
	}
	for _, kind := range []client.Object{&corev1.PersistentVolumeClaim{}, &batchv1.Job{}} {
		byObject[kind] = cache.ByObject{Label: labels.NewSelector().Add(*exists), Transform: trim}
	}
	return nil
}

// trim drops from claims and Jobs what no plan reads.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: trimMeta(&o.ObjectMeta),
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      firstModes(o.Spec.AccessModes),
				Resources:        corev1.VolumeResourceRequirements{Requests: storage(o.Spec.Resources.Requests)},
				StorageClassName: o.Spec.StorageClassName,
			},
			Status: corev1.PersistentVolumeClaimStatus{
				Phase: o.Status.Phase, Capacity: storage(o.Status.Capacity), AccessModes: firstModes(o.Status.AccessModes),
			},
		}, nil
	case *batchv1.Job:
		return &batchv1.Job{ObjectMeta: trimMeta(&o.ObjectMeta), Status: batchv1.JobStatus{
			Active: o.Status.Active, Conditions: o.Status.Conditions[:min(len(o.Status.Conditions), maxConditions)],
		}}, nil
	}
	return object, nil
}

// firstModes returns what a claim's modes mean, however often it repeats them.
func firstModes(all []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	return slices.Compact(slices.Sorted(slices.Values(all)))
}

func storage(all corev1.ResourceList) corev1.ResourceList {
	size, has := all[corev1.ResourceStorage]
	if !has {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: size}
}

// maxConditions is how many conditions of a Job are kept.
const maxConditions = 16

// trimMeta keeps the labels and annotations of Fettle.
func trimMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	out := v1alpha1.KeptMeta(o)
	const longest = 4096
	foreign := func(name, value string) bool {
		read := []string{UIDLabel, names.ManagedByLabel, DigestAnnotation, ClaimAnnotation, PathAnnotation, TemplateAnnotation}
		return !slices.Contains(read, name) || len(value) > longest
	}
	out.Labels, out.Annotations = maps.Clone(o.Labels), maps.Clone(o.Annotations)
	maps.DeleteFunc(out.Labels, foreign)
	maps.DeleteFunc(out.Annotations, foreign)
	if owner := metav1.GetControllerOf(o); owner != nil && len(owner.APIVersion)+len(owner.Kind)+len(owner.Name) <= longest {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return out
}
