// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// ReasonNotKept is the reason of an Event on an object.
const ReasonNotKept = "KernelCacheNotKept"

// retentionPrefix begins the pins that retain trees for objects. The pin of a claim is its UID, which has no dot.
const retentionPrefix = "object."

func retentionPin(uid types.UID) string { return retentionPrefix + string(uid) }

// retainable is a tree that an object asks to retain.
type retainable struct {
	*object
	tree artifact.Digest
	size int64
	// pinned: the tree is pinned for the object already.
	pinned bool
}

// maxRetained is how many trees a namespace may retain on a node. Each is a file that every look at the store reads.
const maxRetained = 64

// limitRetained selects the trees to retain, which take at most limit bytes together; 0 is no limit. Pinned trees come first, then those of
// cluster-wide objects, then the others by name, so that the result is stable. What a namespace has beyond three quarters of the limit
// comes last, so it stays only while no other namespace needs the space. A tree counts once, and once for each namespace.
func limitRetained(all []retainable, limit int64) (stay, exceeding []retainable) {
	all = slices.SortedFunc(slices.Values(all), func(a, b retainable) int {
		if a.pinned != b.pinned {
			if a.pinned {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	node, namespaces := newShare(limit, 0), map[string]*share{"": newShare(limit, 0)}
	var beyond []*retainable
	for i := range all {
		a := &all[i]
		own := namespaces[a.GetNamespace()]
		if own == nil {
			own = newShare(limit/4*3, maxRetained)
			namespaces[a.GetNamespace()] = own
		}
		if !own.fits(a) {
			beyond = append(beyond, a)
			continue
		}
		own.add(a)
		stay, exceeding = node.choose(a, stay, exceeding)
	}
	for _, a := range beyond {
		own := namespaces[a.GetNamespace()]
		if own.pins >= own.most {
			exceeding = append(exceeding, *a)
			continue
		}
		own.add(a)
		stay, exceeding = node.choose(a, stay, exceeding)
	}
	return stay, exceeding
}

// choose adds a tree to those that stay if it fits, else to those that exceed.
func (s *share) choose(a *retainable, stay, exceeding []retainable) (_, _ []retainable) {
	if !s.fits(a) {
		return stay, append(exceeding, *a)
	}
	s.add(a)
	return append(stay, *a), exceeding
}

// share is a part of the store in which each tree counts once. A limit of 0 is none.
type share struct {
	bytes, limit int64
	pins, most   int
	counted      map[artifact.Digest]bool
}

func newShare(limit int64, most int) *share {
	return &share{limit: limit, most: most, counted: map[artifact.Digest]bool{}}
}

func (s *share) fits(a *retainable) bool {
	if s.most > 0 && s.pins >= s.most {
		return false
	}
	return s.counted[a.tree] || s.limit == 0 || s.bytes+a.size <= s.limit
}

func (s *share) add(a *retainable) {
	s.pins++
	if !s.counted[a.tree] {
		s.counted[a.tree] = true
		s.bytes += a.size
	}
}

// pinRetained pins the trees that objects ask to retain, used or not, and unpins those that no object asks for any more. If the feature is
// disabled, it retains none.
func (f *Feature) pinRetained(ctx context.Context) error {
	f.pinning.Lock()
	defer f.pinning.Unlock()
	if f.Enabled && !f.objects.synced() {
		return nil // pins stay until the objects are known
	}
	trees, err := f.trees()
	if err != nil || len(trees) == 0 {
		return err
	}
	store, err := f.Store()
	if err != nil {
		return err
	}
	stay, exceeding := limitRetained(f.retainables(trees), store.Quota()/2)
	wanted := map[artifact.Digest][]string{}
	for i := range stay {
		s := &stay[i]
		owner := retentionPin(s.GetUID())
		wanted[s.tree] = append(wanted[s.tree], owner)
		if !s.pinned {
			err = errors.Join(err, store.PinFor(ctx, s.tree, owner, s.GetNamespace()))
		}
	}
	for i := range trees {
		err = errors.Join(err, unpinObjects(ctx, store, &trees[i], wanted[trees[i].Digest]))
	}
	f.reportNotKept(exceeding, store.Quota())
	return err
}

// unpinObjects removes the pins of objects that are not wanted any more.
func unpinObjects(ctx context.Context, store *artifact.Store, t *artifact.BlobUsage, wanted []string) error {
	var errs []error
	for _, owner := range t.Pins {
		if strings.HasPrefix(owner, retentionPrefix) && !slices.Contains(wanted, owner) {
			errs = append(errs, store.Unpin(ctx, t.Digest, owner))
		}
	}
	return errors.Join(errs...)
}

// retainables returns the trees on the node that objects ask to retain, at the digests that the objects have now.
func (f *Feature) retainables(trees []artifact.BlobUsage) []retainable {
	if !f.Enabled {
		return nil
	}
	onNode := map[artifact.Digest]*artifact.BlobUsage{}
	for i := range trees {
		onNode[trees[i].Digest] = &trees[i]
	}
	var out []retainable
	for _, o := range f.objects.list() {
		if o.Spec.Retention == nil || o.Spec.Retention.Policy != v1alpha1.CacheRetentionKeep {
			continue
		}
		// The digest decides alone: other changes of the spec or of policies keep the tree.
		found := f.verified.Get(string(o.GetUID()))
		if found == nil || found.Digest.String() != o.Status.ResolvedDigest || onNode[found.Tree] == nil {
			continue
		}
		t := onNode[found.Tree]
		out = append(out, retainable{object: o, tree: found.Tree, size: t.Size, pinned: slices.Contains(t.Pins, retentionPin(o.GetUID()))})
	}
	return out
}

// reportNotKept makes Events on objects whose trees may be evicted as any other, once for each tree.
func (f *Feature) reportNotKept(exceeding []retainable, quota int64) {
	reported := map[types.UID]artifact.Digest{}
	for i := range exceeding {
		o := &exceeding[i]
		if reported[o.GetUID()] = o.tree; f.notKept[o.GetUID()] == o.tree {
			continue
		}
		f.ObjectEvent(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: o.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		}, corev1.EventTypeWarning, ReasonNotKept, fmt.Sprintf("%s: its image takes %d bytes, and caches with retention.policy Keep get "+
			"half of the store, %d bytes, together, and %d images for one namespace: it is evicted when space is needed: raise "+
			"the chart's artifacts.maxSize, or keep fewer caches", o.object, o.size, quota/2, maxRetained))
	}
	f.notKept = reported
}
