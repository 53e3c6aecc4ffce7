// SPDX-License-Identifier: Apache-2.0

// Package binding does the work that claims ask for before their pods are bound, and reports it on the claims (KEP-5007). The controller
// names such claims on the node's AcceleratorNode, so that no node watches the claims of the whole cluster.
package binding

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/waitlist"
)

// Kind is a device kind whose pods wait for one of publication.BindingConditions.
type Kind struct {
	Kind device.Kind
	// Subject begins the message of success: "the bitstream is".
	Subject string
	// BindAfter returns what must be done for a claim before its pod is bound.
	BindAfter func(claim.Allocation) v1alpha1.BindAfter
	// Ready does that for a claim on a snapshot of the machine.
	Ready func(context.Context, *resourceapi.ResourceClaim, claim.Allocation, *inventory.Snapshot) error
}

func (k *Kind) conditions() (ready, failed string) { return publication.BindingConditions(k.Kind) }

const (
	reasonNotAsked = "NotAsked"

	// maxBindingTries is how often the work for a claim is tried before the scheduler looks for another node.
	maxBindingTries = 5
	// bindingPollInterval is the time between checks of work in progress.
	bindingPollInterval = time.Second
	// apiPause is the time after the API server did not answer: that is no failure of the work.
	apiPause = 5 * time.Second
	// againInterval is the least time between two looks at claims that the controller still names.
	againInterval = 20 * time.Second
)

// Claims writes the results to claims.
type Claims interface {
	// WriteRefusal writes why a claim cannot be prepared.
	WriteRefusal(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error
	// SetConditionOf sets a condition on the selected devices of a claim.
	SetConditionOf(
		ctx context.Context, c *resourceapi.ResourceClaim, match func(*resourceapi.DeviceRequestAllocationResult) bool,
		condition metav1.Condition,
	) error
}

// Config has the services and functions that a Binder uses.
type Config struct {
	// Node is the name of the Node object.
	Node   string
	Client kubernetes.Interface
	Claims Claims
	Holder *inventory.Holder
	// Resolve returns what a claim holds, as Prepare resolves it.
	Resolve func(ctx context.Context, c *resourceapi.ResourceClaim) (claim.Allocation, error)
	// Kinds are the device kinds whose pods wait on this node.
	Kinds []Kind
	// Prepare prepares a claim before kubelet asks for it. If the pod never comes, the claim is collected.
	Prepare func(ctx context.Context, c *resourceapi.ResourceClaim) error
	// Reason returns the stable reason of an error.
	Reason func(error) string
	// Underway reports whether an error means that work is in progress. Permanent reports whether a retry on this node soon would fail, too.
	Underway, Permanent func(error) bool
}

// Binder handles claims whose pods are not bound yet: it does the required work and sets a condition on the claim.
type Binder struct {
	Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	// named are the claims that the controller named last.
	named []types.NamespacedName
}

// New returns a binder.
func New(c Config) *Binder {
	const first, longest = time.Second, 15 * time.Second
	return &Binder{Config: c, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](first, longest))}
}

// Named has the claims handled that v1alpha1.WaitingClaimsAnnotation names now and did not name before.
func (b *Binder) Named(text string) {
	b.mu.Lock()
	before := b.named
	b.named = waitlist.Parse(text)
	now := b.named
	b.mu.Unlock()
	for _, key := range now {
		if !slices.Contains(before, key) {
			b.queue.Add(key)
		}
	}
}

// Run handles claims until ctx ends.
func (b *Binder) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, b.queue.ShutDown)()
	var running sync.WaitGroup
	running.Go(func() { wait.JitterUntilWithContext(ctx, b.lookAgain, againInterval, 0.5, true) })
	for b.next(ctx, running.Go) {
	}
	running.Wait()
}

// lookAgain has all claims handled that are named: one that was seen to, and waits anew before its name was taken off, is in no message.
func (b *Binder) lookAgain(context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range b.named {
		b.queue.Add(key)
	}
}

// waitsFor reports whether a claim has a device of this node and of a kind without a final binding condition.
func (b *Binder) waitsFor(c *resourceapi.ResourceClaim, k *Kind) bool {
	return c.Status.Allocation != nil &&
		slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return b.waitsOn(&r, k) && waitlist.Waits(c, &r)
		})
}

// waitsOn reports whether the pod of a device waits for this kind.
func (b *Binder) waitsOn(r *resourceapi.DeviceRequestAllocationResult, k *Kind) bool {
	ready, _ := k.conditions()
	return r.Driver == v1alpha1.DriverName && r.Pool == device.PoolName(b.Node, k.Kind) && slices.Contains(r.BindingConditions, ready)
}

