// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
)

func ownCache(name, image string) *v1alpha1.GPUKernelCache {
	o := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}}
	o.Spec.Image = image
	return o
}

// policyFor is for the repositories of a pattern below the registry.
func (c cluster) policyFor(t *testing.T, name, repositories string, keys ...signed.Key) *v1alpha1.TrustPolicy {
	t.Helper()
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Images = []string{c.registry.Host + "/" + repositories}
	p.Spec.Authorities = authorities(t, keys...)
	return p
}

func authorities(t *testing.T, keys ...signed.Key) (out []v1alpha1.TrustAuthority) {
	t.Helper()
	for i, k := range keys {
		out = append(out, v1alpha1.TrustAuthority{Name: fmt.Sprintf("key-%d", i), Key: &v1alpha1.TrustKey{PEM: k.PEM(t)}})
	}
	return out
}

func cacheStatus(object client.Object) *v1alpha1.GPUKernelCacheStatus {
	switch o := object.(type) {
	case *v1alpha1.GPUKernelCache:
		return &o.Status
	case *v1alpha1.ClusterGPUKernelCache:
		return &o.Status
	}
	return &v1alpha1.GPUKernelCacheStatus{}
}

// awaitCache waits until the conditions Resolved, Verified and Ready are of this generation and as wanted, and the phase too. The object
// is then as it was read last.
func (c cluster) awaitCache(t *testing.T, object client.Object, resolved, verified, ready string, phase v1alpha1.CachePhase) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err.Error()
		}
		status := cacheStatus(object)
		for kind, want := range map[string]string{
			v1alpha1.ConditionResolved: resolved, v1alpha1.ConditionVerified: verified, v1alpha1.ConditionReady: ready,
		} {
			got := meta.FindStatusCondition(status.Conditions, kind)
			if got == nil || got.ObservedGeneration != object.GetGeneration() || string(got.Status)+" "+got.Reason != want {
				return fmt.Sprintf("%s of %s is %+v, want %s", kind, object.GetName(), got, want)
			}
		}
		if status.Phase != phase {
			return fmt.Sprintf("phase of %s is %s, want %s", object.GetName(), status.Phase, phase)
		}
		return ""
	})
}

// edit updates an object that the controller writes the status of.
func (c cluster) edit(t *testing.T, object client.Object, with func()) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err.Error()
		}
		with()
		return errorText(c.client.Update(t.Context(), object))
	})
}

