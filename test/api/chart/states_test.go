// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

// testStateRights: with drivers.enabled the controller writes every kind of an extra state in the namespace of drivers, privileged Jobs
// too, and none of them elsewhere. Policies that limit its Jobs of kernel caches do not get in the way.
func testStateRights(t *testing.T, server *apiServer) {
	const drivers, elsewhere = "fettle-drivers", "no-drivers"
	server.createNamespace(t, elsewhere)
	server.endNamespace(t, drivers)
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=kernelCaches.volumes.enabled=true,drivers.enabled=true")
	_, untyped := server.as(t, controllerAccount, "")
	object := func(kind schema.GroupVersionKind, labels map[string]any) *unstructured.Unstructured {
		template := map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"a": "b"}},
			"spec": map[string]any{"hostNetwork": true, "containers": []any{map[string]any{
				"name": "c", "image": "x", "securityContext": map[string]any{"privileged": true},
			}}},
		}
		o := map[string]any{
			"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind, "metadata": map[string]any{"name": "state", "labels": labels},
		}
		switch kind.Kind {
		case "DaemonSet", "Deployment":
			o["spec"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"a": "b"}}, "template": template}
		case "Job":
			template["spec"].(map[string]any)["restartPolicy"] = "Never"
			o["spec"] = map[string]any{"template": template}
		case "Service":
			o["spec"] = map[string]any{"ports": []any{map[string]any{"port": int64(80)}}}
		}
		return &unstructured.Unstructured{Object: o}
	}
	ours := map[string]any{"fettle.dev/state": "Exporter"}
	apply := func(ctx context.Context, kind schema.GroupVersionKind, namespace string, labels map[string]any) error {
		_, err := untyped.Resource(resourceOf(kind)).Namespace(namespace).Apply(ctx, "state", object(kind, labels),
			metav1.ApplyOptions{FieldManager: "fettle-states", Force: true})
		return err
	}
	for _, kind := range extra.Kinds() {
		eventually(t, func(ctx context.Context) error { return apply(ctx, kind, drivers, ours) })
		resource := untyped.Resource(resourceOf(kind)).Namespace(drivers)
		list, err := resource.List(t.Context(), metav1.ListOptions{LabelSelector: "fettle.dev/state"})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("list %s: %v, %v", kind.Kind, list, err)
		}
		if _, err := resource.Get(t.Context(), "state", metav1.GetOptions{}); err != nil {
			t.Errorf("get %s: %v", kind.Kind, err)
		}
		if err := apply(t.Context(), kind, elsewhere, ours); !apierrors.IsForbidden(err) {
			t.Errorf("%s in another namespace: %v", kind.Kind, err)
		}
		if err := resource.Delete(t.Context(), "state", metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", kind.Kind, err)
		}
		if kind.Kind != "Job" {
			continue
		}
		if err := refused(apply(t.Context(), kind, drivers, map[string]any{"a": "b"}), "and of extra states"); err != nil {
			t.Errorf("a Job that is of no state: %v", err)
		}
	}
}

func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	return kind.GroupVersion().WithResource(fmt.Sprintf("%ss", strings.ToLower(kind.Kind)))
}
