// SPDX-License-Identifier: Apache-2.0

// Package artifacts has the node's store of files from registries, the credentials to fetch them, and the prefetcher, which fetches
// the files that fit the node's devices before a claim asks for them.
package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
)

// Config has the settings and dependencies of a Node.
type Config struct {
	// Dir is the directory of the store. The first fetch creates it.
	Dir    string
	Limits artifact.StoreConfig
	// Client reads registries, Kube reads pull secrets.
	Client *registry.Client
	Kube   kubernetes.Interface
	// Retired reports whether the node was asked to retire. Nil: it never is.
	Retired func() bool
}

// Node fetches files from registries into the node's store.
type Node struct {
	Config

	// prefetching is held while a file is fetched that no claim asks for.
	prefetching sync.Mutex

	mu sync.Mutex
	// opened is nil until the first fetch. Most nodes never need the store.
	opened *artifact.Store
	// destroyed says that the store was removed and not made again since.
	destroyed bool
	// proved has the repositories that are known to have a file of the store, so that each is checked once per process.
	proved map[origin]bool
}

// origin is a file in a repository.
type origin struct {
	repository string
	digest     artifact.Digest
}

// maxProved limits proved, since tenants choose the repositories.
const maxProved = 4096

// New makes a Node. It opens the store when the store is needed.
func New(c Config) *Node { return &Node{Config: c, proved: map[origin]bool{}} }

// Store returns the store, and creates it if there is none. A node that was emptied gets none before it serves again: a claim that fetched
// one file meanwhile goes on with the next.
func (n *Node) Store() (*artifact.Store, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened != nil {
		return n.opened, nil
	}
	if n.destroyed && n.Retired != nil && n.Retired() {
		return nil, fmt.Errorf("open the node's store: the node %w", retirement.ErrRetired)
	}
	store, err := artifact.OpenStore(n.Dir, n.Limits)
	if err == nil {
		n.opened, n.destroyed = store, false
	}
	return store, err
}

// ifThere returns the store, or nil if the node has none, or one that could not be made and never kept anything. It creates none.
func (n *Node) ifThere() (*artifact.Store, error) {
	n.mu.Lock()
	opened := n.opened != nil
	n.mu.Unlock()
	if _, err := os.Lstat(n.Dir); !opened && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no store is no error
	}
	store, err := n.Store()
	if errors.Is(err, artifact.ErrNoStore) {
		return nil, nil //nolint:nilnil // no store is no error
	}
	return store, err
}

// Held returns the digests of the files in the store, sorted. It does not create a store.
func (n *Node) Held() ([]string, error) {
	store, err := n.ifThere()
	if store == nil || err != nil {
		return nil, err
	}
	digests, err := store.Digests()
	var out []string
	for _, d := range digests {
		out = append(out, d.String())
	}
	return out, err
}

// PinnedBy returns the digests of the files in the store that are kept for an owner. It does not create a store.
func (n *Node) PinnedBy(owner string) ([]string, error) {
	store, err := n.ifThere()
	if store == nil || err != nil {
		return nil, err
	}
	usage, err := store.Usage()
	var out []string
	for i := range usage.Blobs {
		if slices.Contains(usage.Blobs[i].Pins, owner) {
			out = append(out, usage.Blobs[i].Digest.String())
		}
	}
	return out, err
}

// Owners returns those for whom files in the store are kept. It does not create a store.
func (n *Node) Owners() ([]string, error) {
	store, err := n.ifThere()
	if store == nil || err != nil {
		return nil, err
	}
	usage, err := store.Usage()
	var out []string
	for i := range usage.Blobs {
		for _, owner := range usage.Blobs[i].Pins {
			if !slices.Contains(out, owner) {
				out = append(out, owner)
			}
		}
	}
	return out, err
}

// sweepInterval is how often evicted files are deleted.
const sweepInterval = 10 * time.Minute

// Run keeps the store below its limits and deletes evicted files, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		n.mu.Lock()
		store := n.opened
		n.mu.Unlock()
		if store == nil {
			continue
		}
		if err := store.Sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot sweep the artifact store: it may exceed its limits")
		}
	}
}

// Destroy removes the store and all that is in it.
func (n *Node) Destroy() error {
	n.prefetching.Lock()
	defer n.prefetching.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if n.opened != nil {
		err = n.opened.Close()
		n.opened = nil
	}
	n.destroyed = true
	return errors.Join(err, os.RemoveAll(n.Dir))
}

// ErrNotFetched: the file cannot be fetched now.
var ErrNotFetched = errors.New("cannot be fetched")

// Ensure fetches a file that is not in the store. It may be evicted before it is pinned, see package pin.
func (n *Node) Ensure(ctx context.Context, p *pin.Params) error {
	_, err := n.fetchMissing(ctx, p, false)
	switch {
	case err == nil:
		return nil
	case p.Optional && ctx.Err() == nil:
		klog.FromContext(ctx).Info("An optional file cannot be fetched", "reference", p.Reference, "reason", err)
		return nil
	}
	return fmt.Errorf("%s %w: %w", p.Reference, ErrNotFetched, err)
}

