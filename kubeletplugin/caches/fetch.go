// SPDX-License-Identifier: Apache-2.0

package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// fetchTimeout bounds the fetch of a cache, whoever waits for it.
const fetchTimeout = 30 * time.Minute

// errand is a fetch that is under way.
type errand struct {
	done  chan struct{}
	spare bool
	// err is set before done is closed.
	err error
}

// tries is how often a cache is asked for: the first may have been for a node that had no use for it, the second be done.
const tries = 3

// here makes sure that an object's cache is on the node and that claims may have it.
func (k *Keeper) here(ctx context.Context, o *object) (*artifact.Tree, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	for range tries {
		found, err := k.granted(ctx, o, ref)
		if err != nil {
			return nil, err
		}
		if found != nil {
			store, err := k.Store()
			if err != nil {
				return nil, err
			}
			if tree, err := store.OpenTree(found.Tree); err == nil || !errors.Is(err, fs.ErrNotExist) {
				return tree, err
			}
		}
		if err := k.bring(ctx, o, ref); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s %w: it changed while it was fetched: retried", o, errNotReady)
}

// reference names what the controller resolved.
func reference(o *object) (artifact.Reference, error) {
	ref, err := artifact.ParseReference(o.spec.Image)
	if err != nil {
		return ref, fmt.Errorf("%s, spec.image: %w", o, err)
	}
	d, err := artifact.ParseDigest(o.status.ResolvedDigest)
	if err != nil {
		return ref, fmt.Errorf("%s, status.resolvedDigest: %w", o, err)
	}
	return ref.WithDigest(d), nil
}

// wish is what a fetch is for.
type wish struct {
	// spare: no claim asked yet, so that nothing has to make room.
	spare bool
	// fits says whether the node has a use for the image. Nil: it has.
	fits func(*artifact.Image) bool
}

// refusalHolds is how long a refusal is not looked at anew. kubelet asks again every few seconds, and each time the registry would be asked
// for the image and its signatures.
const refusalHolds = 30 * time.Second

// failure is what became of a fetch.
type failure struct {
	err error
	// A refusal holds until then for the policies as they were.
	until    time.Time
	policies []policyVersion
}

// refusal is why a claim was refused the object's cache a moment ago, nil where that is to be looked at: something else is asked for, or
// another policy says what may be.
func (k *Keeper) refusal(ctx context.Context, o *object, ref artifact.Reference) error {
	k.mu.Lock()
	last := k.failures[o.fetchKey()]
	k.mu.Unlock()
	if !k.Clock.Now().Before(last.until) {
		return nil
	}
	versions, _, err := k.applying(ctx, o, ref)
	if err != nil || !slices.Equal(versions, last.policies) {
		return err
	}
	return last.err
}

// failed notes what became of a fetch by these policies. What was given up for a cache that no claim needs is no refusal of a claim's.
func (k *Keeper) failed(err error, w wish, policies []policyVersion) failure {
	out := failure{err: err, policies: policies}
	if IsRefused(err) && !IsNotReady(err) && !w.spare {
		out.until = k.Clock.Now().Add(refusalHolds)
	}
	return out
}

// bring waits until the cache is here.
func (k *Keeper) bring(ctx context.Context, o *object, ref artifact.Reference) error {
	if err := k.refusal(ctx, o, ref); err != nil {
		return err
	}
	for {
		e := k.begin(o, wish{}) //nolint:contextcheck // it outlives the call
		select {
		case <-e.done:
			if e.spare && e.err != nil {
				continue // it may have been given up for a reason that is not the claim's
			}
			return e.err
		case <-ctx.Done():
			return fmt.Errorf("%s %w: it is being fetched: %w", o, errNotReady, context.Cause(ctx))
		}
	}
}

// fetchKey tells fetches apart.
func (o *object) fetchKey() string {
	return fmt.Sprintf("%s/%d/%s", o.uid, o.generation, o.status.ResolvedDigest)
}

// begin fetches a cache, once for all who ask for it. It goes on when they do not wait any more.
func (k *Keeper) begin(o *object, w wish) *errand {
	key := o.fetchKey()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.errands[key]; e != nil {
		return e
	}
	e := &errand{done: make(chan struct{}), spare: w.spare}
	k.errands[key] = e
	k.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.base, fetchTimeout)
		defer cancel()
		k.Changed()
		var policies []policyVersion
		policies, e.err = k.fetch(ctx, o, w)
		k.mu.Lock()
		delete(k.errands, key)
		if delete(k.failures, key); e.err != nil && ctx.Err() == nil {
			k.failures[key] = k.failed(e.err, w, policies)
		}
		k.mu.Unlock()
		close(e.done)
		k.Changed()
	})
	return e
}

