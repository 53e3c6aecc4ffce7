// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/gpu"
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
	ctx, cancel := context.WithTimeout(f.base, judgeTimeout)
	defer cancel()
	return f.status(ctx, gpus, uses)
}

// status waits for judgements until ctx ends.
func (f *Feature) status(ctx context.Context, gpus []device.Device, claims [][]cachemount.Use) []v1alpha1.NodeCache {
	r := &report{Feature: f, ctx: ctx, gpus: gpus, used: map[string]bool{}}
	defer r.forget()
	entries := map[[3]string]*v1alpha1.NodeCache{}
	for _, o := range f.objects.list() {
		if entry := r.entry(o); entry != nil {
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
				entries[key] = r.outdated(u)
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
func (r *report) entry(o *object) *v1alpha1.NodeCache {
	ref, err := reference(o)
	if err != nil {
		return nil
	}
	entry := &v1alpha1.NodeCache{Namespace: o.GetNamespace(), Name: o.GetName(), Digest: ref.Digest().String()}
	if found := r.verified.Get(string(o.GetUID())); found.matches(o) && r.fill(entry, o, found.Tree) {
		return entry
	}
	fetching, failure := r.fetchState(o)
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
func (r *report) fill(entry *v1alpha1.NodeCache, o *object, tree artifact.Digest) bool {
	store, err := r.Store()
	if err != nil {
		return false
	}
	t, err := store.PeekTree(tree) // a report does not count as use of the tree
	if err != nil {
		return false
	}
	entry.Phase, entry.Bytes = v1alpha1.NodeCacheExtracted, t.Size
	j := r.judge(o, t)
	select {
	case <-j.done:
	case <-r.ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.late = !j.made; j.made {
		j.fill(entry)
	}
	return true
}

// judgeTimeout is how long a report waits for caches to be looked through, all together. What takes longer is in the next report: a large
// image of one namespace must not delay what the node says of everything else.
const judgeTimeout = 5 * time.Second

// report is one look at the caches of the node.
type report struct {
	*Feature
	ctx  context.Context // ends when the report has waited long enough
	gpus []device.Device
	// used are the keys of the judgements that the report needs.
	used map[string]bool
}

// judgement is what was found of a cache: whether it can be used, and which GPUs it fits.
type judgement struct {
	// done is closed when the other fields are set. made says the same under the feature's lock.
	done                     chan struct{}
	made                     bool
	phase                    v1alpha1.NodeCachePhase
	reason, message          string
	compatible, incompatible int32
	// late: a report went without it.
	late bool
}

func (j *judgement) fill(entry *v1alpha1.NodeCache) {
	if j.phase != "" {
		entry.Phase = j.phase
	}
	entry.Reason, entry.Message = j.reason, j.message
	entry.CompatibleDevices, entry.IncompatibleDevices = j.compatible, j.incompatible
}

// judge returns the judgement of a tree, or begins to make it. It goes on when the report ends.
func (r *report) judge(o *object, t *artifact.Tree) *judgement {
	fitted := make([]string, 0, len(r.gpus))
	for i := range r.gpus {
		d, err := gpu.Of(r.gpus[i])
		fitted = append(fitted, fmt.Sprint(d, d.WarpSize, d.Driver, d.MaxPTX, err))
	}
	var targets []v1alpha1.CacheTarget
	if o.Spec.Compatibility != nil {
		targets = o.Spec.Compatibility.Targets
	}
	key := fmt.Sprint(o, t.Digest, o.Spec.Type, targets, fitted)
	r.used[key] = true
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.judgements[key]; j != nil {
		return j
	}
	j := &judgement{done: make(chan struct{})}
	r.judgements[key] = j
	r.running.Go(func() {
		err := r.inspect(r.base, j, o, t)
		r.mu.Lock()
		late := j.late
		if j.made = true; err != nil { // tried again with the next report
			delete(r.judgements, key)
		}
		r.mu.Unlock()
		close(j.done)
		if late && err == nil {
			r.Changed()
		}
	})
	return j
}

// inspect makes a judgement. It returns an error if another try may give another one.
func (r *report) inspect(ctx context.Context, j *judgement, o *object, t *artifact.Tree) error {
	found, err := r.read(ctx, o, t)
	if err != nil {
		j.phase, j.reason, j.message = v1alpha1.NodeCacheError, "Unusable", err.Error()
		if IsRefused(err) {
			return nil
		}
		return err
	}
	for i := range r.gpus {
		reasons := deviceMismatches(found, r.gpus[i])
		if len(reasons) == 0 {
			j.compatible++
			continue
		}
		j.incompatible++
		if j.message == "" {
			j.message = fmt.Sprintf("%s: %s", r.gpus[i].Name, reasons[0])
		}
	}
	if j.compatible == 0 && len(r.gpus) > 0 {
		j.reason = "Incompatible"
	}
	return nil
}

// forget forgets the judgements that the report did not need.
func (r *report) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.judgements, func(key string, _ *judgement) bool { return !r.used[key] })
}

// outdated returns the status of a cache that claims have at a digest that its object no longer has.
func (r *report) outdated(u *cachemount.Use) *v1alpha1.NodeCache {
	entry := &v1alpha1.NodeCache{Namespace: u.Namespace, Name: u.Name, Digest: u.Digest.String(), Phase: v1alpha1.NodeCacheExtracted}
	c := v1alpha1.GPUKernelCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}, Spec: v1alpha1.GPUKernelCacheSpec{Type: v1alpha1.CacheType(u.Type)},
	}
	o := &object{c.Common()}
	o.Kind = u.Kind
	r.fill(entry, o, u.Tree)
	return entry
}

// fetchState reports whether an object's cache is being fetched, and the failure of the last fetch.
func (f *fetcher) fetchState(o *object) (fetching bool, failure error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches[o.fetchKey()] != nil, f.failures[o.fetchKey()].err
}

// forgetDeleted forgets the failures and verifications of deleted objects.
func (f *fetcher) forgetDeleted(there []*object) error {
	uids, keys := map[types.UID]bool{}, map[string]bool{}
	for _, o := range there {
		uids[o.GetUID()], keys[o.fetchKey()] = true, true
	}
	f.mu.Lock()
	maps.DeleteFunc(f.failures, func(key string, _ failure) bool { return !keys[key] })
	f.mu.Unlock()
	return f.verified.Keep(func(uid string) bool { return uids[types.UID(uid)] })
}
