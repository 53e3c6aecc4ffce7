// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// missingPresetReconciler warns of DeviceClasses whose devices need something from the node that no preset gives. It checks all of them at
// once.
type missingPresetReconciler struct {
	client     client.Client
	recorder   events.EventRecorder
	missing    *prometheus.GaugeVec
	conditions preset.Conditions
	// announced is the text of the last Event, by class.
	announced map[string]string
}

// NewMissing returns the reconciler of DeviceClasses that lack a preset.
func NewMissing(s reconciler.Services) reconciler.Row {
	r := newMissingPresetReconciler(s)
	once := reconciler.Gathered[client.Object](func(client.Object) types.NamespacedName { return types.NamespacedName{Name: "all"} })
	changed := reconciler.GenerationChanged()
	return reconciler.Row{
		Name: "DeviceClasses that lack a preset", Metrics: []prometheus.Collector{r.missing},
		Queues: []reconciler.Queue{{
			Name: "presetlack", DuringUninstall: true, Reconciler: r,
			Watches: []reconciler.Watch{
				{Object: &resourceapi.DeviceClass{}, Handler: once, Predicates: changed},
				{Object: &v1alpha1.DevicePreset{}, Handler: once, Predicates: changed},
				{Object: &v1alpha1.ClusterDevicePreset{}, Handler: once, Predicates: changed},
				{Object: &v1alpha1.AcceleratorNode{}, Handler: once, Predicates: []predicate.Predicate{vendorsChanged()}},
			},
		}},
	}
}

func newMissingPresetReconciler(s reconciler.Services) *missingPresetReconciler {
	return &missingPresetReconciler{
		client: s.Client, recorder: s.Recorder, announced: map[string]string{},
		missing: metrics.GaugeBy("deviceclass_preset_missing",
			"1 while devices of the DeviceClass need something from the node that no valid preset could give.", "class"),
	}
}

// vendorsChanged lets nodes through whose set of vendors changed.
func vendorsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := map[string]bool{}, map[string]bool{}
		addVendors(before, e.ObjectOld)
		addVendors(now, e.ObjectNew)
		return !maps.Equal(before, now)
	}}
}

func addVendors(vendors map[string]bool, object client.Object) {
	for _, v := range reconciler.NodeStatus(object).Vendors {
		vendors[v.Name] = true
	}
}

// Reconcile checks every class.
func (r *missingPresetReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var (
		classes resourceapi.DeviceClassList
		nodes   v1alpha1.AcceleratorNodeList
	)
	for _, list := range []client.ObjectList{&classes, &nodes} {
		if err := r.client.List(ctx, list); err != nil {
			return reconcile.Result{}, fmt.Errorf("look for classes without a preset: %w", err)
		}
	}
	found, err := pairs.Presets(ctx, r.client, pairs.Both, client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("look for classes without a preset: %w", err)
	}
	all := make([]preset.Preset, 0, len(found))
	for _, p := range found {
		if p.Spec.LeftOut == 0 {
			all = append(all, preset.Of(p))
		}
	}
	vendors := map[string]bool{}
	for i := range nodes.Items {
		addVendors(vendors, &nodes.Items[i])
	}
	r.announce(classes.Items, Missing(ctx, classes.Items, all, vendors, &r.conditions))
	return reconcile.Result{}, nil
}

// announce makes an Event of each class that lacks something else than before.
func (r *missingPresetReconciler) announce(classes []resourceapi.DeviceClass, needs map[string][]Need) {
	for _, gone := range slices.Sorted(maps.Keys(r.announced)) {
		if !slices.ContainsFunc(classes, func(c resourceapi.DeviceClass) bool { return c.Name == gone }) {
			delete(r.announced, gone)
			r.missing.DeleteLabelValues(gone)
		}
	}
	for i := range classes {
		class := &classes[i]
		before, known := r.announced[class.Name]
		now := needsText(needs[class.Name])
		if now == "" && !known {
			continue
		}
		r.announced[class.Name] = now
		r.missing.WithLabelValues(class.Name).Set(metrics.Bool(now != ""))
		if now != "" && now != before {
			r.recorder.Eventf(class, nil, corev1.EventTypeWarning, "PresetMissing", "CheckPresets",
				"%s, and no valid preset could give that to claims of the class: create a ClusterDevicePreset with libraries or mounts for it", now)
		}
	}
}

func needsText(needs []Need) string {
	var parts []string
	for _, n := range needs {
		parts = append(parts, fmt.Sprintf("devices of %s need %s", n.Vendor, n.Needs))
	}
	return strings.Join(parts, "; ")
}
