// SPDX-License-Identifier: Apache-2.0

// Package binding does for pods that the scheduler keeps waiting what their claims want done before they are bound, and says so on the
// claims (KEP-5007).
package binding

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Kind is what pods with one kind of device wait for: one of publish.BindingConditions.
type Kind struct {
	Kind device.Kind
	// What is the thing that is there or not, for messages: "the bitstream is".
	What string
	// Asked is what a claim wants done before the pod is bound.
	Asked func(claim.Allocation) v1alpha1.BindAfter
	// Ready does so for a claim and a snapshot of the machine.
	Ready func(context.Context, *resourceapi.ResourceClaim, claim.Allocation, *inventory.Snapshot) error
}

func (k *Kind) conditions() (ready, failed string) { return publish.BindingConditions(k.Kind) }

const (
	reasonNotAsked = "NotAsked"

	// bindingTries is how often it is tried to bring something before the scheduler is asked to look for another node.
	bindingTries = 5
	// bindingWorkers is how many claims are seen to at once.
	bindingWorkers = 4
	// bindingGlance is how soon it is looked again whether what is on its way has come.
	bindingGlance = time.Second
)

// Claims says on claims what became of them.
type Claims interface {
	// WriteRefusal writes why a claim cannot be prepared.
	WriteRefusal(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error
	// SetConditionOf sets a condition on those of a claim's devices that are meant.
	SetConditionOf(
		ctx context.Context, c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool,
		condition metav1.Condition,
	) error
}

// Config is what a Binder works with.
type Config struct {
	// Node is the name of the Node object.
	Node   string
	Client kubernetes.Interface
	Claims Claims
	Holder *inventory.Holder
	// Kinds are those whose pods wait on this node.
	Kinds []Kind
	// Prepare prepares a claim, which is what kubelet asks for once the pod is bound. A claim that was prepared for a pod that never came is
	// collected.
	Prepare func(ctx context.Context, c *resourceapi.ResourceClaim) error
	// Reason is the stable reason of an error.
	Reason func(error) string
	// Underway says that an error is about something that is on its way and no failure. Hopeless says that trying again soon on this node is
	// of no use.
	Underway, Hopeless func(error) bool
}

// Binder sees to claims whose pods are not bound yet: it does what is asked to be done before that, and says so on the claim.
type Binder struct {
	Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// New makes a binder.
func New(c Config) *Binder {
	const first, longest = time.Second, 15 * time.Second
	return &Binder{Config: c, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](first, longest))}
}

// Run sees to claims until ctx ends.
func (b *Binder) Run(ctx context.Context) {
	enqueue := func(object any) {
		if c, ok := object.(*resourceapi.ResourceClaim); ok && b.waits(c) {
			b.queue.Add(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
		}
	}
	informer, err := follow.New(b.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll), follow.Options{
		Client: b.Client, Object: &resourceapi.ResourceClaim{}, Keep: b.trim,
		Handle: cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, now any) { enqueue(now) }},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Pods that wait for bitstreams or kernel caches are not bound")
		return
	}
	defer follow.Run(ctx, informer)()
	stop := context.AfterFunc(ctx, b.queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range bindingWorkers {
		workers.Go(func() {
			for b.next(ctx) {
			}
		})
	}
	workers.Wait()
}

// trim keeps of the cluster's claims in memory only what tells those that wait here.
func (b *Binder) trim(object any) (any, error) {
	c, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	kept := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
	}}
	if b.waits(c) {
		kept.Status = c.Status
	}
	return kept, nil
}

// waits says whether a claim has a device of this node of which nothing is said yet.
func (b *Binder) waits(c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(b.Kinds, func(k Kind) bool { return b.waitsFor(c, &k) })
}

// waitsFor says whether it has one of this kind.
func (b *Binder) waitsFor(c *resourceapi.ResourceClaim, k *Kind) bool {
	if c.Status.Allocation == nil || c.DeletionTimestamp != nil {
		return false
	}
	ready, failed := k.conditions()
	return slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		if !b.waitsOn(&r, k) {
			return false
		}
		i := slices.IndexFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return claim.KeyOf(d.Driver, d.Pool, d.Device, d.ShareID) == claim.KeyOf(r.Driver, r.Pool, r.Device, (*string)(r.ShareID))
		})
		return i < 0 || !meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, ready) &&
			!meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, failed)
	})
}

