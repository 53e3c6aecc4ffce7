// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// resourceClass is what a resource of a device plugin is for Fettle: a class, and what an attribute of its devices is.
type resourceClass struct {
	// name is the resource's; one that ends in / or - stands for all that begin so.
	name string
	// kind is that of the devices. With part, which is a type of parts, it names the class of Fettle's chart.
	kind      device.Kind
	part      string
	attribute string
	value     string
}

// class is the name of the shipped class.
func (r *resourceClass) class() string {
	class := string(r.kind) + "." + v1alpha1.DriverName
	if r.part != "" {
		class = r.part + "." + class
	}
	return class
}

// vendorClass says that the resource is a whole GPU of one vendor.
func (r *resourceClass) vendorClass() bool {
	return r.kind == device.KindGPU && r.part == "" && r.attribute == string(device.AttributeVendor)
}

// deviceType is the type of the class's devices.
func (r *resourceClass) deviceType() string { return cmp.Or(r.part, string(r.kind)) }

// resourceClasses are the resources whose meaning is known.
func resourceClasses() []resourceClass {
	const vendor = string(device.AttributeVendor)
	return []resourceClass{
		{"alpha.kubernetes.io/nvidia-gpu", device.KindGPU, "", vendor, "nvidia"},
		{"nvidia.com/gpu", device.KindGPU, "", vendor, "nvidia"},
		{"volcano.sh/vgpu-number", device.KindGPU, "", vendor, "nvidia"},
		{migResource, device.KindGPU, device.TypeMIG, vendor, "nvidia"},
		{"amd.com/gpu", device.KindGPU, "", vendor, "amd"},
		{"intel.com/gpu", device.KindGPU, "", vendor, "intel"},
		{"gpu.intel.com/", device.KindGPU, "", vendor, "intel"},
		{"fpga.intel.com/", device.KindFPGA, "", "", ""},
		{"xilinx.com/fpga-", device.KindFPGA, "", "", ""},
		{"localssd", device.KindHost, "", string(device.AttributeProductName), "localssd"},
		{"pod.alpha.kubernetes.io/opaque-int-resource-localssd", device.KindHost, "", string(device.AttributeProductName), "localssd"},
	}
}

// migResource begins the names of NVIDIA's device plugin for instances (strategy mixed).
const migResource = "nvidia.com/mig-"

// migProfiles match the profile in such a name, which has a dot for each plus of the profile: mig-1g.10gb.me is 1g.10gb+me.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var migProfiles = regexp.MustCompile(`^([0-9]+g\.[0-9]+gb)(?:\.([a-z][a-z.]*))?$`)

// known returns what is known of a resource. Nil: nothing.
func known(name string) *resourceClass {
	for _, r := range resourceClasses() {
		if !r.matches(name) {
			continue
		}
		if found := migProfiles.FindStringSubmatch(strings.TrimPrefix(name, migResource)); r.part == device.TypeMIG && found != nil {
			r.attribute, r.value = string(device.AttributeProfile), strings.TrimSuffix(found[1]+"+"+found[2], "+")
		}
		return &r
	}
	return nil
}

func (r *resourceClass) matches(name string) bool {
	if strings.HasSuffix(r.name, "/") || strings.HasSuffix(r.name, "-") {
		return strings.HasPrefix(name, r.name)
	}
	return name == r.name
}

