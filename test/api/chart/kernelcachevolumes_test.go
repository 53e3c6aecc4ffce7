// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/controller/volumes"
)

// daemonPod is a pod as the controller of DaemonSets makes it, with claims.
func daemonPod(node string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "pod-", Labels: map[string]string{"gkm.io/pvc-mutation": "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes:    []corev1.Volume{{Name: "other", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
				}}},
			}},
		},
	}
	for i, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name:         fmt.Sprintf("v%d", i),
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		})
	}
	return pod
}

// testNodeClaims: pods of DaemonSets name the claim of their node, where the API server has policies for it.
func testNodeClaims(t *testing.T, server *apiServer, has bool) {
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=kernelCaches.volumes.enabled=true")
	policies, err := server.clients.AdmissionregistrationV1().MutatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if !has {
		if !apierrors.IsNotFound(err) && (err != nil || len(policies.Items) > 0) {
			t.Errorf("an older API: got %v, %v, want no policy", policies, err)
		}
		return
	}
	if err != nil || len(policies.Items) != 2 {
		t.Fatalf("got %v, %v, want two policies", policies, err)
	}
	long := strings.Repeat("long.", 48) + "cache"
	createCaches(t, server, long)
	longNode := strings.Repeat("n", 60)
	claimed := func(ctx context.Context, namespace string, pod *corev1.Pod) ([]string, error) {
		got, err := server.clients.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, v := range got.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				names = append(names, v.PersistentVolumeClaim.ClaimName)
			}
		}
		return names, nil
	}
	eventually(t, func(ctx context.Context) error {
		got, err := claimed(ctx, "caches", daemonPod("node-1.example", "kernels", "everywhere"))
		if want := []string{"kernels-node-1.example", "everywhere-node-1.example"}; err == nil && !cmp.Equal(got, want) {
			err = fmt.Errorf("got %v, want %v", got, want)
		}
		return err
	})
	for name, test := range map[string]struct {
		namespace string
		pod       *corev1.Pod
		change    func(*corev1.Pod)
		want      []string
	}{
		"the same name": {"caches", daemonPod("n1", "kernels", "data"), nil, []string{volumes.ClaimName("kernels", "n1"), "data"}},
		"twice":         {"caches", daemonPod("n1", "kernels", "kernels"), nil, []string{"kernels-n1", "kernels-n1"}},
		"for all nodes": {"caches", daemonPod("n1", "rox"), nil, []string{"rox"}},
		"by claims":     {"caches", daemonPod("n1", "local"), nil, []string{"local"}},
		"elsewhere":     {"other", daemonPod("n1", "kernels", "everywhere"), nil, []string{"kernels", "everywhere"}},
		"long":          {"caches", daemonPod(longNode, long), nil, []string{volumes.ClaimName(long, longNode)}},
		"long, unknown": {"caches", daemonPod(longNode+"2", long), nil, []string{long}},
		"no label":      {"caches", daemonPod("n1", "kernels"), func(p *corev1.Pod) { p.Labels = nil }, []string{"kernels"}},
		"no DaemonSet": {
			"caches", daemonPod("n1", "kernels"), func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }, []string{"kernels"},
		},
		"no node":    {"caches", daemonPod("n1", "kernels"), func(p *corev1.Pod) { p.Spec.Affinity = nil }, []string{"kernels"}},
		"no volumes": {"caches", daemonPod("n1"), func(p *corev1.Pod) { p.Spec.Volumes = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(test.pod)
			}
			got, err := claimed(t.Context(), test.namespace, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// createCaches makes caches of each sort, one with a name so long that its claims have a hash.
func createCaches(t *testing.T, server *apiServer, long string) {
	t.Helper()
	for _, namespace := range []string{"caches", "other"} {
		server.createNamespace(t, namespace)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		_, err := server.clients.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	admin, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	const own, ofCluster = "gpukernelcaches", "clustergpukernelcaches"
	for _, c := range []struct{ resource, namespace, kind, name, spec string }{
		{own, "caches", "GPUKernelCache", "kernels", "distribution: {type: RWOPerNode}"},
		{own, "caches", "GPUKernelCache", "rox", "distribution: {type: ROXVolume}"},
		{own, "caches", "GPUKernelCache", "local", "type: Auto"},
		{own, "caches", "GPUKernelCache", long, "distribution: {type: RWOPerNode}"},
		{ofCluster, "", "ClusterGPUKernelCache", "everywhere", "workloadNamespaces: [caches], distribution: {type: RWOPerNode}"},
	} {
		object := &unstructured.Unstructured{}
		text := fmt.Sprintf("{apiVersion: fettle.dev/v1alpha1, kind: %s, metadata: {name: %s}, spec: {image: 'registry.example/a:b', %s}}",
			c.kind, c.name, c.spec)
		if err := yaml.Unmarshal([]byte(text), object); err != nil {
			t.Fatal(err)
		}
		group := schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: c.resource}
		_, err := admin.Resource(group).Namespace(c.namespace).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c.name != long {
			continue
		}
		node := strings.Repeat("n", 60)
		_, controller := server.as(t, controllerAccount, "")
		status := fmt.Appendf(nil, `{"status":{"volumes":[{"namespace":"caches","node":%q,"claimName":%q,"phase":"Pending"}]}}`,
			node, volumes.ClaimName(long, node))
		_, err = controller.Resource(group).Namespace(c.namespace).Patch(t.Context(), long, types.MergePatchType, status,
			metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
}
