// SPDX-License-Identifier: Apache-2.0

// Package placement selects nodes by their names for pods that the controller makes: a node's kernel is in no label that can be trusted,
// and the label kubernetes.io/hostname may be missing or wrong.
package placement

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// nameField is a node's name, which no label can change.
	nameField = "metadata.name"
	// noNode is a label of which both is asked at once: that a node has it and that it has not.
	noNode = v1alpha1.GroupName + "/no-node"
)

// On returns what places a pod on the nodes and nowhere else, or on none if there are none: an empty list of terms is not valid.
func On(nodes ...string) *corev1.NodeAffinity {
	selector := &corev1.NodeSelector{}
	for _, name := range nodes { // one node a term, as the API has it
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: nameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	if len(nodes) == 0 {
		selector.NodeSelectorTerms = []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: noNode, Operator: corev1.NodeSelectorOpExists}, {Key: noNode, Operator: corev1.NodeSelectorOpDoesNotExist},
		}}}
	}
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}
}

// Of returns the nodes that On was given.
func Of(a *corev1.Affinity) []string {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	var out []string
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == nameField {
				out = append(out, f.Values...)
			}
		}
	}
	return out
}
