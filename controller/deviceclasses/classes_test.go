// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/admission"
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
	plain := []line{
		{"accelerator.fettle.dev", "", names.Controller},
		{"fpga.fettle.dev", "", names.Controller},
		{"gpu.fettle.dev", "", names.Controller},
		{"host.fettle.dev", "", names.Controller},
		{"amd.gpu.fettle.dev", "", names.Controller},
		{"intel.gpu.fettle.dev", "", names.Controller},
		{"nvidia.gpu.fettle.dev", "", names.Controller},
	}
	extended := []line{
		{"accelerator.fettle.dev", "fettle.dev/accelerator", names.Controller},
		{"fpga.fettle.dev", "fettle.dev/fpga", names.Controller},
		{"gpu.fettle.dev", "fettle.dev/gpu", names.Controller},
		{"host.fettle.dev", "fettle.dev/host", names.Controller},
		{"amd.gpu.fettle.dev", "fettle.dev/amd-gpu", names.Controller},
		{"intel.gpu.fettle.dev", "fettle.dev/intel-gpu", names.Controller},
		{"nvidia.gpu.fettle.dev", "fettle.dev/nvidia-gpu", names.Controller},
	}
	tests := []struct {
		name string
		opts Options
		want []line
	}{
		{"plain", Options{}, plain},
		{"parts", Options{Parts: []string{"vf", "mig"}}, append(slices.Clone(plain),
			line{"mig.gpu.fettle.dev", "", names.Controller}, line{"vf.gpu.fettle.dev", "", names.Controller})},
		{"extended resources", Options{ExtendedResources: true}, extended},
		{
			"no extended resources of parts",
			Options{ExtendedResources: true, Parts: []string{"vfio"}},
			append(slices.Clone(extended), line{"vfio.gpu.fettle.dev", "", names.Controller}),
		},
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
	of := func(kind, vendor string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		attributes := typed(kind)
		attributes["vendor"] = resourceapi.DeviceAttribute{StringValue: &vendor}
		return attributes
	}
	tests := []struct {
		name   string
		device cel.Device
		want   []string
	}{
		{"gpu", cel.Device{Driver: "fettle.dev", Attributes: typed("gpu")}, []string{"gpu.fettle.dev"}},
		{"gpu of a vendor", cel.Device{Driver: "fettle.dev", Attributes: of("gpu", "amd")}, []string{"gpu.fettle.dev", "amd.gpu.fettle.dev"}},
		{"gpu of another", cel.Device{Driver: "fettle.dev", Attributes: of("gpu", "nvidia")}, []string{
			"gpu.fettle.dev", "nvidia.gpu.fettle.dev",
		}},
		{"a vendor's part", cel.Device{Driver: "fettle.dev", Attributes: of("mig", "nvidia")}, []string{"mig.gpu.fettle.dev"}},
		{"a vendor's fpga", cel.Device{Driver: "fettle.dev", Attributes: of("fpga", "intel")}, []string{"fpga.fettle.dev"}},
		{"fpga", cel.Device{Driver: "fettle.dev", Attributes: typed("fpga")}, []string{"fpga.fettle.dev"}},
		{"a vendor's accelerator", cel.Device{Driver: "fettle.dev", Attributes: of("accelerator", "intel")}, []string{"accelerator.fettle.dev"}},
		{"host", cel.Device{Driver: "fettle.dev", Attributes: typed("host")}, []string{"host.fettle.dev"}},
		{"mig", cel.Device{Driver: "fettle.dev", Attributes: typed("mig")}, []string{"mig.gpu.fettle.dev"}},
		{"partition", cel.Device{Driver: "fettle.dev", Attributes: typed("partition")}, []string{"partition.gpu.fettle.dev"}},
		{"vf", cel.Device{Driver: "fettle.dev", Attributes: typed("vf")}, []string{"vf.gpu.fettle.dev"}},
		{"vfio", cel.Device{Driver: "fettle.dev", Attributes: typed("vfio")}, []string{"vfio.gpu.fettle.dev"}},
		{"no type", cel.Device{Driver: "fettle.dev"}, nil},
		{"another driver's gpu", cel.Device{Driver: "gpu.example.com", Attributes: typed("gpu")}, nil},
		{"another driver without attributes", cel.Device{Driver: "gpu.example.com"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, class := range Classes(Options{Parts: PartTypes()}) {
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

// TestConfigs: the class of VFIO devices alone carries a configuration, which allows passthrough and which the webhook takes.
func TestConfigs(t *testing.T) {
	t.Parallel()
	for _, class := range Classes(Options{Parts: PartTypes()}) {
		if faults := admission.Validate(class); len(faults) > 0 {
			t.Errorf("%s: %v", class.Name, faults)
		}
		allowed := false
		for _, entry := range class.Spec.Config {
			config, _ := v1alpha1.DecodeConfig(entry.Opaque.Parameters.Raw, nil)
			gpu, ok := config.(*v1alpha1.GPUConfig)
			allowed = ok && entry.Opaque.Driver == v1alpha1.DriverName && gpu.Policy.AllowPassthrough
		}
		if allowed != (class.Name == "vfio.gpu.fettle.dev") || len(class.Spec.Config) > 1 {
			t.Errorf("%s allows passthrough: %t", class.Name, allowed)
		}
	}
}
