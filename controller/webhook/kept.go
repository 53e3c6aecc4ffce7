// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// followAgain is how long the webhook waits before it asks again for a kind that the API server does not serve yet.
const followAgain = 5 * time.Second

// readyWithout is how long the webhook is not ready because it did not read these objects. Afterwards it serves without: reviews of
// configurations do not need them.
const readyWithout = 30 * time.Second

var errNotFollowed = errors.New("PartitionPolicies, DeviceClasses and PriorityClasses were not read yet")

// Kept follows the PartitionPolicies, DeviceClasses and PriorityClasses, which decide over new pods. Pods are made often, and these objects
// change seldom.
type Kept struct {
	cache cache.Cache
	begun time.Time
	// informers are stored once all kinds are followed.
	informers atomic.Pointer[[]cache.Informer]
}

// NewKept returns what follows the objects once it runs.
func NewKept(config *rest.Config, scheme *runtime.Scheme) (*Kept, error) {
	c, err := cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, fmt.Errorf("make a cache of PartitionPolicies and DeviceClasses: %w", err)
	}
	return &Kept{cache: c, begun: time.Now()}, nil
}

// Run follows the objects until ctx ends. Until the definition of PartitionPolicies is served it asks for it again and again.
func (k *Kept) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.cache.Start(ctx) })
	group.Go(func() error {
		for k.follow(ctx) != nil {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(followAgain):
			}
		}
		return nil
	})
	return group.Wait()
}

func (k *Kept) follow(ctx context.Context) error {
	var informers []cache.Informer
	for _, object := range []client.Object{
		&v1alpha1.PartitionPolicy{}, &resourceapi.DeviceClass{}, &schedulingv1.PriorityClass{},
	} {
		informer, err := k.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Info("Waiting for objects that decide over new pods", "reason", err.Error())
			}
			return err
		}
		informers = append(informers, informer)
	}
	k.informers.Store(&informers)
	return nil
}

// synced says whether all objects were read.
func (k *Kept) synced() bool {
	informers := k.informers.Load()
	return informers != nil && !slices.ContainsFunc(*informers, func(i cache.Informer) bool { return !i.HasSynced() })
}

// Ready returns an error while a webhook that runs already, of an earlier version or on another node, should rather be asked.
func (k *Kept) Ready() error {
	if !k.synced() && time.Since(k.begun) < readyWithout {
		return errNotFollowed
	}
	return nil
}

// facts decide over new pods.
type facts struct {
	policies   []v1alpha1.PartitionPolicy
	classes    []resourceapi.DeviceClass
	priorities []schedulingv1.PriorityClass
}

// read returns the objects. It never waits.
func (k *Kept) read(ctx context.Context) (facts, error) {
	if !k.synced() {
		return facts{}, errNotFollowed
	}
	var policies v1alpha1.PartitionPolicyList
	var classes resourceapi.DeviceClassList
	var priorities schedulingv1.PriorityClassList
	var faults []error
	for _, list := range []client.ObjectList{&policies, &classes, &priorities} {
		faults = append(faults, k.cache.List(ctx, list, client.UnsafeDisableDeepCopy))
	}
	return facts{policies.Items, classes.Items, priorities.Items}, errors.Join(faults...)
}
