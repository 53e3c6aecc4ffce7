// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// WantsDevices says whether a claim or template may get devices of this driver, by any of its requests or their alternatives.
func (j *Judge) WantsDevices(object runtime.Object, known Known) bool {
	devices, path := devicesOf(object)
	if devices == nil {
		return false
	}
	all := askedOf(devices.Requests, path.Child("requests"))
	return slices.ContainsFunc(all, func(a asked) bool { return j.ours(&a, known) })
}

// GivesDevices says whether a container that asks for an extended resource may get devices of this driver: by the name that Kubernetes
// gives to every class, or by one that a class has.
func (j *Judge) GivesDevices(resource string, known Known) bool {
	if class, found := strings.CutPrefix(resource, resourceapi.ResourceDeviceClassPrefix); found {
		return j.ours(&asked{class: class}, known)
	}
	if !strings.Contains(resource, "/") {
		return false
	}
	for _, class := range known.Classes {
		if name := class.Spec.ExtendedResourceName; name != nil && *name == resource && j.ours(&asked{class: class.Name}, known) {
			return true
		}
	}
	return false
}

// ours says whether devices of this driver may be given for a request: the class or the request compares device.driver with its name, or
// they compare no driver and one of them names attributes or capacity of this driver.
func (j *Judge) ours(a *asked, known Known) bool {
	switch j.driver(a, known) {
	case v1alpha1.DriverName:
		return true
	case "":
		class := known.Classes[a.class]
		return named(a.selectors) || class != nil && named(class.Spec.Selectors)
	}
	return false
}

// named says whether a selector has the driver's name in it.
func named(selectors []resourceapi.DeviceSelector) bool {
	return slices.ContainsFunc(selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && strings.Contains(s.CEL.Expression, v1alpha1.DriverName)
	})
}
