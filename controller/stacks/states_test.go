// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestStates: an extra state holds back the nodes of its stack, counts in the status and in metrics, and leaves nothing there once it is
// gone.
func TestStates(t *testing.T) {
	f := newFixture(t).verified(t)
	f.drivers = drivers
	f.restart()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.row.Metrics...)
	counted := func() string {
		t.Helper()
		families, err := registry.Gather()
		check.Must(t, err)
		var out []string
		for _, family := range families {
			for _, m := range family.Metric {
				if m.Label[1].GetValue() == "Exporter" && m.GetGauge().GetValue() > 0 {
					out = append(out, m.Label[2].GetValue())
				}
			}
		}
		return strings.Join(out, " ")
	}
	change := func(states ...v1alpha1.ExtraState) *v1alpha1.AcceleratorStack {
		t.Helper()
		var s v1alpha1.AcceleratorStack
		check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
		s.Spec.States = states
		check.Must(t, f.api.Update(t.Context(), &s))
		return f.reconcile(t, "s")
	}
	s := change(v1alpha1.ExtraState{
		Name: "Exporter", Manifests: v1alpha1.StateManifests{ConfigMap: "a"}, Check: v1alpha1.StateCheck{Job: "a"},
	})
	if len(s.Status.Waiting) != 2 || s.Status.Waiting[0].Reason != "ManifestsMissing" || len(s.Status.States) != 7 || counted() != "unknown" {
		t.Errorf("with an extra state, which counts %q: %+v", counted(), s.Status)
	}
	s = change()
	if s.Status.ReadyNodes != 2 || len(s.Status.States) != 6 || counted() != "" {
		t.Errorf("without, which counts %q: %+v", counted(), s.Status)
	}
}
