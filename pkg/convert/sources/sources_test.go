// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/convert/sources"
	"github.com/fettle-dev/fettle/test/check"
)

const mig = "version: v1\n    mig-configs: {a: []}\n"

// TestFind finds files where people have them, and says of those that are elsewhere how to get them.
func TestFind(t *testing.T) {
	for name, tc := range map[string]struct {
		in    string
		files []string
		// elsewhere and rest are parts of what is said.
		elsewhere, rest string
	}{
		"the file": {
			in: "# for all\nversion: v1\nmig-configs: {a: []}", files: []string{"mig-parted  at the file"},
		},
		"JSON": {in: `{"gpu-config-profiles": {"a": {}}}`, files: []string{"amd-config-manager  at the file"}},
		"a ConfigMap": {
			in:    "kind: ConfigMap\nmetadata: {name: m, namespace: n, labels: {a: b}}\ndata:\n  config.yaml: |\n    " + mig + "  other: text\n",
			files: []string{`mig-parted config.yaml at ConfigMap n/m: data."config.yaml"`}, rest: `ConfigMap n/m: data."other", metadata.labels`,
		},
		"a List": {
			in: "kind: ConfigMapList\nitems:\n- kind: Secret\n  metadata: {name: s}\n- kind: ConfigMap\n  metadata: {name: m}\n" +
				"  data: {t4: 'version: v1', a100: 'sharing: {}'}",
			files: []string{`device-plugin a100 at ConfigMap m: data."a100"`, `device-plugin t4 at ConfigMap m: data."t4"`}, rest: "Secret s",
		},
		"a stream": {
			in:    "kind: Namespace\nmetadata: {name: n}\n---\nversion: v1\nsharing: {}\n",
			files: []string{"device-plugin  at the file"}, rest: "Namespace n",
		},
		"values of the GPU operator": {
			in: "driver: {enabled: true}\ndevicePlugin: {config: {name: time-slicing, create: true, default: any, data: {any: 'version: v1'}}}\n" +
				"migManager: {config: {name: custom-mig}}\n",
			files:     []string{`device-plugin any at values: devicePlugin.config.data."any"`},
			elsewhere: "values: migManager.config.name is ConfigMap custom-mig",
			rest:      "values: devicePlugin.config.create, devicePlugin.config.default",
		},
		"values of the device plugin": {
			in: "config: {map: {default: {version: v1, sharing: {}}}}", files: []string{`device-plugin default at values: config.map."default"`},
		},
		"values of a chart of charts": {
			in:    "gpu-operator: {migManager: {config: {data: {config.yaml: 'mig-configs: {a: []}'}}}}",
			files: []string{`mig-parted config.yaml at values: gpu-operator.migManager.config.data."config.yaml"`},
		},
		"a ClusterPolicy": {
			in: "kind: ClusterPolicy\nmetadata: {name: c}\nspec: {devicePlugin: {config: {name: slices}}}", files: []string{},
			elsewhere: "ClusterPolicy c: spec.devicePlugin.config.name is ConfigMap slices, which has the file: kubectl get configmap slices",
			rest:      "ClusterPolicy c",
		},
		"values that only name a ConfigMap": {
			in: "config: {map: {}, name: plugin-configs}\ngfd: {enabled: true}", files: []string{},
			elsewhere: "values: config.name is ConfigMap plugin-configs, which has the file: kubectl get configmap plugin-configs",
		},
		"an object with a config": {
			in: "kind: Other\nmetadata: {name: o}\nconfig: {name: c}", files: []string{},
		},
		"values with versions of images": {
			in: "driver: {version: 550.54.15}\ntoolkit: {version: v1.14.3}\ndcgm: {version: 3.3.5, resources: {limits: {cpu: 1}}}\n" +
				"devicePlugin: {version: v0.17.0, config: {name: made, create: true, data: {any: 'version: v1'}}}",
			files: []string{`device-plugin any at values: devicePlugin.config.data."any"`},
			rest:  "dcgm, devicePlugin.config.create, devicePlugin.config.name, devicePlugin.version, driver, toolkit",
		},
		"a PartitionPolicy and a claim": {
			in: "kind: PartitionPolicy\nmetadata: {name: p}\nspec: {devices: {sharing: {maxClaims: 4}}}\n---\nkind: ResourceClaim\n" +
				"metadata: {name: c}\nspec: {parameters: {sharing: {strategy: MPS}}}",
			files: []string{}, rest: "PartitionPolicy p\nResourceClaim c",
		},
		"a key that is not known": {
			in: "version: v1\nflag: {}\nsharing: {timeSlicing: {resources: []}}", files: []string{"device-plugin  at the file"},
		},
		"a file that is broken": {
			in: "kind: ConfigMap\nmetadata: {name: c}\ndata:\n  config.yaml: |\n    mig-configs:\n    \ta: []\n", files: []string{},
			elsewhere: `ConfigMap c: data."config.yaml": expected YAML: yaml: line `,
		},
		"values of HAMi": {
			in: "scheduler: {leaderElect: true}\ndevicePlugin: {deviceSplitCount: 10}", files: []string{},
			elsewhere: "values: deviceSplitCount 10 is HAMi's: a PartitionPolicy with spec.devices.sharing.maxClaims 10 makes as many shares",
		},
		"HAMi's ConfigMaps": {
			in: "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: d}\n  data:\n    device-config.yaml: |\n      nvidia:\n" +
				"        deviceSplitCount: 8\n- kind: ConfigMap\n  metadata: {name: n}\n" +
				`  data: {config.json: '{"nodeconfig": [{"name": "m", "devicesplitcount": 5}]}'}`, files: []string{},
			elsewhere: "ConfigMap n: devicesplitcount 5 is HAMi's: a PartitionPolicy with spec.devices.sharing.maxClaims 5",
		},
		"a DeviceConfig": {
			in: "kind: DeviceConfig\nmetadata: {name: d, namespace: n}\nspec: {configManager: {config: {name: profiles}}}", files: []string{},
			elsewhere: "then --kind amd-config-manager -f profiles.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := sources.Find([]byte(tc.in))
			check.Must(t, err)
			files := []string{}
			for _, f := range found.Files {
				files = append(files, string(f.Kind)+" "+f.Name+" at "+f.At)
			}
			if diff := cmp.Diff(tc.files, files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if got := strings.Join(found.Elsewhere, "\n"); !strings.Contains(got, tc.elsewhere) || tc.elsewhere == "" && got != "" {
				t.Errorf("elsewhere %q, want %q", got, tc.elsewhere)
			}
			if got := strings.Join(found.Rest, "\n"); !strings.Contains(got, tc.rest) {
				t.Errorf("rest %q, want %q", got, tc.rest)
			}
		})
	}
	for _, in := range []string{"", "# nothing\n", "a: [1\n"} {
		_, err := sources.Find([]byte(in))
		check.WantErr(t, err, nil, "expected YAML")
	}
}
