// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"cmp"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// mergeSharing lays a layer's strategy, and the parameters of any strategy, over those so far.
func (e *Effective) mergeSharing(s *v1alpha1.GPUSharing, source Source) {
	if s.Strategy != "" {
		e.GPU.Strategy = s.Strategy
		e.Sources[FieldStrategy] = source
	}
	if s.TimeSlicing != nil {
		e.GPU.Interval = cmp.Or(s.TimeSlicing.Interval, e.GPU.Interval)
		e.Sources[FieldTimeSlicing] = source
	}
	if s.MPS != nil {
		e.GPU.mergeMPS(s.MPS)
		e.Sources[FieldMPS] = source
	}
}

func (g *GPUEffective) mergeMPS(m *v1alpha1.MPS) {
	var out MPSEffective
	if g.MPS != nil {
		out = *g.MPS
	}
	if m.ActiveThreadPercentage != nil {
		out.ActiveThreadPercentage = *m.ActiveThreadPercentage
	}
	if m.PinnedMemoryLimit != nil {
		out.PinnedMemoryLimit = m.PinnedMemoryLimit.Value()
	}
	if m.MultiUser != nil {
		out.MultiUser = *m.MultiUser
	}
	g.MPS = &out
}

// settleSharing leaves the parameters of the chosen strategy, with its defaults. Parameters of another one are a class's for claims that
// choose that; from a claim itself they are a fault, since they would be ignored.
func (e *Effective) settleSharing() field.ErrorList {
	var faults field.ErrorList
	for _, one := range []struct {
		strategy v1alpha1.SharingStrategy
		field    string
		child    string
	}{{v1alpha1.SharingTimeSlicing, FieldTimeSlicing, "timeSlicing"}, {v1alpha1.SharingMPS, FieldMPS, "mps"}} {
		source, given := e.Sources[one.field]
		if !given || e.GPU.Strategy == one.strategy {
			continue
		}
		if source.Origin == OriginClaim {
			faults = append(faults, field.Forbidden(source.parameters().Child("sharing", one.child), fmt.Sprintf(
				"the strategy is %s (%s): set sharing.strategy to %s, or remove it", e.GPU.Strategy, e.Sources[FieldStrategy], one.strategy)))
		}
		delete(e.Sources, one.field)
	}
	if e.GPU.Strategy == v1alpha1.SharingTimeSlicing {
		e.GPU.Interval = cmp.Or(e.GPU.Interval, v1alpha1.IntervalDefault)
	} else {
		e.GPU.Interval = ""
	}
	if e.GPU.Strategy != v1alpha1.SharingMPS {
		e.GPU.MPS = nil
		return faults
	}
	e.GPU.mergeMPS(&v1alpha1.MPS{})
	e.GPU.MPS.ActiveThreadPercentage = cmp.Or(e.GPU.MPS.ActiveThreadPercentage, 100)
	return faults
}

// RefuseStrategy makes the *RefusedError of a claim whose strategy its device cannot have. Resolve does not know what an administrator
// allows on the device, so that the feature that knows calls this. Why says the next step too.
func (r *Result) RefuseStrategy(c *resourceapi.ResourceClaim, why string) error {
	source := r.Config.Sources[FieldStrategy]
	path := source.parameters().Child("sharing", "strategy")
	if source.Origin == OriginBuiltIn {
		path = field.NewPath("sharing", "strategy") // no configuration chose one: what the device's policy says is not to be had
	}
	return refuse(c, ReasonSharingUnsupported, field.ErrorList{field.Invalid(path,
		r.Config.GPU.Strategy, fmt.Sprintf("request %s got %s: %s", r.Request, r.Device, why))})
}
