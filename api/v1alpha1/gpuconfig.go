// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/mountpath"
)

// GPUConfig says how the GPUs of a request are given to the pod. It is the opaque configuration of a ResourceClaim, a
// ResourceClaimTemplate or a DeviceClass; it is never an object of its own.
type GPUConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Sharing says how containers share a GPU that more than one of them uses. Unset: Exclusive.
	Sharing *GPUSharing `json:"sharing,omitempty"`
	// KernelCaches are caches of compiled kernels that the pod finds in its containers. Those of a class come first; of two entries for
	// one object the claim's counts.
	KernelCaches []KernelCacheSource `json:"kernelCaches,omitempty"`
	// Policy is the administrator's: only a DeviceClass may carry it.
	Policy *GPUPolicy `json:"policy,omitempty"`
}

// GPUPolicy is what an administrator decides for every claim of a DeviceClass of GPUs.
type GPUPolicy struct {
	Policy `json:",inline"`

	// AllowPassthrough gives claims devices with the type vfio: a whole PCI function, with its memory and its firmware, for a virtual machine.
	// Unset: such a device is refused. When several configurations of the class apply to one request, one that allows it is enough.
	AllowPassthrough bool `json:"allowPassthrough,omitempty"`
}

// SharingStrategy is how several users of one GPU take turns.
type SharingStrategy string

// The strategies. Only Exclusive has an effect in this release; validation refuses the others.
const (
	// SharingExclusive leaves the GPU as it is: the holder of the claim has it to itself.
	SharingExclusive SharingStrategy = "Exclusive"
	// SharingTimeSlicing lets the GPU's own scheduler switch between processes at a chosen interval.
	SharingTimeSlicing SharingStrategy = "TimeSlicing"
	// SharingMPS puts NVIDIA's Multi-Process Service between the processes and the GPU.
	SharingMPS SharingStrategy = "MPS"
)

// GPUSharing chooses a strategy and its parameters. Parameters of a strategy that is not chosen are refused.
type GPUSharing struct {
	// Strategy is Exclusive, TimeSlicing or MPS. Unset: what the class says, or else Exclusive.
	Strategy SharingStrategy `json:"strategy,omitempty"`
	// TimeSlicing holds the parameters of the strategy TimeSlicing.
	TimeSlicing *TimeSlicing `json:"timeSlicing,omitempty"`
	// MPS holds the parameters of the strategy MPS.
	MPS *MPS `json:"mps,omitempty"`
}

// TimeSliceInterval is the length of a turn in the words of the NVIDIA driver, which does not say how long each is.
type TimeSliceInterval string

// The intervals.
const (
	IntervalDefault TimeSliceInterval = "Default"
	IntervalShort   TimeSliceInterval = "Short"
	IntervalMedium  TimeSliceInterval = "Medium"
	IntervalLong    TimeSliceInterval = "Long"
)

// TimeSlicing holds the parameters of the strategy TimeSlicing.
type TimeSlicing struct {
	// Interval is Default, Short, Medium or Long. Unset: Default.
	Interval TimeSliceInterval `json:"interval,omitempty"`
}

