// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// stackCases are specs of AcceleratorStacks, as trustCases are of TrustPolicies.
func stackCases() []trustCase {
	return []trustCase{
		{name: "host", spec: "driver: {engine: Host}"},
		{name: "some nodes", spec: "driver: {engine: Host}\nnodeSelector: {matchLabels: {pool: a}}"},
		{name: "checks", spec: "driver: {engine: Host}\ncheck: {deviceClassNames: [gpu.fettle.dev, a], interval: 1m, timeout: 1h}"},
		{name: "checks as they are", spec: "driver: {engine: Host}\ncheck: {}"},
		{
			name: "checks too often", spec: "driver: {engine: Host}\ncheck: {interval: 59s, timeout: 9s}",
			want: []string{"spec.check.interval: Invalid value", "spec.check.timeout: Invalid value"},
		},
		{
			name: "checks too late", spec: "driver: {engine: Host}\ncheck: {interval: 721h, timeout: 61m}",
			want: []string{"spec.check.interval: Invalid value", "spec.check.timeout: Invalid value"},
		},
		{
			name: "classes", spec: "driver: {engine: Host}\ncheck: {deviceClassNames: [A, b, b]}",
			want: []string{"spec.check.deviceClassNames[2]: Duplicate value", "spec.check.deviceClassNames[0]: Invalid value"},
		},
		{
			name: "no class", spec: "driver: {engine: Host}\ncheck: {deviceClassNames: []}",
			want: []string{"spec.check.deviceClassNames: "},
		},
		{name: "an operator", spec: "driver: {engine: External, external: {operator: AMDGPUOperator}}"},
		{
			name: "no operator", spec: "driver: {engine: External}",
			want: []string{"spec.driver.external: Required value: set it for engine External"},
		},
		{
			name: "an operator of another engine", spec: "driver: {engine: Host, external: {operator: AMDGPUOperator}}",
			want: []string{"spec.driver.external: Required value: set it for engine External"},
		},
		{
			name: "another operator", spec: "driver: {engine: External, external: {operator: Mine}}",
			want: []string{`spec.driver.external.operator: Unsupported value: "Mine"`},
		},
		{
			name: "another engine", spec: "driver: {engine: Magic}",
			want: []string{`spec.driver.engine: Unsupported value: "Magic"`},
		},
		{name: "a driver", spec: driverSpec("")},
		{name: "a driver with all", spec: driverSpec(`, moduleVersion: 580.95.5, hostPID: true, command: [a], args: [b],
  env: [{name: A, value: b}],
  hostPaths: [{path: /, mountPath: /host, readOnly: true}, {path: /run/d, mountPath: /run/d, shared: true}], readyCommand: [test, -e, /x],
  pullSecrets: [a]`)},
		{
			name: "no driver", spec: "driver: {engine: DaemonSet}",
			want: []string{"spec.driver.daemonSet: Required value: set it for engine DaemonSet"},
		},
		{
			name: "a driver of another engine", spec: strings.Replace(driverSpec(""), "engine: DaemonSet", "engine: Host", 1),
			want: []string{"spec.driver.daemonSet: Required value: set it for engine DaemonSet"},
		},
		{
			name: "a digest", spec: "driver: {engine: DaemonSet, daemonSet: {repository: r.example/d@sha256:" + strings.Repeat("a", 64) +
				", tag: 'a@sha256:b', version: v, privileged: true}}",
			want: []string{"spec.driver.daemonSet.repository: Invalid value", "spec.driver.daemonSet.tag: Invalid value"},
		},
		{
			name: "an unknown variable", spec: strings.Replace(driverSpec(""), "${KERNEL}", "${UNAME}", 1),
			want: []string{"spec.driver.daemonSet.tag: Invalid value"},
		},
		{
			name: "privileges not said", spec: "driver: {engine: DaemonSet, daemonSet: {repository: r.example/d, tag: a, version: v}}",
			want: []string{"spec.driver.daemonSet.privileged: Required value"},
		},
		{
			name: "paths", spec: driverSpec(`, hostPaths: [{path: a, mountPath: /}, {path: /a/../b, mountPath: /m}, {path: /c, mountPath: /m}]`),
			want: []string{
				"spec.driver.daemonSet.hostPaths[0].path: Invalid value", "spec.driver.daemonSet.hostPaths[0].mountPath: Invalid value",
				"spec.driver.daemonSet.hostPaths[1].path: Invalid value", "spec.driver.daemonSet.hostPaths[2].mountPath: Duplicate value",
			},
		},
		{
			name: "mounts that cannot be shared",
			spec: strings.Replace(driverSpec(`, hostPaths: [{path: /a, mountPath: /a, shared: true}]`), "privileged: true", "privileged: false", 1),
			want: []string{"spec.driver.daemonSet.hostPaths[0].shared: Invalid value"},
		},
		{
			name: "variables and words", spec: driverSpec(`, env: [{name: 1A}, {name: B}, {name: B}], readyCommand: []`),
			want: []string{
				"spec.driver.daemonSet.readyCommand: Required value", "spec.driver.daemonSet.env[0].name: Invalid value",
				"spec.driver.daemonSet.env[2]: Duplicate value",
			},
		},
		{name: "a module", spec: moduleSpec("moduleName: nvidia")},
		{
			name: "a module with all",
			spec: strings.Replace(moduleSpec("moduleName: nvidia, parameters: [NVreg_A=1], dirName: /opt, firmwarePath: /firmware, "+
				"modulesLoadingOrder: [nvidia, ecc]"), "kmm: {", "kmm: {moduleVersion: 580.95.5, pullSecret: a, ", 1),
		},
		{name: "no module", spec: "driver: {engine: KMM}", want: []string{"spec.driver.kmm: Required value: set it for engine KMM"}},
		{
			name: "kernels", spec: strings.Replace(moduleSpec("moduleName: nvidia"), "literal: 6.1.0-1", "literal: a, regexp: b", 1),
			want: []string{"spec.driver.kmm.kernelMappings[0].literal: Required value"},
		},
		{
			name: "an expression that is none", spec: strings.Replace(moduleSpec("moduleName: nvidia"), "literal: 6.1.0-1", "regexp: '('", 1),
			want: []string{"spec.driver.kmm.kernelMappings[0].regexp: Invalid value"}, lenient: "the schema does not compile it",
		},
		{
			name: "no kernel", spec: "driver: {engine: KMM, kmm: {version: a_, kernelMappings: [], modprobe: {moduleName: 'a b'}}}",
			want: []string{
				"spec.driver.kmm.version: Invalid value", "spec.driver.kmm.kernelMappings: ", "spec.driver.kmm.modprobe.moduleName: Invalid value",
			},
		},
		{
			name: "an order of others", spec: moduleSpec("moduleName: a, modulesLoadingOrder: [b]"),
			want: []string{"spec.driver.kmm.modprobe.modulesLoadingOrder[0]: Invalid value"}, lenient: "the schema does not compare them",
		},
		{name: "extra states", spec: statesSpec(`{name: A-1, manifests: {configMap: a}, check: {pods: {}}},
  {name: b, after: Driver, manifests: {configMap: a, key: b.yaml}, check: {job: c}},
  {name: C, manifests: {configMap: a}, check: {condition:
    {apiVersion: apps/v1, kind: Deployment, name: a, type: Available, status: "True"}}}`)},
		{
			name: "names of states", spec: statesSpec(`{name: Facts, manifests: {configMap: a}, check: {pods: {}}},
  {name: a.b, manifests: {configMap: A}, check: {pods: {}}}`),
			want: []string{
				"spec.states[0].name: Invalid value", "spec.states[1].name: Invalid value",
				"spec.states[1].manifests.configMap: Invalid value",
			},
		},
		{
			name: "one state twice", spec: statesSpec(`{name: a, manifests: {configMap: a}, check: {pods: {}}},
  {name: a, manifests: {configMap: a}, check: {pods: {}}}`),
			want: []string{"spec.states[1].name: Duplicate value"},
		},
		{
			name: "after no state", spec: statesSpec(`{name: a, after: b, manifests: {configMap: a, key: /}, check: {pods: {}}}`),
			want: []string{"spec.states[0].after: Unsupported value", "spec.states[0].manifests.key: Invalid value"},
		},
		{
			name: "two checks", spec: statesSpec(`{name: a, manifests: {configMap: a}, check: {pods: {}, job: a}}`),
			want: []string{"spec.states[0].check: Required value: set exactly one"},
		},
		{
			name: "no check", spec: statesSpec(`{name: a, manifests: {configMap: a}, check: {}}`),
			want: []string{"spec.states[0].check: Required value: set exactly one"},
		},
		{
			name: "no name of a Job", spec: statesSpec(`{name: a, manifests: {configMap: a}, check: {job: A}}`),
			want: []string{"spec.states[0].check.job: Invalid value"},
		},
		{
			name: "no condition", spec: statesSpec(`{name: a, manifests: {configMap: a}, check: {condition:
  {apiVersion: v1, kind: "", name: A, type: "a b", status: Maybe}}}`),
			want: []string{
				"spec.states[0].check.condition.kind: Invalid value", "spec.states[0].check.condition.name: Invalid value",
				"spec.states[0].check.condition.type: Invalid value", "spec.states[0].check.condition.status: Unsupported value",
			},
		},
		{name: "no engine", spec: "driver: {}", want: []string{`spec.driver.engine: Unsupported value: ""`}},
		{
			name: "a selector that is not one", spec: "driver: {engine: Host}\nnodeSelector: {matchExpressions: [{key: a, operator: Near}]}",
			want: []string{"spec.nodeSelector.matchExpressions[0].operator: Invalid value"}, lenient: "the schema of selectors has no enum",
		},
	}
}

