// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

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
		case corev1.HostPathUnset, corev1.HostPathDirectory, corev1.HostPathFile, corev1.HostPathSocket:
		case corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate:
			p.note("%s is no longer created: a claim waits on a node that does not have it", out.HostPath)
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
