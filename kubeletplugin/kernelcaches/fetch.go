// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// pace returns how long the fetch of a cache may take, however long its callers wait. What limits it is that bytes arrive: 5,000 nodes that
// fetch 1 GB at once get 250 kB a second each from a registry with 10 Gbit/s. Waiting for a turn does not count.
func pace(received *atomic.Int64) budget.Pace {
	const window, rate, fairRate = 10 * time.Minute, 16 << 10, 128 << 10 // bytes a second
	return budget.Pace{
		Most: 6 * time.Hour, Moved: received.Load, Window: window, Least: rate * int64(window/time.Second),
		Fair: 30 * time.Minute, FairLeast: fairRate * int64(window/time.Second),
	}
}

// fetcher brings caches onto the node, verified.
type fetcher struct {
	*Config
	verified *trustpolicies.Records[verification]
	// arrived is called when a cache has come.
	arrived func(context.Context) error
	// base is the context of fetches, which outlive their callers. It ends with the feature.
	base    context.Context //nolint:containedctx // documented
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	fetches  map[string]*fetchOperation
	treeForm artifact.TreeForm
	// failures has the last failure of each fetch, by key.
	failures map[string]failure
}

func newFetcher(c *Config, arrived func(context.Context) error) *fetcher {
	f := &fetcher{
		Config: c, verified: newVerifications(filepath.Join(c.Mounter.Dir, "grants")), arrived: arrived,
		fetches: map[string]*fetchOperation{}, failures: map[string]failure{},
	}
	f.base, f.stop = context.WithCancel(context.Background())
	return f
}

// fetchOperation is a fetch in progress.
type fetchOperation struct {
	cancel        context.CancelFunc
	done          chan struct{}
	opportunistic bool
	// err is set before done is closed.
	err error
}

// fetchAttempts limits the fetches of one call. The first may join a prefetch that skips the image because it fits no GPU.
const fetchAttempts = 3

// ensureLocal makes sure that an object's cache is on the node and that claims may have it.
func (f *fetcher) ensureLocal(ctx context.Context, o *object) (*artifact.Tree, error) {
	if err := o.checkReady(); err != nil {
		return nil, err
	}
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	for range fetchAttempts {
		found, err := f.currentVerification(ctx, o, ref)
		if err != nil {
			return nil, err
		}
		if found != nil {
			store, err := f.Store()
			if err != nil {
				return nil, err
			}
			if tree, err := store.OpenTree(found.Tree); !artifact.NeedsUnpack(err) {
				return tree, err
			}
		}
		if err := f.fetch(ctx, o, ref); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s %w: it changed while it was fetched: retried", o, cachemount.ErrNotReady)
}

// reference returns the object's image with the digest that the controller resolved.
func reference(o *object) (artifact.Reference, error) {
	ref, err := artifact.ParseReference(o.Spec.Image)
	if err != nil {
		return ref, fmt.Errorf("%s %w: spec.image: %w", o, cachemount.ErrRefused, err)
	}
	d, err := artifact.ParseDigest(o.Status.ResolvedDigest)
	if err != nil {
		return ref, fmt.Errorf("%s %w: status.resolvedDigest: %w", o, cachemount.ErrNotReady, err)
	}
	return ref.WithDigest(d), nil
}

// fetchOptions tells a prefetch from a fetch for a claim.
type fetchOptions struct {
	// opportunistic: no claim asked yet, so the store evicts nothing for it.
	opportunistic bool
	// fits reports whether the image fits the node. Nil: any image does.
	fits func(*artifact.Image) bool
	// received counts the bytes that arrive. pull sets it.
	received *atomic.Int64
}

// refusalTTL is how long a refusal is remembered. kubelet retries every few seconds, and each retry would ask the registry for the image
// and its signatures.
const refusalTTL = 30 * time.Second

// failure is the outcome of a failed fetch.
type failure struct {
	err error
	// until is when a refusal expires. It holds for these versions of the policies only.
	until    time.Time
	policies []trustpolicies.Version
}

// recentRefusal returns the refusal of the object's cache that still holds. It returns nil if there is none, if it expired, or if the
// object or a policy changed since.
func (f *fetcher) recentRefusal(ctx context.Context, o *object, ref artifact.Reference) error {
	f.mu.Lock()
	last := f.failures[o.fetchKey()]
	f.mu.Unlock()
	if !f.Clock.Now().Before(last.until) {
		return nil
	}
	_, versions, err := f.policiesFor(ctx, o, ref)
	if err != nil || !slices.Equal(versions, last.policies) {
		return err
	}
	return last.err
}

// newFailure returns the failure of a fetch that ended now under these policies. The refusal of a prefetch does not count for claims.
func newFailure(now time.Time, err error, options fetchOptions, policies []trustpolicies.Version) failure {
	out := failure{err: err, policies: policies}
	if IsRefused(err) && !IsNotReady(err) && !options.opportunistic {
		out.until = now.Add(refusalTTL)
	}
	return out
}

// fetch waits until the cache is on the node.
func (f *fetcher) fetch(ctx context.Context, o *object, ref artifact.Reference) error {
	if err := f.recentRefusal(ctx, o, ref); err != nil {
		return err
	}
	if err := artifact.CheckNetwork(ctx); err != nil {
		fetching, failure := f.fetchState(o)
		return unfetched(o, fetching, failure, err)
	}
	for {
		e := f.startFetch(o, fetchOptions{}) //nolint:contextcheck // it outlives the call
		select {
		case <-e.done:
			if e.opportunistic && e.err != nil {
				continue // the failure of a prefetch does not count for a claim
			}
			return e.err
		case <-ctx.Done():
			return fmt.Errorf("%s %w: it is being fetched: %w", o, cachemount.ErrNotReady, context.Cause(ctx))
		}
	}
}

// unfetched says why a cache is not on the node, by the fetch of it that goes on or was tried last. If there was none, as of an object that
// changed since, it returns why none is tried now.
func unfetched(o *object, fetching bool, failure, why error) error {
	switch {
	case fetching:
		return fmt.Errorf("%s %w: it is being fetched", o, cachemount.ErrNotReady)
	case failure != nil:
		return failure
	}
	return fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, why)
}

