// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses keeps the DeviceClasses that Fettle ships.
package deviceclasses

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Options are the administrator's choices about the shipped DeviceClasses.
type Options struct {
	// ExtendedResources lets pods ask for "fettle.dev/gpu: 1" without a claim (KEP-5004).
	ExtendedResources bool
}

// Classes returns the DeviceClasses that Fettle ships, sorted by name: one a kind of device, each named KIND.fettle.dev.
func Classes(opts Options) []*resourceapi.DeviceClass {
	kinds := []device.Kind{device.KindFPGA, device.KindGPU, device.KindHost}
	classes := make([]*resourceapi.DeviceClass, 0, len(kinds))
	for _, kind := range kinds {
		class := &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{
				Name:   string(kind) + "." + v1alpha1.DriverName,
				Labels: map[string]string{names.ManagedByLabel: names.Controller},
			},
			Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector(kind)}}},
			},
		}
		if opts.ExtendedResources {
			class.Spec.ExtendedResourceName = ptr.To(v1alpha1.DriverName + "/" + string(kind))
		}
		classes = append(classes, class)
	}
	return classes
}

// selector matches this driver's devices of one kind. It asks for the attribute before it reads it: a CEL runtime error on one
// device ends the scheduling of the pod (kubernetes/kubernetes#125826), while false only passes the device over.
func selector(kind device.Kind) string {
	return fmt.Sprintf(`device.driver == %[1]q && "type" in device.attributes[%[1]q] && device.attributes[%[1]q].type == %[2]q`,
		v1alpha1.DriverName, string(kind))
}

// managed says whether the controller may change a live class. A class without the label was made by an administrator, or an
// administrator removed the label to take it over. To overwrite its selector would hand out other devices than intended.
func managed(class *resourceapi.DeviceClass) bool {
	return class.Labels[names.ManagedByLabel] == names.Controller
}

// drifted says whether a live class differs from the wanted one in a field that the controller owns: selectors and extendedResourceName.
// Everything else (configs with a policy, labels, annotations) belongs to the administrator.
func drifted(live, want *resourceapi.DeviceClass) bool {
	return !equality.Semantic.DeepEqual(live.Spec.Selectors, want.Spec.Selectors) ||
		!ptr.Equal(live.Spec.ExtendedResourceName, want.Spec.ExtendedResourceName)
}

// degraded says whether the API server dropped the extended resource name, as it does if its DRAExtendedResource gate is off (the default
// before Kubernetes 1.36).
func degraded(live, want *resourceapi.DeviceClass) bool {
	return want.Spec.ExtendedResourceName != nil && live.Spec.ExtendedResourceName == nil
}
