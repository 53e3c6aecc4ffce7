// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
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
	got, err := json.MarshalIndent(resolve(t, in), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const file = "testdata/tensorflow.json"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
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

var update = flag.Bool("update", false, "write the golden files anew")
