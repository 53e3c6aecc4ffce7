// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
)

// awaited is what pods with one kind of device wait for: conditions on a claim's devices, of which the scheduler waits for one before it
// binds the pod (KEP-5007). Each kind has its own, since a claim with devices of two waits for both.
type awaited struct {
	kind device.Kind
	// ready and failed are the conditions; what is the thing that is there or not, for messages.
	ready, failed, what string
	// asked is what a claim wants done before the pod is bound.
	asked func(claim.Allocation) v1alpha1.BindAfter
}

// waitsFor are the kinds of devices whose pods may have to wait.
func waitsFor() []awaited {
	return []awaited{
		{
			kind: device.KindFPGA, what: "the bitstream is", asked: bitstreamsAsked,
			ready: v1alpha1.GroupName + "/BitstreamReady", failed: v1alpha1.GroupName + "/BitstreamFailed",
		},
		{
			kind: device.KindGPU, what: "the kernel caches are", asked: cachesAsked,
			ready: v1alpha1.GroupName + "/KernelCachesReady", failed: v1alpha1.GroupName + "/KernelCachesFailed",
		},
	}
}

const (
	reasonNotAsked = "NotAsked"

	// bindingTries is how often it is tried to bring something before the scheduler is asked to look for another node.
	bindingTries = 5
	// bindingWorkers is how many claims are seen to at once.
	bindingWorkers = 4
	// bindingGlance is how soon it is looked again whether what is on its way has come.
	bindingGlance = time.Second
)

// binder sees to claims whose pods are not bound yet: it does what is asked to be done before that, and says so on the claim.
type binder struct {
	client kubernetes.Interface
	teller *teller
	node   string
	// late are the kinds whose pods wait on this node.
	late []awaited
	// ready does what must be done before a claim's pod is bound, and says on the claim why it could not.
	ready func(context.Context, *resourceapi.ResourceClaim, device.Kind, v1alpha1.BindAfter) error
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

func (p *Plugin) newBinder() *binder {
	const first, longest = time.Second, 15 * time.Second
	late := slices.DeleteFunc(waitsFor(), func(a awaited) bool { return !slices.Contains(p.config.File.BindLate(), a.kind) })
	return &binder{
		client: p.clients.Kube, teller: p.teller, node: p.config.Node, late: late, ready: p.readyToBind,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](first, longest)),
	}
}

// run ends with ctx.
func (b *binder) run(ctx context.Context) {
	enqueue := func(object any) {
		if c, ok := object.(*resourceapi.ResourceClaim); ok && b.waits(c) {
			b.queue.Add(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
		}
	}
	informer, err := follow.New(b.client.ResourceV1().ResourceClaims(metav1.NamespaceAll), follow.Options{
		Client: b.client, Object: &resourceapi.ResourceClaim{}, Keep: b.trim,
		Handle: cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, now any) { enqueue(now) }},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Pods that wait for bitstreams or kernel caches are not bound")
		return
	}
	defer follow.Run(ctx, informer)()
	stop := context.AfterFunc(ctx, b.queue.ShutDown)
	defer stop()
	done := make(chan struct{})
	for range bindingWorkers {
		go func() {
			defer func() { done <- struct{}{} }()
			for b.next(ctx) {
			}
		}()
	}
	for range bindingWorkers {
		<-done
	}
}

// trim keeps of the cluster's claims in memory only what tells those that wait here.
func (b *binder) trim(object any) (any, error) {
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
func (b *binder) waits(c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(b.late, func(a awaited) bool { return b.waitsFor(c, &a) })
}

// waitsFor says whether it has one of this kind.
func (b *binder) waitsFor(c *resourceapi.ResourceClaim, a *awaited) bool {
	if c.Status.Allocation == nil || c.DeletionTimestamp != nil {
		return false
	}
	return slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		if !b.waitsOn(&r, a) {
			return false
		}
		i := slices.IndexFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return keyOf(d.Driver, d.Pool, d.Device, d.ShareID) == keyOf(r.Driver, r.Pool, r.Device, (*string)(r.ShareID))
		})
		return i < 0 || !meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, a.ready) &&
			!meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, a.failed)
	})
}

// waitsOn says whether the pod of a device waits for this.
func (b *binder) waitsOn(r *resourceapi.DeviceRequestAllocationResult, a *awaited) bool {
	return r.Driver == v1alpha1.DriverName && r.Pool == poolName(b.node, a.kind) && slices.Contains(r.BindingConditions, a.ready)
}

func (b *binder) next(ctx context.Context) bool {
	key, down := b.queue.Get()
	if down {
		return false
	}
	defer b.queue.Done(key)
	switch err := b.handle(ctx, key); {
	case err == nil:
		b.queue.Forget(key)
	case caches.IsUnderway(err): // which takes the time that it takes, and is no failure
		b.queue.AddAfter(key, bindingGlance)
	default:
		klog.FromContext(ctx).Info("A pod waits to be bound", "claim", key, "reason", err)
		b.queue.AddRateLimited(key)
	}
	return true
}

// handle sees to one claim. An error: it is tried again.
func (b *binder) handle(ctx context.Context, key types.NamespacedName) error {
	c, err := b.client.ResourceV1().ResourceClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(b.late, func(a awaited) bool { return b.waitsFor(c, &a) })
	if i < 0 {
		return nil
	}
	return b.seeTo(ctx, key, c, &b.late[i]) // what is said then is a change of the claim, with which the next kind has its turn
}

