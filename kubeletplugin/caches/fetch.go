// SPDX-License-Identifier: Apache-2.0

package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// fetchTimeout bounds the fetch of a cache, whoever waits for it.
const fetchTimeout = 30 * time.Minute

// errand is a fetch that is under way.
type errand struct {
	done chan struct{}
	err  error
}

// here makes sure that an object's cache is on the node and that claims may have it.
func (k *Keeper) here(ctx context.Context, o *object) (*artifact.Tree, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	for range 2 {
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
		if err := k.bring(ctx, o); err != nil {
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

// bring waits until the cache is here. The fetch itself goes on when the caller does not wait any more, and is the same for all who do.
func (k *Keeper) bring(ctx context.Context, o *object) error {
	key := fmt.Sprintf("%s/%d/%s", o.uid, o.generation, o.status.ResolvedDigest)
	k.mu.Lock()
	e := k.errands[key]
	if e == nil {
		e = &errand{done: make(chan struct{})}
		k.errands[key] = e
		go func() { //nolint:contextcheck,gosec // it outlives the call
			ctx, cancel := context.WithTimeout(k.base, fetchTimeout)
			defer cancel()
			e.err = k.fetch(ctx, o)
			k.mu.Lock()
			delete(k.errands, key)
			k.mu.Unlock()
			close(e.done)
		}()
	}
	k.mu.Unlock()
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("%s %w: it is being fetched: %w", o, errNotReady, context.Cause(ctx))
	}
}

// fetch asks with the object's own credentials whether it may have the image, looks at who signed it, brings what is not here yet, and
// notes that claims may have it.
func (k *Keeper) fetch(ctx context.Context, o *object) error {
	ref, err := reference(o)
	if err != nil {
		return err
	}
	keys, err := k.Credentials(ctx, k.secretsOf(o), secretNames(o))
	if err != nil {
		return fmt.Errorf("%s %w: %w", o, errNotReady, err)
	}
	src := k.Client.Source(ref, keys)
	d, err := src.Resolve(ctx)
	if err != nil {
		return unavailable(o, err)
	}
	versions, policies, err := k.applying(ctx, o, ref)
	if err != nil {
		return err
	}
	if _, err := trust.Judge(ctx, src, d.Digest, o.namespace, policies, o.mode()); err != nil {
		if errors.Is(err, trust.ErrRefused) {
			return fmt.Errorf("%s %w: %w", o, errRefused, err)
		}
		return unavailable(o, err)
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if err != nil {
		return unavailable(o, err)
	}
	if err := k.unpack(ctx, o, src, image); err != nil {
		return unavailable(o, err)
	}
	if err := k.grants.put(&grant{UID: o.uid, Generation: o.generation, Digest: d.Digest, Tree: image.Digest, Policies: versions}); err != nil {
		klog.FromContext(ctx).Error(err, "After a restart the cache is asked for again", "object", o)
	}
	return nil
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
func (k *Keeper) unpack(ctx context.Context, o *object, src *artifact.Source, image *artifact.Image) error {
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
		Labels: image.Labels,
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
