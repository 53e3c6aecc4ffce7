// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
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
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
	"github.com/fettle-dev/fettle/pkg/step"
)

// fetchKind is the step that brings a file to the node and keeps it there for as long as the claim needs it.
const fetchKind = "artifact.fetch"

// fetchParams are the step's parameters.
type fetchParams struct {
	// Reference is where the file is: REGISTRY/REPOSITORY@DIGEST of its manifest.
	Reference string `json:"reference"`
	// Digest and Size are the file's own.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Optional: the claim can do without the file.
	Optional bool `json:"optional,omitempty"`
	// Owner is what the file is kept for: the claim's UID.
	Owner string `json:"owner"`
	// Secrets are names of pull secrets in the namespace SecretsIn.
	SecretsIn string   `json:"secretsIn,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
}

func (p *fetchParams) step(owner string) (step.Step, error) {
	own := *p
	own.Owner = owner
	raw, err := json.Marshal(own)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode step %s: %w", fetchKind, err)
	}
	return step.Step{Kind: fetchKind, Target: p.Digest, Params: raw}, nil
}

// artifacts is the node's store and the way to registries.
type artifacts struct {
	dir    string
	limits artifact.StoreConfig
	client *registry.Client
	kube   kubernetes.Interface

	// sparing is held while a file is brought that no claim asks for.
	sparing sync.Mutex

	mu sync.Mutex
	// opened is nil until something is fetched: most nodes have no use for it.
	opened *artifact.Store
}

func (a *artifacts) store() (*artifact.Store, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened != nil {
		return a.opened, nil
	}
	store, err := artifact.OpenStore(a.dir, a.limits)
	if err == nil {
		a.opened = store
	}
	return store, err
}

// held are the digests of the files that are here, sorted. To ask makes no store.
func (a *artifacts) held() ([]string, error) {
	a.mu.Lock()
	opened := a.opened != nil
	a.mu.Unlock()
	if _, err := os.Lstat(a.dir); !opened && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := a.store()
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

// tend keeps the store below its limits and deletes what was evicted, until ctx ends.
func (a *artifacts) tend(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		a.mu.Lock()
		store := a.opened
		a.mu.Unlock()
		if store == nil {
			continue
		}
		if err := store.Sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The store of bitstreams may hold more than it should")
		}
	}
}

// destroy removes the store and all that is in it.
func (a *artifacts) destroy() error {
	a.sparing.Lock()
	defer a.sparing.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.opened != nil {
		err = a.opened.Close()
		a.opened = nil
	}
	return errors.Join(err, os.RemoveAll(a.dir))
}

func (a *artifacts) kind() step.Kind {
	return step.Kind{Apply: a.fetch, Undo: a.letGo, Verify: a.present}
}

func decodeFetch(raw json.RawMessage) (fetchParams, artifact.Digest, error) {
	var p fetchParams
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, artifact.Digest{}, fmt.Errorf("decode the parameters: %w", err)
	}
	d, err := artifact.ParseDigest(p.Digest)
	return p, d, err
}

// fetch keeps the file from being evicted, and brings it where it is not there yet.
func (a *artifacts) fetch(ctx context.Context, raw json.RawMessage) error {
	p, d, err := decodeFetch(raw)
	if err != nil {
		return err
	}
	store, err := a.store()
	if err != nil {
		return err
	}
	if err := store.Pin(ctx, d, p.Owner); err != nil {
		return err
	}
	return a.bring(ctx, &p)
}

// errNotFetched is about a file that cannot be brought to the node now.
var errNotFetched = errors.New("cannot be fetched")

// bring makes sure that a file is here, and promises nothing for later.
func (a *artifacts) bring(ctx context.Context, p *fetchParams) error {
	err := a.request(ctx, p, false)
	switch {
	case err == nil:
		return nil
	case p.Optional && ctx.Err() == nil:
		klog.FromContext(ctx).Info("A file that is only wanted in case of need is not here", "reference", p.Reference, "reason", err)
		return nil
	}
	return fmt.Errorf("%s %w: %w", p.Reference, errNotFetched, err)
}

// bringSpare brings a file that no claim asks for, if there is room for it. Where ctx has ended it does not so much as open the store.
func (a *artifacts) bringSpare(ctx context.Context, p *fetchParams) error {
	a.sparing.Lock()
	defer a.sparing.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return a.request(ctx, p, true)
}

// request fetches a file that is not here.
func (a *artifacts) request(ctx context.Context, p *fetchParams, spare bool) error {
	d, err := artifact.ParseDigest(p.Digest)
	if err != nil {
		return err
	}
	ref, err := artifact.ParseReference(p.Reference)
	if err != nil {
		return err
	}
	store, err := a.store()
	if err != nil {
		return err
	}
	here, err := isHere(store, d, spare)
	if here || err != nil {
		return err
	}
	keys, err := a.credentials(ctx, p.SecretsIn, p.Secrets)
	if err != nil {
		return err
	}
	fetch := store.Fetch
	if spare {
		fetch = store.FetchSpare
	}
	return fetch(ctx, a.client.Source(ref, keys), artifact.Descriptor{Digest: d, Size: p.Size})
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

func (a *artifacts) letGo(ctx context.Context, raw json.RawMessage) error {
	p, d, err := decodeFetch(raw)
	if err != nil {
		return err
	}
	store, err := a.store()
	if err != nil {
		return err
	}
	return store.Unpin(ctx, d, p.Owner)
}

func (a *artifacts) present(_ context.Context, raw json.RawMessage) error {
	p, _, err := decodeFetch(raw)
	if err != nil {
		return err
	}
	blob, err := a.open(p.Digest)
	if err != nil && p.Optional {
		return nil
	}
	if err != nil {
		return err
	}
	return blob.Close()
}

// credentials reads pull secrets. The controller lets the plugin read exactly those that an object names.
func (a *artifacts) credentials(ctx context.Context, namespace string, names []string) (*registry.Keychain, error) {
	return pullsecret.Read(ctx, func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
		return a.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}, namespace, names)
}

// open gives the steps a file of the store.
func (a *artifacts) open(digest string) (region.Blob, error) {
	d, err := artifact.ParseDigest(digest)
	if err != nil {
		return nil, err
	}
	store, err := a.store()
	if err != nil {
		return nil, err
	}
	blob, err := store.Open(d)
	if err != nil {
		return nil, err // not the nil *artifact.Blob
	}
	return blob, nil
}
