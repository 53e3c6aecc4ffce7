// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/record"
)

// NodeStatus returns the caches on a node with these GPUs, sorted, with the number of claims that have each. A disabled feature reports
// only the caches of earlier claims. A decision that cannot be read counts for none.
func (f *Feature) NodeStatus(gpus []device.Device, claims []*record.Record) []v1alpha1.NodeCache {
	var uses [][]cachemount.Use
	for _, r := range claims {
		byRequest, _ := decodeUses(r.Decisions[f.Name()])
		uses = append(uses, slices.Concat(slices.Collect(maps.Values(byRequest))...))
	}
	return f.status(gpus, uses)
}

func (f *Feature) status(gpus []device.Device, claims [][]cachemount.Use) []v1alpha1.NodeCache {
	entries := map[[3]string]*v1alpha1.NodeCache{}
	for _, o := range f.objects.list() {
		if entry := f.entry(o, gpus); entry != nil {
			entries[[3]string{o.GetNamespace(), o.GetName(), entry.Digest}] = entry
		}
	}
	for _, uses := range claims {
		seen := map[[3]string]bool{}
		for i := range uses {
			u := &uses[i]
			key := [3]string{u.Namespace, u.Name, u.Digest.String()}
			if seen[key] {
				continue
			}
			seen[key] = true
			if entries[key] == nil {
				entries[key] = f.outdated(u, gpus)
			}
			entries[key].Claims++
		}
	}
	out := make([]v1alpha1.NodeCache, 0, len(entries))
	for _, entry := range entries {
		out = append(out, *entry)
	}
	slices.SortFunc(out, func(a, b v1alpha1.NodeCache) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Digest, b.Digest))
	})
	return out
}

// entry returns the status of an object at its present digest. It returns nil if the node neither has the cache nor tried to fetch it.
func (f *Feature) entry(o *object, gpus []device.Device) *v1alpha1.NodeCache {
	ref, err := reference(o)
	if err != nil {
		return nil
	}
	entry := &v1alpha1.NodeCache{Namespace: o.GetNamespace(), Name: o.GetName(), Digest: ref.Digest().String()}
	if found := f.verified.Get(string(o.GetUID())); found.matches(o) && f.fill(entry, o, found.Tree, gpus) {
		return entry
	}
	fetching, failure := f.fetchState(o)
	switch {
	case fetching:
		entry.Phase = v1alpha1.NodeCacheDownloading
	case failure == nil:
		return nil
	case IsRefused(failure):
		entry.Phase, entry.Reason = v1alpha1.NodeCacheError, "Refused"
	default:
		entry.Phase, entry.Reason = v1alpha1.NodeCacheError, "NotFetched"
	}
	if failure != nil {
		entry.Message = failure.Error()
	}
	return entry
}

// fill enters the size of a tree and the number of GPUs that it fits. It returns false if the store does not have the tree.
func (f *Feature) fill(entry *v1alpha1.NodeCache, o *object, tree artifact.Digest, gpus []device.Device) bool {
	store, err := f.Store()
	if err != nil {
		return false
	}
	t, err := store.PeekTree(tree) // a report does not count as use of the tree
	if err != nil {
		return false
	}
	entry.Phase, entry.Bytes = v1alpha1.NodeCacheExtracted, t.Size
	found, err := f.read(f.base, o, t)
	if err != nil {
		entry.Phase, entry.Reason, entry.Message = v1alpha1.NodeCacheError, "Unusable", err.Error()
		return true
	}
	for i := range gpus {
		reasons := deviceMismatches(found, gpus[i])
		if len(reasons) == 0 {
			entry.CompatibleDevices++
			continue
		}
		entry.IncompatibleDevices++
		if entry.Message == "" {
			entry.Message = fmt.Sprintf("%s: %s", gpus[i].Name, reasons[0])
		}
	}
	if entry.CompatibleDevices == 0 && len(gpus) > 0 {
		entry.Reason = "Incompatible"
	}
	return true
}

// outdated returns the status of a cache that claims have at a digest that its object no longer has.
func (f *Feature) outdated(u *cachemount.Use, gpus []device.Device) *v1alpha1.NodeCache {
	entry := &v1alpha1.NodeCache{Namespace: u.Namespace, Name: u.Name, Digest: u.Digest.String(), Phase: v1alpha1.NodeCacheExtracted}
	c := v1alpha1.GPUKernelCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}, Spec: v1alpha1.GPUKernelCacheSpec{Type: v1alpha1.CacheType(u.Type)},
	}
	o := &object{c.Common()}
	o.Kind = u.Kind
	f.fill(entry, o, u.Tree, gpus)
	return entry
}

// fetchState reports whether an object's cache is being fetched, and the failure of the last fetch.
func (f *Feature) fetchState(o *object) (fetching bool, failure error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches[o.fetchKey()] != nil, f.failures[o.fetchKey()].err
}

// forgetDeleted forgets the failures and verifications of deleted objects.
func (f *Feature) forgetDeleted() error {
	uids, keys := map[types.UID]bool{}, map[string]bool{}
	for _, o := range f.objects.list() {
		uids[o.GetUID()], keys[o.fetchKey()] = true, true
	}
	f.mu.Lock()
	maps.DeleteFunc(f.failures, func(key string, _ failure) bool { return !keys[key] })
	f.mu.Unlock()
	return f.verified.Keep(func(uid string) bool { return uids[types.UID(uid)] })
}
