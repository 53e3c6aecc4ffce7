// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Input is what Resolve reads.
type Input struct {
	// Claim is the ResourceClaim with its allocation in the status.
	Claim *resourceapi.ResourceClaim
	// Driver is the DRA driver's name. Results and configurations of other drivers are never looked at.
	Driver string
	// Node is the name of the node that prepares the claim. Empty: any, as the CLI needs it.
	Node string
	// Classes are the DeviceClasses as they are now, by their names. Resolve needs all that ClassNames returns. Nil: only the policies that
	// the allocation recorded hold, as for a claim that is prepared already.
	Classes map[string]*resourceapi.DeviceClass
	// Prepared says that the claim was prepared before. Its recorded policies then hold alone if the class was deleted meanwhile.
	Prepared bool
}

// Allocation is what a claim holds of this driver. Results are in the order of the allocation.
type Allocation struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Results   []Result  `json:"results"`
}

// Result is one allocated device and how it is to be given to the pod.
type Result struct {
	// Request is the request as the allocation names it: "main", or "main/sub" for an alternative of firstAvailable.
	Request string `json:"request"`
	// BaseRequest is the request without the alternative: "main".
	BaseRequest string `json:"baseRequest"`
	// Pool and Device name the device in its ResourceSlices.
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// ShareID tells apart the shares of one device. Nil: the whole device.
	ShareID *types.UID `json:"shareID,omitempty"`
	// Consumed is how much of the device's capacities the share takes; empty for the whole device.
	Consumed map[resourceapi.QualifiedName]resource.Quantity `json:"consumed,omitempty"`
	// AdminAccess marks a look, not a hold: read-only edits, no step with an effect, nothing at release.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Kind is the kind of device, from the pool's name.
	Kind device.Kind `json:"kind"`
	// Config is the effective configuration.
	Config Effective `json:"config"`
}

// Effective is the configuration of one result after built-in values, classes and claim are merged field by field. One of
// GPU, FPGA and Host is set, as the result's Kind says.
type Effective struct {
	GPU  *GPUEffective  `json:"gpu,omitempty"`
	FPGA *FPGAEffective `json:"fpga,omitempty"`
	Host *HostEffective `json:"host,omitempty"`
	// AllowedNamespaces are the namespaces that every class of the request allows, sorted. Nil: all namespaces. Empty: none.
	AllowedNamespaces []string `json:"allowedNamespaces"`
	// Sources says for every field, by its path in the configuration's JSON ("sharing.strategy"), where its value is from. A
	// policy that several classes narrowed has the last class that changed it.
	Sources map[string]Source `json:"sources"`
}

// GPUEffective is the effective configuration of a GPU.
type GPUEffective struct {
	// Strategy is how programs take turns on the GPU. Exclusive changes nothing: they do it as the GPU's driver has it.
	Strategy v1alpha1.SharingStrategy `json:"strategy"`
	// Interval is set with TimeSlicing only.
	Interval v1alpha1.TimeSliceInterval `json:"interval,omitempty"`
	// MPS is set with that strategy only.
	MPS *MPSEffective `json:"mps,omitempty"`
	// KernelCaches are those that the pod finds in its containers, each object once, those of classes first.
	KernelCaches []v1alpha1.KernelCacheSource `json:"kernelCaches,omitempty"`
	// AllowPassthrough says that the class, as it was recorded and as it is now, gives claims VFIO devices. See [Result.CheckPassthrough].
	AllowPassthrough bool `json:"allowPassthrough,omitempty"`
}

// MPSEffective are the effective parameters of NVIDIA's Multi-Process Service.
type MPSEffective struct {
	// ActiveThreadPercentage is 1 to 100.
	ActiveThreadPercentage int32 `json:"activeThreadPercentage"`
	// PinnedMemoryLimit is in bytes. 0: none.
	PinnedMemoryLimit int64 `json:"pinnedMemoryLimit,omitempty"`
	MultiUser         bool  `json:"multiUser,omitempty"`
}

// HostEffective is the effective configuration of a host device.
type HostEffective struct {
	// MountPath is where a directory appears in the container. Empty: where the device's own edits say.
	MountPath string `json:"mountPath,omitempty"`
	// OnRelease is what happens to a directory's content after the claim. It has no meaning for a result with AdminAccess.
	OnRelease v1alpha1.OnRelease `json:"onRelease"`
}

// Origin is the layer that set a field.
type Origin string

// The layers, weakest first. A policy field is set by a class or built in, never by a claim.
const (
	OriginBuiltIn Origin = "built-in"
	OriginClass   Origin = "class"
	OriginClaim   Origin = "claim"
)

// Source says where the value of a field is from.
type Source struct {
	Origin Origin `json:"origin"`
	// Index is the entry in status.allocation.devices.config, or in spec.config of Class. It is -1 for a built-in value.
	Index int `json:"index"`
	// Class is the DeviceClass whose present policy set the field. Empty: the allocation set it.
	Class string `json:"class,omitempty"`
}

// String is for people: "class, status.allocation.devices.config[2]".
func (s Source) String() string {
	if s.Origin == OriginBuiltIn {
		return string(s.Origin)
	}
	return fmt.Sprintf("%s, %s", s.Origin, s.entry())
}

// entry is the path of the configuration.
func (s Source) entry() *field.Path {
	if s.Class != "" {
		return field.NewPath("DeviceClass").Key(s.Class).Child("spec", "config").Index(s.Index)
	}
	return configPath(s.Index)
}

// parameters is the path of the configuration's content.
func (s Source) parameters() *field.Path { return s.entry().Child("opaque", "parameters") }

// DeviceKey tells the entries of a claim's status.devices apart.
type DeviceKey struct{ driver, pool, device, share string }

// KeyOf makes the key of a device. The share is nil for a whole device.
func KeyOf(driver, pool, device string, share *string) DeviceKey {
	key := DeviceKey{driver: driver, pool: pool, device: device}
	if share != nil {
		key.share = *share
	}
	return key
}
