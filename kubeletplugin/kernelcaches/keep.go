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

// forObject begins the name for which a tree is kept that an object and no claim wants to stay: a claim's is its UID, which has no dot.
const forObject = "object."

func keptFor(uid types.UID) string { return forObject + string(uid) }

// keepable is a tree that an object wants to stay.
type keepable struct {
	*object
	tree artifact.Digest
	size int64
	// kept: it stays already.
	kept bool
}

// allot says which trees stay, so that they take at most so many bytes together; 0 is no limit. What is kept already goes before what is
// not, then that of the cluster before that of namespaces, so that the answer is the same as long as nothing changes. A tree counts once.
func allot(all []keepable, most int64) (stay, not []keepable) {
	all = slices.SortedFunc(slices.Values(all), func(a, b keepable) int {
		if a.kept != b.kept {
			if a.kept {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	counted, sum := map[artifact.Digest]bool{}, int64(0)
	for i := range all {
		a := &all[i]
		if !counted[a.tree] {
			if most > 0 && sum+a.size > most {
				not = append(not, *a)
				continue
			}
			counted[a.tree], sum = true, sum+a.size
		}
		stay = append(stay, *a)
	}
	return stay, not
}

// keep has the trees stay whose objects want that, used or not, and lets those go whose objects do not any more. A node that gives nobody a
// cache keeps none for an object.
func (f *Feature) keep(ctx context.Context) error {
	f.keeping.Lock()
	defer f.keeping.Unlock()
	if f.Enabled && !f.objects.synced() {
		return nil // what is kept stays until it is known what for
	}
	trees, err := f.trees()
	if err != nil || len(trees) == 0 {
		return err
	}
	store, err := f.Store()
	if err != nil {
		return err
	}
	stay, not := allot(f.keepables(trees), store.Quota()/2)
	wanted := map[artifact.Digest][]string{}
	for i := range stay {
		s := &stay[i]
		owner := keptFor(s.GetUID())
		wanted[s.tree] = append(wanted[s.tree], owner)
		if !s.kept {
			err = errors.Join(err, store.Pin(ctx, s.tree, owner))
		}
	}
	for i := range trees {
		err = errors.Join(err, unpinObjects(ctx, store, &trees[i], wanted[trees[i].Digest]))
	}
	f.tellNotKept(not, store.Quota())
	return err
}

// unpinObjects takes the pins away that no object wants any more.
func unpinObjects(ctx context.Context, store *artifact.Store, t *artifact.BlobUsage, wanted []string) error {
	var errs []error
	for _, owner := range t.Pins {
		if strings.HasPrefix(owner, forObject) && !slices.Contains(wanted, owner) {
			errs = append(errs, store.Unpin(ctx, t.Digest, owner))
		}
	}
	return errors.Join(errs...)
}

// keepables are the trees that objects want to stay: those that the node has of the digests that they mean now.
func (f *Feature) keepables(trees []artifact.BlobUsage) []keepable {
	if !f.Enabled {
		return nil
	}
	here := map[artifact.Digest]*artifact.BlobUsage{}
	for i := range trees {
		here[trees[i].Digest] = &trees[i]
	}
	var out []keepable
	for _, o := range f.objects.all() {
		if o.Spec.Retention == nil || o.Spec.Retention.Policy != v1alpha1.CacheRetentionKeep {
			continue
		}
		// Neither a spec that changed in something else nor a policy makes it another tree.
		found := f.verified.get(o.GetUID())
		if found == nil || found.Digest.String() != o.Status.ResolvedDigest || here[found.Tree] == nil {
			continue
		}
		t := here[found.Tree]
		out = append(out, keepable{object: o, tree: found.Tree, size: t.Size, kept: slices.Contains(t.Pins, keptFor(o.GetUID()))})
	}
	return out
}

// tellNotKept says on objects that their trees are evicted as any other, once for each tree.
func (f *Feature) tellNotKept(not []keepable, quota int64) {
	told := map[types.UID]artifact.Digest{}
	for i := range not {
		o := &not[i]
		if told[o.GetUID()] = o.tree; f.notKept[o.GetUID()] == o.tree {
			continue
		}
		f.ObjectEvent(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: o.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		}, corev1.EventTypeWarning, ReasonNotKept, fmt.Sprintf("%s: its image takes %d bytes, and caches with retention.policy Keep have "+
			"half of the store, %d bytes, together: it stays until its room is needed: raise the chart's artifacts.maxSize, or have fewer kept",
			o.object, o.size, quota/2))
	}
	f.notKept = told
}
