// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// testBudget: limits above those of the chart are refused, however they are written, for namespaces and for the cluster.
func testBudget(t *testing.T, server *apiServer) {
	server.createNamespace(t, "budget")
	admin, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	try := func(ctx context.Context, o *unstructured.Unstructured, resource, namespace string) error {
		_, err := admin.Resource(bitstreams(resource)).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{DryRun: []string{"All"}})
		return err
	}
	for _, kind := range []struct{ kind, resource, namespace string }{
		{"GPUKernelCache", "gpukernelcaches", "budget"}, {"ClusterGPUKernelCache", "clustergpukernelcaches", ""},
	} {
		for limit, fits := range map[string]bool{"16Gi": true, "16384Mi": true, "17Gi": false, "64Gi": false} {
			o := cacheObject(kind.kind)
			o.SetName("budgeted") // the other's name is taken
			if err := unstructured.SetNestedField(o.Object, limit, "spec", "mount", "writableLimit"); err != nil {
				t.Fatal(err)
			}
			eventually(t, func(ctx context.Context) error {
				err := try(ctx, o, kind.resource, kind.namespace)
				if fits {
					return err
				}
				return refused(err, "spec.mount.writableLimit must be at most 16Gi")
			})
		}
	}
	for _, kind := range []struct{ kind, resource, namespace string }{
		{"DevicePreset", "devicepresets", "budget"}, {"ClusterDevicePreset", "clusterdevicepresets", ""},
	} {
		for limit, fits := range map[string]bool{"512Mi": true, "16Gi": true, "16384Mi": true, "17Gi": false, "900Ti": false, "9e18": false} {
			o := newPreset(kind.kind)
			o.SetName("budgeted")
			mounts := []any{
				map[string]any{"containerPath": "/a", "scratch": map[string]any{"sizeLimit": "1Mi"}},
				map[string]any{"containerPath": "/b", "scratch": map[string]any{"sizeLimit": limit}},
			}
			if err := unstructured.SetNestedSlice(o.Object, mounts, "spec", "mounts"); err != nil {
				t.Fatal(err)
			}
			eventually(t, func(ctx context.Context) error {
				err := try(ctx, o, kind.resource, kind.namespace)
				if fits {
					return err
				}
				return refused(err, "spec.mounts[].scratch.sizeLimit must be at most 16Gi")
			})
		}
	}
}
