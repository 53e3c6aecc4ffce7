// SPDX-License-Identifier: Apache-2.0

package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Config is what a Keeper works with.
type Config struct {
	// Enabled is false where the node gives nobody a cache.
	Enabled bool
	Dynamic dynamic.Interface
	// Namespace is the driver's, where the pull secrets of cluster-wide caches are.
	Namespace string
	// Client is the way to registries, Store the node's store, and Credentials reads pull secrets.
	Client      *artifact.Client
	Store       func() (*artifact.Store, error)
	Credentials func(ctx context.Context, namespace string, names []string) (*artifact.Keychain, error)
	// Pod finds a pod that a claim is reserved for, or another one of its name, with at least its UID and spec.hostUsers.
	Pod func(ctx context.Context, namespace string, consumer *resourceapi.ResourceClaimConsumerReference) (*corev1.Pod, error)
	// Mounts is the directory of mounts. CanMount says whether the kernel mounts an image.
	Mounts   *hostmount.Dir
	CanMount func(index, data string) error
	// Dir is a directory of the keeper's own, which outlives the process.
	Dir string
	// PublicRoot is the trusted root of policies that have none of their own. Nil: there is none.
	PublicRoot []byte
	// Context is the SELinux context of what containers see. Empty: none.
	Context string
	// Tell says something on a claim. It must not block.
	Tell func(c *resourceapi.ResourceClaim, eventType, reason, note string)
	// TellObject says something on a cache. It must not block.
	TellObject func(o corev1.ObjectReference, eventType, reason, note string)
	// Clock is the real one where it is nil.
	Clock clock.PassiveClock
	// Changed is called after what Status says may have changed. It must not block.
	Changed func()
}

// Keeper knows the caches of one node.
type Keeper struct {
	Config
	objects objects
	grants  grants
	trusted *trust.Cache
	// base is the life of what goes on without a caller.
	base context.Context //nolint:containedctx // documented
	stop context.CancelFunc

	mu       sync.Mutex
	errands  map[string]*errand
	treeForm artifact.TreeForm
	// facts are what trees hold, by the tree and the type that it is taken for. failures are what became of fetches that failed, by key.
	facts    map[string]*kernelcache.Cache
	failures map[string]failure
	running  sync.WaitGroup

	// keeping is held while it is seen to which trees objects keep. notKept are those that found no room, by their objects' UIDs.
	keeping sync.Mutex
	notKept map[types.UID]artifact.Digest
}

// New makes a keeper. It reads and changes nothing yet.
func New(c Config) *Keeper {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	base, stop := context.WithCancel(context.Background())
	return &Keeper{
		Config: c, base: base, stop: stop, objects: objects{dynamic: c.Dynamic},
		grants:  grants{dir: filepath.Join(c.Dir, "grants"), known: map[types.UID]*grant{}},
		trusted: trust.NewCache(c.PublicRoot), errands: map[string]*errand{}, facts: map[string]*kernelcache.Cache{},
		failures: map[string]failure{},
	}
}

// Watch follows caches and policies until ctx ends; stopped waits for that, and ends what is under way. changed is called after one of them
// did, and once all of them are known.
func (k *Keeper) Watch(ctx context.Context, changed func()) (stopped func(), err error) {
	unwatched, err := k.objects.watch(ctx, changed)
	if err != nil {
		return nil, err
	}
	k.running.Go(func() {
		if k.objects.await(ctx) {
			changed()
		}
	})
	return func() {
		k.stop()
		unwatched()
		k.running.Wait()
	}, nil
}

// Tend has stay what objects want to stay, and forgets what those left that are gone.
func (k *Keeper) Tend(ctx context.Context) error {
	err := errors.Join(k.keep(ctx), k.tidy())
	if k.objects.synced() {
		err = errors.Join(err, k.sweep())
	}
	return err
}

// Destroy removes what is kept about caches. No claim has any.
func (k *Keeper) Destroy() error {
	k.keeping.Lock()
	defer k.keeping.Unlock()
	names, err := k.Mounts.Names(treeMounts)
	for _, name := range names {
		err = errors.Join(err, k.Mounts.Detach(name))
	}
	return errors.Join(err, os.RemoveAll(k.Dir))
}

// trees are those of the store, in the order in which they would go. To ask makes no store where nobody ever had a cache.
func (k *Keeper) trees() ([]artifact.BlobUsage, error) {
	if _, err := os.Stat(k.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := k.Store()
	if err != nil {
		return nil, err
	}
	usage, err := store.Usage()
	return usage.Trees, err
}

// maxFacts bounds what is remembered of trees. Each takes some hundred KiB at most, and is read again where it was forgotten.
const maxFacts = 64

// inspect says what a tree holds.
func (k *Keeper) inspect(store *artifact.Store, tree *artifact.Tree, as kernelcache.Type) (*kernelcache.Cache, error) {
	key := tree.Digest.String() + " " + string(as)
	k.mu.Lock()
	known := k.facts[key]
	k.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var found kernelcache.Cache
	err := store.ReadTree(tree, func(fsys fs.FS) error {
		var err error
		found, err = kernelcache.Inspect(fsys, kernelcache.Options{Type: as, Labels: tree.Labels})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", tree.Digest, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.facts) >= maxFacts {
		clear(k.facts)
	}
	k.facts[key] = &found
	return &found, nil
}
