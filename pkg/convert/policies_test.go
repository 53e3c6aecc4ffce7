// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/test/check"
)

const migPartedFile = `# For eight H100.
version: v1
mig-configs:
  half_small:
  - devices: [0, 1, 2, 3]
    mig-enabled: true
    mig-devices:
      "1g.10gb": 7
  - devices: [4, 5, 6, 7]
    mig-enabled: false
`

const amdFile = `{
  "gpu-config-profiles": {
    "six-cpx": {
      "skippedGPUs": {"ids": [6, 7]},
      "profiles": [{"computePartition": "CPX", "memoryPartition": "NPS4", "numGPUsAssigned": 6}]
    },
    "Mixed": {
      "profiles": [
        {"computePartition": "CPX", "memoryPartition": "NPS1", "numGPUsAssigned": 1},
        {"computePartition": "SPX", "memoryPartition": "NPS1", "numGPUsAssigned": 1}
      ]
    },
    "whole": {"profiles": [{"computePartition": "SPX", "memoryPartition": "NPS1", "numGPUsAssigned": 8}]}
  },
  "gpuClientSystemdServices": {"names": ["amd-metrics-exporter", "gpuagent"]}
}`

// TestAMDProfiles: GPUs are selected where a profile does not treat all alike, and what is one setting of the node is said.
func TestAMDProfiles(t *testing.T) {
	gpus := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("0000:%02x:00.0", i))
		}
		return all
	}
	for _, tt := range []struct {
		o     PolicyOptions
		names []string
		cel   []string
		notes []string
	}{
		{PolicyOptions{Config: "whole"}, []string{"amd-whole"}, []string{""}, []string{
			"NPS1 is one setting for all GPUs of a node", "amd-smi set --memory-partition NPS1", "amd-metrics-exporter, gpuagent", "for all nodes",
		}},
		{PolicyOptions{Config: "six-cpx", GPUs: gpus(8), NodeSelector: []string{"pool=a"}}, []string{"amd-six-cpx"}, []string{
			`device.attributes["fettle.dev"].pciAddress in ["0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", ` +
				`"0000:04:00.0", "0000:05:00.0"]`,
		}, []string{"the GPUs that the profile skips (skippedGPUs 6 7) get it too", "remove their label dcm.amd.com/gpu-config-profile"}},
		{PolicyOptions{Config: "Mixed", GPUs: gpus(2)}, []string{"amd-mixed-1", "amd-mixed-2"}, []string{
			`device.attributes["fettle.dev"].pciAddress in ["0000:00:00.0"]`, `device.attributes["fettle.dev"].pciAddress in ["0000:01:00.0"]`,
		}, nil},
	} {
		got, err := AMDProfiles([]byte(amdFile), "in", tt.o)
		check.Must(t, err)
		var names, cel []string
		for text := range strings.SplitSeq(string(got.YAML), "---\n") {
			var p v1alpha1.PartitionPolicy
			check.Must(t, yaml.UnmarshalStrict([]byte(text), &p))
			names = append(names, p.Name)
			if p.Spec.Devices.DeviceSelector == nil {
				p.Spec.Devices.DeviceSelector = &v1alpha1.PartitionDeviceSelector{}
			}
			cel = append(cel, p.Spec.Devices.DeviceSelector.CEL)
		}
		if diff := cmp.Diff(tt.names, names); diff != "" {
			t.Errorf("%s: names (-want +got):\n%s", tt.o.Config, diff)
		}
		if diff := cmp.Diff(tt.cel, cel); diff != "" {
			t.Errorf("%s: selectors (-want +got):\n%s", tt.o.Config, diff)
		}
		for _, note := range tt.notes {
			if !strings.Contains(strings.Join(got.Notes, "\n"), note) {
				t.Errorf("%s: the notes do not say %q: %q", tt.o.Config, note, got.Notes)
			}
		}
	}
}

func TestAMDProfilesRefused(t *testing.T) {
	for want, o := range map[string]PolicyOptions{
		"say which configuration holds: Mixed, six-cpx, whole":             {},
		`profile "none": the file has Mixed, six-cpx, whole`:               {Config: "none"},
		"profile six-cpx: it treats the 8 GPUs of a node by their numbers": {Config: "six-cpx"},
		"profile six-cpx: 1 addresses of GPUs: want those of all 8":        {Config: "six-cpx", GPUs: []string{"0000:00:00.0"}},
		`profile Mixed: name "p": it becomes 2 policies: leave --name out`: {Config: "Mixed", GPUs: []string{"a", "b"}, Name: "p"},
	} {
		_, err := AMDProfiles([]byte(amdFile), "in", o)
		check.WantErr(t, err, nil, "in: ", want)
	}
}

