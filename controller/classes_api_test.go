// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/test/apitest"
)

// createForeignClass makes a class of a shipped name before any controller runs, as an admin could.
func (c cluster) createForeignClass(t *testing.T) *resourceapi.DeviceClass {
	t.Helper()
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "host.fettle.dev", Labels: map[string]string{"team": "storage"}},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: "false"}},
		}},
	}
	c.create(t, class)
	return class
}

// testForeignClass: an admin's class is kept with an Event, and becomes ours once it is deleted.
func (c cluster) testForeignClass(t *testing.T, r replica, foreign *resourceapi.DeviceClass) {
	apitest.Eventually(t, patience, func() string { return c.missingEvent(foreign.Name, "NotManaged") })
	var live resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), &live); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(foreign.ResourceVersion, live.ResourceVersion); diff != "" {
		t.Errorf("an admin's class was written (-before +after):\n%s", diff)
	}
	if got := gauges(t, r.registry, "fettle_controller_deviceclass_not_managed")[foreign.Name]; got != 1 {
		t.Errorf("metric deviceclass_not_managed is %v, want 1", got)
	}
	if err := c.client.Delete(t.Context(), foreign.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, patience, func() string { return c.wrongClass(t, foreign.Name) })
}

// testClasses: made, made again, repaired in what we own, left alone in the rest.
func (c cluster) testClasses(t *testing.T) {
	for _, want := range deviceclasses.Classes(deviceclasses.Options{ExtendedResources: true}) {
		apitest.Eventually(t, patience, func() string { return c.wrongClass(t, want.Name) })
	}
	gpu := client.ObjectKey{Name: "gpu.fettle.dev"}
	var first resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), gpu, &first); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), first.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, patience, func() string { return c.wrongClass(t, gpu.Name) })

	var class resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), gpu, &class); err != nil {
		t.Fatal(err)
	}
	if class.UID == first.UID {
		t.Error("the class is the one that was deleted")
	}
	class.Labels["team"] = "ml"
	class.Annotations = map[string]string{"note": "mine"}
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "x.dev", Parameters: rawObject(`{"a":1}`)},
	}}}
	class.Spec.Selectors[0].CEL.Expression = "true"
	class.Spec.ExtendedResourceName = ptr.To("x.dev/other")
	if err := c.client.Update(t.Context(), &class); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, patience, func() string { return c.wrongClass(t, gpu.Name) })
	if err := c.client.Get(t.Context(), gpu, &class); err != nil {
		t.Fatal(err)
	}
	if class.Labels["team"] != "ml" || class.Annotations["note"] != "mine" || len(class.Spec.Config) != 1 {
		t.Errorf("an admin's fields are gone: %v %v %v", class.Labels, class.Annotations, class.Spec.Config)
	}
}

// wrongClass says what is wrong with the live class of a shipped name.
func (c cluster) wrongClass(t *testing.T, name string) string {
	t.Helper()
	var live resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &live); err != nil {
		return err.Error()
	}
	for _, want := range deviceclasses.Classes(deviceclasses.Options{ExtendedResources: true}) {
		if want.Name != name {
			continue
		}
		if live.Labels[names.ManagedByLabel] != names.Controller {
			return "class " + name + " lacks our label"
		}
		got := live.Spec
		got.Config = nil
		return cmp.Diff(want.Spec, got)
	}
	return "no shipped class is called " + name
}
