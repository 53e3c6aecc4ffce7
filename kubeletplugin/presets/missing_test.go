// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestPresetMissing: each pod of a claim is told of a device without the preset that it needs, whatever the vendor, once a Prepare. A pod
// that opted out, and one that has any file of the node, is not.
func TestPresetMissing(t *testing.T) {
	files := func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libx.so"}, Optional: true}}
	}
	variable := func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Env = []v1alpha1.PresetEnv{{Name: "A", Value: new("x")}}
	}
	const pods = "pod-1 pod-2 "
	for name, test := range map[string]struct {
		vendor, deviceType string
		preset             func(*v1alpha1.ClusterDevicePresetSpec)
		change             func(*Feature, *corev1.Pod)
		want               string
	}{
		"nvidia":             {vendor: "nvidia", deviceType: "gpu", want: pods + "Warning the libraries of the node's driver"},
		"amd":                {vendor: "amd", deviceType: "gpu", want: pods + "Normal ROCm's libraries"},
		"intel":              {vendor: "intel", deviceType: "vf", want: pods + "Normal the drivers for Level Zero and OpenCL"},
		"a preset of values": {vendor: "amd", deviceType: "gpu", preset: variable, want: pods + "Normal ROCm's libraries"},
		"a preset of files":  {vendor: "nvidia", deviceType: "gpu", preset: files},
		"for a machine":      {vendor: "nvidia", deviceType: "vfio"},
		"not wanted":         {vendor: "nvidia", deviceType: "gpu", change: func(f *Feature, _ *corev1.Pod) { f.ReportMissing = false }},
		"opted out": {vendor: "nvidia", deviceType: "gpu", preset: variable, change: func(_ *Feature, p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.ExcludePresetsAnnotation: "true"}
		}},
		"opted out, without presets": {vendor: "nvidia", deviceType: "gpu", change: func(_ *Feature, p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.ExcludePresetsAnnotation: "true"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := claimOfClass("u1", ofGPU("main", "gpu0"))
			pod := thePod(c)
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
				{Resource: "pods", Name: "pod-1", UID: "1"},
				{APIGroup: "x", Resource: "pods", Name: "other"},
				{Resource: "pods", Name: "pod-2", UID: "2"},
			}
			objects := []runtime.Object{pod, c}
			if test.preset != nil {
				objects = append(objects, clusterPreset("p", test.preset))
			}
			w := newPresetWorld(t, objects...)
			gpu := nodefixture.GPU("gpu0", 0)
			gpu.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				device.AttributeVendor: {StringValue: &test.vendor}, "type": {StringValue: &test.deviceType},
			}
			w.Holder.Set(nodefixture.SnapshotWith(gpu))
			var told, notes []string
			w.ReportMissing = true
			w.PodEvent = func(pod *corev1.ObjectReference, related *resourceapi.ResourceClaim, eventType, reason, note string) {
				told, notes = append(told, pod.Name), append(notes, eventType+" "+note)
				if reason != "PresetMissing" || related.Name != c.Name || pod.Kind != "Pod" || pod.Namespace != c.Namespace || pod.UID == "" {
					t.Errorf("Event %s on %+v, related to %s", reason, pod, related.Name)
				}
			}
			if test.change != nil {
				test.change(w.Feature, pod)
				if _, err := w.kube.CoreV1().Pods(pod.Namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			given := w.gives(c)
			got := ""
			if len(told) > 0 {
				eventType, note, _ := strings.Cut(notes[0], " ")
				_, what, _ := strings.Cut(note, "no preset gives ")
				what, _, _ = strings.Cut(strings.NewReplacer(":", ",").Replace(what), ",")
				got = strings.Join(told, " ") + " " + eventType + " " + what
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			told = nil
			if _, err := w.Plan(t.Context(), prepare.Request{Claim: c, AfterReboot: true, Decision: given.Decision}); err != nil || told != nil {
				t.Errorf("after a reboot: told %v, %v", told, err)
			}
		})
	}
}
