// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxAllowedNamespaces keeps the admission expression that reads the list within its cost budget. The 10 KiB that Kubernetes
// allows an opaque configuration would be reached at a few hundred anyway.
const maxAllowedNamespaces = 128

// Policy is what an administrator decides for every claim of a DeviceClass. A claim cannot carry one, so it always wins.
type Policy struct {
	// AllowedNamespaces are the namespaces whose claims may use the class. Unset: every namespace. When several classes
	// apply to one request, a namespace must be in the list of each.
	AllowedNamespaces []string `json:"allowedNamespaces,omitempty"`
}

// policyOrigin is the fault of a policy outside a class.
func policyOrigin(fromClass bool, path *field.Path) field.ErrorList {
	if fromClass {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "only a DeviceClass may set a policy: remove it from the claim")}
}

func (p *Policy) validate(path *field.Path) field.ErrorList {
	path = path.Child("allowedNamespaces")
	if p.AllowedNamespaces != nil && len(p.AllowedNamespaces) == 0 {
		return field.ErrorList{field.Required(path, "name at least one namespace, or leave the field out to allow all")}
	}
	var faults field.ErrorList
	if len(p.AllowedNamespaces) > maxAllowedNamespaces {
		faults = append(faults, field.TooMany(path, len(p.AllowedNamespaces), maxAllowedNamespaces))
	}
	first := make(map[string]int, len(p.AllowedNamespaces))
	for i, name := range p.AllowedNamespaces {
		for _, detail := range validation.IsDNS1123Label(name) {
			faults = append(faults, field.Invalid(path.Index(i), name, detail))
		}
		if j, twice := first[name]; twice {
			fault := field.Duplicate(path.Index(i), name)
			fault.Detail = fmt.Sprintf("already at index %d", j)
			faults = append(faults, fault)
			continue
		}
		first[name] = i
	}
	return faults
}
