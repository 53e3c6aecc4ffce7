// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Conditions keeps compiled CEL: compiling takes a hundred times as long as asking.
type Conditions struct {
	mu       sync.Mutex
	compiled map[string]cel.CompilationResult
}

// maxConditions bounds what is kept. Presets are few; more than this were edited away.
const maxConditions = 4096

func (c *Conditions) compile(expression string) cel.CompilationResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	result, ok := c.compiled[expression]
	if ok {
		return result
	}
	if c.compiled == nil || len(c.compiled) >= maxConditions {
		c.compiled = map[string]cel.CompilationResult{}
	}
	result = cel.GetCompiler(cel.Features{}).CompileCELExpression(expression, cel.Options{})
	c.compiled[expression] = result
	return result
}

// Check says what is wrong with an expression.
func (c *Conditions) Check(expression string) error {
	if result := c.compile(expression); result.Error != nil {
		return fmt.Errorf("CEL %q: %w", expression, result.Error)
	}
	return nil
}

// Holds is for a device of the driver, of which not all may be known: an error then says that the answer depends on the rest.
func (c *Conditions) Holds(ctx context.Context, expression, driver string, d *Device) (bool, error) {
	return c.holds(ctx, expression, driver, d)
}

// holds asks whether the condition is true for a device. What it asks of a device that does not have it is an error, as in a DeviceClass:
// write has() or a default.
func (c *Conditions) holds(ctx context.Context, expression, driver string, d *Device) (bool, error) {
	result := c.compile(expression)
	if result.Error != nil {
		return false, fmt.Errorf("CEL %q: %w", expression, result.Error)
	}
	ok, _, err := result.DeviceMatches(ctx, cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
	if err != nil {
		return false, fmt.Errorf("CEL %q: %w", expression, err)
	}
	return ok, nil
}

// ofNamespace says whether a preset is for claims of the namespace at all.
func (r *resolver) ofNamespace(p *Preset) (bool, error) {
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

// selects says which requests of a claim a device selector is for, sorted.
func (r *resolver) selects(ctx context.Context, s *v1alpha1.PresetDeviceSelector, c *Claim) ([]string, error) {
	if s == nil {
		s = &v1alpha1.PresetDeviceSelector{}
	}
	if there, err := r.holdsAny(ctx, s.Absent, c); err != nil || there {
		return nil, err
	}
	for _, class := range s.DeviceClassNames {
		if !slices.Contains(c.Classes, class) {
			return nil, nil
		}
	}
	var requests []string
	count := 0
	for i := range c.Devices {
		d := &c.Devices[i]
		if len(s.DeviceClassNames) > 0 && !slices.Contains(s.DeviceClassNames, d.Class) {
			continue
		}
		if s.CEL != "" {
			if ok, err := r.conditions.holds(ctx, s.CEL, r.Driver, d); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
		}
		count++
		requests = append(requests, d.Request)
	}
	if s.MinCount != nil && count < int(*s.MinCount) {
		return nil, nil
	}
	slices.Sort(requests)
	return slices.Compact(requests), nil
}

// holdsAny says whether a claim holds what keeps a preset away.
func (r *resolver) holdsAny(ctx context.Context, a *v1alpha1.PresetAbsent, c *Claim) (bool, error) {
	if a == nil {
		return false, nil
	}
	for _, class := range a.DeviceClassNames {
		if slices.Contains(c.Classes, class) {
			return true, nil
		}
	}
	if a.CEL == "" {
		return false, nil
	}
	for i := range c.Devices {
		if there, err := r.conditions.holds(ctx, a.CEL, r.Driver, &c.Devices[i]); err != nil || there {
			return there, err
		}
	}
	return false, nil
}
