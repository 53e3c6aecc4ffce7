// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Config is what the feature works with.
type Config struct {
	// Node is the name of the Node object.
	Node string
	// Enabled is false where the node gives no claim a cache. WatchPods follows the node's pods, so that none has to be read for a claim.
	Enabled, WatchPods bool
	Kube               kubernetes.Interface
	Dynamic            dynamic.Interface
	// Namespace is the driver's, where the pull secrets of cluster-wide caches are.
	Namespace string
	// Client is the way to registries, Store the node's store, and Credentials reads pull secrets.
	Client      *registry.Client
	Store       func() (*artifact.Store, error)
	Credentials func(ctx context.Context, namespace string, names []string) (*registry.Keychain, error)
	// Mounter mounts caches. CanMount says whether the kernel mounts an image.
	Mounter  *cachemount.Mounter
	CanMount func(index, data string) error
	// PublicRoot is the trusted root of policies that have none of their own. Nil: there is none.
	PublicRoot []byte
	// Event says something on a claim, ObjectEvent on a cache. They must not block.
	Event       func(c *resourceapi.ResourceClaim, eventType, reason, note string)
	ObjectEvent func(o *corev1.ObjectReference, eventType, reason, note string)
	Clock       clock.PassiveClock
	// Changed is called after what the node has of caches may have changed. It must not block.
	Changed func()
}

// Feature gives claims of one node the kernel caches that they name.
type Feature struct {
	Config
	objects  *objects
	pods     *pods
	verified verifications
	trusted  *trust.Cache
	// base is the life of what goes on without a caller.
	base context.Context //nolint:containedctx // documented
	stop context.CancelFunc
	// retention carries a value when it is to be seen again which trees stay.
	retention notify.Signal

	mu       sync.Mutex
	fetches  map[string]*fetchOperation
	treeForm artifact.TreeForm
	// failures are what became of fetches that failed, by key.
	failures map[string]failure
	running  sync.WaitGroup

	// keeping is held while it is seen to which trees objects keep. notKept are those that found no room, by their objects' UIDs.
	keeping sync.Mutex
	notKept map[types.UID]artifact.Digest
}

var _ prepare.Feature = (*Feature)(nil)

// New makes the feature. It reads and changes nothing yet.
func New(c Config) (*Feature, error) {
	base, stop := context.WithCancel(context.Background())
	f := &Feature{
		Config: c, base: base, stop: stop, retention: notify.New(),
		verified: verifications{dir: filepath.Join(c.Mounter.Dir, "grants"), known: map[types.UID]*verification{}},
		trusted:  trust.NewCache(c.PublicRoot), fetches: map[string]*fetchOperation{}, failures: map[string]failure{},
	}
	var err error
	if f.objects, err = newObjects(c.Dynamic); err != nil {
		return nil, err
	}
	if f.pods, err = newPods(c.Kube, c.Node, c.WatchPods); err != nil {
		return nil, err
	}
	f.objects.onChange(func() {
		f.retention.Send()
		f.Changed()
	})
	return f, nil
}

// Watch follows caches, policies and, where that was asked for, pods, until ctx ends. stopped waits for that, and ends what is under way.
// Where the feature is disabled it does nothing.
func (f *Feature) Watch(ctx context.Context) (stopped func()) {
	if !f.Enabled {
		return f.stop
	}
	podsStopped, objectsStopped := f.pods.watch(ctx), f.objects.watch(ctx)
	f.running.Go(func() {
		if f.objects.await(ctx) {
			f.objects.changed()
		}
	})
	return func() {
		f.stop()
		objectsStopped()
		podsStopped()
		f.running.Wait()
	}
}

// tendInterval is how often it is seen to which trees stay.
const tendInterval = 10 * time.Minute

// Run keeps the caches that objects want to stay, and forgets those whose objects are gone, until ctx ends. Where the feature is disabled
// it lets go of what was kept.
func (f *Feature) Run(ctx context.Context) {
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	for {
		if err := f.tend(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Caches that objects want to stay may go, and others stay")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.retention:
		}
	}
}

// tend keeps the trees that objects want to stay, and forgets what objects left that are gone.
func (f *Feature) tend(ctx context.Context) error {
	err := errors.Join(f.keep(ctx), f.Mounter.Tidy())
	if f.objects.synced() {
		err = errors.Join(err, f.sweep())
	}
	return err
}

// Destroy removes what is kept about caches. No claim has any.
func (f *Feature) Destroy() error {
	f.keeping.Lock()
	defer f.keeping.Unlock()
	return f.Mounter.Destroy()
}

// trees are those of the store, in the order in which they would go. To ask makes no store where nobody ever had a cache.
func (f *Feature) trees() ([]artifact.BlobUsage, error) {
	if _, err := os.Stat(f.Mounter.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := f.Store()
	if err != nil {
		return nil, err
	}
	usage, err := store.Usage()
	return usage.Trees, err
}

// The reasons of refused claims.
const (
	ReasonRefused  = "KernelCacheRefused"
	ReasonNotReady = "KernelCacheNotReady"
)

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	switch {
	case IsRefused(err):
		return ReasonRefused
	case IsNotReady(err):
		return ReasonNotReady
	}
	return ""
}
