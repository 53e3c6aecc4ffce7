// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fettle-dev/fettle/controller/grant"
)

func newPreset(kind string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fettle.dev/v1alpha1", "kind": kind,
		"metadata": map[string]any{"name": "site"},
		"spec":     map[string]any{"deviceSelector": map[string]any{"deviceClassNames": []any{"gpu.fettle.dev"}}},
	}}
}

// testPresetStatus: nobody but the controller says whether a preset is valid, not even an administrator.
func testPresetStatus(t *testing.T, server *apiServer) {
	server.createNamespace(t, "presets")
	_, controller := server.as(t, controllerAccount, "")
	_, node := server.as(t, plugin, "node1")
	admin, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ kind, resource, namespace string }{
		{"DevicePreset", "devicepresets", "presets"}, {"ClusterDevicePreset", "clusterdevicepresets", ""},
	} {
		t.Run(test.kind, func(t *testing.T) {
			in := func(client dynamic.Interface) dynamic.ResourceInterface {
				return client.Resource(bitstreams(test.resource)).Namespace(test.namespace)
			}
			if _, err := in(admin).Create(t.Context(), newPreset(test.kind), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			patch := func(ctx context.Context, client dynamic.Interface, text string, sub ...string) error {
				_, err := in(client).Patch(ctx, "site", types.MergePatchType, []byte(text), metav1.PatchOptions{}, sub...)
				return err
			}
			const forged, spec = `{"status":{"claims":7}}`, `{"spec":{"priority":7}}`
			eventually(t, func(ctx context.Context) error {
				return refused(patch(ctx, admin, forged, "status"), "only the controller of Fettle writes the status of a preset, not admin")
			})
			if err := refused(patch(t.Context(), node, forged, "status"), "cannot patch resource"); err != nil {
				t.Errorf("by the kubelet plugin: %v", err)
			}
			if err := patch(t.Context(), controller, forged, "status"); err != nil {
				t.Errorf("by the controller: %v", err)
			}
			if err := refused(patch(t.Context(), controller, spec), "cannot patch resource"); err != nil {
				t.Errorf("spec by the controller: %v", err)
			}
			if err := patch(t.Context(), admin, spec); err != nil {
				t.Errorf("spec by an administrator: %v", err)
			}
		})
	}
}

// testConfigMapRights: the controller grants the kubelet plugin a ConfigMap where the administrator said so and nowhere else, and nothing
// else.
func testConfigMapRights(t *testing.T, server *apiServer) {
	server.createNamespace(t, "maps")
	server.createNamespace(t, "no-maps")
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=presets.configMapNamespaces={maps}")
	clients, _ := server.as(t, controllerAccount, "")
	node, _ := server.as(t, plugin, "node1")
	granted := func(space, resource, verb string) error {
		role, binding := grantFor(newPreset("DevicePreset"), resource, verb, grant.Request{
			Kind: "DevicePreset", Resource: resource, Namespace: space, Names: []string{"m"},
		})
		return makeGrant(t.Context(), clients, role, binding)
	}
	reads := func(ctx context.Context, space, name string) error {
		_, err := node.CoreV1().ConfigMaps(space).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	for _, space := range []string{namespace, "maps"} {
		eventually(t, func(context.Context) error { // the API server hears of the controller's new Role a moment later
			if err := granted(space, "configmaps", "get"); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
		eventually(t, func(ctx context.Context) error { return reads(ctx, space, "m") })
		if err := refused(reads(t.Context(), space, "other"), "cannot get resource"); err != nil {
			t.Errorf("another ConfigMap of %s by the kubelet plugin: %v", space, err)
		}
	}
	for _, wrong := range []struct{ space, resource, verb string }{
		{"no-maps", "configmaps", "get"}, {"maps", "secrets", "get"}, {"maps", "services", "get"},
	} {
		if err := granted(wrong.space, wrong.resource, wrong.verb); !apierrors.IsForbidden(err) {
			t.Errorf("a grant of %s %s in %s: %v, want it refused", wrong.verb, wrong.resource, wrong.space, err)
		}
	}
}
