// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// allClasses are the options of a controller that ships every class.
func allClasses() deviceclasses.Options {
	return deviceclasses.Options{ExtendedResources: true, Parts: deviceclasses.PartTypes()}
}

// createForeignClass makes a class of a shipped name before any controller runs, as an admin could.
func (c cluster) createForeignClass(t *testing.T) *resourceapi.DeviceClass {
	t.Helper()
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "host.fettle.dev", Labels: map[string]string{"team": "storage"}},
		Spec:       resourceapi.DeviceClassSpec{Selectors: objects.Selectors("false")},
	}
	c.create(t, class)
	return class
}

// testForeignClass: an admin's class is kept with an Event, and becomes ours once it is deleted.
func (c cluster) testForeignClass(t *testing.T, r replica, foreign *resourceapi.DeviceClass) {
	apitest.Eventually(t, func() string { return c.missingEvent(foreign.Name, "NotManaged") })
	var live resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), &live); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(foreign.ResourceVersion, live.ResourceVersion); diff != "" {
		t.Errorf("an admin's class was written (-before +after):\n%s", diff)
	}
	apitest.Eventually(t, func() string {
		if got := gauges(t, r.registry, "fettle_controller_deviceclass_not_managed")[foreign.Name]; got != 1 {
			return fmt.Sprintf("metric deviceclass_not_managed is %v, want 1", got)
		}
		return ""
	})
	if err := c.client.Delete(t.Context(), foreign.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, func() string { return c.wrongClass(t, foreign.Name) })
}

// testClasses: made, made again, repaired in what we own, left alone in the rest.
func (c cluster) testClasses(t *testing.T) {
	for _, want := range deviceclasses.Classes(allClasses()) {
		apitest.Eventually(t, func() string { return c.wrongClass(t, want.Name) })
	}
	gpu := client.ObjectKey{Name: "gpu.fettle.dev"}
	var first resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), gpu, &first); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), first.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, func() string { return c.wrongClass(t, gpu.Name) })

	var class resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), gpu, &class); err != nil {
		t.Fatal(err)
	}
	if class.UID == first.UID {
		t.Error("the class is the one that was deleted")
	}
	class.Labels["team"] = "ml"
	class.Annotations = map[string]string{"note": "mine"}
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: objects.Opaque("x.dev", `{"a":1}`)}}
	class.Spec.Selectors[0].CEL.Expression = "true"
	class.Spec.ExtendedResourceName = ptr.To("x.dev/other")
	if err := c.client.Update(t.Context(), &class); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, func() string { return c.wrongClass(t, gpu.Name) })
	if err := c.client.Get(t.Context(), gpu, &class); err != nil {
		t.Fatal(err)
	}
	if class.Labels["team"] != "ml" || class.Annotations["note"] != "mine" || len(class.Spec.Config) != 1 {
		t.Errorf("an admin's fields are gone: %v %v %v", class.Labels, class.Annotations, class.Spec.Config)
	}
}

// testPartClasses: the class of VFIO devices is made with a policy that allows them, what an administrator makes of that policy stays
// whatever is repaired, and a class that is switched off goes unless it is an administrator's.
func (c cluster) testPartClasses(t *testing.T) {
	live := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "vfio.gpu.fettle.dev"}}
	parameters := func() (out []string) {
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(live), live))
		for _, entry := range live.Spec.Config {
			out = append(out, string(entry.Opaque.Parameters.Raw))
		}
		return out
	}
	const open = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowPassthrough":true}}`
	const narrow = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowPassthrough":true,"allowedNamespaces":["vms"]}}`
	const closed = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`
	for _, test := range []struct {
		name      string
		before    []string
		want      []string
		untouched bool
	}{
		{"as it was made", nil, []string{open}, true},
		{"narrowed", []string{narrow}, []string{narrow}, false},
		{"closed, with an entry", []string{closed}, []string{closed}, false},
		{"closed, without", []string{}, nil, false},
	} {
		parameters()
		if !test.untouched {
			live.Spec.Config = nil
			for _, text := range test.before {
				live.Spec.Config = append(live.Spec.Config, resourceapi.DeviceClassConfiguration{
					DeviceConfiguration: objects.Opaque("fettle.dev", text),
				})
			}
		}
		live.Spec.Selectors[0].CEL.Expression = "false"
		check.Must(t, c.client.Update(t.Context(), live))
		apitest.Eventually(t, func() string { return c.wrongClass(t, live.Name) })
		if diff := cmp.Diff(test.want, parameters()); diff != "" {
			t.Errorf("%s: configurations of %s (-want +got):\n%s", test.name, live.Name, diff)
		}
	}

	off := deviceclasses.New(reconciler.Services{Client: c.client, Live: c.client}, deviceclasses.Options{}).Queues[0].Reconciler
	switchOff := func(name string) {
		t.Helper()
		_, err := off.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		check.Must(t, err)
	}
	for _, name := range []string{"vfio.gpu.fettle.dev", "mig.gpu.fettle.dev"} {
		live.Name = name
		parameters()
		uid := live.UID
		switchOff(name)
		apitest.Eventually(t, func() string { // the running controller makes it again
			if problem := c.wrongClass(t, name); problem != "" || parameters() == nil && name == "vfio.gpu.fettle.dev" {
				return "no new class " + name + ": " + problem
			}
			return ""
		})
		if live.UID == uid {
			t.Errorf("class %s was not deleted", name)
		}
	}
	foreign := live.DeepCopy()
	foreign.Labels = nil
	check.Must(t, c.client.Update(t.Context(), foreign))
	switchOff(foreign.Name)
	switchOff("gpu.fettle.dev")
	switchOff("absent.example.com")
	for _, name := range []string{foreign.Name, "gpu.fettle.dev"} {
		live.Name = name
		parameters()
	}
	foreign.Labels = map[string]string{names.ManagedByLabel: names.Controller}
	check.Must(t, c.client.Update(t.Context(), foreign))
}

// wrongClass says what is wrong with the live class of a shipped name.
func (c cluster) wrongClass(t *testing.T, name string) string {
	t.Helper()
	var live resourceapi.DeviceClass
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &live); err != nil {
		return err.Error()
	}
	for _, want := range deviceclasses.Classes(allClasses()) {
		if want.Name != name {
			continue
		}
		if live.Labels[names.ManagedByLabel] != names.Controller {
			return "class " + name + " lacks our label"
		}
		want.Spec.Config, live.Spec.Config = nil, nil
		return cmp.Diff(want.Spec, live.Spec)
	}
	return "no shipped class is called " + name
}
