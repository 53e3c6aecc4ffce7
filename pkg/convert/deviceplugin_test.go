// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// sliced is a configuration with one entry.
func sliced(fields string) string {
	return "version: v1\nflags: {migStrategy: none}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, " + fields + "}]}}\n"
}

func TestDevicePlugin(t *testing.T) {
	configMap := func(data map[string]string) string {
		out, err := yaml.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "time-slicing-config"}, "data": data,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const all = `device.attributes["fettle.dev"].vendor == "nvidia"`
	renamed := strings.Replace(sliced("replicas: 2"), "timeSlicing: {", "timeSlicing: {renameByDefault: true, ", 1)
	for _, tc := range []struct {
		name, in string
		options  PolicyOptions
		want     string
		note     string
	}{
		{name: "file", in: sliced("replicas: 10"), want: "shares-gpu 10 " + all, note: forAllNodes},
		{name: "all devices", in: sliced("replicas: 4, devices: all"), want: "shares-gpu 4 " + all},
		{
			name: "by UUID", in: sliced("replicas: 2, devices: [GPU-1, GPU-2]"),
			want: `shares-gpu 2 ` + all + ` && "uuid" in device.attributes["fettle.dev"] && ` +
				`device.attributes["fettle.dev"].uuid in ["GPU-1", "GPU-2"]`,
		},
		{name: "ConfigMap", in: configMap(map[string]string{"any": sliced("replicas: 4")}), want: "shares-any 4 " + all},
		{
			name: "one of two", in: configMap(map[string]string{"a100": sliced("replicas: 8"), "t4": sliced("replicas: 4")}),
			options: PolicyOptions{Config: "t4"}, want: "shares-t4 4 " + all,
		},
		{name: "renamed", in: renamed, want: "shares-gpu 2 " + all, note: "pods that ask for nvidia.com/gpu.shared (renameByDefault): convert " +
			"them with --map nvidia.com/gpu.shared=CLASS, a class for shares"},
		{
			name: "renamed by name", in: sliced("rename: nvidia.com/slice, replicas: 2"), want: "shares-gpu 2 " + all,
			note: "pods that ask for nvidia.com/slice (rename): convert them with --map nvidia.com/slice=CLASS, a class for shares",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := DevicePlugin([]byte(tc.in), "in", tc.options)
			if err != nil {
				t.Fatal(err)
			}
			var p v1alpha1.PartitionPolicy
			if err := yaml.UnmarshalStrict(got.YAML, &p); err != nil {
				t.Fatal(err)
			}
			d := p.Spec.Devices
			if text := fmt.Sprintf("%s %d %s", p.Name, d.Sharing.MaxClaims, d.DeviceSelector.CEL); text != tc.want {
				t.Errorf("got %s, want %s", text, tc.want)
			}
			if tc.note != "" && !slices.Contains(got.Notes, tc.note) {
				t.Errorf("notes %q, want %q", got.Notes, tc.note)
			}
		})
	}
}

