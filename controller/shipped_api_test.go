// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/test/apitest"
)

// testShipped runs one version of the controller after another: presets are made, made again, brought along and taken away, and those that
// an administrator changed are left alone.
func (c cluster) testShipped(t *testing.T) {
	const shipped = -1000
	c.withShipped(t, []string{"amd", "intel", "nvidia", "opae", "xrt"}, func(t *testing.T) {
		all := map[string]int32{
			"amd.fettle.dev": shipped, "intel.fettle.dev": shipped, "nvidia.fettle.dev": shipped, "opae.fettle.dev": shipped,
			"xrt.fettle.dev": shipped,
		}
		c.awaitShipped(t, all)
		for name := range all { // as the API server keeps them
			c.awaitPreset(t, &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name}}, "True Valid", "False NoConflict", 0, 0)
			if live := c.shipped(t, name); !shippedpresets.AsShipped(live) {
				t.Errorf("%s counts as edited", name)
			}
		}
		c.change(t, "intel.fettle.dev", func(p *v1alpha1.ClusterDevicePreset) { p.Spec.Priority = 5 })
		c.change(t, "opae.fettle.dev", func(p *v1alpha1.ClusterDevicePreset) { // as another version shipped it
			p.Spec.Priority = -3
			p.Annotations[shippedpresets.Annotation] = shippedpresets.SpecHash(&p.Spec)
		})
		if err := c.client.Delete(t.Context(), c.shipped(t, "amd.fettle.dev")); err != nil {
			t.Fatal(err)
		}
		all["intel.fettle.dev"] = 5
		c.awaitShipped(t, all)
	})
	c.change(t, "opae.fettle.dev", func(p *v1alpha1.ClusterDevicePreset) { // and before this version started
		p.Spec.Priority = -3
		p.Annotations[shippedpresets.Annotation] = shippedpresets.SpecHash(&p.Spec)
	})
	c.withShipped(t, []string{"opae"}, func(t *testing.T) {
		c.awaitShipped(t, map[string]int32{"intel.fettle.dev": 5, "opae.fettle.dev": shipped})
	})
	for _, name := range []string{"intel.fettle.dev", "opae.fettle.dev"} {
		if err := c.client.Delete(t.Context(), c.shipped(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, class := range deviceclasses.Classes(deviceclasses.Options{}) { // which these controllers made, too
		if err := c.client.Delete(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
}

// withShipped runs a controller that ships the presets of vendors until the function ends.
func (c cluster) withShipped(t *testing.T, vendors []string, do func(*testing.T)) {
	t.Helper()
	t.Run(fmt.Sprint(vendors), func(t *testing.T) {
		c.start(t, deviceclasses.Options{ExtendedResources: true}, vendors...)
		do(t)
	})
}

func (c cluster) shipped(t *testing.T, name string) *v1alpha1.ClusterDevicePreset {
	t.Helper()
	live := &v1alpha1.ClusterDevicePreset{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, live); err != nil {
		t.Fatal(err)
	}
	return live
}

// change changes a preset, and repeats that after a conflict.
func (c cluster) change(t *testing.T, name string, how func(*v1alpha1.ClusterDevicePreset)) {
	t.Helper()
	apitest.Eventually(t, func() string {
		live := c.shipped(t, name)
		how(live)
		if err := c.client.Update(t.Context(), live); err != nil {
			return err.Error()
		}
		return ""
	})
}

// awaitShipped waits until exactly these presets are there with these priorities.
func (c cluster) awaitShipped(t *testing.T, want map[string]int32) {
	t.Helper()
	apitest.Eventually(t, func() string {
		var list v1alpha1.ClusterDevicePresetList
		if err := c.client.List(t.Context(), &list); err != nil {
			return err.Error()
		}
		got := map[string]int32{}
		for i := range list.Items {
			got[list.Items[i].Name] = list.Items[i].Spec.Priority
		}
		if !maps.Equal(got, want) {
			return fmt.Sprintf("of %v:\n%s", slices.Sorted(maps.Keys(got)), cmp.Diff(want, got))
		}
		return ""
	})
}
