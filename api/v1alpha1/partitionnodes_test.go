// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"strings"
)

// taints are the nodes of a policy, with one taint for each text.
func taints(each ...string) string { return "nodes: {taints: [" + strings.Join(each, ", ") + "]}\n" }

// classes are the nodes of a policy, with one PriorityClass for each text.
func classes(each ...string) string {
	return "nodes: {priorityClasses: [" + strings.Join(each, ", ") + "]}\n"
}

func partitionNodesCases() []trustCase {
	const taint = "{key: example.com/gpu, effect: NoSchedule}"
	nine := make([]string, 9)
	for i := range nine {
		nine[i] = fmt.Sprintf("{key: k%d, effect: NoSchedule}", i)
	}
	long := strings.Repeat("k", 64)
	return []trustCase{
		{name: "taints", spec: taints(taint, "{key: gpu, value: a-b.c_d, effect: NoExecute}", "{key: gpu, effect: PreferNoSchedule}")},
		{name: "taints and devices", spec: taints(taint) + ofDevices("passthrough: true")},
		{name: "as many taints as there may be", spec: taints(nine[:8]...)},
		{
			name: "neither devices nor nodes", spec: "priority: 1",
			want: []string{"spec.devices: Required value: say what becomes of the devices"},
		},
		{
			name: "taints and devices of which nothing is said", spec: taints(taint) + "devices: {}",
			strict: "in Go empty devices are the same as none",
		},
		{
			name: "taints and a selector alone", spec: taints(taint) + ofDevices("deviceSelector: {cel: 'true'}"),
			want: []string{"spec.devices: Required value: say what becomes of the devices"},
		},
		{name: "nodes of which nothing is said", spec: "nodes: {}", want: []string{"spec.nodes: Required value: say who may use the nodes"}},
		{name: "no taints", spec: taints(), want: []string{"spec.nodes.taints: Required value"}},
		{name: "too many taints", spec: taints(nine...), want: []string{"spec.nodes.taints: Too many: 9"}},
		{
			name: "one key twice",
			spec: taints(taint, "{key: example.com/gpu, effect: NoExecute}", "{key: example.com/gpu, value: a, effect: NoSchedule}"),
			want: []string{`spec.nodes.taints[2]: Duplicate value: "example.com/gpu:NoSchedule"`},
		},
		{
			name: "Kubernetes' own keys", spec: taints("{key: node.kubernetes.io/not-ready, effect: NoExecute}",
				"{key: kubernetes.io/a, effect: NoSchedule}", "{key: a.k8s.io/b, effect: NoSchedule}", "{key: notkubernetes.io/b, effect: NoSchedule}"),
			want: []string{
				"spec.nodes.taints[0].key: Forbidden: keys below kubernetes.io", "spec.nodes.taints[1].key: Forbidden",
				"spec.nodes.taints[2].key: Forbidden",
			},
		},
		{name: "a key with a space", spec: taints("{key: 'a b', effect: NoSchedule}"), want: []string{"spec.nodes.taints[0].key: Invalid"}},
		{name: "a long name", spec: taints("{key: " + long + ", effect: NoSchedule}"), want: []string{"spec.nodes.taints[0].key: Invalid"}},
		{name: "no key", spec: taints("{effect: NoSchedule}"), want: []string{"spec.nodes.taints[0].key: Invalid"}},
		{
			name: "a value with a slash", spec: taints("{key: a, value: b/c, effect: NoSchedule}"),
			want: []string{"spec.nodes.taints[0].value: Invalid"},
		},
		{
			name: "a long value", spec: taints("{key: a, value: " + long + ", effect: NoSchedule}"),
			want: []string{"spec.nodes.taints[0].value: Invalid"},
		},
		{
			name: "classes",
			spec: classes("{name: gpu, value: 1000, default: true}", "{name: cpu.low, value: -5, description: x}") + ofDevices("passthrough: true"),
		},
		{name: "no classes", spec: classes(), want: []string{"spec.nodes.priorityClasses: Required value"}},
		{
			name: "two defaults", spec: classes("{name: a, value: 1, default: true}", "{name: b, value: 1, default: true}"),
			want: []string{"spec.nodes.priorityClasses: Invalid value: 2: at most one class"},
		},
		{
			name: "one class twice", spec: classes("{name: a, value: 1}", "{name: a, value: 2}"),
			want: []string{"spec.nodes.priorityClasses[1]: Duplicate value"},
		},
		{
			name: "a class of Kubernetes' own", spec: classes("{name: system-node-critical, value: 1}"),
			want: []string{"spec.nodes.priorityClasses[0].name: Forbidden"},
		},
		{name: "a name in capitals", spec: classes("{name: GPU, value: 1}"), want: []string{"spec.nodes.priorityClasses[0].name: Invalid"}},
		{
			name: "a value for Kubernetes' own", spec: classes("{name: a, value: 1000000001}"),
			want: []string{"spec.nodes.priorityClasses[0].value: Invalid"},
		},
		{name: "who may reclaim", spec: classes("{name: a, value: 1, reclaimNamespaces: [team-a, '*']}")},
		{
			name: "nobody may reclaim", spec: classes("{name: a, value: 1, reclaimNamespaces: []}"),
			want: []string{"spec.nodes.priorityClasses[0].reclaimNamespaces: Required value"},
		},
		{
			name: "no namespace's name", spec: classes("{name: a, value: 1, reclaimNamespaces: [team-*]}"),
			want: []string{"spec.nodes.priorityClasses[0].reclaimNamespaces[0]: Invalid"},
		},
		{
			name: "one namespace twice", spec: classes("{name: a, value: 1, reclaimNamespaces: [a, a]}"),
			want: []string{"spec.nodes.priorityClasses[0].reclaimNamespaces[1]: Duplicate"},
		},
		{name: "reclaim alone", spec: "nodes: {reclaim: Evict}"},
		{name: "reclaim beside taints", spec: "nodes: {reclaim: None, taints: [" + taint + "]}"},
		{name: "an unknown way to reclaim", spec: "nodes: {reclaim: Delete}", want: []string{"spec.nodes.reclaim: Unsupported value"}},
		{name: "no effect", spec: taints("{key: a}"), want: []string{"spec.nodes.taints[0].effect: Required"}},
		{name: "an unknown effect", spec: taints("{key: a, effect: Never}"), want: []string{"spec.nodes.taints[0].effect: Unsupported"}},
	}
}