// TestDevicePluginEntries: entries for different GPUs are a policy each.
func TestDevicePluginEntries(t *testing.T) {
	const config = `{version: v1, sharing: {timeSlicing: {resources: [
  {name: nvidia.com/gpu, rename: nvidia.com/gpu-latency, devices: [GPU-1], replicas: 2},
  {name: nvidia.com/gpu, rename: nvidia.com/gpu-batch, devices: [GPU-2, GPU-3], replicas: 8}]}}}`
	got, err := DevicePlugin([]byte(config), "in", PolicyOptions{})
	check.Must(t, err)
	var have []string
	for _, d := range strings.Split(string(got.YAML), "---\n") {
		var p v1alpha1.PartitionPolicy
		check.Must(t, yaml.UnmarshalStrict([]byte(d), &p))
		_, uuids, _ := strings.Cut(p.Spec.Devices.DeviceSelector.CEL, ".uuid in ")
		have = append(have, fmt.Sprint(p.Name, " ", p.Spec.Devices.Sharing.MaxClaims, " ", uuids))
	}
	if diff := cmp.Diff([]string{`shares-gpu-1 2 ["GPU-1"]`, `shares-gpu-2 8 ["GPU-2", "GPU-3"]`}, have); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
	for _, resource := range []string{"nvidia.com/gpu-latency", "nvidia.com/gpu-batch"} {
		if !strings.Contains(strings.Join(got.Notes, "\n"), "--map "+resource+"=CLASS") {
			t.Errorf("notes %q do not name %s", got.Notes, resource)
		}
	}
	numbered := strings.NewReplacer("GPU-1", "0", "GPU-2", "1").Replace(config)
	got, err = DevicePlugin([]byte(numbered), "in", PolicyOptions{GPUs: []string{"0000:18:00.0", "0000:3b:00.0"}})
	check.Must(t, err)
	for _, want := range []string{`.pciAddress in ["0000:18:00.0"]`, `.pciAddress in ["0000:3b:00.0"] || "uuid" in `, `.uuid in ["GPU-3"])`} {
		if text := strings.Join(strings.Fields(string(got.YAML)), " "); !strings.Contains(text, want) {
			t.Errorf("by number: no %s in\n%s", want, got.YAML)
		}
	}
	for change, want := range map[string]string{
		"GPU-3":   `sharing: timeSlicing.resources[1].devices: GPU-1 is in resources[0] already`,
		"[GPU-1]": `sharing: timeSlicing.resources[0].devices: all: another entry is for GPUs of its own: expected a list of UUIDs`,
	} {
		with := map[string]string{"GPU-3": "GPU-1", "[GPU-1]": "all"}[change]
		_, err := DevicePlugin([]byte(strings.Replace(config, change, with, 1)), "in", PolicyOptions{})
		check.WantErr(t, err, nil, want)
	}
}

func TestDevicePluginRefuses(t *testing.T) {
	two := "{kind: ConfigMap, data: {a: 'version: v1', b: 'version: v1'}}"
	for _, tc := range []struct {
		name, in, want string
		options        PolicyOptions
	}{
		{name: "nothing", want: "in: expected YAML"},
		{name: "another version", in: "version: v2", want: `in: sharing: version "v2" of the configuration: expected v1`},
		{name: "no sharing", in: "version: v1", want: "in: sharing: timeSlicing.resources: the configuration shares nothing"},
		{
			name: "MPS", in: "{version: v1, sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}}",
			want: "in: sharing: mps: the clients of one daemon",
		},
		{name: "unknown field", in: sliced("replica: 2"), want: `unknown field "sharing.timeSlicing.resources[0].replica"`},
		{name: "one replica", in: sliced("replicas: 1"), want: "spec.devices.sharing.maxClaims: Invalid value: 1: must be 2 to 256"},
		{name: "numbers", in: sliced("replicas: 2, devices: [0, 1]"), want: "devices: 0: a policy selects GPUs by their UUID"},
		{name: "a number of GPUs", in: sliced("replicas: 2, devices: 1"), want: "devices: 1: expected all, or a list of UUIDs"},
		{
			name: "MIG instances", in: strings.Replace(sliced("replicas: 2"), "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", 1),
			want: `timeSlicing.resources[0].name: "nvidia.com/mig-1g.5gb": expected nvidia.com/gpu`,
		},
		{name: "which", in: two, want: "in: say which configuration holds: a, b"},
		{name: "another", in: two, options: PolicyOptions{Config: "c"}, want: `in: configuration "c": expected one of a, b`},
		{name: "empty ConfigMap", in: "kind: ConfigMap", want: "in: no configuration of NVIDIA's device plugin is in it: expected a file with"},
		{name: "a name of a file", in: sliced("replicas: 2"), options: PolicyOptions{Config: "c"}, want: "leave --config out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := DevicePlugin([]byte(tc.in), "in", tc.options)
			check.WantErr(t, err, nil, tc.want)
			if got.YAML != nil {
				t.Errorf("written: %s", got.YAML)
			}
		})
	}
}
