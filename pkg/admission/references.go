// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Reference is where an object names a bitstream.
type Reference struct {
	// Path is that of the name.
	Path *field.Path
	// Kind is FPGABitstream, which is of the claim's namespace, or ClusterFPGABitstream.
	Kind, Name string
}

// Bitstreams are the bitstreams that a ResourceClaim or ResourceClaimTemplate without faults names, in the order of the object.
func Bitstreams(object runtime.Object) []Reference {
	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		return bitstreamsOf(o.Spec.Devices.Config, spec.Child("devices", "config"))
	case *resourceapi.ResourceClaimTemplate:
		return bitstreamsOf(o.Spec.Spec.Devices.Config, spec.Child("spec", "devices", "config"))
	default:
		return nil
	}
}

func bitstreamsOf(entries []resourceapi.DeviceClaimConfiguration, path *field.Path) []Reference {
	var references []Reference
	for i, entry := range entries {
		config, _ := check(entry.DeviceConfiguration, false, path.Index(i))
		fpga, ok := config.(*v1alpha1.FPGAConfig)
		if !ok || fpga.Bitstream == nil || fpga.Bitstream.Name == "" {
			continue
		}
		references = append(references, Reference{
			Path: path.Index(i).Child("opaque", "parameters", "bitstream", "name"),
			Kind: cmp.Or(fpga.Bitstream.Kind, v1alpha1.KindFPGABitstream), Name: fpga.Bitstream.Name,
		})
	}
	return references
}
