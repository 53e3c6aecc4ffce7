// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// classReconciler creates the shipped DeviceClasses, makes them again when they are deleted and repairs the fields we own.
type classReconciler struct {
	client   client.Client
	live     client.Reader // not cached
	recorder events.EventRecorder
	metrics  *metrics
	wanted   map[string]*resourceapi.DeviceClass
	pause    pauser
}

// newClassReconciler returns the reconciler of the given classes.
func newClassReconciler(mgr manager.Manager, m *metrics, opts ClassOptions, pause pauser) *classReconciler {
	wanted := map[string]*resourceapi.DeviceClass{}
	for _, class := range Classes(opts) {
		wanted[class.Name] = class
	}
	return &classReconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder(Name),
		metrics: m, wanted: wanted, pause: pause,
	}
}

// register adds the reconciler to the manager. A class that does not exist yet sends no watch event, so each wanted name is
// also queued once at the start.
func (r *classReconciler) register(mgr manager.Manager) error {
	first := make(chan event.TypedGenericEvent[*resourceapi.DeviceClass], len(r.wanted))
	for _, class := range r.wanted {
		first <- event.TypedGenericEvent[*resourceapi.DeviceClass]{Object: class}
	}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return r.wanted[o.GetName()] != nil })
	return builder.ControllerManagedBy(mgr).Named("deviceclass").
		For(&resourceapi.DeviceClass{}, builder.WithPredicates(ours)).
		WatchesRawSource(source.Channel(first, &handler.TypedEnqueueRequestForObject[*resourceapi.DeviceClass]{})).
		Complete(r)
}

// Reconcile brings one class to what [Classes] says of it.
func (r *classReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	want := r.wanted[req.Name]
	if want == nil {
		return reconcile.Result{}, nil
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	var live resourceapi.DeviceClass
	err := r.client.Get(ctx, req.NamespacedName, &live)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.create(ctx, want)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read DeviceClass %s: %w", req.Name, err)
	}
	r.metrics.foreignClass.WithLabelValues(req.Name).Set(boolValue(!managed(&live)))
	if !managed(&live) {
		r.recorder.Eventf(&live, nil, corev1.EventTypeWarning, "NotManaged", "KeepDeviceClass",
			"kept as it is: it has no label %s=%s; add the label to let %s own its selectors, or delete it to get the shipped one",
			ManagedByLabel, Name, Name)
		return reconcile.Result{}, nil
	}
	if live.DeletionTimestamp != nil || !drifted(&live, want) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, r.apply(ctx, want, client.ForceOwnership)
}

// create makes a class that was not there a moment ago. It does not force: if an admin's class of that name came in between, the
// conflict is returned and the next round finds that class and leaves it alone.
func (r *classReconciler) create(ctx context.Context, want *resourceapi.DeviceClass) error {
	r.metrics.foreignClass.WithLabelValues(want.Name).Set(0)
	return r.apply(ctx, want)
}

// apply sends the fields we own and compares what came back: an API server without the extended resource field drops it
// without a word.
func (r *classReconciler) apply(ctx context.Context, want *resourceapi.DeviceClass, opts ...client.ApplyOption) error {
	opts = append(opts, client.FieldOwner(Name))
	if err := r.client.Apply(ctx, applyConfiguration(want), opts...); err != nil {
		return fmt.Errorf("apply DeviceClass %s: %w", want.Name, err)
	}
	var got resourceapi.DeviceClass
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(want), &got); err != nil {
		return fmt.Errorf("read back DeviceClass %s: %w", want.Name, err)
	}
	klog.FromContext(ctx).Info("applied DeviceClass", "class", want.Name)
	r.metrics.noExtendedResource.WithLabelValues(want.Name).Set(boolValue(degraded(&got, want)))
	if degraded(&got, want) {
		r.recorder.Eventf(&got, nil, corev1.EventTypeWarning, "ExtendedResourceUnsupported", "ApplyDeviceClass",
			"the API server dropped extendedResourceName %q: enable the feature gate DRAExtendedResource (on from Kubernetes 1.36),"+
				" or use resource claims", *want.Spec.ExtendedResourceName)
	}
	return nil
}

// applyConfiguration holds exactly the fields we own, so that server-side apply leaves all others to their owners.
func applyConfiguration(want *resourceapi.DeviceClass) *resourceac.DeviceClassApplyConfiguration {
	spec := resourceac.DeviceClassSpec()
	for _, s := range want.Spec.Selectors {
		spec.WithSelectors(resourceac.DeviceSelector().WithCEL(
			resourceac.CELDeviceSelector().WithExpression(s.CEL.Expression)))
	}
	if name := want.Spec.ExtendedResourceName; name != nil {
		spec.WithExtendedResourceName(*name)
	}
	return resourceac.DeviceClass(want.Name).WithLabels(want.Labels).WithSpec(spec)
}

// pauser says for how long the controller must still hold still because an uninstall is in progress; zero or less means go on.
type pauser interface {
	remaining(ctx context.Context) (time.Duration, error)
}