// fetchKey returns the key under which callers share a fetch.
func (o *object) fetchKey() string {
	return fmt.Sprintf("%s/%d/%s", o.GetUID(), o.GetGeneration(), o.Status.ResolvedDigest)
}

// startFetch starts the fetch of a cache, or joins the one in progress. The fetch goes on when its callers stop waiting.
func (f *fetcher) startFetch(o *object, options fetchOptions) *fetchOperation {
	key := o.fetchKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.fetches[key]; e != nil {
		return e
	}
	ctx, cancel := context.WithCancel(f.base)
	e := &fetchOperation{cancel: cancel, done: make(chan struct{}), opportunistic: options.opportunistic}
	f.fetches[key] = e
	f.running.Go(func() {
		defer cancel()
		f.Changed()
		var policies []trustpolicies.Version
		policies, e.err = f.pull(ctx, o, options)
		f.mu.Lock()
		delete(f.fetches, key)
		if delete(f.failures, key); e.err != nil && ctx.Err() == nil {
			f.failures[key] = newFailure(f.Clock.Now(), e.err, options, policies)
		}
		f.mu.Unlock()
		close(e.done)
		f.Changed()
	})
	return e
}

// endFetches ends the fetches in progress.
func (f *fetcher) endFetches() {
	f.mu.Lock()
	running := slices.Collect(maps.Values(f.fetches))
	f.mu.Unlock()
	for _, e := range running {
		e.cancel()
		<-e.done
	}
}

// pull resolves the image with the object's own credentials, verifies its signatures, unpacks it if it is not on the node, and saves the
// verification. It returns the versions of the policies that apply.
func (f *fetcher) pull(ctx context.Context, o *object, options fetchOptions) (versions []trustpolicies.Version, err error) {
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	received := &atomic.Int64{}
	options.received = received
	err = f.Unpacking.Do(ctx, o.GetNamespace(), pace(received), func(ctx context.Context) error {
		policies, applying, err := f.policiesFor(ctx, o, ref)
		if err != nil {
			return err
		}
		versions = applying
		return f.pullNow(ctx, &pulling{object: o, ref: ref, options: options, policies: policies, versions: versions})
	})
	if err != nil && !IsRefused(err) && !IsNotReady(err) {
		err = fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	return versions, err
}

// pulling is an object whose image is being pulled, with the policies that are for the image, and their versions.
type pulling struct {
	*object
	ref      artifact.Reference
	options  fetchOptions
	policies []*trust.Policy
	versions []trustpolicies.Version
}

// pullNow is pull during a turn.
func (f *fetcher) pullNow(ctx context.Context, p *pulling) error {
	if err := trust.RefuseUnasked(p.ref, p.GetNamespace(), p.policies); err != nil {
		return fmt.Errorf("%s %w: %w", p, cachemount.ErrRefused, err)
	}
	keys, err := f.Credentials(ctx, p.ReferenceNamespace(f.Namespace), secretNames(p.object))
	if err != nil {
		return fmt.Errorf("%s %w: %w", p, cachemount.ErrNotReady, err)
	}
	src := f.source(p.GetNamespace(), p.ref, keys)
	src.CountInto(p.options.received)
	d, err := src.Resolve(ctx)
	if err != nil {
		return fetchError(p, err)
	}
	found := &verification{
		UID: p.GetUID(), Generation: p.GetGeneration(), Digest: d.Digest, Repository: p.ref.Repository(), Mode: p.VerificationMode(),
		Policies: p.versions,
	}
	if same := f.verified.Find(found.isSameImage); same != nil && f.hasTree(same.Tree) {
		found.Tree = same.Tree
	} else if found.Tree, err = f.verifyAndUnpack(ctx, p, src, d); err != nil || found.Tree.IsZero() {
		return err
	}
	if err := f.verified.Save(found); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save a verification: the cache is verified again after a restart", "object", p)
	}
	if err := f.arrived(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot retain caches: tried again later")
	}
	return nil
}

