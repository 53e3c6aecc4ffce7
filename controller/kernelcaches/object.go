// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
)

// keptDigests is how many earlier digests a status keeps if its object does not say.
const keptDigests = 3

// object is a cache of either kind.
type object struct {
	v1alpha1.CommonGPUKernelCache

	// driver is the driver's namespace.
	driver string
}

// Head returns what the pipeline reads of a cache.
func Head(c v1alpha1.CommonGPUKernelCache, driver string) artifacts.Head {
	o, s := object{c, driver}, c.Status
	return artifacts.Head{
		CommonObject: c.CommonObject, Image: c.Spec.Image, PullSecrets: c.Spec.ImagePullSecrets, SecretNamespace: c.ReferenceNamespace(driver),
		Mode: o.VerificationMode(), Interval: o.interval(),
		ObservedGeneration: s.ObservedGeneration, Digest: s.ResolvedDigest, Verification: s.Verification, Conditions: &s.Conditions,
		// Other parts of the spec may have changed since.
		Known: s.ResolvedImage == c.Spec.Image && s.ResolvedDigest != "" && s.Image != nil,
	}
}

// Head implements [artifacts.Artifact].
func (o object) Head() artifacts.Head { return Head(o.CommonGPUKernelCache, o.driver) }

// names says whether the object lists a namespace by its name.
func (o object) names(namespace string) bool { return slices.Contains(o.NamedNamespaces(), namespace) }

// wantsVolumes says whether the cache is also put into volumes.
func (o object) wantsVolumes() bool {
	d := o.Spec.Distribution
	return d != nil && d.Type != "" && d.Type != v1alpha1.CacheNodeLocal
}

// mountsAnyway says whether claims get the cache for GPUs that it does not fit.
func (o object) mountsAnyway() bool {
	return o.Spec.Compatibility != nil && o.Spec.Compatibility.OnMismatch == v1alpha1.CacheMismatchMount
}

// interval returns how often the registry is to be asked, 0 if the object does not say.
func (o object) interval() time.Duration {
	if u := o.Spec.UpdatePolicy; u != nil && u.Interval != nil {
		return u.Interval.Duration
	}
	return 0
}

// history returns the earlier digests after the newest changed: the latest first, and none twice.
func (o object) history(newest string) []string {
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
