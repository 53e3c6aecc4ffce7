// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
)

// TestPresets: what was shipped goes, what an administrator changed or made stays.
func TestPresets(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	shipped := shippedpresets.Presets([]string{"amd", "intel", "nvidia"})
	shipped[0].Spec.Priority = 1
	delete(shipped[1].Labels, names.ManagedByLabel)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(shipped[0], shipped[1], shipped[2]).Build()
	if err := (Uninstall{Client: c}).presets(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list v1alpha1.ClusterDevicePresetList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[0].Name != "amd.fettle.dev" || list.Items[1].Name != "intel.fettle.dev" {
		t.Errorf("left are %v", list.Items)
	}
}