// source returns the source of an object's image. The errors of a tenant's object say nothing of the network.
func (f *fetcher) source(namespace string, ref artifact.Reference, keys *registry.Keychain) *registry.Source {
	if namespace == "" {
		return f.Client.Source(ref, keys)
	}
	return f.Client.TenantSource(ref, keys)
}

// verifyAndUnpack verifies the signatures of an image and unpacks it. It returns no digest and no error if the image does not fit the node.
func (f *fetcher) verifyAndUnpack(
	ctx context.Context, p *pulling, src *registry.Source, d artifact.Descriptor,
) (artifact.Digest, error) {
	object := trust.Object{Namespace: p.GetNamespace(), Mode: p.VerificationMode()}
	if _, err := trust.Judge(ctx, src, d.Digest, object, p.policies); err != nil {
		if errors.Is(err, trust.ErrRefused) {
			return artifact.Digest{}, fmt.Errorf("%s %w: %w", p, cachemount.ErrRefused, err)
		}
		return artifact.Digest{}, fetchError(p, err)
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if err != nil {
		return artifact.Digest{}, fetchError(p, err)
	}
	if p.options.fits != nil && !p.options.fits(image) {
		return artifact.Digest{}, nil
	}
	tree, err := f.unpack(ctx, src, image, p.GetNamespace(), p.options.opportunistic)
	if err == nil {
		err = f.prove(ctx, src, image, tree)
	}
	if err != nil {
		return artifact.Digest{}, fetchError(p, err)
	}
	return image.Digest, nil
}

// prove makes sure that the image's layers can be read from its repository with the object's credentials. A manifest and a config alone
// show nothing: their digests are no secret, and the tree on the node may be of a repository that the object may not read. The tree's own
// repository, and one that another object's verification record names, need no proof.
func (f *fetcher) prove(ctx context.Context, src *registry.Source, image *artifact.Image, tree *artifact.Tree) error {
	repository := src.Reference().Repository()
	verified := func(known *verification) bool { return known.Repository == repository && known.Tree == tree.Digest }
	if tree.Origin == repository || f.verified.Find(verified) != nil {
		return nil
	}
	for i := range image.Layers {
		if err := src.Prove(ctx, image.Layers[i].Descriptor); err != nil {
			return fmt.Errorf("the node has the image, but not from this repository: %w", err)
		}
	}
	return nil
}

// fetchError wraps err as not ready if a retry may help, else as refused: no retry changes labels that cannot be read.
func fetchError(o fmt.Stringer, err error) error {
	if artifact.IsRetryable(err) && !errors.Is(err, kernelcache.ErrInvalid) {
		return fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	return fmt.Errorf("%s %w: %w", o, cachemount.ErrRefused, err)
}

const (
	// unlabelledRatio is the assumed ratio of unpacked to compressed size for images without a label of their size.
	unlabelledRatio = 20
	// spaceMargin covers names, manifests and partly filled blocks.
	spaceMargin = 64 << 20
)

// roomFor returns how much a tree may take, by the size of the compressed image and by that which a label says, negative if none does. What
// is only assumed, and what is added for safety, is cut to the store's quota, 0 for none: no image is refused for it.
func roomFor(compressed, labelled, quota int64) int64 {
	room, least := compressed*unlabelledRatio+spaceMargin, int64(0)
	if labelled >= 0 {
		room, least = labelled+labelled/4+spaceMargin, labelled
	}
	if quota > 0 {
		room = max(least, min(room, quota))
	}
	return room
}

// unpack unpacks the image into a tree, unless the store has it: another object may name the same image.
func (f *fetcher) unpack(
	ctx context.Context, src *registry.Source, image *artifact.Image, namespace string, opportunistic bool,
) (*artifact.Tree, error) {
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
	form, err := f.form(store)
	if err != nil {
		return nil, err
	}
	spec := artifact.TreeSpec{
		Digest: image.Digest, Layers: image.Layers, Options: unpack.Options{Paths: kernelcache.ImagePaths()}, Form: form,
		Room: roomFor(image.Size(), labels.Size, store.Quota()), Labels: image.Labels, Origin: src.Reference().Repository(),
		Opportunistic: opportunistic, Namespace: namespace,
	}
	tree, err := store.Unpack(ctx, spec, src.LayersKept(store, image.Layers, namespace))
	if err != nil && artifact.IsRetryable(err) && !src.Mixed() {
		return nil, err
	}
	artifact.DropKept(store, image.Layers, spec.Origin, namespace)
	for again := src.Again(); err != nil && again != nil; again = again.Again() {
		klog.FromContext(ctx).Info("What came from a mirror or an earlier try is refused: asking the registry, or the next mirror",
			"image", src.Reference(), "reason", err)
		tree, err = store.Unpack(ctx, spec, again.Layers(image.Layers))
	}
	return tree, err
}

// form returns the form in which the store keeps trees, which depends on the kernel.
func (f *fetcher) form(store *artifact.Store) (artifact.TreeForm, error) {
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