// testCaches: the status, the columns and Events show the digest of an image and its signer, and follow a tag.
func (c cluster) testCaches(t *testing.T) {
	key, other := signed.NewKey(t), signed.NewKey(t)
	c.create(t, c.policyFor(t, "caches", "kernels/*", key))
	first := c.images.Image(t, "kernels/triton", "v1", "one", signed.Labels("90"))
	c.images.SignV3(t, "kernels/triton", first, key)
	object := ownCache("triton", c.registry.Host+"/kernels/triton:v1")
	c.create(t, object)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	status := object.Status
	if status.ResolvedDigest != first.String() || status.Image.Type != "Triton" || len(status.Conditions) != 7 ||
		status.Verification.Result != v1alpha1.VerdictVerified || len(status.Verification.Signers) != 1 {
		t.Errorf("status %+v", status)
	}
	c.wantRow(t, "namespaces/"+team+"/gpukernelcaches/triton", map[string]string{
		"Status": "Pending", "Nodes": "0", "Node-In-Use": "0", "Pod-Running": "0", "Pod-Outdated": "0",
		"Digest": first.String(), "Verified": "True",
	})
	apitest.Eventually(t, func() string { return c.missingEvent("triton", "Verified") })

	second := c.images.Image(t, "kernels/triton", "v1", "two", signed.Labels("90"))
	c.awaitCache(t, object, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
	c.images.SignV2(t, "kernels/triton", second, key)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	digests := append([]string{object.Status.ResolvedDigest}, object.Status.PreviousDigests...)
	if diff := gocmp.Diff([]string{second.String(), first.String()}, digests); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}

	foreign := ownCache("foreign", c.registry.Host+"/kernels/foreign:v1")
	c.images.SignV3(t, "kernels/foreign", c.images.Image(t, "kernels/foreign", "v1", "x", nil), other)
	c.create(t, foreign)
	c.awaitCache(t, foreign, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
	for _, word := range []string{"TrustPolicy caches", "key-0", "0 of 1 signers"} {
		if m := foreign.Status.Verification.Message; !strings.Contains(m, word) {
			t.Errorf("the refusal does not say %q: %s", word, m)
		}
	}
	apitest.Eventually(t, func() string { return c.missingEvent("foreign", "Refused") })
	nobodys := ownCache("nobodys", c.registry.Host+"/team/nobodys:v1")
	c.images.Image(t, "team/nobodys", "v1", "x", nil)
	c.create(t, nobodys)
	c.awaitCache(t, nobodys, "False NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
}

// testTrustPolicies: a policy that changes, breaks, goes or comes counts at once for what it was or is for.
func (c cluster) testTrustPolicies(t *testing.T) {
	key, other := signed.NewKey(t), signed.NewKey(t)
	d := c.images.Image(t, "trust/cache", "v1", "x", nil)
	c.images.SignV3(t, "trust/cache", d, key)
	object := ownCache("trusted", c.registry.Host+"/trust/cache@"+d.String()) // which is resolved again only for a reason
	policy := c.policyFor(t, "trust", "trust/*", key)
	c.create(t, policy)
	c.create(t, object)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	c.awaitPolicy(t, policy, "True Valid")
	c.edit(t, policy, func() { policy.Spec.Authorities = authorities(t, other) })
	c.awaitCache(t, object, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
	if got := object.Status.Verification.Policies; len(got) != 1 || got[0].Generation != policy.Generation {
		t.Errorf("asked %+v, want generation %d", got, policy.Generation)
	}
	c.edit(t, policy, func() { policy.Spec.Authorities = authorities(t, other, key) })
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	c.edit(t, policy, func() {
		policy.Spec.Mode = v1alpha1.VerificationSkip
		policy.Spec.Authorities[0].Key.PEM = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
	})
	c.awaitPolicy(t, policy, "False Invalid")
	c.awaitCache(t, object, "Unknown TrustPolicyInvalid", "False TrustPolicyInvalid", "False TrustPolicyInvalid", v1alpha1.CacheError)
	apitest.Eventually(t, func() string { return c.missingEvent("trust", "Invalid") })
	c.wantRow(t, "trustpolicies/trust", map[string]string{"Mode": "Skip", "Valid": "False"})
	c.edit(t, policy, func() { policy.Spec.Authorities = authorities(t, key) })
	c.awaitPolicy(t, policy, "True Valid")
	c.awaitCache(t, object, "True Resolved", "Unknown Skipped", "True Ready", v1alpha1.CachePending)
	c.edit(t, policy, func() { policy.Spec.Images = []string{"quay.io/**"} })
	c.awaitCache(t, object, "Unknown NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
	again := c.policyFor(t, "again", "**", key)
	again.Spec.Namespaces = []string{team}
	c.create(t, again)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	if err := c.client.Delete(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	c.awaitCache(t, object, "Unknown NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
}

func (c cluster) awaitPolicy(t *testing.T, p *v1alpha1.TrustPolicy, want string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err.Error()
		}
		got := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
		if got == nil || got.ObservedGeneration != p.Generation || string(got.Status)+" "+got.Reason != want {
			return fmt.Sprintf("%s is %+v, want %s", p.Name, got, want)
		}
		return ""
	})
}

// testCacheOutage: while the registry is down nothing is lost, and objects are made, changed and deleted as ever.
func (c cluster) testCacheOutage(t *testing.T) {
	key := signed.NewKey(t)
	d := c.images.Image(t, "outage/cache", "v1", "x", nil)
	c.images.SignV3(t, "outage/cache", d, key)
	policy := c.policyFor(t, "outage", "outage/*", key)
	c.create(t, policy)
	object := ownCache("outage", c.registry.Host+"/outage/cache:v1")
	c.create(t, object)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	c.registry.Down.Store(true)
	defer c.registry.Down.Store(false)
	c.awaitCache(t, object, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	c.edit(t, object, func() { object.Spec.Retention = &v1alpha1.CacheRetention{KeepOldDigests: ptr.To[int32](1)} })
	c.awaitCache(t, object, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	late := ownCache("late-cache", object.Spec.Image)
	c.create(t, late)
	c.awaitCache(t, late, "False RegistryUnavailable", "Unknown NotResolved", "False RegistryUnavailable", v1alpha1.CachePending)
	c.edit(t, policy, func() { policy.Spec.Authorities = authorities(t, signed.NewKey(t)) })
	c.awaitCache(t, object, "Unknown RegistryUnavailable", "Unknown RegistryUnavailable", "False RegistryUnavailable", v1alpha1.CachePending)
	c.edit(t, object, func() { object.Spec.Image = c.registry.Host + "/outage/another:v1" })
	c.awaitCache(t, object, "False RegistryUnavailable", "Unknown NotResolved", "False RegistryUnavailable", v1alpha1.CachePending)
	if diff := gocmp.Diff([]string{d.String()}, object.Status.PreviousDigests); diff != "" {
		t.Error(diff)
	}
	if err := c.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
		t.Errorf("deleted in an outage: %v, want it gone at once", err)
	}
}

// testCacheCounts: what nodes say is counted, without any registry.
func (c cluster) testCacheCounts(t *testing.T) {
	key := signed.NewKey(t)
	d := c.images.Image(t, "counted/cache", "v1", "x", nil)
	c.images.SignV3(t, "counted/cache", d, key)
	c.create(t, c.policyFor(t, "counted", "counted/*", key))
	object := ownCache("counted", c.registry.Host+"/counted/cache@"+d.String())
	c.create(t, object)
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	c.registry.Down.Store(true)
	defer c.registry.Down.Store(false)
	node := c.accelerator(t, "with-caches", "", true)
	says := func(entries ...v1alpha1.NodeCache) {
		t.Helper()
		before := node.DeepCopy()
		node.Status.KernelCaches = entries
		if err := c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	entry := v1alpha1.NodeCache{Namespace: team, Name: "counted", Digest: d.String(), Phase: v1alpha1.NodeCacheDownloading}
	const resolved, verified, ready = "True Resolved", "True Verified", "True Ready"
	says(entry)
	c.awaitCache(t, object, resolved, verified, ready, v1alpha1.CacheDownloading)
	entry.Phase, entry.CompatibleDevices, entry.Claims = v1alpha1.NodeCacheExtracted, 2, 3
	old := entry
	old.Digest, old.Claims = "sha256:"+strings.Repeat("0", 64), 1
	says(old, entry)
	c.awaitCache(t, object, resolved, verified, ready, v1alpha1.CacheRunning)
	want := v1alpha1.CacheCounts{Nodes: 1, NodesInUse: 1, PodsRunning: 4, PodsOutdated: 1}
	if diff := gocmp.Diff(want, object.Status.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	c.wantRow(t, "namespaces/"+team+"/gpukernelcaches/counted", map[string]string{
		"Status": "Running", "Pod-Running": "4", "Pod-Outdated": "1",
	})
	entry.Phase, entry.CompatibleDevices, entry.Claims, entry.Reason = v1alpha1.NodeCacheError, 0, 0, "NoSpace"
	says(entry)
	c.awaitCache(t, object, resolved, verified, ready, v1alpha1.CacheError)
	apitest.Eventually(t, func() string { return c.missingEvent("counted", "NodesFailed") })
	if err := c.client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	c.awaitCache(t, object, resolved, verified, ready, v1alpha1.CachePending)
}

// testClusterCaches: the namespaces of a ClusterGPUKernelCache are looked for, and its secrets are the driver's.
func (c cluster) testClusterCaches(t *testing.T) {
	key := signed.NewKey(t)
	d := c.images.Image(t, "private/kernels", "v1", "x", nil)
	c.images.SignV3(t, "private/kernels", d, key)
	c.create(t, c.policyFor(t, "private", "private/*", key))
	object := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	object.Spec.Image, object.Spec.WorkloadNamespaces = c.registry.Host+"/private/kernels:v1", []string{"comes"}
	object.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull-kernels"}}
	c.create(t, object)
	c.awaitCache(t, object, "False PullSecretUnavailable", "Unknown NotResolved", "False PullSecretUnavailable", v1alpha1.CacheNoNamespace)
	c.pullSecret(t, namespace, "pull-kernels", fpgaregistry.Password)
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "comes"}})
	c.awaitCache(t, object, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	if !meta.IsStatusConditionFalse(object.Status.Conditions, v1alpha1.ConditionNamespaceMissing) {
		t.Errorf("conditions %+v", object.Status.Conditions)
	}
	apitest.Eventually(t, func() string {
		if !c.pluginMay(t, namespace, "get", "secrets", "pull-kernels") || c.pluginMay(t, namespace, "list", "secrets", "pull-kernels") {
			return "the kubelet plugin may not get the secret, or list secrets"
		}
		return ""
	})
	c.wantRow(t, "clustergpukernelcaches/all", map[string]string{"Status": "Pending", "Namespaces": "comes"})
}

// grantedCache makes an object for whose secret there is a Role, and gives the Role's key.
func (c cluster) grantedCache(t *testing.T, name string) client.ObjectKey {
	t.Helper()
	object := ownCache(name, c.registry.Host+"/private/never:v1")
	object.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: name}}
	c.create(t, object)
	key := client.ObjectKey{Namespace: team, Name: "fettle.dev:gpukernelcache:" + name}
	apitest.Eventually(t, func() string { return errorText(c.client.Get(t.Context(), key, &rbacv1.RoleBinding{})) })
	return key
}
