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
			if len(got.Notes) != 2 || !strings.Contains(got.Notes[0], "nvidia.com/mig.config") || !strings.Contains(got.Notes[1], "by number") {
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
			want: `in: ConfigMap x: expected data."config.yaml" with a configuration of mig-parted`,
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
