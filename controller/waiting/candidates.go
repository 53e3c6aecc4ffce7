// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/plan"
)

// maxNodes is on how many nodes pods are judged at once.
const maxNodes = 100

// notLookedAt is the taint of nodes that are known by their labels only. A pod that tolerates all taints finds no devices there.
const notLookedAt = v1alpha1.GroupName + "/not-looked-at"

// candidates returns the names of the nodes on which pods are judged, and how many nodes there are. Of a cluster that has more than
// maxNodes it chooses: pods take turns, and each has first the nodes with our devices whose labels and taints let it be there. Of these,
// each kind of hardware has one node before any has a second, so that a device that few nodes have is looked at. The order is that of
// names.
func (r Reader) candidates(ctx context.Context, askers []Asker, first func(labels map[string]string) bool) ([]string, int, error) {
	var nodes corev1.NodeList
	if err := r.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("list nodes: %w", err)
	}
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if len(nodes.Items) <= maxNodes {
		out := make([]string, len(nodes.Items))
		for i := range nodes.Items {
			out[i] = nodes.Items[i].Name
		}
		return out, len(out), nil
	}
	var accelerators v1alpha1.AcceleratorNodeList
	if err := r.Cached.List(ctx, &accelerators, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("list AcceleratorNodes: %w", err)
	}
	hardware := make(map[string]string, len(accelerators.Items))
	for i := range accelerators.Items {
		hardware[accelerators.Items[i].Name] = hardwareOf(&accelerators.Items[i].Status)
	}
	var orders [][]string
	for i := range askers {
		orders = append(orders, inOrder(nodes.Items, hardware, plan.MayBeOn(askers[i].Pod), first))
	}
	return inTurns(orders, maxNodes), len(nodes.Items), nil
}

// hardwareOf is the same text for nodes that publish the same devices. A node without devices has an empty one.
func hardwareOf(s *v1alpha1.AcceleratorNodeStatus) (text string) {
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Devices > 0 {
			text += fmt.Sprintf("%s %d ", p.Kind, p.Devices)
		}
	}
	if text == "" || s.Summary == nil {
		return text
	}
	return text + s.Summary.Models
}

// inOrder returns the names of nodes, sorted by name, in the order in which they are looked at for a pod.
func inOrder(
	nodes []corev1.Node, hardware map[string]string, mayBeOn func(*corev1.Node) bool, first func(map[string]string) bool,
) []string {
	const ranks = 4
	var byRank [ranks]map[string][]string // by the hardware
	for i := range nodes {
		node := &nodes[i]
		kind := hardware[node.Name]
		rank := 0
		switch may := mayBeOn(node); {
		case kind == "":
			rank = 3
		case !may:
			rank = 2
		case first != nil && !first(node.Labels):
			rank = 1
		}
		if byRank[rank] == nil {
			byRank[rank] = map[string][]string{}
		}
		byRank[rank][kind] = append(byRank[rank][kind], node.Name)
	}
	var out []string
	for _, groups := range byRank {
		var lists [][]string
		for _, kind := range slices.Sorted(maps.Keys(groups)) {
			lists = append(lists, groups[kind])
		}
		out = append(out, inTurns(lists, maxNodes-len(out))...)
	}
	return out
}

// inTurns returns at most so many different names of lists: of each the first, then of each the second, and so on.
func inTurns(lists [][]string, most int) (out []string) {
	taken := map[string]bool{}
	for turn := 0; len(out) < most; turn++ {
		more := false
		for _, list := range lists {
			if turn >= len(list) {
				continue
			}
			more = true
			if name := list[turn]; !taken[name] && len(out) < most {
				taken[name] = true
				out = append(out, name)
			}
		}
		if !more {
			break
		}
	}
	return out
}

// AddDomains adds to a snapshot the nodes of pods that keep others from more than their node. No pod can be put there: what counts is in
// which zones they are.
func (r Reader) AddDomains(ctx context.Context, s *Snapshot, pods []*corev1.Pod) error {
	if s.Whole() {
		return nil
	}
	there := map[string]bool{}
	for _, node := range s.Nodes {
		there[node.Name] = true
	}
	for _, pod := range pods {
		if there[pod.Spec.NodeName] {
			continue
		}
		there[pod.Spec.NodeName] = true
		var node corev1.Node
		err := r.Cached.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read node %s: %w", pod.Spec.NodeName, err)
		}
		s.Nodes = append(s.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, Labels: node.Labels},
			Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{
				Key: notLookedAt, Effect: corev1.TaintEffectNoSchedule,
			}}},
		})
	}
	return nil
}