// statesSpec is a spec with extra states.
func statesSpec(states string) string { return "driver: {engine: Host}\nstates: [" + states + "]" }

// driverSpec is a spec with the engine DaemonSet, and with more in the driver's object.
func driverSpec(more string) string {
	return "driver: {engine: DaemonSet, daemonSet: {repository: 'registry.example:5000/nvidia', tag: '${DRIVER_VERSION}-${KERNEL}-${OS}', " +
		"version: 580.95.05, privileged: true" + more + "}}"
}

// moduleSpec is a spec with the engine KMM.
func moduleSpec(modprobe string) string {
	return "driver: {engine: KMM, kmm: {version: 580.95.05, kernelMappings: [{literal: 6.1.0-1, image: 'registry.example/m:a'}], " +
		"modprobe: {" + modprobe + "}}}"
}

func validateStack(t *testing.T, spec string) field.ErrorList {
	t.Helper()
	var s v1alpha1.AcceleratorStackSpec
	if err := yaml.UnmarshalStrict([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	return s.Validate(field.NewPath("spec"))
}

func TestAcceleratorStackValidate(t *testing.T) {
	for _, c := range stackCases() {
		t.Run(c.name, func(t *testing.T) {
			faults := validateStack(t, c.spec)
			for i, fault := range faults {
				if i >= len(c.want) || !strings.HasPrefix(fault.Error(), c.want[i]) {
					t.Errorf("fault %d is %q", i, fault.Error())
				}
			}
			if len(faults) != len(c.want) {
				t.Errorf("%d faults, want %q", len(faults), c.want)
			}
		})
	}
}

// TestFaultsInOrder: a message that is written to a status is the same each time, or it would be written without end.
func TestFaultsInOrder(t *testing.T) {
	spec := moduleSpec("moduleName: nvidia, dirName: opt, firmwarePath: firmware")
	first := validateStack(t, spec).ToAggregate().Error()
	for range 50 {
		if now := validateStack(t, spec).ToAggregate().Error(); now != first {
			t.Fatalf("%s\nand then\n%s", first, now)
		}
	}
}

// TestStateNames: extra states stand behind those that they follow, in the order of the list, and last if they do not say.
func TestStateNames(t *testing.T) {
	s := v1alpha1.AcceleratorStackSpec{States: []v1alpha1.ExtraState{
		{Name: "last"},
		{Name: "b", After: v1alpha1.StateDriver},
		{Name: "c", After: v1alpha1.StateDriver},
		{Name: "a", After: v1alpha1.StateFacts},
	}}
	want := []v1alpha1.StackState{"Facts", "a", "Driver", "b", "c", "DriverChecked", "Published", "ClaimChecked", "Monitored", "last"}
	if diff := cmp.Diff(want, s.StateNames()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	var order []string
	for _, e := range s.OrderedStates() {
		order = append(order, string(e.Name))
	}
	if got := strings.Join(order, " "); got != "a b c last" || s.States[0].Name != "last" {
		t.Errorf("extra states in the order %s", got)
	}
}

// TestSetWaitingStackNodes: more nodes and longer texts than the schema allows do not make the status unwritable.
func TestSetWaitingStackNodes(t *testing.T) {
	var nodes []v1alpha1.WaitingStackNode
	for i := range v1alpha1.MaxWaitingStackNodes + 1 {
		nodes = append(nodes, v1alpha1.WaitingStackNode{
			Node: fmt.Sprintf("n%02d", i), State: v1alpha1.StateDriver, Reason: "R", Message: strings.Repeat("ü", 2000),
		})
	}
	var s v1alpha1.AcceleratorStackStatus
	s.SetWaiting(nodes)
	if len(s.Waiting) != v1alpha1.MaxWaitingStackNodes || len([]rune(s.Waiting[0].Message)) != 1024 || len(nodes[0].Message) != 4000 {
		t.Errorf("%d nodes, the first with %d characters", len(s.Waiting), len([]rune(s.Waiting[0].Message)))
	}
}
