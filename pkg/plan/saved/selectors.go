// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

// An expression may have any text in it, and compare texts that are replaced by order or by pattern. So none stays: each device says which
// group it is in, and an expression lists the groups that it selects. Devices are in one group if all expressions say the same of them.
const (
	groupDomain = "redacted.fettle.dev"
	groupName   = "group"
	ofGroup     = `device.attributes["` + groupDomain + `"].` + groupName
	// failing is an expression that fails on every device: no device has the attribute.
	failing = `device.attributes["` + groupDomain + `"].failing == true`
	// unreadable does not compile.
	unreadable = "unreadable"
)

// selectors has what expressions say of the devices of a snapshot.
type selectors struct {
	// texts has for each expression what replaces it, derivedTexts for those of derived attributes.
	texts, derivedTexts map[string]string
	// groups and derived have for each device its group and its derived attributes, by where it is.
	groups  map[string]string
	derived map[string]map[resourceapi.QualifiedName]*resourceapi.DeviceAttribute
}

// where is a device's place in a snapshot.
func where(slice *resourceapi.ResourceSlice, device *resourceapi.Device) string {
	return slice.Name + "/" + device.Name
}

// newSelectors evaluates all expressions for all devices, as a plan of the snapshot does.
func newSelectors(ctx context.Context, s plan.Snapshot, expressions, derived []string) *selectors {
	out := &selectors{
		texts: map[string]string{}, derivedTexts: map[string]string{}, groups: map[string]string{},
		derived: map[string]map[resourceapi.QualifiedName]*resourceapi.DeviceAttribute{},
	}
	for _, expression := range expressions {
		out.texts[expression] = unreadable
	}
	for _, expression := range derived {
		out.derivedTexts[expression] = unreadable
	}
	cluster, _, err := plan.NewCluster(s)
	if err != nil { // nor is there a plan of it
		return out
	}
	compiler := dracel.GetCompiler(dracel.Features{
		EnableConsumableCapacity: cluster.Gates.On(gates.ConsumableCapacity),
		EnableListTypeAttributes: cluster.Gates.On(gates.ListTypeAttributes),
	})
	var compiled []dracel.CompilationResult
	for _, expression := range expressions {
		if c := compiler.CompileCELExpression(expression, dracel.Options{DisableCostEstimation: true}); c.Error == nil {
			compiled = append(compiled, c)
		}
	}
	out.sort(ctx, cluster.Slices, compiled)
	for i, expression := range derived {
		c := compiler.CompileCELExpression(expression, dracel.Options{DisableCostEstimation: true, DerivedAttribute: true})
		if c.Error == nil {
			out.derive(ctx, cluster.Slices, c, expression, "derived"+strconv.Itoa(i))
		}
	}
	return out
}

func input(slice *resourceapi.ResourceSlice, d *resourceapi.Device) dracel.Device {
	return dracel.Device{
		Driver: slice.Spec.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	}
}

// What an expression says of a device.
const (
	selects byte = 't'
	rejects byte = 'f'
	fails   byte = 'e'
)

// verdicts says what each expression makes of a device, one letter each.
func verdicts(ctx context.Context, compiled []dracel.CompilationResult, d dracel.Device) string {
	out := make([]byte, len(compiled))
	for i := range compiled {
		matches, _, err := compiled[i].DeviceMatches(ctx, d)
		switch {
		case err != nil:
			out[i] = fails
		case matches:
			out[i] = selects
		default:
			out[i] = rejects
		}
	}
	return string(out)
}

// sort puts the devices into groups, and says which groups an expression selects.
func (s *selectors) sort(ctx context.Context, all []*resourceapi.ResourceSlice, compiled []dracel.CompilationResult) {
	said := map[string]string{} // of each device, one letter an expression
	distinct := map[string]bool{}
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			verdict := verdicts(ctx, compiled, input(slice, d))
			said[where(slice, d)], distinct[verdict] = verdict, true
		}
	}
	name := map[string]string{}
	for i, verdict := range slices.Sorted(maps.Keys(distinct)) {
		name[verdict] = fmt.Sprintf("group-%d", i+1)
	}
	for device, verdict := range said {
		s.groups[device] = name[verdict]
	}
	for j := range compiled {
		groups := map[byte][]string{}
		for _, verdict := range slices.Sorted(maps.Keys(distinct)) {
			groups[verdict[j]] = append(groups[verdict[j]], strconv.Quote(name[verdict]))
		}
		text := ofGroup + " in [" + strings.Join(groups[selects], ", ") + "]"
		if len(groups[fails]) > 0 {
			text = ofGroup + " in [" + strings.Join(groups[fails], ", ") + "] ? " + failing + " : " + text
		}
		s.texts[compiled[j].Expression] = text
	}
}

// derive keeps what an expression derives from each device as an attribute. A device without it fails, as with the expression.
func (s *selectors) derive(ctx context.Context, all []*resourceapi.ResourceSlice, c dracel.CompilationResult, expression, name string) {
	s.derivedTexts[expression] = `device.attributes["` + groupDomain + `"].` + name
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			value, _, err := c.EvaluateDerivedAttribute(ctx, input(slice, d))
			if err != nil || value == nil {
				continue
			}
			if s.derived[where(slice, d)] == nil {
				s.derived[where(slice, d)] = map[resourceapi.QualifiedName]*resourceapi.DeviceAttribute{}
			}
			s.derived[where(slice, d)][resourceapi.QualifiedName(groupDomain+"/"+name)] = value
		}
	}
}

// findValues adds the values of derived attributes to the texts that are replaced.
func (s *selectors) findValues(found map[category]map[string]bool) {
	for _, attributes := range s.derived {
		for name, value := range attributes {
			walker(func(c category, text string) string {
				if found[c] == nil {
					found[c] = map[string]bool{}
				}
				found[c][text] = true
				return text
			}).attribute("", string(name), value.DeepCopy())
		}
	}
}

// addGroups writes the groups and the derived attributes to the devices of a snapshot in which all else was replaced. was has what a device
// was called before.
func (s *selectors) addGroups(snapshot plan.Snapshot, was map[*resourceapi.Device]string, w walker) {
	if len(s.texts)+len(s.derivedTexts) == 0 {
		return
	}
	for _, slice := range snapshot.Slices {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if d.Attributes == nil {
				d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			}
			if group, found := s.groups[was[d]]; found {
				d.Attributes[groupDomain+"/"+groupName] = resourceapi.DeviceAttribute{StringValue: &group}
			}
			for name, value := range s.derived[was[d]] {
				d.Attributes[name] = *w.attribute("", string(name), value.DeepCopy())
			}
		}
	}
}
