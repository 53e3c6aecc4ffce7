// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// Names returns the requests that configurations and constraints of a claim or template name and that it does not have, and the attributes
// of constraints that no device has.
func (j *Judge) Names(object runtime.Object, known Known) field.ErrorList {
	devices, path := devicesOf(object)
	if devices == nil {
		return nil
	}
	all := askedOf(devices.Requests, path.Child("requests"))
	var faults field.ErrorList
	for i := range devices.Constraints {
		c, at := &devices.Constraints[i], path.Child("constraints").Index(i)
		faults = append(faults, unknownRequests(c.Requests, all, at.Child("requests"))...)
		driver := j.commonDriver(c.Requests, all, known)
		faults = append(faults, attributeFaults(c.MatchAttribute, driver, at.Child("matchAttribute"))...)
		faults = append(faults, attributeFaults(c.DistinctAttribute, driver, at.Child("distinctAttribute"))...)
	}
	for i := range devices.Config {
		faults = append(faults, unknownRequests(devices.Config[i].Requests, all, path.Child("config").Index(i).Child("requests"))...)
	}
	return faults
}

// unknownRequests returns the names that no request and no alternative has.
func unknownRequests(names []string, all []asked, path *field.Path) field.ErrorList {
	var known []string
	for i := range all {
		if main := resourceclaim.BaseRequestRef(all[i].name); main != "" && !slices.Contains(known, main) {
			known = append(known, main)
		}
		if all[i].alternative() {
			known = append(known, all[i].name)
		}
	}
	var faults field.ErrorList
	for i, name := range names {
		if !slices.Contains(known, name) {
			faults = append(faults, field.NotSupported(path.Index(i), name, known))
		}
	}
	return faults
}

// commonDriver returns the driver of all devices of the named requests, and nothing if they differ or if one is unknown.
func (j *Judge) commonDriver(names []string, all []asked, known Known) string {
	drivers := map[string]bool{}
	common := ""
	for i := range all {
		a := &all[i]
		if claim.Named(names, a.name) {
			common = j.driver(a, known)
			drivers[common] = true
		}
	}
	if len(drivers) != 1 {
		return ""
	}
	return common
}

func attributeFaults(name *resourceapi.FullyQualifiedName, driver string, path *field.Path) field.ErrorList {
	if name == nil {
		return nil
	}
	if fault := selector.Attribute(*name, driver); fault != "" {
		return field.ErrorList{field.Invalid(path, *name, fault)}
	}
	return nil
}

// Selectors returns what is wrong with the CEL of a claim, template or class: what does not compile, and what no device of this driver
// has.
func (j *Judge) Selectors(object runtime.Object, known Known) field.ErrorList {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		return j.selectorFaults(class.Spec.Selectors, j.facts(class.Spec.Selectors)["driver"], field.NewPath("spec", "selectors"))
	}
	devices, path := devicesOf(object)
	if devices == nil {
		return nil
	}
	var faults field.ErrorList
	all := askedOf(devices.Requests, path.Child("requests"))
	for i := range all {
		faults = append(faults, j.selectorFaults(all[i].selectors, j.driver(&all[i], known), all[i].path.Child("selectors"))...)
	}
	return faults
}

func (j *Judge) selectorFaults(selectors []resourceapi.DeviceSelector, driver string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i := range selectors {
		if selectors[i].CEL == nil {
			continue
		}
		for _, fault := range j.selectors.Check(selectors[i].CEL.Expression, driver) {
			faults = append(faults, field.Invalid(path.Index(i).Child("cel", "expression"), selectors[i].CEL.Expression, fault))
		}
	}
	return faults
}
