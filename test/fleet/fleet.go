// SPDX-License-Identifier: Apache-2.0

// Package fleet makes clusters of many nodes whose GPUs are divided into instances of any size, and answers for their API server.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	// DevicesPerNode is how many devices a node publishes, and SlicesPerNode in how many ResourceSlices.
	DevicesPerNode = 208
	SlicesPerNode  = 9
)

// Fleet makes nodes with eight H100 each and their ResourceSlices, as the plugin publishes them.
type Fleet struct {
	gpus     []device.Device
	mig      *nvml.MIG
	settings partition.Settings
}

// New finds the GPUs of one node. Root is the directory of the repository, and scratch an empty one.
func New(root, scratch string) (f *Fleet, err error) {
	text, err := os.ReadFile(filepath.Join(root, "test/machines/8xh100-sxm.txtar"))
	if err != nil {
		return nil, err
	}
	machine, err := sim.Parse(text)
	if err != nil {
		return nil, err
	}
	if _, err := machine.Expand(scratch, sim.Options{}); err != nil {
		return nil, err
	}
	tree, err := sysfs.Open(scratch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	f = &Fleet{mig: instances(), settings: partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDynamic}}}
	f.gpus = discover.Discover(context.Background(), tree, discover.Options{}).Devices
	for i := range f.gpus { // what NVIDIA's library adds
		gpu := &f.gpus[i]
		gpu.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			device.CapacityMemory: device.Bytes(81559 << 20), device.CapacityMultiprocessors: device.Count(132),
		}
		gpu.Attributes[device.AttributeProductName] = stringOf("NVIDIA H100 80GB HBM3")
		gpu.Attributes[device.AttributeArchitecture] = stringOf("Hopper")
	}
	return f, nil
}

// Empty is a fleet whose nodes have no GPU, for what only their number matters.
func (f *Fleet) Empty() *Fleet { return &Fleet{mig: f.mig, settings: f.settings} }

func stringOf(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

// instances is what NVML says of an H100.
func instances() *nvml.MIG {
	names := map[uint32]string{
		0: "7g.80gb", 5: "4g.40gb", 9: "3g.40gb", 14: "2g.20gb", 15: "1g.20gb", 19: "1g.10gb", 20: "1g.10gb+me",
	}
	out := &nvml.MIG{}
	for _, p := range (&nvmlsim.Card{Model: nvmlsim.H100}).Kind().Profiles {
		profile := nvml.MIGProfile{
			ID: p.ID, Name: names[p.ID], Slices: p.Slices, MemoryMB: p.MemoryMiB, MaxInstances: p.Most, Multiprocessors: p.SMs,
			CopyEngines: p.Copy, Decoders: p.Decoders, JPEGEngines: p.JPEG, OFAEngines: p.OFA,
		}
		for _, start := range p.Starts {
			profile.Placements = append(profile.Placements, nvml.MIGPlacement{Start: start, Size: p.Size})
		}
		out.Profiles = append(out.Profiles, profile)
	}
	return out
}

// Name is that of a node.
func Name(i int) string { return fmt.Sprintf("node-%05d", i) }

// Node returns a node by its number.
func Node(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Name(i), Labels: map[string]string{corev1.LabelHostname: Name(i)}}}
}

// Slices returns the slices of a node.
func (f *Fleet) Slices(i int) ([]*resourceapi.ResourceSlice, error) {
	var cards []device.Card
	var devices []device.Device
	for k, gpu := range f.gpus {
		gpu.Attributes[device.AttributeUUID] = stringOf(fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, k))
		d := partition.Divide(partition.Physical{Device: gpu, MIG: f.mig}, f.settings, partition.Kept{Counters: true})
		cards, devices = append(cards, *d.Card), append(devices, d.Devices...)
	}
	cut, err := partition.Slices(cards, devices, partition.FormSeparate)
	if len(cut) == 0 {
		cut = []partition.Slice{{Devices: []device.Device{}}}
	}
	var out []*resourceapi.ResourceSlice
	for at, s := range cut {
		object := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%02d", Name(i), device.KindGPU, at)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: new(Name(i)), SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: device.PoolName(Name(i), device.KindGPU), Generation: 1, ResourceSliceCount: int64(len(cut))},
			},
		}
		for _, d := range s.Devices {
			object.Spec.Devices = append(object.Spec.Devices, d.Resource())
		}
		out = append(out, object)
	}
	return out, err
}

// Holder is the claim that has one of the smallest instances of a node.
func Holder(i int) *resourceapi.ResourceClaim {
	c := objects.Claim("ml", "holder-"+Name(i), objects.Request("gpu", class))
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		objects.Result("gpu", v1alpha1.DriverName, Name(i)+"/"+string(device.KindGPU), "nvidia-0000-18-00-0-mig-1g-10gb-s0"),
	}
	return c
}

const class = "mig." + v1alpha1.DriverName

// Class is the DeviceClass of the instances.
func Class() *resourceapi.DeviceClass {
	return objects.Class(class, `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "mig"`)
}

// Waiting is a pod that wants eight instances of a profile, and its claim.
func Waiting(profile string) (*corev1.Pod, *resourceapi.ResourceClaim) {
	claim := objects.Claim("ml", "train", objects.Request("gpu", class, fmt.Sprintf(`device.attributes["fettle.dev"].profile == %q`, profile)))
	claim.Spec.Devices.Requests[0].Exactly.Count = 8
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}
	return pod, claim
}
