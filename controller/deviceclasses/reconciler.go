// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// keeper creates the shipped DeviceClasses, makes them again when they are deleted and repairs the fields that the controller owns.
type keeper struct {
	reconciler.Services

	wanted             map[string]*resourceapi.DeviceClass
	foreign            *prometheus.GaugeVec
	noExtendedResource *prometheus.GaugeVec
}

// New returns the reconciler. It also queues each wanted name once at the start.
func New(s reconciler.Services, options Options) reconciler.Row {
	k := &keeper{
		Services: s, wanted: map[string]*resourceapi.DeviceClass{},
		foreign: metrics.GaugeBy("deviceclass_not_managed",
			"1 while a DeviceClass of a shipped name exists that lacks the managed-by label and is therefore left alone.", "class"),
		noExtendedResource: metrics.GaugeBy("extended_resource_unsupported",
			"1 while the API server drops the extended resource name of the DeviceClass.", "class"),
	}
	for _, class := range Classes(options) {
		k.wanted[class.Name] = class
	}
	wanted := predicate.NewPredicateFuncs(func(o client.Object) bool { return k.wanted[o.GetName()] != nil })
	return reconciler.Row{
		Name: "DeviceClasses", BeforeCRDs: true, Metrics: []prometheus.Collector{k.foreign, k.noExtendedResource},
		Queues: []reconciler.Queue{{
			Name: "deviceclass", Sources: reconciler.Initially(k.wanted), Reconciler: k,
			Watches: []reconciler.Watch{{Object: &resourceapi.DeviceClass{}, Predicates: []predicate.Predicate{wanted}}},
		}},
	}
}

// Reconcile brings one class to what [Classes] says of it.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	want := k.wanted[req.Name]
	if want == nil {
		return reconcile.Result{}, nil
	}
	var live resourceapi.DeviceClass
	err := k.Client.Get(ctx, req.NamespacedName, &live)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, k.create(ctx, want)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read DeviceClass %s: %w", req.Name, err)
	}
	k.foreign.WithLabelValues(req.Name).Set(metrics.Bool(!managed(&live)))
	if !managed(&live) {
		k.Recorder.Eventf(&live, nil, corev1.EventTypeWarning, "NotManaged", "KeepDeviceClass",
			"kept as it is: it has no label %s=%s; add the label to let %s own its selectors, or delete it to get the shipped one",
			names.ManagedByLabel, names.Controller, names.Controller)
		return reconcile.Result{}, nil
	}
	if live.DeletionTimestamp != nil || !drifted(&live, want) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, k.apply(ctx, want, client.ForceOwnership)
}

// create makes a class that did not exist. It does not force ownership: if an administrator made a class of that name in the meantime, it
// returns the conflict, and the next round finds that class and keeps it.
func (k *keeper) create(ctx context.Context, want *resourceapi.DeviceClass) error {
	k.foreign.WithLabelValues(want.Name).Set(0)
	return k.apply(ctx, want)
}

// apply sends the fields that the controller owns and reads the class back: an API server without the extended resource field drops it
// silently.
func (k *keeper) apply(ctx context.Context, want *resourceapi.DeviceClass, opts ...client.ApplyOption) error {
	opts = append(opts, client.FieldOwner(names.Controller))
	if err := k.Client.Apply(ctx, applyConfiguration(want), opts...); err != nil {
		return fmt.Errorf("apply DeviceClass %s: %w", want.Name, err)
	}
	var got resourceapi.DeviceClass
	if err := k.Live.Get(ctx, client.ObjectKeyFromObject(want), &got); err != nil {
		return fmt.Errorf("read back DeviceClass %s: %w", want.Name, err)
	}
	klog.FromContext(ctx).Info("Applied DeviceClass", "class", want.Name)
	k.noExtendedResource.WithLabelValues(want.Name).Set(metrics.Bool(degraded(&got, want)))
	if degraded(&got, want) {
		k.Recorder.Eventf(&got, nil, corev1.EventTypeWarning, "ExtendedResourceUnsupported", "ApplyDeviceClass",
			"the API server dropped extendedResourceName %q: enable the feature gate DRAExtendedResource (on from Kubernetes 1.36),"+
				" or use resource claims", *want.Spec.ExtendedResourceName)
	}
	return nil
}

// applyConfiguration returns exactly the fields that the controller owns, so that server-side apply leaves all others to their owners.
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