// seeTo does for one kind of device what the claim wants done before its pod is bound.
func (b *binder) seeTo(ctx context.Context, key types.NamespacedName, c *resourceapi.ResourceClaim, a *awaited) error {
	after := b.asked(c, a)
	if after == "" {
		return b.tell(ctx, c, a, a.ready, reasonNotAsked, "nothing asks to bind the pod later")
	}
	err := b.ready(ctx, c, a.kind, after)
	if err == nil {
		return b.tell(ctx, c, a, a.ready, string(after), a.what+" on node "+b.node)
	}
	if ctx.Err() != nil || !hopeless(err) && (caches.IsUnderway(err) || b.queue.NumRequeues(key) < bindingTries) {
		return err
	}
	return b.tell(ctx, c, a, a.failed, reasonFor(err), err.Error())
}

// tell sets a condition on the devices that wait for it.
func (b *binder) tell(ctx context.Context, c *resourceapi.ResourceClaim, a *awaited, condition, reason, message string) error {
	waiting := func(r *resourceapi.DeviceRequestAllocationResult) bool { return b.waitsOn(r, a) }
	return b.teller.setConditionOf(ctx, c, waiting, metav1.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: reason, Message: message,
	})
}

// asked is what is wanted before the pod is bound. A claim that is refused asks for nothing: it would be refused on every node, and where
// kubelet asks for it the refusal stays on the claim for people to read.
func (b *binder) asked(c *resourceapi.ResourceClaim, a *awaited) v1alpha1.BindAfter {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: b.node})
	if err != nil {
		return ""
	}
	return a.asked(allocation)
}

// bitstreamsAsked is the most that any class asks for.
func bitstreamsAsked(a claim.Allocation) (most v1alpha1.BindAfter) {
	for i := range a.Results {
		r := &a.Results[i]
		if r.Config.FPGA == nil || r.AdminAccess {
			continue
		}
		for j := range r.Config.FPGA.Policies {
			if after := r.Config.FPGA.Policies[j].Policy.BindAfter; after.Rank() > most.Rank() {
				most = after
			}
		}
	}
	return most
}

// cachesAsked is Fetched where the claim or a class wants to wait for one of its caches.
func cachesAsked(a claim.Allocation) v1alpha1.BindAfter {
	if caches.Awaited(a) {
		return v1alpha1.BindAfterFetched
	}
	return ""
}

// hopeless says whether it is of no use to try again on this node soon.
func hopeless(err error) bool {
	_, refused := errors.AsType[*claim.RefusedError](err)
	return refused || caches.IsRefused(err) || errors.Is(err, errUnhealthy) || errors.Is(err, errRetired)
}

// readyToBind brings what a claim needs to the node or prepares the claim, which is what kubelet asks for once the pod is bound. A claim
// that was prepared for a pod that never came is collected.
func (p *Plugin) readyToBind(ctx context.Context, c *resourceapi.ResourceClaim, kind device.Kind, after v1alpha1.BindAfter) error {
	v, err := p.awaitView(ctx)
	if err != nil {
		return err
	}
	switch {
	case after == v1alpha1.BindAfterLoaded:
		return p.prepareClaim(ctx, v, c, nil).Err
	case kind == device.KindGPU:
		err = p.awaitCaches(ctx, c, inView(v))
	default:
		err = p.fpgas.ahead(ctx, c, p.config.Node, inView(v))
	}
	if err != nil && (hopeless(err) || !caches.IsUnderway(err)) {
		err = errors.Join(err, p.teller.refused(ctx, c, err))
	}
	return err
}

// awaitCaches waits a moment until the caches are on the node that a claim wants there before its pod is bound.
func (p *Plugin) awaitCaches(ctx context.Context, c *resourceapi.ResourceClaim, find engine.Find) error {
	if p.retired.is() {
		return fmt.Errorf("node %s: %w", p.config.Node, errRetired)
	}
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: p.config.Node})
	if err != nil {
		return err
	}
	return p.caches.Await(ctx, c, allocation, find)
}

// ahead brings the files to the node that a claim will need.
func (f *fpgas) ahead(ctx context.Context, c *resourceapi.ResourceClaim, node string, find engine.Find) error {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: node})
	if err != nil {
		return err
	}
	all, err := f.wantedOf(ctx, c, allocation, find)
	if err != nil {
		return err
	}
	for _, w := range all {
		for _, p := range w.fetches() {
			if err := f.artifacts.bring(ctx, &p); err != nil {
				return fmt.Errorf("device %s: %w", w.device.Name, err)
			}
		}
	}
	return nil
}

// inView looks an allocated device up in a view.
func inView(v *view) engine.Find {
	return func(r *claim.Result) (device.Device, bool) { return v.Find(r.Kind, r.Device) }
}

// bindLate marks devices whose pods are bound after the plugin has said that they can be.
func bindLate(devices []resourceapi.Device, kind device.Kind) {
	all := waitsFor()
	a := &all[slices.IndexFunc(all, func(a awaited) bool { return a.kind == kind })]
	for i := range devices {
		devices[i].BindsToNode = new(true)
		devices[i].BindingConditions = []string{a.ready}
		devices[i].BindingFailureConditions = []string{a.failed}
	}
}
