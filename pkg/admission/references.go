// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Reference is where a configuration names a bitstream or a kernel cache.
type Reference struct {
	// Path is that of the name. It begins with DeviceClass[NAME] if a class of the object has the configuration.
	Path *field.Path
	// Kind is FPGABitstream or GPUKernelCache, which are of the claim's namespace, ClusterFPGABitstream or ClusterGPUKernelCache.
	Kind, Name string
	// Optional says that pods start without it.
	Optional bool
}

// References returns the bitstreams and kernel caches that a ResourceClaim or ResourceClaimTemplate without faults names, in the order of
// the object, and after them those that its classes name. Of a DeviceClass it returns those of the cluster: others depend on the claim.
func References(object runtime.Object, known Known) []Reference {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		return ofCluster(classReferences(class, field.NewPath("spec", "config")))
	}
	devices, path := devicesOf(object)
	if devices == nil {
		return nil
	}
	var references []Reference
	for i := range devices.Config {
		references = append(references, referencesOf(devices.Config[i].DeviceConfiguration, false, path.Child("config").Index(i))...)
	}
	for _, name := range ClassNames(object) {
		if class := known.Classes[name]; class != nil {
			references = append(references, classReferences(class, field.NewPath("DeviceClass").Key(name).Child("spec", "config"))...)
		}
	}
	return references
}

func classReferences(class *resourceapi.DeviceClass, path *field.Path) []Reference {
	var references []Reference
	for i := range class.Spec.Config {
		references = append(references, referencesOf(class.Spec.Config[i].DeviceConfiguration, true, path.Index(i))...)
	}
	return references
}

func ofCluster(all []Reference) []Reference {
	var kept []Reference
	for _, r := range all {
		if r.Kind == v1alpha1.KindClusterFPGABitstream || r.Kind == v1alpha1.KindClusterGPUKernelCache {
			kept = append(kept, r)
		}
	}
	return kept
}

func referencesOf(entry resourceapi.DeviceConfiguration, fromClass bool, path *field.Path) []Reference {
	config, _ := configOf(entry, fromClass, path)
	path = path.Child("opaque", "parameters")
	switch c := config.(type) {
	case *v1alpha1.FPGAConfig:
		if c.Bitstream == nil || c.Bitstream.Name == "" {
			return nil
		}
		return []Reference{{
			Path: path.Child("bitstream", "name"), Kind: cmp.Or(c.Bitstream.Kind, v1alpha1.KindFPGABitstream), Name: c.Bitstream.Name,
		}}
	case *v1alpha1.GPUConfig:
		var references []Reference
		for i := range c.KernelCaches {
			cache := c.KernelCaches[i]
			cache.Default()
			references = append(references, Reference{
				Path: path.Child("kernelCaches").Index(i).Child("name"), Kind: cache.Kind, Name: cache.Name, Optional: cache.Optional,
			})
		}
		return references
	}
	return nil
}
