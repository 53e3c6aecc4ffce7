// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ClassNames returns the DeviceClasses that the claim's devices of the driver were requested from, sorted.
func ClassNames(in Input) []string {
	if in.Claim.Status.Allocation == nil {
		return nil
	}
	var names []string
	for _, r := range in.Claim.Status.Allocation.Devices.Results {
		if r.Driver != in.Driver {
			continue
		}
		if asked, ok := requestOf(in.Claim, r.Request); ok && !slices.Contains(names, asked.class) {
			names = append(names, asked.class)
		}
	}
	slices.Sort(names)
	return names
}

// goneClasses refuses requests whose class does not exist any more, because its policy is unknown.
func goneClasses(in Input, results []ownResult) field.ErrorList {
	if in.Classes == nil || in.Prepared {
		return nil
	}
	var faults field.ErrorList
	for i := range results {
		asked, _ := requestOf(in.Claim, results[i].Request)
		if in.Classes[asked.class] == nil {
			faults = append(faults, field.Invalid(asked.path, asked.class, fmt.Sprintf("the DeviceClass of request %s is gone, "+
				"so what it allows is unknown: an administrator can create it again, and kubelet then tries again; "+
				"or delete the claim and use another class", results[i].Request)))
		}
	}
	return faults
}

// applyLivePolicy makes a recorded policy the stricter one of itself and the policy of the class as it is now. So a policy that only the
// allocation has can restrict and never grant: anybody who may write the claim's status could have invented it. Parameters stay as they
// were recorded, because a class has none that a claim could not have set itself.
func applyLivePolicy(recorded *Effective, in Input, r Result) field.ErrorList {
	asked, _ := requestOf(in.Claim, r.Request)
	class := in.Classes[asked.class]
	if class == nil {
		return nil
	}
	row, ok := rowOf(r.Kind)
	if !ok {
		return nil
	}
	live := builtIn(r.Kind)
	var faults field.ErrorList
	for i := range class.Spec.Config {
		opaque := class.Spec.Config[i].Opaque
		if opaque == nil || opaque.Driver != in.Driver {
			continue
		}
		source := Source{Origin: OriginClass, Index: i, Class: class.Name}
		config, wrong := decode(opaque, source)
		faults = append(faults, wrong...)
		if config != nil {
			row.policy(&live, config, source)
		}
	}
	row.restrict(recorded, &live)
	return faults
}

// Trim keeps of a DeviceClass what Resolve needs.
func Trim(class *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	kept := &resourceapi.DeviceClass{}
	kept.Name, kept.UID, kept.ResourceVersion = class.Name, class.UID, class.ResourceVersion
	kept.Spec.Config = class.Spec.Config
	return kept
}