// TestFilesOfOtherTools: a file for another kind of input is named, whichever kind was given.
func TestFilesOfOtherTools(t *testing.T) {
	for kind, text := range map[string]string{
		"--kind amd-config-manager": amdFile, "--kind mig-parted": migPartedFile,
		"--kind device-plugin": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
	} {
		object := map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "c"}, "data": map[string]any{"other": text},
		}
		in, err := yaml.Marshal(object)
		check.Must(t, err)
		list, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{object}})
		check.Must(t, err)
		for _, in := range [][]byte{in, list} {
			got, err := IntelFPGA(in, "in", Options{})
			check.Must(t, err)
			if !strings.Contains(got.Notes[0], `ConfigMap c: data."other" is a file of `) || !strings.Contains(got.Notes[0], kind) {
				t.Errorf("%s: %q", kind, got.Notes)
			}
		}
		if kind != "--kind mig-parted" {
			_, err = MigParted(in, "in", PolicyOptions{})
			check.WantErr(t, err, nil, `expected a file with mig-configs, or data."config.yaml"`, kind)
		}
		if kind != "--kind amd-config-manager" {
			_, err = AMDProfiles(in, "in", PolicyOptions{})
			check.WantErr(t, err, nil, `data."config.json"`, kind)
		}
	}
}

func TestMigParted(t *testing.T) {
	configMap, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "c"}, "data": map[string]any{"config.yaml": migPartedFile},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := PolicyOptions{NodeSelector: []string{"pool=a", "x="}, Priority: 7}
	for name, in := range map[string][]byte{"file": []byte(migPartedFile), "ConfigMap": configMap} {
		t.Run(name, func(t *testing.T) {
			got, err := MigParted(in, "in", o)
			if err != nil {
				t.Fatal(err)
			}
			var p v1alpha1.PartitionPolicy
			if err := yaml.UnmarshalStrict(got.YAML, &p); err != nil {
				t.Fatal(err)
			}
			parted := p.Spec.Devices.NVIDIA.MIG.MigParted
			if p.Name != "mig-half-small" || p.Spec.Priority != 7 || parted.Config != "half_small" || parted.Document != migPartedFile {
				t.Errorf("got %s", got.YAML)
			}
			if diff := cmp.Diff(map[string]string{"pool": "a", "x": ""}, p.Spec.NodeSelector.MatchLabels); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			var r policy.Resolver
			if faults := r.Check(&p.Spec, field.NewPath("spec")); len(faults) > 0 {
				t.Error(faults.ToAggregate())
			}
			if len(got.Notes) < 2 || !strings.Contains(got.Notes[0], "nvidia.com/mig.config") || !strings.Contains(got.Notes[1], "by number") {
				t.Errorf("notes %q", got.Notes)
			}
		})
	}
}

func TestMigPartedRefuses(t *testing.T) {
	two := "{version: v1, mig-configs: {a: [{devices: all, mig-enabled: false}], b: [{devices: all, mig-enabled: false}]}}"
	for _, tc := range []struct {
		name, in, want string
		options        PolicyOptions
	}{
		{name: "nothing", want: "in: expected YAML: a document without content"},
		{
			name: "unknown field", in: strings.Replace(migPartedFile, "mig-enabled", "mig-on", 1),
			want: `in: unknown field "mig-configs.half_small[0].mig-on"`,
		},
		{name: "one of two", in: two, want: "in: say which configuration holds: a, b"},
		{name: "another", in: two, options: PolicyOptions{Config: "c"}, want: `Unsupported value: "c": supported values: "a", "b"`},
		{name: "another name", in: migPartedFile, options: PolicyOptions{Name: "A"}, want: `name "A" of the policy: `},
		{
			name: "label", in: migPartedFile, options: PolicyOptions{NodeSelector: []string{"a"}}, want: `label "a" of nodes: expected KEY=VALUE`,
		},
		{
			name: "no label", in: migPartedFile, options: PolicyOptions{NodeSelector: []string{"a b=c"}},
			want: "spec.nodeSelector.matchLabels: Invalid value",
		},
		{name: "priority", in: migPartedFile, options: PolicyOptions{Priority: 1 << 30}, want: "spec.priority: Invalid value"},
		{
			name: "another ConfigMap", in: "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: b}}",
			want: `in: no configuration of mig-parted is in it: expected a file with mig-configs, or data."config.yaml" of a ConfigMap`,
		},
		{
			name: "too long", in: strings.Repeat("# x\n", 1<<15) + migPartedFile,
			want: fmt.Sprintf("in: %d bytes: want at most 65536", 1<<17+len(migPartedFile)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := MigParted([]byte(tc.in), "in", tc.options)
			check.WantErr(t, err, nil, tc.want)
			if got.YAML != nil {
				t.Errorf("written: %s", got.YAML)
			}
		})
	}
}
