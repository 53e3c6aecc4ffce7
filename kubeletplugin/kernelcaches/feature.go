// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"io/fs"
	"os"
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
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// Config has the settings and dependencies of the feature.
type Config struct {
	// Node is the name of the Node object.
	Node string
	// Enabled: the node gives caches to claims.
	Enabled bool
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	// Namespace is the driver's. It has the pull secrets of cluster-wide caches.
	Namespace string
	// Client reads registries, Store opens the node's store, Credentials reads pull secrets.
	Client      *registry.Client
	Store       func() (*artifact.Store, error)
	Credentials func(ctx context.Context, namespace string, names []string) (*registry.Keychain, error)
	// Mounter mounts caches. CanMount reports whether the kernel mounts an image.
	Mounter  *cachemount.Mounter
	CanMount func(index, data string) error
	// Policies reads the TrustPolicies. Its owner has it watch them.
	Policies *trustpolicies.Reader
	// MaxWritable is the most that an object's writableLimit may say. 0: no limit.
	MaxWritable int64
	// Unpacking limits how many images are verified and unpacked at once.
	Unpacking *budget.Lanes
	// Event makes an Event on a claim, ObjectEvent one on a cache. They must not block.
	Event       func(c *resourceapi.ResourceClaim, request, eventType, reason, note string)
	ObjectEvent func(o *corev1.ObjectReference, eventType, reason, note string)
	Clock       clock.PassiveClock
	// Changed is called after the status of the node's caches may have changed. It must not block.
	Changed func()
}

// Feature gives claims of one node the kernel caches that they name.
type Feature struct {
	Config
	*fetcher
	objects *objects
	pods    *pods
	// retention signals that an object changed, so that the retained trees are computed again.
	retention notify.Signal

	mu sync.Mutex
	// judgements has what was found of each cache for the node's status, by the keys of report.judge.
	judgements map[string]*judgement

	// pinning is held while retained trees are pinned and unpinned. notKept has those that exceed the quota, by their objects' UIDs.
	pinning sync.Mutex
	notKept map[types.UID]artifact.Digest
}

var (
	_ prepare.Feature = (*Feature)(nil)
	_ prepare.Fetcher = (*Feature)(nil)
	_ prepare.Owner   = (*Feature)(nil)
)

// quickFetch is how long a fetch may take before it counts as slow.
const quickFetch = 10 * time.Second

// Lanes divides a limit of fetches: what is fetched quickly has one half, and what comes slowly has the other. So slow registries hold up
// only each other.
func Lanes(all budget.Limit) *budget.Lanes {
	slow := budget.Limit{Node: max(1, all.Node/2), Namespace: max(1, all.Namespace/2)}
	return budget.NewLanes(budget.Limit{Node: max(1, all.Node-slow.Node), Namespace: all.Namespace}, slow, quickFetch)
}

// New makes the feature. It reads and changes nothing yet.
func New(c Config) (*Feature, error) {
	f := &Feature{
		Config: c, retention: notify.New(), judgements: map[string]*judgement{}, pods: &pods{kube: c.Kube},
	}
	f.fetcher = newFetcher(&f.Config, f.pinRetained)
	var err error
	if f.objects, err = newObjects(c.Dynamic); err != nil {
		return nil, err
	}
	c.Policies.OnChange(f.objects.listeners.Call)
	f.objects.listeners.Add(func() {
		f.retention.Send()
		f.Changed()
	})
	return f, nil
}

// Watch watches caches until ctx ends. stopped cancels the fetches in progress and waits until everything has ended. If the feature is
// disabled, Watch does nothing.
func (f *Feature) Watch(ctx context.Context) (stopped func()) {
	if !f.Enabled {
		return f.stop
	}
	objectsStopped := f.objects.watch(ctx)
	f.running.Go(func() {
		if f.objects.waitSynced(ctx) {
			f.objects.listeners.Call()
		}
	})
	return func() {
		f.stop()
		objectsStopped()
		f.running.Wait()
	}
}

// maintainInterval is how often retained trees are computed although no object changed.
const maintainInterval = 10 * time.Minute

// Run retains the caches whose objects ask for it, and deletes the records of deleted objects, until ctx ends. If the feature is disabled,
// Run retains none.
func (f *Feature) Run(ctx context.Context) {
	ticker := time.NewTicker(maintainInterval)
	defer ticker.Stop()
	for {
		if err := f.maintain(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot maintain the node's caches: tried again later")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.retention:
		}
	}
}

// maintain retains the trees whose objects ask for it, removes stale mount points, and forgets deleted objects.
func (f *Feature) maintain(ctx context.Context) error {
	err := errors.Join(f.pinRetained(ctx), f.Mounter.Tidy())
	if f.objects.synced() {
		err = errors.Join(err, f.forgetDeleted(f.objects.list()))
	}
	return err
}

// Destroy removes the state of caches. It is called when no claim has any.
func (f *Feature) Destroy() error {
	f.endFetches() // of the prefetcher, which has not waited for their end
	f.pinning.Lock()
	defer f.pinning.Unlock()
	return f.Mounter.Destroy()
}

// trees returns the store's trees in order of eviction. It does not create a store on a node that never had a cache.
func (f *Feature) trees() ([]artifact.BlobUsage, error) {
	if _, err := os.Stat(f.Mounter.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := f.Store()
	if errors.Is(err, artifact.ErrNoStore) {
		return nil, nil
	}
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

// Reason returns the stable reason of an error of this package, "" for any other.
func (f *Feature) Reason(err error) (reason string, permanent bool) {
	switch {
	case IsRefused(err):
		return ReasonRefused, true
	case IsNotReady(err):
		return ReasonNotReady, false
	}
	return "", false
}