// selectors converts whom the preset is for. Both selectors have to hold, before and now.
func (p *presetConversion) selectors() {
	if s := p.from.Spec.Selector; s != nil && (len(s.MatchLabels)+len(s.MatchExpressions) > 0 || len(p.from.Spec.ResourceSelector) == 0) {
		p.rules.PodSelector = s
		p.note("its selector needs claims that one pod has alone: made from a template, or for an extended resource")
	}
	if len(p.from.Spec.ResourceSelector) == 0 {
		if p.rules.PodSelector == nil {
			p.faultf("spec: expected a selector or a resourceSelector")
		}
		return
	}
	s := &v1alpha1.PresetDeviceSelector{}
	var selected []*resourceClass
	for i, name := range p.from.Spec.ResourceSelector {
		class, r, err := p.classOf(name)
		if err != nil {
			p.faultf("spec.resourceSelector[%d]: %w", i, err)
			continue
		}
		p.note("resourceSelector %s is in deviceSelector now", clip(name))
		if !slices.Contains(s.DeviceClassNames, class) {
			s.DeviceClassNames = append(s.DeviceClassNames, class)
		}
		if r != nil && r.attribute != "" {
			selected = append(selected, r)
		}
	}
	s.CEL = p.condition(selected, len(s.DeviceClassNames) == 1)
	if len(s.DeviceClassNames) == 1 && len(selected) > 0 && selected[0].vendorClass() {
		// A claim may ask for the vendor's class or for the class of all GPUs.
		s.DeviceClassNames = nil
		s.CEL = fmt.Sprintf("device.attributes[%q].?%s.orValue(\"\") == %q && %s", v1alpha1.DriverName, device.AttributeType,
			selected[0].deviceType(), s.CEL)
	}
	p.rules.DeviceSelector = s
}

// condition narrows the classes to the devices that the resources were. Devices of another kind have none of it.
func (p *presetConversion) condition(selected []*resourceClass, one bool) string {
	var parts []string
	of := map[string]*resourceClass{}
	for _, r := range selected {
		switch before := of[r.deviceType()]; {
		case before == nil:
			attributes := fmt.Sprintf("device.attributes[%q].?", v1alpha1.DriverName)
			part := fmt.Sprintf("%s%s.orValue(\"\") == %q", attributes, r.attribute, r.value)
			if !one {
				part = fmt.Sprintf("(%s%s.orValue(\"\") != %q || %s)", attributes, device.AttributeType, r.deviceType(), part)
			}
			parts = append(parts, part)
			of[r.deviceType()] = r
		case before.value != r.value:
			p.faultf("spec.resourceSelector: %s and %s are of one class: make two PodPresets of it", before.name, r.name)
		}
	}
	if len(parts) == 1 {
		return strings.TrimSuffix(strings.TrimPrefix(parts[0], "("), ")")
	}
	return strings.Join(parts, " && ")
}

// ParseClass reads the name of a DeviceClass. What could only be an interface id is none.
func ParseClass(text string) (class string, ok bool) {
	if strings.Trim(text, "0123456789abcdefABCDEF-") == "" || len(validation.IsDNS1123Subdomain(text)) > 0 {
		return "", false
	}
	return text, true
}

// mounts brings volumes and what mounts them together.
func (p *presetConversion) mounts() {
	volumes := map[string]*corev1.Volume{}
	for i := range p.from.Spec.Volumes {
		v := &p.from.Spec.Volumes[i]
		if volumes[v.Name] != nil {
			p.faultf("spec.volumes[%d]: name %.80q is there twice: leave one", i, v.Name)
		}
		volumes[v.Name] = v
	}
	times := map[string]int{}
	for i := range p.from.Spec.VolumeMounts {
		m := &p.from.Spec.VolumeMounts[i]
		at := fmt.Sprintf("spec.volumeMounts[%d] %s", i, clip(m.Name))
		v := volumes[m.Name]
		if v == nil {
			p.faultf("%s: there is no volume of the name in spec.volumes", at)
			continue
		}
		times[m.Name]++
		p.mount(m, v, times[m.Name], at)
	}
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		if times[name] == 0 {
			p.note("volume %s is mounted nowhere and left out", clip(name))
		}
	}
}

func (p *presetConversion) mount(m *corev1.VolumeMount, v *corev1.Volume, times int, at string) {
	switch {
	case m.SubPathExpr != "":
		p.faultf("%s: subPathExpr: a preset knows no variables of the pod: leave the volume in the pod", at)
	case m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled:
		p.faultf("%s: recursiveReadOnly: only the directory itself can be read-only: leave it out, or the volume in the pod", at)
	case v.HostPath != nil:
		p.hostPath(m, v.HostPath, at)
	case v.EmptyDir != nil:
		p.emptyDir(m, v.EmptyDir, times, at)
	default:
		p.faultf("%s: a volume of kind %s is not of the node: leave it in the pod", at, kindOf(v))
	}
}

