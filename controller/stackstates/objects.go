// SPDX-License-Identifier: Apache-2.0

package stackstates

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

const (
	// stateLabel marks objects of extra states and their pods, with the state's name. objectLabel is which object a pod is of.
	stateLabel  = v1alpha1.GroupName + "/state"
	objectLabel = v1alpha1.GroupName + "/state-object"
	// The annotations have what need not be the value of a label: the stack's name, the platform, and what the object was made of.
	stackAnnotation    = stack.StateStackAnnotation
	platformAnnotation = v1alpha1.GroupName + "/state-platform"
	digestAnnotation   = stack.StateDigestAnnotation
)

// objectID is the value of objectLabel.
func objectID(of key) string { return stack.Digest(of.kind.Group, of.kind.Kind, of.name) }

// build returns the object of a manifest for a group, on nodes if the stack says where its pods run, and a digest of all but the nodes.
func build(
	s *v1alpha1.AcceleratorStack, e *v1alpha1.ExtraState, m *extra.Manifest, g *group, nodes []string,
) (*unstructured.Unstructured, string, error) {
	values := &extra.Values{Platform: g.platform, DriverVersion: driverVersion(s), Suffix: g.suffix}
	content := m.For(values)
	text, err := json.Marshal(content)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s %s: %w", m.Kind.Kind, m.Name, err)
	}
	sum := stack.Digest(s.Name, string(e.Name), string(text))
	id := objectID(key{kind: m.Kind, name: m.NameFor(g.suffix)})
	labels := map[string]any{names.ManagedByLabel: names.Controller, stateLabel: string(e.Name), objectLabel: id}
	annotations := map[string]any{stackAnnotation: s.Name, platformAnnotation: g.suffix}
	metadata := inner(content, "metadata")
	delete(metadata, "namespace")
	put(inner(metadata, "labels"), labels)
	put(inner(metadata, "annotations"), annotations)
	inner(metadata, "annotations")[digestAnnotation] = sum
	metadata["ownerReferences"] = []any{map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindAcceleratorStack, "name": s.Name, "uid": string(s.UID),
		"controller": true,
	}}
	spec := inner(content, "spec")
	switch m.Kind.Kind {
	case "DaemonSet":
		// A node that comes changes the template. No pod is replaced for that: pods go when somebody deletes them.
		spec["updateStrategy"] = map[string]any{"type": "OnDelete"}
		spec["revisionHistoryLimit"] = int64(1)
		inner(spec, "selector", "matchLabels")[objectLabel] = id
		inner(spec, "template", "metadata", "annotations")[digestAnnotation] = sum
	case "Deployment":
		inner(spec, "selector", "matchLabels")[objectLabel] = id
	case "Job":
	default:
		if len(spec) == 0 {
			delete(content, "spec")
		}
		return &unstructured.Unstructured{Object: content}, sum, nil
	}
	put(inner(spec, "template", "metadata", "labels"), labels)
	put(inner(spec, "template", "metadata", "annotations"), annotations)
	if m.Placed() {
		affinity, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Affinity{NodeAffinity: placement.On(nodes...)})
		if err != nil {
			return nil, "", fmt.Errorf("place %s %s: %w", m.Kind.Kind, m.Name, err)
		}
		put(inner(spec, "template", "spec", "affinity", "nodeAffinity"), inner(affinity, "nodeAffinity"))
	}
	return &unstructured.Unstructured{Object: content}, sum, nil
}

// inner returns the map at a path, which it makes if it is not there.
func inner(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		next, ok := object[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[name] = next
		}
		object = next
	}
	return object
}

func put(into, entries map[string]any) {
	for k, v := range entries {
		into[k] = v
	}
}
