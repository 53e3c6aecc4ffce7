// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestWantsDevices is which claims, templates and extended resources may get devices of this driver.
func TestWantsDevices(t *testing.T) {
	class := func(name, extended, expression string) *resourceapi.DeviceClass {
		c := &resourceapi.DeviceClass{}
		c.Name = name
		if extended != "" {
			c.Spec.ExtendedResourceName = &extended
		}
		if expression != "" {
			c.Spec.Selectors = objects.Selectors(expression)
		}
		return c
	}
	known := admission.Known{Classes: map[string]*resourceapi.DeviceClass{}}
	for _, c := range []*resourceapi.DeviceClass{
		class("ours", "example.com/ours", `device.driver == "fettle.dev"`),
		class("theirs", "example.com/theirs", `device.driver == "x.dev" && device.attributes["fettle.dev"].a == "b"`),
		class("by-attribute", "", `device.attributes["fettle.dev"].architecture == "Hopper"`),
		class("any", "", ""),
	} {
		known.Classes[c.Name] = c
	}
	request := func(class, expression string) resourceapi.DeviceRequest {
		r := resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
		if expression != "" {
			r.Exactly.Selectors = objects.Selectors(expression)
		}
		return r
	}
	either := resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "theirs"}, {Name: "b", DeviceClassName: "ours"},
	}}
	for name, test := range map[string]struct {
		requests []resourceapi.DeviceRequest
		want     bool
	}{
		"none":                        {nil, false},
		"ours":                        {[]resourceapi.DeviceRequest{request("ours", "")}, true},
		"another's":                   {[]resourceapi.DeviceRequest{request("theirs", "")}, false},
		"one of two":                  {[]resourceapi.DeviceRequest{request("theirs", ""), request("ours", "")}, true},
		"an alternative":              {[]resourceapi.DeviceRequest{either}, true},
		"a class by attribute":        {[]resourceapi.DeviceRequest{request("by-attribute", "")}, true},
		"a class of any":              {[]resourceapi.DeviceRequest{request("any", "")}, false},
		"a class of any, narrowed":    {[]resourceapi.DeviceRequest{request("any", `device.driver == "fettle.dev"`)}, true},
		"narrowed to another":         {[]resourceapi.DeviceRequest{request("any", `device.driver == "x.dev"`)}, false},
		"a class that is not known":   {[]resourceapi.DeviceRequest{request("nothing", "")}, false},
		"one that is ours by name":    {[]resourceapi.DeviceRequest{request("special.fettle.dev", "")}, true},
		"one that only looks like it": {[]resourceapi.DeviceRequest{request("notfettle.dev", "")}, false},
	} {
		claim, template := &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{}
		claim.Spec.Devices.Requests, template.Spec.Spec.Devices.Requests = test.requests, test.requests
		for _, object := range []runtime.Object{claim, template} {
			if got := (&admission.Judge{}).WantsDevices(object, known); got != test.want {
				t.Errorf("%s, %T: %t", name, object, got)
			}
		}
	}
	for resource, want := range map[string]bool{
		"example.com/ours": true, "example.com/theirs": false, "cpu": false, "hugepages-2Mi": false, "example.com/other": false,
		"deviceclass.resource.kubernetes.io/ours": true, "deviceclass.resource.kubernetes.io/theirs": false,
		"deviceclass.resource.kubernetes.io/gpu.fettle.dev": true, "deviceclass.resource.kubernetes.io/any": false,
	} {
		if got := (&admission.Judge{}).GivesDevices(resource, known); got != want {
			t.Errorf("%s: %t", resource, got)
		}
	}
}
