// SPDX-License-Identifier: Apache-2.0

package kernelcaches

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
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// fetchTimeout bounds the fetch of a cache, whoever waits for it.
const fetchTimeout = 30 * time.Minute

// fetchOperation is a fetch that is under way.
type fetchOperation struct {
	done          chan struct{}
	opportunistic bool
	// err is set before done is closed.
	err error
}

// tries is how often a cache is asked for: the first may have been for a node that had no use for it, the second be done.
const tries = 3

// ensureLocal makes sure that an object's cache is on the node and that claims may have it.
func (f *Feature) ensureLocal(ctx context.Context, o *object) (*artifact.Tree, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	for range tries {
		found, err := f.granted(ctx, o, ref)
		if err != nil {
			return nil, err
		}
		if found != nil {
			store, err := f.Store()
			if err != nil {
				return nil, err
			}
			if tree, err := store.OpenTree(found.Tree); err == nil || !errors.Is(err, fs.ErrNotExist) {
				return tree, err
			}
		}
		if err := f.fetch(ctx, o, ref); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s %w: it changed while it was fetched: retried", o, cachemount.ErrNotReady)
}

// reference names what the controller resolved.
func reference(o *object) (artifact.Reference, error) {
	ref, err := artifact.ParseReference(o.Spec.Image)
	if err != nil {
		return ref, fmt.Errorf("%s, spec.image: %w", o, err)
	}
	d, err := artifact.ParseDigest(o.Status.ResolvedDigest)
	if err != nil {
		return ref, fmt.Errorf("%s, status.resolvedDigest: %w", o, err)
	}
	return ref.WithDigest(d), nil
}

// fetchOptions is what a fetch is for.
type fetchOptions struct {
	// opportunistic: no claim asked yet, so that nothing has to make room.
	opportunistic bool
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
func (f *Feature) refusal(ctx context.Context, o *object, ref artifact.Reference) error {
	f.mu.Lock()
	last := f.failures[o.fetchKey()]
	f.mu.Unlock()
	if !f.Clock.Now().Before(last.until) {
		return nil
	}
	versions, _, err := f.applying(ctx, o, ref)
	if err != nil || !slices.Equal(versions, last.policies) {
		return err
	}
	return last.err
}

// failed notes what became of a fetch by these policies. What was given up for a cache that no claim needs is no refusal of a claim's.
func (f *Feature) failed(err error, options fetchOptions, policies []policyVersion) failure {
	out := failure{err: err, policies: policies}
	if IsRefused(err) && !IsNotReady(err) && !options.opportunistic {
		out.until = f.Clock.Now().Add(refusalHolds)
	}
	return out
}

// fetch waits until the cache is here.
func (f *Feature) fetch(ctx context.Context, o *object, ref artifact.Reference) error {
	if err := f.refusal(ctx, o, ref); err != nil {
		return err
	}
	for {
		e := f.startFetch(o, fetchOptions{}) //nolint:contextcheck // it outlives the call
		select {
		case <-e.done:
			if e.opportunistic && e.err != nil {
				continue // it may have been given up for a reason that is not the claim's
			}
			return e.err
		case <-ctx.Done():
			return fmt.Errorf("%s %w: it is being fetched: %w", o, cachemount.ErrNotReady, context.Cause(ctx))
		}
	}
}

// fetchKey tells fetches apart.
func (o *object) fetchKey() string {
	return fmt.Sprintf("%s/%d/%s", o.GetUID(), o.GetGeneration(), o.Status.ResolvedDigest)
}

// startFetch fetches a cache, once for all who ask for it. It goes on when they do not wait any more.
func (f *Feature) startFetch(o *object, options fetchOptions) *fetchOperation {
	key := o.fetchKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.fetches[key]; e != nil {
		return e
	}
	e := &fetchOperation{done: make(chan struct{}), opportunistic: options.opportunistic}
	f.fetches[key] = e
	f.running.Go(func() {
		ctx, cancel := context.WithTimeout(f.base, fetchTimeout)
		defer cancel()
		f.Changed()
		var policies []policyVersion
		policies, e.err = f.pull(ctx, o, options)
		f.mu.Lock()
		delete(f.fetches, key)
		if delete(f.failures, key); e.err != nil && ctx.Err() == nil {
			f.failures[key] = f.failed(e.err, options, policies)
		}
		f.mu.Unlock()
		close(e.done)
		f.Changed()
	})
	return e
}

// pull asks with the object's own credentials whether it may have the image, looks at who signed it, brings what is not here yet, and
// notes that claims may have it. The versions are those of the policies that were asked.
func (f *Feature) pull(ctx context.Context, o *object, options fetchOptions) (versions []policyVersion, err error) {
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	versions, policies, err := f.applying(ctx, o, ref)
	if err != nil {
		return nil, err
	}
	return versions, f.pullBy(ctx, o, ref, options, versions, policies)
}

// pullBy is pull with the policies as they are, of which those of versions are for the image.
func (f *Feature) pullBy(
	ctx context.Context, o *object, ref artifact.Reference, options fetchOptions, versions []policyVersion, policies []*trust.Policy,
) error {
	keys, err := f.Credentials(ctx, o.ReferenceNamespace(f.Namespace), secretNames(o))
	if err != nil {
		return fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	src := f.Client.Source(ref, keys)
	d, err := src.Resolve(ctx)
	if err != nil {
		return unavailable(o, err)
	}
	found := &verification{
		UID: o.GetUID(), Generation: o.GetGeneration(), Digest: d.Digest, Repository: ref.Repository(), Mode: o.VerificationMode(),
		Policies: versions,
	}
	if like := f.verified.like(found); like != nil && f.holds(like.Tree) {
		found.Tree = like.Tree
	} else if found.Tree, err = f.verifyAndUnpack(ctx, o, src, d, policies, options); err != nil || found.Tree.IsZero() {
		return err
	}
	if err := f.verified.put(found); err != nil {
		klog.FromContext(ctx).Error(err, "After a restart the cache is asked for again", "object", o)
	}
	if err := f.keep(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "What objects want kept is seen to later")
	}
	return nil
}

// verifyAndUnpack looks at who signed an image, and brings it. No digest without an error: the node has no use for it.
func (f *Feature) verifyAndUnpack(
	ctx context.Context, o *object, src *registry.Source, d artifact.Descriptor, policies []*trust.Policy, options fetchOptions,
) (artifact.Digest, error) {
	if _, err := trust.Judge(ctx, src, d.Digest, o.GetNamespace(), policies, o.VerificationMode()); err != nil {
		if errors.Is(err, trust.ErrRefused) {
			return artifact.Digest{}, fmt.Errorf("%s %w: %w", o, cachemount.ErrRefused, err)
		}
		return artifact.Digest{}, unavailable(o, err)
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if err != nil {
		return artifact.Digest{}, unavailable(o, err)
	}
	if options.fits != nil && !options.fits(image) {
		return artifact.Digest{}, nil
	}
	tree, err := f.unpack(ctx, src, image, options.opportunistic)
	if err == nil {
		err = f.prove(ctx, src, image, tree)
	}
	if err != nil {
		return artifact.Digest{}, unavailable(o, err)
	}
	return image.Digest, nil
}

// prove makes sure that the image's layers can be read from its repository with the object's credentials. A manifest and a config alone
// show nothing: their digests are no secret, and the tree on the node may be of a repository that the object may not read. The tree's own
// repository, and one that another object's verification record names, need no proof.
func (f *Feature) prove(ctx context.Context, src *registry.Source, image *artifact.Image, tree *artifact.Tree) error {
	repository := src.Reference().Repository()
	if tree.Origin == repository || f.verified.from(repository, tree.Digest) {
		return nil
	}
	for i := range image.Layers {
		if err := src.Prove(ctx, image.Layers[i].Descriptor); err != nil {
			return fmt.Errorf("the node has the image, but not from this repository: %w", err)
		}
	}
	return nil
}

// unavailable tells what passes from what does not.
func unavailable(o fmt.Stringer, err error) error {
	if artifact.IsRetryable(err) {
		return fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	return fmt.Errorf("%s %w: %w", o, cachemount.ErrRefused, err)
}

const (
	// unlabelled is how many times its compressed size a cache may have that does not say its own.
	unlabelled = 20
	// slack is for names, manifests and ends of blocks.
	slack = 64 << 20
)

// unpack makes the image's tree, unless it is here: another object may have brought it.
func (f *Feature) unpack(ctx context.Context, src *registry.Source, image *artifact.Image, opportunistic bool) (*artifact.Tree, error) {
	store, err := f.Store()
	if err != nil {
		return nil, err
	}
	if tree, err := store.OpenTree(image.Digest); err == nil {
		return tree, nil
	}
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil {
		return nil, err
	}
	room := image.Size()*unlabelled + slack
	if labels.Size >= 0 {
		room = labels.Size + labels.Size/4 + slack
	}
	form, err := f.form(store)
	if err != nil {
		return nil, err
	}
	return store.Unpack(ctx, artifact.TreeSpec{
		Digest: image.Digest, Layers: image.Layers, Options: unpack.Options{Paths: kernelcache.ImagePaths()}, Room: room, Form: form,
		Labels: image.Labels, Origin: src.Reference().Repository(), Opportunistic: opportunistic,
	}, src.Layers(image.Layers))
}

// form is how caches lie on this node.
func (f *Feature) form(store *artifact.Store) (artifact.TreeForm, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.treeForm == "" {
		form, err := store.Form(f.CanMount)
		if err != nil {
			return "", err
		}
		f.treeForm = form
	}
	return f.treeForm, nil
}

func secretNames(o *object) []string {
	var out []string
	for _, s := range o.Spec.ImagePullSecrets {
		out = append(out, s.Name)
	}
	return out
}
