// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// keptDigests is how many earlier digests a status keeps where its object does not say.
const keptDigests = 3

// Object is a cache of either kind.
type Object struct {
	v1alpha1.CommonGPUKernelCache

	// SecretNamespace is where the pull secrets are.
	SecretNamespace string
}

// Of returns a cache whose secrets are beside it, or in the driver's namespace if it is of the cluster.
func Of(c v1alpha1.CommonGPUKernelCache, driver string) Object {
	return Object{CommonGPUKernelCache: c, SecretNamespace: c.ReferenceNamespace(driver)}
}

// Grant is what the nodes need to fetch it.
func (o Object) Grant() grant.Request {
	return grant.Request{
		Owner: o.Object, Kind: o.Kind, Resource: "secrets", Namespace: o.SecretNamespace, Names: pull.Names(o.Spec.ImagePullSecrets),
	}
}

// Policies are those of a list that are for the object's image. An image that is not a reference has none.
func (o Object) Policies(all []*trust.Policy) (its []*trust.Policy) {
	ref, err := artifact.ParseReference(o.Spec.Image)
	if err != nil {
		return nil
	}
	for _, p := range all {
		if p.Applies(ref, o.GetNamespace()) {
			its = append(its, p)
		}
	}
	return its
}

// ConcernedBy says whether versions of a policy are for the object's image, or have judged it.
func (o Object) ConcernedBy(versions []*trust.Policy) bool {
	if len(o.Policies(versions)) > 0 {
		return true
	}
	judged := o.Status.Verification
	return judged != nil && slices.ContainsFunc(versions, func(v *trust.Policy) bool {
		return slices.ContainsFunc(judged.Policies, func(p v1alpha1.CachePolicyReference) bool { return p.Name == v.Name() })
	})
}

// Names says whether the object's namespaces have the name.
func (o Object) Names(namespace string) bool { return slices.Contains(o.NamedNamespaces(), namespace) }

// Prewarm is which nodes fetch it ahead.
func (o Object) Prewarm() v1alpha1.CachePrewarm {
	if d := o.Spec.Distribution; d != nil && d.Prewarm != "" {
		return d.Prewarm
	}
	return v1alpha1.CachePrewarmMatching
}

// wantsVolumes says whether it is put into volumes beside the nodes' stores.
func (o Object) wantsVolumes() bool {
	d := o.Spec.Distribution
	return d != nil && d.Type != "" && d.Type != v1alpha1.CacheNodeLocal
}

// Volumes is the object as package volumes has it.
func (o Object) Volumes() volumes.Object {
	return volumes.Of(o.CommonGPUKernelCache)
}

// mode is what the object wants of verification, empty where it leaves that to the policies.
func (o Object) mode() v1alpha1.VerificationMode {
	if o.Spec.Verification == nil {
		return ""
	}
	return o.Spec.Verification.Mode
}

// mountsAnyway says whether claims get it for GPUs that it is not for.
func (o Object) mountsAnyway() bool {
	return o.Spec.Compatibility != nil && o.Spec.Compatibility.OnMismatch == v1alpha1.CacheMismatchMount
}

// interval is how often the registry is asked.
func (o Object) interval(usual time.Duration) time.Duration {
	if u := o.Spec.UpdatePolicy; u != nil && u.Interval != nil {
		return u.Interval.Duration
	}
	return usual
}

// history is the earlier digests once the newest is another one: the newest of them first, and none twice.
func (o Object) history(newest string) []string {
	limit := keptDigests
	if r := o.Spec.Retention; r != nil {
		limit = int(ptr.Deref(r.KeepOldDigests, keptDigests))
	}
	var kept []string
	for _, d := range append([]string{o.Status.ResolvedDigest}, o.Status.PreviousDigests...) {
		if d != "" && d != newest && !slices.Contains(kept, d) && len(kept) < limit {
			kept = append(kept, d)
		}
	}
	return kept
}
