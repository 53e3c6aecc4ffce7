// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// The most that conditions may cost, in CEL's units, of which the API server lets a selector have a million, or about 0.1 s. Tenants have
// many presets with two conditions each, and a condition is evaluated for each device of a pod, and by the controller for each maker.
const (
	// maxCost is for one evaluation. Hundreds of comparisons cost less.
	maxCost = 10_000
	// maxCosts is for all evaluations of the namespace's own presets for the claims of a pod.
	maxCosts = 2_000_000
)

// errCosts ends the evaluation of a namespace's presets.
var errCosts = fmt.Errorf("the conditions (cel) of the namespace's DevicePresets cost more than %d to evaluate for the claims of the pod: "+
	"let fewer or simpler ones, or deviceClassNames, select the claims", maxCosts)

// Conditions evaluates conditions, and keeps them compiled.
type Conditions struct{ compiled selector.Compiled }

// Check returns what is wrong with an expression.
func (c *Conditions) Check(expression string) error {
	if result := c.compiled.GetWithin(expression, maxCost); result.Error != nil {
		return fmt.Errorf("CEL %q: %w", expression, result.Error)
	}
	return nil
}

// Holds evaluates a condition for a device of the driver. An attribute that the device does not have is an error, as in a DeviceClass:
// write has() or a default. If some attributes are unknown, an error says that the answer depends on them.
func (c *Conditions) Holds(ctx context.Context, expression, driver string, d *Device) (bool, error) {
	ok, _, err := c.evaluate(ctx, expression, driver, d)
	return ok, err
}

// evaluate is Holds, and says what it cost.
func (c *Conditions) evaluate(ctx context.Context, expression, driver string, d *Device) (ok bool, cost uint64, err error) {
	result := c.compiled.GetWithin(expression, maxCost)
	if result.Error != nil {
		return false, 0, fmt.Errorf("CEL %q: %w", expression, result.Error)
	}
	ok, details, err := result.DeviceMatches(ctx, cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
	if details != nil {
		cost = ptr.Deref(details.ActualCost(), 0)
	}
	if err != nil {
		return false, cost, fmt.Errorf("CEL %q: %w", expression, err)
	}
	return ok, cost, nil
}

// holds evaluates a condition of the preset that is applied now.
func (r *resolver) holds(ctx context.Context, expression string, d *Device) (bool, error) {
	if r.metered && r.costs > maxCosts {
		return false, errCosts
	}
	ok, cost, err := r.conditions.evaluate(ctx, expression, r.Driver, d)
	if r.metered {
		r.costs += cost
	}
	return ok, err
}

// selectsNamespace reports whether a preset selects the namespace of the claims.
func (r *resolver) selectsNamespace(p *Preset) (bool, error) {
	if p.Namespace != "" {
		return p.Namespace == r.Namespace, nil
	}
	if p.NamespaceSelector == nil {
		return true, nil
	}
	return matches(p.NamespaceSelector, r.NamespaceLabels)
}

func matches(selector *metav1.LabelSelector, set map[string]string) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(set)), nil
}

// together returns the claims that count for a preset which is asked about one claim: all that the pod has. A claim that pods share is
// prepared once for all of them, so it counts alone.
func (r *resolver) together(c *Claim) []*Claim {
	if !c.Owned || r.Pod == nil {
		return []*Claim{c}
	}
	out := make([]*Claim, 0, len(r.Claims)+len(r.Shared))
	for _, list := range [][]Claim{r.Claims, r.Shared} {
		for i := range list {
			out = append(out, &list[i])
		}
	}
	return out
}

// matchingRequests returns the requests of a claim that a device selector selects, sorted.
func (r *resolver) matchingRequests(ctx context.Context, s *v1alpha1.PresetDeviceSelector, c *Claim) ([]string, error) {
	if s == nil {
		s = &v1alpha1.PresetDeviceSelector{}
	}
	all := r.together(c)
	for _, class := range s.DeviceClassNames {
		if !asksFor(all, class) {
			return nil, nil
		}
	}
	var requests []string
	for i := range c.Devices {
		selected, err := r.selectsDevice(ctx, s, &c.Devices[i])
		if err != nil {
			return nil, err
		}
		if selected {
			requests = append(requests, c.Devices[i].Request)
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	if there, err := r.holdsAny(ctx, s.Absent, all); err != nil || there {
		return nil, err
	}
	if enough, err := r.holdsEnough(ctx, s, all); err != nil || !enough {
		return nil, err
	}
	slices.Sort(requests)
	return slices.Compact(requests), nil
}

// asksFor reports whether one of the claims has a device of a class, of any driver.
func asksFor(claims []*Claim, class string) bool {
	return slices.ContainsFunc(claims, func(c *Claim) bool { return slices.Contains(c.Classes, class) })
}

// selectsDevice reports whether deviceClassNames and cel select a device.
func (r *resolver) selectsDevice(ctx context.Context, s *v1alpha1.PresetDeviceSelector, d *Device) (bool, error) {
	if len(s.DeviceClassNames) > 0 && !slices.Contains(s.DeviceClassNames, d.Class) {
		return false, nil
	}
	if s.CEL == "" {
		return true, nil
	}
	return r.holds(ctx, s.CEL, d)
}

// holdsEnough reports whether the claims hold minCount of the devices that a preset selects.
func (r *resolver) holdsEnough(ctx context.Context, s *v1alpha1.PresetDeviceSelector, claims []*Claim) (bool, error) {
	if s.MinCount == nil {
		return true, nil
	}
	count := 0
	for _, c := range claims {
		for i := range c.Devices {
			selected, err := r.selectsDevice(ctx, s, &c.Devices[i])
			if err != nil {
				return false, err
			}
			if selected {
				count++
			}
		}
	}
	return count >= int(*s.MinCount), nil
}

// holdsAny reports whether the claims ask for a class, or hold a device, that keeps the preset away.
func (r *resolver) holdsAny(ctx context.Context, a *v1alpha1.PresetAbsent, claims []*Claim) (bool, error) {
	if a == nil {
		return false, nil
	}
	if slices.ContainsFunc(a.DeviceClassNames, func(class string) bool { return asksFor(claims, class) }) {
		return true, nil
	}
	if a.CEL == "" {
		return false, nil
	}
	for _, c := range claims {
		for i := range c.Devices {
			if there, err := r.holds(ctx, a.CEL, &c.Devices[i]); err != nil || there {
				return there, err
			}
		}
	}
	return false, nil
}