// kindOf is the name of the field that a volume has set.
func kindOf(v *corev1.Volume) string {
	raw, err := json.Marshal(v.VolumeSource)
	fields := map[string]any{}
	if err == nil {
		err = json.Unmarshal(raw, &fields)
	}
	if err != nil || len(fields) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(fields)), " and ")
}

// hostPath converts a mount of the node's files. What is mounted below comes along, as it does for a pod.
func (p *presetConversion) hostPath(m *corev1.VolumeMount, source *corev1.HostPathVolumeSource, at string) {
	out := v1alpha1.PresetMount{
		HostPath: path.Join(source.Path, m.SubPath), ContainerPath: path.Clean(m.MountPath), ReadOnly: &m.ReadOnly, Recursive: true,
	}
	if !path.IsAbs(source.Path) || slices.Contains(strings.Split(source.Path+"/"+m.SubPath, "/"), "..") {
		p.faultf("%s: path %.200q: expected an absolute path without ..", at, path.Join(source.Path, m.SubPath))
		return
	}
	if source.Type != nil {
		switch *source.Type {
		case corev1.HostPathUnset:
		case corev1.HostPathDirectory, corev1.HostPathFile, corev1.HostPathSocket:
			p.note("%s: type %s is left out: a preset mounts what is there", out.HostPath, *source.Type)
		case corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate:
			p.note("%s is no longer created (type %s): a claim waits on a node that does not have it", out.HostPath, *source.Type)
		default:
			p.faultf("%s: type %.40q: list the device in deviceNodes of a ClusterDevicePreset", at, *source.Type)
			return
		}
	}
	switch propagation := m.MountPropagation; {
	case propagation == nil || *propagation == corev1.MountPropagationNone:
	case *propagation == corev1.MountPropagationHostToContainer:
		out.Propagation = v1alpha1.PropagationHostToContainer
	default:
		p.faultf("%s: mountPropagation %.40q: no container may mount for the node by a preset: leave the volume in the pod", at, *propagation)
		return
	}
	p.hostPaths = true
	p.rules.Mounts = append(p.rules.Mounts, out)
}

// emptyDir becomes a scratch directory, which has to have an end.
func (p *presetConversion) emptyDir(m *corev1.VolumeMount, source *corev1.EmptyDirVolumeSource, times int, at string) {
	switch {
	case source.SizeLimit == nil || source.SizeLimit.Sign() <= 0:
		p.faultf("%s: an emptyDir becomes a scratch directory, which needs an end: give it a sizeLimit", at)
	case source.Medium != corev1.StorageMediumDefault && source.Medium != corev1.StorageMediumMemory:
		p.faultf("%s: medium %.40q: leave the volume in the pod", at, source.Medium)
	case m.ReadOnly || m.SubPath != "":
		p.faultf("%s: readOnly and subPath: a scratch directory is empty at first and writable: leave them out, or the volume in the pod", at)
	case times > 1:
		p.faultf("%s: it is mounted twice, and a scratch directory is at one path: leave the volume in the pod", at)
	default:
		p.note("%s is a directory of the claim, not of the pod: containers share it that use the same claim", path.Clean(m.MountPath))
		if source.Medium == corev1.StorageMediumDefault {
			p.note("%s is in memory, which counts as the pod's: a preset has no directory with a limit on disk", path.Clean(m.MountPath))
		}
		p.rules.Mounts = append(p.rules.Mounts, v1alpha1.PresetMount{
			ContainerPath: path.Clean(m.MountPath),
			Scratch:       &v1alpha1.PresetScratch{SizeLimit: source.SizeLimit.String(), Medium: v1alpha1.ScratchMemory},
		})
	}
}
