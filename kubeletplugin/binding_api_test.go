// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/kernelcaches"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/signed"
)

// testLateBinding: GPUs say that their pods wait, and the plugin says when they need not wait any longer, as the claims ask.
func (c *cluster) testLateBinding(t *testing.T) {
	t.Parallel()
	registry := signed.Start(t, true)
	n := c.newNode(t, "late-binding", "8xmi300x")
	n.config.File.KernelCaches = nodeconfig.KernelCaches{Enabled: true, BindingConditions: true}
	n.config.Registries.PlainHTTP = []string{registry.Host}
	n.start("pod-1")
	ready, failed := publication.BindingConditions(device.KindGPU)
	var gpus []string
	n.eventually(func() string {
		gpus = nil
		for _, s := range n.slices() {
			for _, d := range s.Spec.Devices {
				if late := slices.Equal(d.BindingConditions, []string{ready}); late != (s.Spec.Pool.Name == n.name+"/gpu") {
					return fmt.Sprintf("%s waits: %v", d.Name, late)
				} else if late {
					gpus = append(gpus, d.Name)
				}
			}
		}
		if len(gpus) < 3 {
			return fmt.Sprintf("GPUs that wait: %v", gpus)
		}
		return ""
	})

	c.trustAll(t, registry.Host)
	files := signed.Triton("/home/builder/.triton/cache", "hip", `"gfx942"`, 64)
	digest := registry.Files(t, "team/late", "v1", files, nil).String()
	image := registry.Host + "/team/late:v1"
	c.resolvedCache(t, "late", image, digest)
	for i, test := range []struct{ name, caches, condition, reason string }{
		{"late-none", ``, ready, "NotAsked"},
		{"late-fetched", `{"name":"late","bindAfter":"Fetched"}`, ready, "Fetched"},
		{"late-refused", `{"name":"nothing","bindAfter":"Fetched"}`, failed, kernelcaches.ReasonRefused},
	} {
		result := nodefixture.Result(gpus[i], device.KindGPU, gpus[i])
		result.BindingConditions, result.BindingFailureConditions = []string{ready}, []string{failed}
		made := n.claim(test.name, func(c *resourceapi.ResourceClaim) {
			nodefixture.Configured(c, resourceapi.AllocationConfigSourceClaim,
				`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[`+test.caches+`]}`)
		}, result)
		n.annotateWith(v1alpha1.WaitingClaimsAnnotation, fmt.Sprintf("%q", made.Namespace+"/"+made.Name)) // as the controller does
		n.eventually(func() string {
			now, err := c.clients.Kube.ResourceV1().ResourceClaims(namespace).Get(t.Context(), made.Name, metav1.GetOptions{})
			check.Must(t, err)
			for _, d := range now.Status.Devices {
				for _, said := range d.Conditions {
					if said.Type == test.condition && said.Status == metav1.ConditionTrue && said.Reason == test.reason {
						return ""
					}
				}
			}
			return fmt.Sprintf("%s: %+v", test.name, now.Status.Devices)
		})
	}
	if registry.LayerReads() != 1 {
		t.Errorf("%d layers were read", registry.LayerReads())
	}
}

// trustAll has all images of a registry pass.
func (c *cluster) trustAll(t *testing.T, host string) {
	t.Helper()
	c.put(t, "trustpolicies", v1alpha1.KindTrustPolicy, &v1alpha1.TrustPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: []string{host + "/**"}},
	})
}

// resolvedCache makes a cache of which the status is as the controller would write it.
func (c *cluster) resolvedCache(t *testing.T, name, image, digest string) {
	t.Helper()
	object := &v1alpha1.GPUKernelCache{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: v1alpha1.GPUKernelCacheSpec{Image: image},
	}
	made := c.put(t, "gpukernelcaches", v1alpha1.KindGPUKernelCache, object)
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.GPUKernelCacheStatus{
		ObservedGeneration: made.GetGeneration(), ResolvedDigest: digest,
		Verification: &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictSkipped},
	})
	check.Must(t, err)
	made.Object["status"] = status
	_, err = c.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("gpukernelcaches")).Namespace(namespace).
		UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	check.Must(t, err)
}

// put makes an object.
func (c *cluster) put(t *testing.T, resource, kind string, object metav1.Object) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	check.Must(t, err)
	delete(content, "status")
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	made, err := c.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(object.GetNamespace()).
		Create(t.Context(), u, metav1.CreateOptions{})
	check.Must(t, err)
	return made
}
