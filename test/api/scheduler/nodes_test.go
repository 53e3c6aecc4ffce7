// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeScenarios are about which node reaches a device, and which node takes a pod.
func nodeScenarios() []scenario {
	onNode := func(d resourceapi.Device, node string) resourceapi.Device {
		d.NodeName = &node
		return d
	}
	onNodes := func(d resourceapi.Device, key, value string) resourceapi.Device {
		d.NodeSelector = nodesWith(key, value)
		return d
	}
	everywhere := gpu("e0")
	everywhere.AllNodes = ptr.To(true)
	cordoned := node("a")
	cordoned.Spec.Unschedulable = true
	const noSelection = "ResourceSlice/pool refused exactly one of\np waits no-devices: no-devices, no ResourceSlice is for any of 2 nodes"
	return append(reachScenarios(), []scenario{
		{
			name:    "a device for one node",
			objects: cat(node("a"), node("b"), perDevice("pool", onNode(gpu("g0"), "b")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p b gpu=g0",
			older:   noSelection,
		},
		{
			name: "a device for nodes with a label",
			objects: cat(node("a"), node("b", "zone", "x"), perDevice("pool", onNodes(gpu("g0"), "zone", "x")), class("gpu"),
				asks("p", exactly("r", 1))),
			want:  "p b gpu=g0",
			older: noSelection,
		},
		{
			name: "devices for different nodes",
			objects: cat(node("a"), node("b"), perDevice("pool", onNode(gpu("g0"), "a"), onNode(gpu("g1"), "b"), everywhere), class("gpu"),
				asks("p", exactly("r", 3))),
			want:  "p waits no-devices: too-few, wants 3 GPUs on one node, and a, which comes closest, has 2",
			older: noSelection,
		},
		{
			name:    "a cordoned node",
			objects: cat(cordoned, slice("a", gpu("g0")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits node: node, node(s) were unschedulable",
		},
		{
			name:    "a cordoned node and one without devices",
			objects: cat(cordoned, slice("a", gpu("g0")), node("b"), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: node, node(s) were unschedulable",
		},
	}...)
}

// reachScenarios are about slices that say which nodes reach their devices.
func reachScenarios() []scenario {
	return []scenario{
		{
			name: "devices for nodes with a label",
			objects: cat(node("a", "zone", "x"), node("b", "zone", "y"), labelled("pool", "zone", "y", gpus(1)...), class("gpu"),
				asks("p", exactly("r", 1))),
			want: "p b gpu=g0",
		},
		{
			name:    "devices for a label that no node has",
			objects: cat(node("a"), labelled("pool", "zone", "y", gpus(1)...), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: no-devices, no ResourceSlice is for any of 1 nodes",
		},
		{
			name: "devices for all nodes",
			objects: cat(node("a"), node("b"), anywhere("pool", gpus(2)...), class("gpu"),
				asks("p", exactly("r", 1)), asks("q", exactly("r", 1)), asks("z", exactly("r", 1))),
			want:  "p any gpu=1\nq any gpu=1\nz waits no-devices: held, all 4 GPUs that would do on nodes a and b are held: by claim",
			loose: true,
		},
		{
			name:    "devices of a node and of all nodes",
			objects: cat(on("a", gpu("g0")), node("b"), anywhere("pool", gpu("e0")), class("gpu"), asks("p", exactly("r", 2))),
			want:    "p a gpu=g0,e0",

			older: "p any gpu=2", olderLoose: true,
		},
	}
}

// placeScenarios are about what a pod says of nodes.
func placeScenarios() []scenario {
	tainted := node("a")
	tainted.Spec.Taints = []corev1.Taint{{Key: "example.com/batch", Effect: corev1.TaintEffectNoSchedule}}
	withPod := func(objects []client.Object, change func(*corev1.Pod)) []client.Object {
		for _, o := range objects {
			if p, ok := o.(*corev1.Pod); ok {
				change(p)
			}
		}
		return objects
	}
	affine := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: nodesWith("zone", "x"),
		}}
	}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "example.com/batch", Operator: corev1.TolerationOpExists}}
	}
	gated := func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/later"}} }
	narrow := node("a")
	narrow.Status.Allocatable = narrow.Status.Allocatable.DeepCopy()
	narrow.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
	cpu := func(amount string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
		}
	}
	preferring := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 100, Preference: nodesWith("zone", "x").NodeSelectorTerms[0]},
			},
		}}
	}
	return []scenario{
		{
			name:    "a pod for the other node",
			objects: cat(on("a", gpu("g0")), on("b", gpu("g0")), class("gpu"), pinned("b", asks("p", exactly("r", 1)))),
			want:    "p b gpu=g0",
		},
		{
			name:    "a pod for a node without devices",
			objects: cat(on("a", gpu("g0")), node("b"), class("gpu"), pinned("b", asks("p", exactly("r", 1)))),
			want:    "p waits no-devices: node, node(s) didn't match Pod's node affinity/selector",
		},
		{
			name:    "a pod that is held back",
			objects: cat(on("a", gpu("g0")), class("gpu"), withPod(asks("p", exactly("r", 1)), gated)),
			want:    "p waits gated: gated, gate example.com/later is to be removed first",
		},
		{
			name:    "pods take the places of a node",
			objects: cat(narrow, slice("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1)), asks("q", exactly("r", 1))),
			want:    "p a gpu=g0\nq waits node: node, Too many pods",
		},
		{
			name:    "a pod for a node that is not there",
			objects: cat(on("a", gpu("g0")), class("gpu"), pinned("z", asks("p", exactly("r", 1)))),
			want:    "p waits node: node, node(s) didn't match Pod's node affinity/selector",
		},
		{
			name: "node affinity",
			objects: cat(on("a", gpu("g0")), node("b", "zone", "x"), slice("b", gpu("g0")), class("gpu"),
				withPod(asks("p", exactly("r", 1)), affine)),
			want: "p b gpu=g0",
		},
		{
			name:    "node affinity that no node meets",
			objects: cat(on("a", gpu("g0")), class("gpu"), withPod(asks("p", exactly("r", 1)), affine)),
			want:    "p waits node: node, node(s) didn't match Pod's node affinity/selector",
		},
		{
			name:    "a preference yields to devices",
			objects: cat(on("a", gpu("g0")), node("b", "zone", "x"), class("gpu"), withPod(asks("p", exactly("r", 1)), preferring)),
			want:    "p a gpu=g0",
		},
		{
			name:    "a tainted node",
			objects: cat(tainted, slice("a", gpu("g0")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits node: node, node(s) had untolerated taint(s)",
		},
		{
			name:    "a tainted node is tolerated",
			objects: cat(tainted, slice("a", gpu("g0")), class("gpu"), withPod(asks("p", exactly("r", 1)), tolerant)),
			want:    "p a gpu=g0",
		},
		{
			name:    "a node with devices and without processors",
			objects: cat(on("a", gpu("g0")), class("gpu"), withPod(asks("p", exactly("r", 1)), cpu("9"))),
			want:    "p waits node: node, Insufficient cpu",
		},
		{
			name: "pods take the processors of a node",
			objects: cat(on("a", gpus(2)...), class("gpu"), withPod(asks("p", exactly("r", 1)), cpu("5")),
				withPod(asks("q", exactly("r", 1)), cpu("5"))),
			want: "p a gpu=g0\nq waits node: node, Insufficient cpu",
		},
	}
}
