// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fettle-dev/fettle/test/check"
)

// cacheObject is a kernel cache, a TrustPolicy, a PartitionPolicy or an AcceleratorStack.
func cacheObject(kind string) *unstructured.Unstructured {
	spec := map[string]any{"image": "registry.example/kernels:v1"}
	switch kind {
	case "ClusterGPUKernelCache":
		spec["workloadNamespaces"] = []any{"*"}
	case "TrustPolicy":
		spec = map[string]any{"images": []any{"registry.example/**"}, "mode": "Skip"}
	case "PartitionPolicy":
		spec = map[string]any{"devices": map[string]any{"passthrough": true}}
	case "AcceleratorStack":
		spec = map[string]any{"driver": map[string]any{"engine": "Host"}}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fettle.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": "kernels"}, "spec": spec,
		"status": map[string]any{"observedGeneration": int64(7)},
	}}
}

// testKernelCacheStatus: nobody but the controller says what an image is, who vouches for it, which policies can be used and what became of
// them, not even an administrator.
func testKernelCacheStatus(t *testing.T, server *apiServer) {
	server.createNamespace(t, "kernels")
	_, controller := server.as(t, controllerAccount, "")
	_, node := server.as(t, plugin, "node1")
	admin, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ kind, resource, namespace, change string }{
		{"GPUKernelCache", "gpukernelcaches", "kernels", `{"spec":{"image":"registry.example/kernels:v2"}}`},
		{"ClusterGPUKernelCache", "clustergpukernelcaches", "", `{"spec":{"image":"registry.example/kernels:v2"}}`},
		{"TrustPolicy", "trustpolicies", "", `{"spec":{"images":["**"]}}`},
		{"PartitionPolicy", "partitionpolicies", "", `{"spec":{"priority":7}}`},
		{"AcceleratorStack", "acceleratorstacks", "", `{"spec":{"nodeSelector":{"matchLabels":{"pool":"a"}}}}`},
	} {
		t.Run(test.kind, func(t *testing.T) {
			in := func(client dynamic.Interface) dynamic.ResourceInterface {
				return client.Resource(bitstreams(test.resource)).Namespace(test.namespace)
			}
			made, err := in(admin).Create(t.Context(), cacheObject(test.kind), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, kept := made.Object["status"]; kept {
				t.Errorf("a status came with the object: %v", made.Object["status"])
			}
			patch := func(ctx context.Context, client dynamic.Interface, text string, sub ...string) error {
				_, err := in(client).Patch(ctx, "kernels", types.MergePatchType, []byte(text), metav1.PatchOptions{}, sub...)
				return err
			}
			const forged = `{"status":{"observedGeneration":8}}`
			eventually(t, func(ctx context.Context) error {
				return refused(patch(ctx, admin, forged, "status"),
					"only the controller of Fettle writes the status of a kernel cache, TrustPolicy, PartitionPolicy or AcceleratorStack, not admin")
			})
			if err := refused(patch(t.Context(), node, forged, "status"), "cannot patch resource"); err != nil {
				t.Errorf("by the kubelet plugin: %v", err)
			}
			if err := patch(t.Context(), controller, forged, "status"); err != nil {
				t.Errorf("by the controller: %v", err)
			}
			for name, client := range map[string]dynamic.Interface{"controller": controller, "kubelet plugin": node} {
				_, err := in(client).List(t.Context(), metav1.ListOptions{})
				if nothing := test.kind == "AcceleratorStack" && client == node; nothing != (err != nil) { // nodes need none
					t.Errorf("read by the %s: %v", name, err)
				}
				if err := refused(patch(t.Context(), client, test.change), "cannot patch resource"); err != nil {
					t.Errorf("spec by the %s: %v", name, err)
				}
			}
			if err := patch(t.Context(), admin, test.change); err != nil {
				t.Errorf("spec by an administrator: %v", err)
			}
		})
	}
}

// testKernelCacheRights: who edits a namespace has caches there, and only an administrator may read which policies there are.
func testKernelCacheRights(t *testing.T, server *apiServer) {
	role, err := server.clients.RbacV1().ClusterRoles().Get(t.Context(), "fettle-admin", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"admin": true, "edit": false, "view": false} {
		if got := aggregated(t, server, name, role.Labels); got != want {
			t.Errorf("fettle-admin is part of the role %s: %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"fettle-view", "fettle-edit", "fettle-admin"} {
		bind(t, server, "kernels", name)
	}
	for _, test := range []struct {
		user, verb, resource string
		want                 bool
	}{
		{"fettle-view", "get", "gpukernelcaches", true},
		{"fettle-view", "create", "gpukernelcaches", false},
		{"fettle-edit", "create", "gpukernelcaches", true},
		{"fettle-edit", "create", "clustergpukernelcaches", false},
		{"fettle-edit", "get", "trustpolicies", false},
		{"fettle-admin", "get", "trustpolicies", true},
		{"fettle-admin", "update", "trustpolicies", false},
		{"fettle-edit", "create", "partitionpolicies", false},
		{"fettle-admin", "update", "partitionpolicies", false},
		{"fettle-view", "get", "acceleratorstacks", true},
		{"fettle-admin", "update", "acceleratorstacks", false},
	} {
		// The API server hears of a new binding a moment later.
		check.Eventually(t, fmt.Sprintf("%s may %s %s: %v", test.user, test.verb, test.resource, test.want), func() bool {
			return may(t, server, test.user, "kernels", test.verb, test.resource, "") == test.want
		})
	}
}
