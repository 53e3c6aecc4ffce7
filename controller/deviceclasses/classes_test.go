// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/controller/names"
)

func TestClasses(t *testing.T) {
	t.Parallel()
	type line struct{ Name, Extended, Owner string }
	list := func(opts Options) (lines []line) {
		for _, c := range Classes(opts) {
			lines = append(lines, line{c.Name, ptr.Deref(c.Spec.ExtendedResourceName, ""), c.Labels[names.ManagedByLabel]})
		}
		return lines
	}
	tests := []struct {
		name string
		opts Options
		want []line
	}{
		{"plain", Options{}, []line{
			{"fpga.fettle.dev", "", names.Controller}, {"gpu.fettle.dev", "", names.Controller}, {"host.fettle.dev", "", names.Controller},
		}},
		{"extended resources", Options{ExtendedResources: true}, []line{
			{"fpga.fettle.dev", "fettle.dev/fpga", names.Controller},
			{"gpu.fettle.dev", "fettle.dev/gpu", names.Controller},
			{"host.fettle.dev", "fettle.dev/host", names.Controller},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, list(tt.opts)); diff != "" {
				t.Errorf("classes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSelectors runs the selectors with the scheduler's own CEL: a device without the attribute is passed over, not an error.
func TestSelectors(t *testing.T) {
	t.Parallel()
	typed := func(kind string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}
	}
	tests := []struct {
		name   string
		device cel.Device
		want   []string
	}{
		{"gpu", cel.Device{Driver: "fettle.dev", Attributes: typed("gpu")}, []string{"gpu.fettle.dev"}},
		{"fpga", cel.Device{Driver: "fettle.dev", Attributes: typed("fpga")}, []string{"fpga.fettle.dev"}},
		{"host", cel.Device{Driver: "fettle.dev", Attributes: typed("host")}, []string{"host.fettle.dev"}},
		{"no type", cel.Device{Driver: "fettle.dev"}, nil},
		{"another driver's gpu", cel.Device{Driver: "gpu.example.com", Attributes: typed("gpu")}, nil},
		{"another driver without attributes", cel.Device{Driver: "gpu.example.com"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, class := range Classes(Options{}) {
				expression := class.Spec.Selectors[0].CEL.Expression
				compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(expression, cel.Options{})
				if compiled.Error != nil {
					t.Fatalf("compile %s: %v", expression, compiled.Error)
				}
				matches, _, err := compiled.DeviceMatches(t.Context(), tt.device)
				if err != nil {
					t.Fatalf("%s: %v", class.Name, err)
				}
				if matches {
					got = append(got, class.Name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("classes that match (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDrifted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*resourceapi.DeviceClass)
		want   bool
	}{
		{"same", func(*resourceapi.DeviceClass) {}, false},
		{"an admin's label", func(c *resourceapi.DeviceClass) { c.Labels["team"] = "a" }, false},
		{"an admin's config", func(c *resourceapi.DeviceClass) {
			c.Spec.Config = []resourceapi.DeviceClassConfiguration{{}}
		}, false},
		{"another selector", func(c *resourceapi.DeviceClass) { c.Spec.Selectors[0].CEL.Expression = "true" }, true},
		{"no selector", func(c *resourceapi.DeviceClass) { c.Spec.Selectors = nil }, true},
		{"no extended resource", func(c *resourceapi.DeviceClass) { c.Spec.ExtendedResourceName = nil }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := Classes(Options{ExtendedResources: true})[0]
			live := want.DeepCopy()
			tt.change(live)
			if got := drifted(live, want); got != tt.want {
				t.Errorf("drifted = %v, want %v", got, tt.want)
			}
		})
	}
}