// MPS holds the parameters of the strategy MPS.
type MPS struct {
	// ActiveThreadPercentage is the share of the GPU's threads that one client may use, 1 to 100. Unset: 100.
	ActiveThreadPercentage *int32 `json:"activeThreadPercentage,omitempty"`
	// PinnedMemoryLimit is the memory of each device, in bytes, that one client may use. Unset: no limit. A configuration for some requests
	// gives their devices a limit of their own.
	PinnedMemoryLimit *resource.Quantity `json:"pinnedMemoryLimit,omitempty"`
	// MultiUser lets processes of several users be clients at once. Unset: of one user at a time, and the others wait.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// KernelCacheSource names a cache of compiled kernels.
type KernelCacheSource struct {
	// Name is the object's.
	Name string `json:"name"`
	// Kind is GPUKernelCache, in the claim's own namespace, or ClusterGPUKernelCache. Unset: GPUKernelCache.
	Kind string `json:"kind,omitempty"`
	// Optional has the pod start without the cache where the node cannot have it, with an Event. Unset: false.
	Optional bool `json:"optional,omitempty"`
	// MountPath is the directory of the container in which the cache is: absolute and clean. Unset: the object's mount.path.
	MountPath string `json:"mountPath,omitempty"`
	// Access is Overlay, ReadOnly or Seed. Unset: the object's mount.access, else Seed for pods with hostUsers: false and Overlay for others.
	Access CacheAccess `json:"access,omitempty"`
	// BindAfter is Fetched: the pod is bound to its node only after the cache is there, and to another if that one cannot have it. It counts
	// on nodes whose plugin has kernelCaches.bindingConditions. Unset: the pod is bound at once, and waits there.
	BindAfter BindAfter `json:"bindAfter,omitempty"`
}

// maxKernelCaches is how many caches a configuration may name.
const maxKernelCaches = 16

// Default fills in what an author may leave out of a configuration that stands alone. Merging across class and claim needs the
// undefaulted form, because there an unset field means "as the class says".
func (c *GPUConfig) Default() {
	if c.Sharing == nil {
		c.Sharing = &GPUSharing{}
	}
	c.Sharing.Strategy = cmp.Or(c.Sharing.Strategy, SharingExclusive)
	if c.Sharing.TimeSlicing != nil && c.Sharing.TimeSlicing.Interval == "" {
		c.Sharing.TimeSlicing.Interval = IntervalDefault
	}
	if c.Sharing.MPS != nil && c.Sharing.MPS.ActiveThreadPercentage == nil {
		c.Sharing.MPS.ActiveThreadPercentage = new(int32(100))
	}
	for i := range c.KernelCaches {
		c.KernelCaches[i].Default()
	}
}

// Default fills in the kind.
func (k *KernelCacheSource) Default() {
	k.Kind = cmp.Or(k.Kind, KindGPUKernelCache)
}

// Validate reports every fault of the configuration below path. A policy is a fault unless the configuration is from a class.
func (c *GPUConfig) Validate(fromClass bool, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if c.Sharing != nil {
		faults = append(faults, c.Sharing.validate(path.Child("sharing"))...)
	}
	faults = append(faults, validateKernelCaches(c.KernelCaches, path.Child("kernelCaches"))...)
	if c.Policy != nil {
		faults = append(faults, policyOrigin(fromClass, path.Child("policy"))...)
		faults = append(faults, c.Policy.validate(path.Child("policy"))...)
	}
	return faults
}

func validateKernelCaches(caches []KernelCacheSource, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if len(caches) > maxKernelCaches {
		faults = append(faults, field.TooMany(path, len(caches), maxKernelCaches))
	}
	seen := map[[2]string]bool{}
	for i, k := range caches {
		at := path.Index(i)
		faults = append(faults, k.validate(at)...)
		k.Default()
		if key := [2]string{k.Kind, k.Name}; seen[key] {
			faults = append(faults, field.Duplicate(at.Child("name"), k.Name))
		} else {
			seen[key] = true
		}
	}
	return faults
}

func (k *KernelCacheSource) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if k.Name == "" {
		faults = append(faults, field.Required(path.Child("name"), "name a GPUKernelCache or ClusterGPUKernelCache"))
	} else {
		faults = append(faults, objectNameFaults(k.Name, path.Child("name"))...)
	}
	faults = append(faults, oneOf(k.Kind, path.Child("kind"), KindGPUKernelCache, KindClusterGPUKernelCache)...)
	if k.MountPath != "" {
		faults = append(faults, mountpath.Validate(k.MountPath, path.Child("mountPath"))...)
	}
	faults = append(faults, oneOf(k.BindAfter, path.Child("bindAfter"), BindAfterFetched)...)
	return append(faults, oneOf(k.Access, path.Child("access"), CacheAccessOverlay, CacheAccessReadOnly, CacheAccessSeed)...)
}

// validate reports the faults of a sharing that can be seen without the device. Parameters of a strategy other than the chosen one are a
// fault: they would be ignored.
func (s *GPUSharing) validate(path *field.Path) field.ErrorList {
	faults := oneOf(s.Strategy, path.Child("strategy"), SharingExclusive, SharingTimeSlicing, SharingMPS)
	wrong := len(faults) > 0
	if s.TimeSlicing != nil {
		if s.Strategy != "" && s.Strategy != SharingTimeSlicing && !wrong {
			faults = append(faults, otherStrategy(path.Child("timeSlicing"), s.Strategy))
		}
		faults = append(faults, s.TimeSlicing.validate(path.Child("timeSlicing"))...)
	}
	if s.MPS != nil {
		if s.Strategy != "" && s.Strategy != SharingMPS && !wrong {
			faults = append(faults, otherStrategy(path.Child("mps"), s.Strategy))
		}
		faults = append(faults, s.MPS.validate(path.Child("mps"))...)
	}
	return faults
}

// otherStrategy refuses the parameters of a strategy that is not chosen.
func otherStrategy(path *field.Path, chosen SharingStrategy) *field.Error {
	return field.Forbidden(path, fmt.Sprintf("the strategy is %s: remove it, or choose its strategy", chosen))
}

func (t *TimeSlicing) validate(path *field.Path) field.ErrorList {
	switch t.Interval {
	case "", IntervalDefault, IntervalShort, IntervalMedium, IntervalLong:
		return nil
	default:
		known := []TimeSliceInterval{IntervalDefault, IntervalShort, IntervalMedium, IntervalLong}
		return field.ErrorList{field.NotSupported(path.Child("interval"), t.Interval, known)}
	}
}

func (m *MPS) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if p := m.ActiveThreadPercentage; p != nil && (*p < 1 || *p > 100) {
		faults = append(faults, field.Invalid(path.Child("activeThreadPercentage"), *p, "must be between 1 and 100"))
	}
	switch q := m.PinnedMemoryLimit; {
	case q == nil:
	case q.Sign() <= 0:
		faults = append(faults, field.Invalid(path.Child("pinnedMemoryLimit"), q.String(), "must be more than zero bytes"))
	case q.CmpInt64(math.MaxInt64) > 0: // Value would return 0, which is no limit
		faults = append(faults, field.Invalid(path.Child("pinnedMemoryLimit"), q.String(), "must be less than 8Ei bytes"))
	}
	return faults
}