// fetch asks with the object's own credentials whether it may have the image, looks at who signed it, brings what is not here yet, and
// notes that claims may have it. The versions are those of the policies that were asked.
func (k *Keeper) fetch(ctx context.Context, o *object, w wish) (versions []policyVersion, err error) {
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	versions, policies, err := k.applying(ctx, o, ref)
	if err != nil {
		return nil, err
	}
	return versions, k.fetchBy(ctx, o, ref, w, versions, policies)
}

// fetchBy is fetch with the policies as they are, of which those of versions are for the image.
func (k *Keeper) fetchBy(
	ctx context.Context, o *object, ref artifact.Reference, w wish, versions []policyVersion, policies []*trust.Policy,
) error {
	keys, err := k.Credentials(ctx, k.secretsOf(o), secretNames(o))
	if err != nil {
		return fmt.Errorf("%s %w: %w", o, errNotReady, err)
	}
	src := k.Client.Source(ref, keys)
	d, err := src.Resolve(ctx)
	if err != nil {
		return unavailable(o, err)
	}
	found := &grant{
		UID: o.uid, Generation: o.generation, Digest: d.Digest, Repository: ref.Repository(), Mode: o.mode(), Policies: versions,
	}
	if like := k.grants.like(found); like != nil && k.holds(like.Tree) {
		found.Tree = like.Tree
	} else if found.Tree, err = k.judge(ctx, o, src, d, policies, w); err != nil || found.Tree.IsZero() {
		return err
	}
	if err := k.grants.put(found); err != nil {
		klog.FromContext(ctx).Error(err, "After a restart the cache is asked for again", "object", o)
	}
	if err := k.keep(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "What objects want kept is seen to later")
	}
	return nil
}

// judge looks at who signed an image, and brings it. No digest without an error: nobody wishes for it.
func (k *Keeper) judge(
	ctx context.Context, o *object, src *registry.Source, d artifact.Descriptor, policies []*trust.Policy, w wish,
) (artifact.Digest, error) {
	if _, err := trust.Judge(ctx, src, d.Digest, o.namespace, policies, o.mode()); err != nil {
		if errors.Is(err, trust.ErrRefused) {
			return artifact.Digest{}, fmt.Errorf("%s %w: %w", o, errRefused, err)
		}
		return artifact.Digest{}, unavailable(o, err)
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if err != nil {
		return artifact.Digest{}, unavailable(o, err)
	}
	if w.fits != nil && !w.fits(image) {
		return artifact.Digest{}, nil
	}
	if err := k.unpack(ctx, src, image, w.spare); err != nil {
		return artifact.Digest{}, unavailable(o, err)
	}
	return image.Digest, nil
}

// unavailable tells what passes from what does not.
func unavailable(o *object, err error) error {
	if artifact.IsRetryable(err) {
		return fmt.Errorf("%s %w: %w", o, errNotReady, err)
	}
	return fmt.Errorf("%s %w: %w", o, errRefused, err)
}

const (
	// unlabelled is how many times its compressed size a cache may have that does not say its own.
	unlabelled = 20
	// slack is for names, manifests and ends of blocks.
	slack = 64 << 20
)

// unpack makes the image's tree, unless it is here: another object may have brought it.
func (k *Keeper) unpack(ctx context.Context, src *registry.Source, image *artifact.Image, spare bool) error {
	store, err := k.Store()
	if err != nil {
		return err
	}
	if _, err := store.OpenTree(image.Digest); err == nil {
		return nil
	}
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil {
		return err
	}
	room := image.Size()*unlabelled + slack
	if labels.Size >= 0 {
		room = labels.Size + labels.Size/4 + slack
	}
	form, err := k.form(store)
	if err != nil {
		return err
	}
	spec := artifact.TreeSpec{
		Digest: image.Digest, Layers: image.Layers, Options: unpack.Options{Paths: kernelcache.ImagePaths()}, Room: room, Form: form,
		Labels: image.Labels, Spare: spare,
	}
	_, err = store.Unpack(ctx, spec, src.Layers(image.Layers))
	return err
}

// form is how caches lie on this node.
func (k *Keeper) form(store *artifact.Store) (artifact.TreeForm, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.treeForm == "" {
		form, err := store.Form(k.CanMount)
		if err != nil {
			return "", err
		}
		k.treeForm = form
	}
	return k.treeForm, nil
}

// secretsOf is the namespace of an object's pull secrets.
func (k *Keeper) secretsOf(o *object) string {
	if o.namespace == "" {
		return k.Namespace
	}
	return o.namespace
}

func secretNames(o *object) []string {
	var out []string
	for _, s := range o.spec.ImagePullSecrets {
		out = append(out, s.Name)
	}
	return out
}
