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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// keeper creates the shipped DeviceClasses, makes them again when they are deleted, repairs the fields that the controller owns, and
// deletes the classes that are not wanted.
type keeper struct {
	reconciler.Services

	wanted map[string]*resourceapi.DeviceClass
	// optional are the names of the classes that can be switched off.
	optional           map[string]bool
	foreign            *prometheus.GaugeVec
	noExtendedResource *prometheus.GaugeVec
}

// New returns the reconciler. It also queues each wanted name once at the start.
func New(s reconciler.Services, options Options) reconciler.Row {
	k := &keeper{
		Services: s, wanted: map[string]*resourceapi.DeviceClass{}, optional: map[string]bool{},
		foreign: metrics.GaugeBy("deviceclass_not_managed",
			"1 while a DeviceClass of a shipped name exists that lacks the managed-by label and is therefore left alone.", "class"),
		noExtendedResource: metrics.GaugeBy("extended_resource_unsupported",
			"1 while the API server drops the extended resource name of the DeviceClass.", "class"),
	}
	for _, class := range Classes(options) {
		k.wanted[class.Name] = class
	}
	for _, part := range PartTypes() {
		k.optional[partClass(part)] = true
	}
	shipped := predicate.NewPredicateFuncs(func(o client.Object) bool { return k.wanted[o.GetName()] != nil || k.optional[o.GetName()] })
	return reconciler.Row{
		Name: "DeviceClasses", BeforeCRDs: true, Metrics: []prometheus.Collector{k.foreign, k.noExtendedResource},
		Queues: []reconciler.Queue{{
			Name: "deviceclass", Sources: reconciler.Initially(k.wanted), Reconciler: k,
			Watches: []reconciler.Watch{{Object: &resourceapi.DeviceClass{}, Predicates: []predicate.Predicate{shipped}}},
		}},
	}
}

// Reconcile brings one class to what [Classes] says of it.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	want := k.wanted[req.Name]
	if want == nil {
		return reconcile.Result{}, k.remove(ctx, req.Name)
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
	return reconcile.Result{}, k.repair(ctx, want, &live)
}

// remove deletes a class that is switched off, unless an administrator owns it or it changed since it was read.
func (k *keeper) remove(ctx context.Context, name string) error {
	var live resourceapi.DeviceClass
	if err := k.Client.Get(ctx, client.ObjectKey{Name: name}, &live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !k.optional[name] || !managed(&live) || live.DeletionTimestamp != nil {
		return nil
	}
	same := client.Preconditions{UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion)}
	if err := k.Client.Delete(ctx, &live, same); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("Deleted a DeviceClass that is switched off", "class", name)
	return nil
}

// create makes a class that did not exist. It does not force ownership: if an administrator made a class of that name in the meantime, it
// returns the conflict, and the next round finds that class and keeps it.
func (k *keeper) create(ctx context.Context, want *resourceapi.DeviceClass) error {
	k.foreign.WithLabelValues(want.Name).Set(0)
	return k.apply(ctx, want, applyConfiguration(want).WithSpec(withConfig(applySpec(want), want.Spec.Config)))
}

// repair brings the fields that the controller owns to what is wanted. If the class was made with configs, it sends those that the class
// has now: without them the API server would remove what is still the controller's. The version keeps a change that an administrator
// makes at the same time.
func (k *keeper) repair(ctx context.Context, want, live *resourceapi.DeviceClass) error {
	config, spec := applyConfiguration(want), applySpec(want)
	if len(want.Spec.Config) > 0 {
		config, spec = config.WithResourceVersion(live.ResourceVersion), withConfig(spec, live.Spec.Config)
	}
	return k.apply(ctx, want, config.WithSpec(spec), client.ForceOwnership)
}

// apply sends a configuration and reads the class back: an API server without the extended resource field drops it silently.
func (k *keeper) apply(
	ctx context.Context, want *resourceapi.DeviceClass, config *resourceac.DeviceClassApplyConfiguration, opts ...client.ApplyOption,
) error {
	opts = append(opts, client.FieldOwner(names.Controller))
	if err := k.Client.Apply(ctx, config, opts...); err != nil {
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

// applyConfiguration names the class and its labels. With [applySpec] it has exactly the fields that the controller owns, so that
// server-side apply leaves all others to their owners.
func applyConfiguration(want *resourceapi.DeviceClass) *resourceac.DeviceClassApplyConfiguration {
	return resourceac.DeviceClass(want.Name).WithLabels(want.Labels)
}

func applySpec(want *resourceapi.DeviceClass) *resourceac.DeviceClassSpecApplyConfiguration {
	spec := resourceac.DeviceClassSpec()
	for _, s := range want.Spec.Selectors {
		spec.WithSelectors(resourceac.DeviceSelector().WithCEL(
			resourceac.CELDeviceSelector().WithExpression(s.CEL.Expression)))
	}
	if name := want.Spec.ExtendedResourceName; name != nil {
		spec.WithExtendedResourceName(*name)
	}
	return spec
}

func withConfig(
	spec *resourceac.DeviceClassSpecApplyConfiguration, entries []resourceapi.DeviceClassConfiguration,
) *resourceac.DeviceClassSpecApplyConfiguration {
	for _, entry := range entries {
		config := resourceac.DeviceClassConfiguration()
		if o := entry.Opaque; o != nil {
			config.WithOpaque(resourceac.OpaqueDeviceConfiguration().WithDriver(o.Driver).WithParameters(o.Parameters))
		}
		spec.WithConfig(config)
	}
	return spec
}
