// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/presets"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// lackReconciler tells of DeviceClasses whose devices need something from the node that no preset gives. It looks at all of them at once.
type lackReconciler struct {
	client     client.Client
	recorder   events.EventRecorder
	metrics    *metrics
	conditions preset.Conditions
	// told is by class what was told of it last.
	told map[string]string
}

func newLackReconciler(mgr manager.Manager, m *metrics) *lackReconciler {
	return &lackReconciler{client: mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), metrics: m, told: map[string]string{}}
}

// register adds the reconciler to the manager; the CRDs must be established.
func (r *lackReconciler) register(mgr manager.Manager) error {
	once := gathered[client.Object](func(client.Object) types.NamespacedName { return types.NamespacedName{Name: "all"} })
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return builder.ControllerManagedBy(mgr).Named("presetlack").
		Watches(&resourceapi.DeviceClass{}, once, changed).
		Watches(&v1alpha1.DevicePreset{}, once, changed).
		Watches(&v1alpha1.ClusterDevicePreset{}, once, changed).
		Watches(&v1alpha1.AcceleratorNode{}, once, builder.WithPredicates(vendorsChanged())).
		Complete(r)
}

// vendorsChanged lets through what makes a difference to which vendors are in the cluster.
func vendorsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := map[string]bool{}, map[string]bool{}
		addVendors(before, e.ObjectOld)
		addVendors(now, e.ObjectNew)
		return !maps.Equal(before, now)
	}}
}

func addVendors(vendors map[string]bool, object client.Object) {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		for _, v := range node.Status.Vendors {
			vendors[v.Name] = true
		}
	}
}

// Reconcile looks at every class.
func (r *lackReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var (
		classes   resourceapi.DeviceClassList
		own       v1alpha1.DevicePresetList
		ofCluster v1alpha1.ClusterDevicePresetList
		nodes     v1alpha1.AcceleratorNodeList
	)
	for _, list := range []client.ObjectList{&classes, &own, &ofCluster, &nodes} {
		if err := r.client.List(ctx, list); err != nil {
			return reconcile.Result{}, fmt.Errorf("look for classes without a preset: %w", err)
		}
	}
	var all []preset.Preset
	for i := range own.Items {
		all = append(all, preset.Of(own.Items[i].Common()))
	}
	for i := range ofCluster.Items {
		all = append(all, preset.Of(ofCluster.Items[i].Common()))
	}
	vendors := map[string]bool{}
	for i := range nodes.Items {
		addVendors(vendors, &nodes.Items[i])
	}
	r.tell(classes.Items, presets.Lacks(ctx, classes.Items, all, vendors, &r.conditions))
	return reconcile.Result{}, nil
}

// tell makes an Event of each class that lacks something else than before.
func (r *lackReconciler) tell(classes []resourceapi.DeviceClass, lacks map[string][]presets.Lack) {
	for _, gone := range slices.Sorted(maps.Keys(r.told)) {
		if !slices.ContainsFunc(classes, func(c resourceapi.DeviceClass) bool { return c.Name == gone }) {
			delete(r.told, gone)
			r.metrics.presetMissing.DeleteLabelValues(gone)
		}
	}
	for i := range classes {
		class := &classes[i]
		before, known := r.told[class.Name]
		now := lackText(lacks[class.Name])
		if now == "" && !known {
			continue
		}
		r.told[class.Name] = now
		r.metrics.presetMissing.WithLabelValues(class.Name).Set(boolValue(now != ""))
		if now != "" && now != before {
			r.recorder.Eventf(class, nil, corev1.EventTypeWarning, "PresetMissing", "CheckPresets",
				"%s, and no valid preset could give that to claims of the class: create a ClusterDevicePreset with libraries or mounts for it", now)
		}
	}
}

func lackText(lacks []presets.Lack) string {
	var parts []string
	for _, l := range lacks {
		parts = append(parts, fmt.Sprintf("devices of %s need %s", l.Vendor, l.Needs))
	}
	return strings.Join(parts, "; ")
}
