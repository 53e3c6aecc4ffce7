// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"maps"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// Judge says what will become of ResourceClaims, ResourceClaimTemplates and DeviceClasses, beyond the faults that Validate finds in an
// object alone. It keeps the environments of CEL. The zero value is ready, and may be used by several goroutines at once.
type Judge struct{ selectors selector.Checker }

// Known has the objects that another object names, as far as they could be read. Nothing is judged by an object that is not there.
type Known struct {
	Classes map[string]*resourceapi.DeviceClass
	// Bitstreams are by namespace and name. A ClusterFPGABitstream has no namespace.
	Bitstreams map[types.NamespacedName]v1alpha1.CommonFPGABitstream
}

// Remark says what an author should know of an object that is not wrong in itself.
type Remark struct{ Field, Message string }

func (r Remark) String() string { return r.Field + ": " + r.Message }

// asked is a request of a claim, or one alternative of a request.
type asked struct {
	// name is that by which configurations name it: "main", or "main/sub".
	name      string
	class     string
	selectors []resourceapi.DeviceSelector
	// path is the parent of deviceClassName.
	path  *field.Path
	admin bool
}

// alternative reports whether the scheduler may choose another one.
func (a *asked) alternative() bool { return a.name != resourceclaim.BaseRequestRef(a.name) }

// askedOf lists the requests of a claim and their alternatives, in their order.
func askedOf(requests []resourceapi.DeviceRequest, path *field.Path) []asked {
	var all []asked
	for i := range requests {
		r, at := &requests[i], path.Index(i)
		if e := r.Exactly; e != nil {
			all = append(all, asked{
				name: r.Name, class: e.DeviceClassName, selectors: e.Selectors, path: at.Child("exactly"),
				admin: e.AdminAccess != nil && *e.AdminAccess,
			})
		}
		for k := range r.FirstAvailable {
			sub := &r.FirstAvailable[k]
			all = append(all, asked{
				name: resourceclaim.CreateSubRequestRef(r.Name, sub.Name), class: sub.DeviceClassName, selectors: sub.Selectors,
				path: at.Child("firstAvailable").Index(k),
			})
		}
	}
	return all
}

// devicesOf returns what a claim or template asks for, and its path. It returns nil for other objects.
func devicesOf(object runtime.Object) (*resourceapi.DeviceClaim, *field.Path) {
	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		return &o.Spec.Devices, spec.Child("devices")
	case *resourceapi.ResourceClaimTemplate:
		return &o.Spec.Spec.Devices, spec.Child("spec", "devices")
	}
	return nil, nil
}

// ClassNames returns the DeviceClasses that a claim or template names, each once, in their order.
func ClassNames(object runtime.Object) []string {
	devices, path := devicesOf(object)
	if devices == nil {
		return nil
	}
	var names []string
	seen := map[string]bool{}
	for _, a := range askedOf(devices.Requests, path) {
		if a.class != "" && !seen[a.class] {
			names, seen[a.class] = append(names, a.class), true
		}
	}
	return names
}

// facts returns what selectors demand of every device, see [selector.Checker.Facts].
func (j *Judge) facts(selectors []resourceapi.DeviceSelector) map[string]string {
	all := map[string]string{}
	for i := range selectors {
		if selectors[i].CEL == nil {
			continue
		}
		maps.Copy(all, j.selectors.Facts(selectors[i].CEL.Expression))
	}
	return all
}

// driver returns the driver that all devices of a request are of, and nothing if that is unknown. A class that is not known is this
// driver's if its name says so.
func (j *Judge) driver(a *asked, known Known) string {
	driver := j.facts(a.selectors)["driver"]
	if class := known.Classes[a.class]; class != nil {
		return cmp.Or(j.facts(class.Spec.Selectors)["driver"], driver)
	}
	if strings.HasSuffix(a.class, "."+v1alpha1.DriverName) {
		return v1alpha1.DriverName
	}
	return driver
}

// kind returns the kind of devices that a class of this driver selects, and nothing if that is unknown.
func (j *Judge) kind(class *resourceapi.DeviceClass) device.Kind {
	facts := j.facts(class.Spec.Selectors)
	if facts["driver"] != v1alpha1.DriverName {
		return ""
	}
	if kind, ok := device.KindOf(facts[v1alpha1.DriverName+"/type"]); ok {
		return kind
	}
	for _, entry := range class.Spec.Config {
		config, _ := configOf(entry.DeviceConfiguration, true, nil)
		if kind := claim.KindOf(config); kind != "" {
			return kind
		}
	}
	return ""
}