// EnsureReadable is Ensure for a file whose repository the claim chooses. The manifest there may name a file that the node has, or gets
// meanwhile, from another repository. So the file counts only after all of it was read from this repository.
func (n *Node) EnsureReadable(ctx context.Context, p *pin.Params) error {
	d, ref, _, err := n.locate(p)
	if err != nil {
		return err
	}
	from := origin{repository: ref.Repository(), digest: d}
	read, err := n.fetchMissing(ctx, p, false)
	if err != nil {
		return fmt.Errorf("%s %w: %w", p.Reference, ErrNotFetched, err)
	}
	if !read && !n.isProved(from) {
		keys, err := n.Credentials(ctx, p.SecretsIn, p.Secrets)
		if err != nil {
			return err
		}
		if err := n.Client.TenantSource(ref, keys).Prove(ctx, artifact.Descriptor{Digest: d, Size: p.Size}); err != nil {
			return fmt.Errorf("%s %w: the node has the file, but not from this repository: %w", p.Reference, ErrNotFetched, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.proved) >= maxProved {
		clear(n.proved)
	}
	n.proved[from] = true
	return nil
}

func (n *Node) isProved(o origin) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proved[o]
}

// locate returns the file's digest, the reference that names its repository, and the store, which it opens.
func (n *Node) locate(p *pin.Params) (d artifact.Digest, ref artifact.Reference, store *artifact.Store, err error) {
	if d, err = artifact.ParseDigest(p.Digest); err == nil {
		ref, err = artifact.ParseReference(p.Reference)
	}
	if err == nil {
		store, err = n.Store()
	}
	return d, ref, store, err
}

// EnsureOpportunistic fetches a file that no claim asks for, if there is room for it. If ctx has ended, it does not even open the store.
func (n *Node) EnsureOpportunistic(ctx context.Context, p *pin.Params) error {
	n.prefetching.Lock()
	defer n.prefetching.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := n.fetchMissing(ctx, p, true)
	return err
}

// fetchMissing fetches a file that is not in the store. It reports whether it read all of the file from its repository.
func (n *Node) fetchMissing(ctx context.Context, p *pin.Params, opportunistic bool) (read bool, err error) {
	d, ref, store, err := n.locate(p)
	if err != nil {
		return false, err
	}
	found, err := inStore(store, d, opportunistic)
	if found || err != nil {
		return false, err
	}
	if err := artifact.CheckNetwork(ctx); err != nil {
		return false, err
	}
	keys, err := n.Credentials(ctx, p.SecretsIn, p.Secrets)
	if err != nil {
		return false, err
	}
	fetch := store.Fetch
	if opportunistic {
		fetch = store.FetchOpportunistic
	}
	source := &wholeReads{Source: n.Client.TenantSource(ref, keys)}
	err = fetch(ctx, source, artifact.Descriptor{Digest: d, Size: p.Size})
	return source.read, err
}

// wholeReads notes whether a source gave all of a file. It is asked for the rest of what another one began, and not at all for a file that
// another one gave meanwhile.
type wholeReads struct {
	*registry.Source
	read bool
}

// Pull implements [artifact.Puller].
func (w *wholeReads) Pull(ctx context.Context, d artifact.Descriptor, to artifact.Sink) error {
	empty := to.Size() == 0
	err := w.Source.Pull(ctx, d, to)
	w.read = empty && err == nil
	return err
}

// inStore reports whether a file is in the store, before secrets are read for it. An opportunistic check does not count as use of the file.
func inStore(store *artifact.Store, d artifact.Digest, opportunistic bool) (bool, error) {
	if opportunistic {
		digests, err := store.Digests()
		return slices.Contains(digests, d), err
	}
	blob, err := store.Open(d)
	if err != nil {
		return false, nil //nolint:nilerr // a file that cannot be opened is fetched, which reports the cause if it fails too
	}
	return true, blob.Close()
}

// Credentials reads pull secrets. The controller lets the plugin read exactly those that an object names.
func (n *Node) Credentials(ctx context.Context, namespace string, names []string) (*registry.Keychain, error) {
	return pullsecret.Read(ctx, func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
		return n.Kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}, namespace, names)
}

// Open opens a file of the store for the steps that program it.
func (n *Node) Open(digest string) (region.Blob, error) {
	d, err := artifact.ParseDigest(digest)
	if err != nil {
		return nil, err
	}
	store, err := n.Store()
	if err != nil {
		return nil, err
	}
	blob, err := store.Open(d)
	if err != nil {
		return nil, err // not the nil *artifact.Blob
	}
	return blob, nil
}
