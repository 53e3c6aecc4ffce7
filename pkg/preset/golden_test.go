// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
)

// TestGolden is a plain TensorFlow pod with one claim, in a cluster whose administrator decided where its GPU's libraries are, and in
// a namespace that has wishes of its own. -update writes the answer anew.
func TestGolden(t *testing.T) {
	in := simple(goldenPresets(t)...)
	in.Pod = pod(with(container("tensorflow", "a"), "PYTHONPATH=/app", "CUDA_CACHE_MAXSIZE=1", "NCCL_DEBUG=INFO"), container("sidecar"))
	in.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/opt/debug"}}
	in.ConfigMap = func(namespace, name string) (map[string]string, bool) {
		return map[string]string{"DEBUG": "WARN", "SOCKET_IFNAME": "eth0", "not a name": "x"}, namespace == "fettle-system" && name == "nccl"
	}
	check.GoldenJSON(t, "testdata/tensorflow.json", resolve(t, in))
}

// goldenPresets are those of testdata/tensorflow.yaml.
func goldenPresets(t *testing.T) []preset.Preset {
	t.Helper()
	data, err := os.ReadFile("testdata/tensorflow.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		ClusterDevicePresets []v1alpha1.ClusterDevicePreset
		DevicePresets        []v1alpha1.DevicePreset
	}
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		t.Fatal(err)
	}
	var presets []preset.Preset
	for i := range all.ClusterDevicePresets {
		presets = append(presets, preset.Of(all.ClusterDevicePresets[i].Common()))
	}
	for i := range all.DevicePresets {
		presets = append(presets, preset.Of(all.DevicePresets[i].Common()))
	}
	for i := range presets {
		presets[i].Created = birth().Add(time.Duration(i) * time.Hour)
	}
	return presets
}
