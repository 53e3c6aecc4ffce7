// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses keeps the DeviceClasses that Fettle ships.
package deviceclasses

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// Options are the administrator's choices about the shipped DeviceClasses.
type Options struct {
	// ExtendedResources lets pods ask for "fettle.dev/gpu: 1" without a claim (KEP-5004).
	ExtendedResources bool
	// Parts are the types of parts of GPUs that have a class. Others' classes are deleted.
	Parts []string
}

// passthrough is the configuration of the class of VFIO devices. Without its policy the nodes refuse every claim for one.
const passthrough = `{"apiVersion":"` + v1alpha1.GroupName + `/v1alpha1","kind":"` + v1alpha1.KindGPUConfig +
	`","policy":{"allowPassthrough":true}}`

// partConfigs has what the class of each type of parts of GPUs carries when it is made.
func partConfigs() map[string]string {
	return map[string]string{device.TypeMIG: "", device.TypePartition: "", device.TypeVF: "", device.TypeVFIO: passthrough}
}

// PartTypes returns the types of parts of GPUs that may have a class, sorted.
func PartTypes() []string { return slices.Sorted(maps.Keys(partConfigs())) }

// Vendors returns the vendors whose whole GPUs have a class of their own, sorted. They are the values of the attribute vendor.
func Vendors() []string { return vendors.Names(vendors.WithGPUs()) }

// Classes returns the DeviceClasses that Fettle ships: one a kind of device, each named KIND.fettle.dev, sorted by name; those of the
// vendors' whole GPUs, each named VENDOR.gpu.fettle.dev; and those of parts of GPUs, each named TYPE.gpu.fettle.dev.
func Classes(opts Options) []*resourceapi.DeviceClass {
	kinds := device.Kinds()
	classes := make([]*resourceapi.DeviceClass, 0, len(kinds)+len(Vendors())+len(opts.Parts))
	add := func(class *resourceapi.DeviceClass, extended string) {
		if opts.ExtendedResources {
			class.Spec.ExtendedResourceName = ptr.To(v1alpha1.DriverName + "/" + extended)
		}
		classes = append(classes, class)
	}
	for _, kind := range kinds {
		add(newClass(string(kind)+"."+v1alpha1.DriverName, string(kind)), string(kind))
	}
	for _, vendor := range Vendors() {
		add(vendorClass(vendor), vendor+"-"+string(device.KindGPU))
	}
	for _, part := range slices.Sorted(slices.Values(opts.Parts)) {
		class := newClass(partClass(part), part)
		if config := partConfigs()[part]; config != "" {
			class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(config)},
				},
			}}}
		}
		classes = append(classes, class)
	}
	return classes
}

// vendorClass returns the class of the whole GPUs of a vendor. A claim for several GPUs of gpu.fettle.dev may get those of several vendors.
func vendorClass(vendor string) *resourceapi.DeviceClass {
	class := newClass(vendor+"."+string(device.KindGPU)+"."+v1alpha1.DriverName, string(device.KindGPU))
	attributes := fmt.Sprintf("device.attributes[%q]", v1alpha1.DriverName)
	class.Spec.Selectors[0].CEL.Expression += fmt.Sprintf(` && "vendor" in %[1]s && %[1]s.vendor == %[2]q`, attributes, vendor)
	return class
}

// partClass returns the name of the class of a type of parts of GPUs. Such a class has no extended resource: a pod could not say how large
// a part it needs.
func partClass(part string) string {
	return part + "." + string(device.KindGPU) + "." + v1alpha1.DriverName
}

func newClass(name, deviceType string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.ManagedByLabel: names.Controller}},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector(deviceType)}}},
		},
	}
}

// selector matches this driver's devices of one type. It asks for the attribute before it reads it: a CEL runtime error on one
// device ends the scheduling of the pod (kubernetes/kubernetes#125826), while false only passes the device over.
func selector(deviceType string) string {
	return fmt.Sprintf(`device.driver == %[1]q && "type" in device.attributes[%[1]q] && device.attributes[%[1]q].type == %[2]q`,
		v1alpha1.DriverName, deviceType)
}

// managed says whether the controller may change a live class. A class without the label was made by an administrator, or an
// administrator removed the label to take it over. To overwrite its selector would hand out other devices than intended.
func managed(class *resourceapi.DeviceClass) bool {
	return class.Labels[names.ManagedByLabel] == names.Controller
}

// drifted says whether a live class differs from the wanted one in a field that the controller owns: selectors and extendedResourceName.
// Everything else (configs with a policy, labels, annotations) belongs to the administrator, even the config that a class is made with: a
// policy that an administrator narrowed must not widen again.
func drifted(live, want *resourceapi.DeviceClass) bool {
	return !equality.Semantic.DeepEqual(live.Spec.Selectors, want.Spec.Selectors) ||
		!ptr.Equal(live.Spec.ExtendedResourceName, want.Spec.ExtendedResourceName)
}

// degraded says whether the API server dropped the extended resource name, as it does if its DRAExtendedResource gate is off (the default
// before Kubernetes 1.36).
func degraded(live, want *resourceapi.DeviceClass) bool {
	return want.Spec.ExtendedResourceName != nil && live.Spec.ExtendedResourceName == nil
}