// waitsOn says whether the pod of a device waits for this.
func (b *Binder) waitsOn(r *resourceapi.DeviceRequestAllocationResult, k *Kind) bool {
	ready, _ := k.conditions()
	return r.Driver == v1alpha1.DriverName && r.Pool == inventory.PoolName(b.Node, k.Kind) && slices.Contains(r.BindingConditions, ready)
}

func (b *Binder) next(ctx context.Context) bool {
	key, down := b.queue.Get()
	if down {
		return false
	}
	defer b.queue.Done(key)
	switch err := b.handle(ctx, key); {
	case err == nil:
		b.queue.Forget(key)
	case b.Underway(err): // which takes the time that it takes, and is no failure
		b.queue.AddAfter(key, bindingGlance)
	default:
		klog.FromContext(ctx).Info("A pod waits to be bound", "claim", key, "reason", err)
		b.queue.AddRateLimited(key)
	}
	return true
}

// handle sees to one claim. An error: it is tried again.
func (b *Binder) handle(ctx context.Context, key types.NamespacedName) error {
	c, err := b.Client.ResourceV1().ResourceClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(b.Kinds, func(k Kind) bool { return b.waitsFor(c, &k) })
	if i < 0 {
		return nil
	}
	return b.seeTo(ctx, key, c, &b.Kinds[i]) // what is said then is a change of the claim, with which the next kind has its turn
}

// seeTo does for one kind of device what the claim wants done before its pod is bound.
func (b *Binder) seeTo(ctx context.Context, key types.NamespacedName, c *resourceapi.ResourceClaim, k *Kind) error {
	ready, failed := k.conditions()
	after := b.asked(c, k)
	if after == "" {
		return b.tell(ctx, c, k, ready, reasonNotAsked, "nothing asks to bind the pod later")
	}
	err := b.ready(ctx, c, k, after)
	if err == nil {
		return b.tell(ctx, c, k, ready, string(after), k.What+" on node "+b.Node)
	}
	if ctx.Err() != nil || !b.Hopeless(err) && (b.Underway(err) || b.queue.NumRequeues(key) < bindingTries) {
		return err
	}
	return b.tell(ctx, c, k, failed, b.Reason(err), err.Error())
}

// ready prepares the claim, or does what its kind of device needs before. What fails is said on the claim.
func (b *Binder) ready(ctx context.Context, c *resourceapi.ResourceClaim, k *Kind, after v1alpha1.BindAfter) error {
	snapshot, err := b.Holder.Await(ctx)
	if err != nil {
		return err
	}
	if after == v1alpha1.BindAfterLoaded {
		return b.Prepare(ctx, c)
	}
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: b.Node})
	if err == nil {
		err = k.Ready(ctx, c, allocation, snapshot)
	}
	if err != nil && (b.Hopeless(err) || !b.Underway(err)) {
		err = errors.Join(err, b.Claims.WriteRefusal(ctx, c, err))
	}
	return err
}

// tell sets a condition on the devices that wait for it.
func (b *Binder) tell(ctx context.Context, c *resourceapi.ResourceClaim, k *Kind, condition, reason, message string) error {
	waiting := func(r *resourceapi.DeviceRequestAllocationResult) bool { return b.waitsOn(r, k) }
	return b.Claims.SetConditionOf(ctx, c, waiting, metav1.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: reason, Message: message,
	})
}

// asked is what is wanted before the pod is bound. A claim that is refused asks for nothing: it would be refused on every node, and where
// kubelet asks for it the refusal stays on the claim for people to read.
func (b *Binder) asked(c *resourceapi.ResourceClaim, k *Kind) v1alpha1.BindAfter {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: b.Node})
	if err != nil {
		return ""
	}
	return k.Asked(allocation)
}
