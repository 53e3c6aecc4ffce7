// SPDX-License-Identifier: Apache-2.0

// Package artifacts has the node's store of files from registries, the credentials to fetch them, and the prefetcher, which fetches what
// fits the node before a claim asks for it.
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

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
)

// Config is what a Node works with.
type Config struct {
	// Dir is the directory of the store, made when something is fetched for the first time.
	Dir    string
	Limits artifact.StoreConfig
	// Client is the way to registries, Kube that to pull secrets.
	Client *registry.Client
	Kube   kubernetes.Interface
}

// Node is the node's store and the way to registries.
type Node struct {
	Config

	// sparing is held while a file is fetched that no claim asks for.
	sparing sync.Mutex

	mu sync.Mutex
	// opened is nil until something is fetched: most nodes have no use for it.
	opened *artifact.Store
	// proved has the repositories that were seen to have a file of the store, so that this is looked at once a process.
	proved map[origin]bool
}

// origin is a file in a repository.
type origin struct {
	repository string
	digest     artifact.Digest
}

// maxProved bounds proved. Tenants choose the repositories.
const maxProved = 4096

// New makes a node's store. Nothing is read or made before it is needed.
func New(c Config) *Node { return &Node{Config: c, proved: map[origin]bool{}} }

// Store opens the store, and makes it where there is none.
func (n *Node) Store() (*artifact.Store, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened != nil {
		return n.opened, nil
	}
	store, err := artifact.OpenStore(n.Dir, n.Limits)
	if err == nil {
		n.opened = store
	}
	return store, err
}

// Held returns the digests of the files that are here, sorted. To ask makes no store.
func (n *Node) Held() ([]string, error) {
	n.mu.Lock()
	opened := n.opened != nil
	n.mu.Unlock()
	if _, err := os.Lstat(n.Dir); !opened && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := n.Store()
	if err != nil {
		return nil, err
	}
	digests, err := store.Digests()
	var out []string
	for _, d := range digests {
		out = append(out, d.String())
	}
	return out, err
}

// tendInterval is how often what was evicted from the store is deleted.
const tendInterval = 10 * time.Minute

// Run keeps the store below its limits and deletes what was evicted, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	ticker := time.NewTicker(tendInterval)
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
			klog.FromContext(ctx).Error(err, "The store of bitstreams may hold more than it should")
		}
	}
}

// Destroy removes the store and all that is in it.
func (n *Node) Destroy() error {
	n.sparing.Lock()
	defer n.sparing.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if n.opened != nil {
		err = n.opened.Close()
		n.opened = nil
	}
	return errors.Join(err, os.RemoveAll(n.Dir))
}

// ErrNotFetched is about a file that cannot be brought to the node now.
var ErrNotFetched = errors.New("cannot be fetched")

// Ensure fetches a file that is not in the store. It may be evicted before it is pinned, see package pin.
func (n *Node) Ensure(ctx context.Context, p *pin.Params) error {
	err := n.request(ctx, p, false)
	switch {
	case err == nil:
		return nil
	case p.Optional && ctx.Err() == nil:
		klog.FromContext(ctx).Info("A file that is only wanted in case of need is not here", "reference", p.Reference, "reason", err)
		return nil
	}
	return fmt.Errorf("%s %w: %w", p.Reference, ErrNotFetched, err)
}

// EnsureReadable is Ensure for a file that a claim names by a repository of its own choice. The manifest there may name a file that the
// node has from another repository. So if the file is in the store already, it counts only once it could be read from this repository too.
func (n *Node) EnsureReadable(ctx context.Context, p *pin.Params) error {
	d, err := artifact.ParseDigest(p.Digest)
	if err != nil {
		return err
	}
	ref, err := artifact.ParseReference(p.Reference)
	if err != nil {
		return err
	}
	store, err := n.Store()
	if err != nil {
		return err
	}
	from := origin{repository: ref.Repository(), digest: d}
	if here, err := isHere(store, d, true); err != nil {
		return err
	} else if here && !n.isProved(from) {
		keys, err := n.Credentials(ctx, p.SecretsIn, p.Secrets)
		if err != nil {
			return err
		}
		if err := n.Client.Source(ref, keys).Prove(ctx, artifact.Descriptor{Digest: d, Size: p.Size}); err != nil {
			return fmt.Errorf("%s %w: the node has the file, but not from this repository: %w", p.Reference, ErrNotFetched, err)
		}
	}
	if err := n.Ensure(ctx, p); err != nil {
		return err
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

// EnsureSpare fetches a file that no claim asks for, if there is room for it. Where ctx has ended it does not even open the store.
func (n *Node) EnsureSpare(ctx context.Context, p *pin.Params) error {
	n.sparing.Lock()
	defer n.sparing.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return n.request(ctx, p, true)
}

// request fetches a file that is not here.
func (n *Node) request(ctx context.Context, p *pin.Params, spare bool) error {
	d, err := artifact.ParseDigest(p.Digest)
	if err != nil {
		return err
	}
	ref, err := artifact.ParseReference(p.Reference)
	if err != nil {
		return err
	}
	store, err := n.Store()
	if err != nil {
		return err
	}
	here, err := isHere(store, d, spare)
	if here || err != nil {
		return err
	}
	keys, err := n.Credentials(ctx, p.SecretsIn, p.Secrets)
	if err != nil {
		return err
	}
	fetch := store.Fetch
	if spare {
		fetch = store.FetchOpportunistic
	}
	return fetch(ctx, n.Client.Source(ref, keys), artifact.Descriptor{Digest: d, Size: p.Size})
}

// isHere says whether a file is in the store, before secrets are read for it. Only who needs it uses it thereby.
func isHere(store *artifact.Store, d artifact.Digest, spare bool) (bool, error) {
	if spare {
		digests, err := store.Digests()
		return slices.Contains(digests, d), err
	}
	blob, err := store.Open(d)
	if err != nil {
		return false, nil //nolint:nilerr // what cannot be opened is fetched, which says why that cannot be done either
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
