// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Write writes a snapshot as YAML: first the version and the gates, with the kinds that could not be read, then the objects. Objects of
// one kind are in the order of the snapshot.
func Write(w io.Writer, s plan.Snapshot, missing []plan.Problem) error {
	header := plan.Header{
		TypeMeta:          metav1.TypeMeta{APIVersion: plan.HeaderAPIVersion, Kind: plan.HeaderKind},
		KubernetesVersion: s.Version, FeatureGates: s.Gates, Missing: missing,
	}
	text, err := yaml.Marshal(header)
	if err != nil {
		return fmt.Errorf("encode the version of the snapshot: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	core, resources, groups := corev1.SchemeGroupVersion, resourceapi.SchemeGroupVersion, schedulingapi.SchemeGroupVersion
	for _, write := range []func() error{
		func() error { return writeAll(w, core, "Namespace", s.Namespaces) },
		func() error { return writeAll(w, core, "ResourceQuota", s.Quotas) },
		func() error { return writeAll(w, core, "Node", s.Nodes) },
		func() error { return writeAll(w, resources, "DeviceClass", s.Classes) },
		func() error { return writeAll(w, resources, "DeviceTaintRule", s.TaintRules) },
		func() error { return writeAll(w, resources, "ResourceSlice", s.Slices) },
		func() error { return writeAll(w, resources, "ResourceClaimTemplate", s.Templates) },
		func() error { return writeAll(w, resources, "ResourceClaim", s.Claims) },
		func() error { return writeAll(w, groups, "PodGroup", s.PodGroups) },
		func() error { return writeAll(w, core, "Pod", s.Pods) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func writeAll[T metav1.Object](w io.Writer, version schema.GroupVersion, kind string, objects []T) error {
	for _, o := range objects {
		text, err := document(version, kind, o)
		if err != nil {
			return fmt.Errorf("encode %s %s/%s: %w", kind, o.GetNamespace(), o.GetName(), err)
		}
		if _, err := w.Write(append([]byte("---\n"), text...)); err != nil {
			return err
		}
	}
	return nil
}

// document is an object as YAML with its kind, and without what is empty and nevertheless written by the encoder.
func document(version schema.GroupVersion, kind string, object any) ([]byte, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	dropEmpty(fields)
	fields["apiVersion"], fields["kind"] = version.String(), kind
	if raw, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(raw)
}

// dropEmpty removes what the encoder writes of fields that are not set: times, and what nodes tell of themselves.
func dropEmpty(fields map[string]any) {
	for _, name := range []string{"metadata", "spec", "status"} {
		inner, isMap := fields[name].(map[string]any)
		if !isMap {
			continue
		}
		maps.DeleteFunc(inner, func(key string, value any) bool {
			return value == nil || key == "nodeInfo" || key == "daemonEndpoints"
		})
		if len(inner) == 0 {
			delete(fields, name)
		}
	}
}