// next waits for a claim and has run handle it, and returns false if there are no more. Each claim of the node's devices is handled by
// itself: a slow registry holds up the claims that need it, and no other.
func (b *Binder) next(ctx context.Context, run func(func())) bool {
	key, down := b.queue.Get()
	if down {
		return false
	}
	run(func() {
		defer b.queue.Done(key)
		switch err := b.handle(ctx, key); {
		case err == nil:
			b.queue.Forget(key)
		case b.Underway(err): // in progress is no failure
			b.queue.AddAfter(key, bindingPollInterval)
		case isUntried(err):
			klog.FromContext(ctx).Info("What a pod waits for is not known", "claim", key, "reason", err)
			b.queue.AddAfter(key, apiPause)
		default:
			klog.FromContext(ctx).Info("A pod waits to be bound", "claim", key, "reason", err)
			b.queue.AddRateLimited(key)
		}
	})
	return true
}

// untriedError is about a claim of which it is not known what to do: nothing was tried for it, or nobody was told what came of it.
type untriedError struct{ error }

func (e *untriedError) Unwrap() error { return e.error }

func isUntried(err error) bool {
	_, untried := errors.AsType[*untriedError](err)
	return untried
}

// handle handles one claim. After an error it is called again.
func (b *Binder) handle(ctx context.Context, key types.NamespacedName) error {
	c, err := b.Client.ResourceV1().ResourceClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return &untriedError{err}
	}
	i := slices.IndexFunc(b.Kinds, func(k Kind) bool { return b.waitsFor(c, &k) })
	if i < 0 {
		return nil
	}
	if err := b.handleKind(ctx, key, c, &b.Kinds[i]); err != nil {
		return err
	}
	if slices.ContainsFunc(b.Kinds[i+1:], func(k Kind) bool { return b.waitsFor(c, &k) }) {
		b.queue.Add(key)
	}
	return nil
}

// handleKind does the work for one device kind before the pod is bound.
func (b *Binder) handleKind(ctx context.Context, key types.NamespacedName, c *resourceapi.ResourceClaim, k *Kind) error {
	ready, failed := k.conditions()
	after, err := b.bindAfter(ctx, c, k)
	if err != nil {
		return &untriedError{err}
	}
	if after == "" {
		return b.setCondition(ctx, c, k, metav1.Condition{
			Type: ready, Reason: reasonNotAsked, Message: "the claim does not ask to bind the pod later",
		})
	}
	err = b.ready(ctx, c, k, after)
	if err == nil {
		return b.setCondition(ctx, c, k, metav1.Condition{Type: ready, Reason: string(after), Message: k.Subject + " on node " + b.Node})
	}
	if ctx.Err() != nil || !b.Permanent(err) && (b.Underway(err) || b.queue.NumRequeues(key) < maxBindingTries) {
		return err
	}
	return b.setCondition(ctx, c, k, metav1.Condition{Type: failed, Reason: b.Reason(err), Message: err.Error()})
}

// ready prepares the claim, or does its device kind's work, and writes a failure to the claim.
func (b *Binder) ready(ctx context.Context, c *resourceapi.ResourceClaim, k *Kind, after v1alpha1.BindAfter) error {
	snapshot, err := b.Holder.Await(ctx)
	if err != nil {
		return err
	}
	if after == v1alpha1.BindAfterLoaded {
		return b.Prepare(ctx, c)
	}
	allocation, err := b.Resolve(ctx, c)
	if err == nil {
		err = k.Ready(ctx, c, allocation, snapshot)
	}
	if err != nil && (b.Permanent(err) || !b.Underway(err)) {
		err = errors.Join(err, b.Claims.WriteRefusal(ctx, c, err))
	}
	return err
}

// setCondition sets a condition to true on the devices that wait for it.
func (b *Binder) setCondition(ctx context.Context, c *resourceapi.ResourceClaim, k *Kind, condition metav1.Condition) error {
	condition.Status = metav1.ConditionTrue
	waiting := func(r *resourceapi.DeviceRequestAllocationResult) bool { return b.waitsOn(r, k) }
	if err := b.Claims.SetConditionOf(ctx, c, waiting, condition); err != nil {
		return &untriedError{err}
	}
	return nil
}

// bindAfter returns what must be done before the pod is bound. For a claim that would be refused it returns "": every node would refuse it,
// and once the pod is bound, Prepare leaves the refusal on the claim for people to read.
func (b *Binder) bindAfter(ctx context.Context, c *resourceapi.ResourceClaim, k *Kind) (v1alpha1.BindAfter, error) {
	allocation, err := b.Resolve(ctx, c)
	if _, refused := errors.AsType[*claim.RefusedError](err); refused {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return k.BindAfter(allocation), nil
}
