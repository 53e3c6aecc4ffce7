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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
)

// The conditions on a claim's device that the scheduler waits for before it binds the pod (KEP-5007).
const (
	conditionReady  = v1alpha1.GroupName + "/BitstreamReady"
	conditionFailed = v1alpha1.GroupName + "/BitstreamFailed"

	reasonNotAsked = "NotAsked"
)

const (
	// bindingTries is how often it is tried to bring a bitstream before the scheduler is asked to look for another node.
	bindingTries = 5
	// bindingWorkers is how many claims are seen to at once.
	bindingWorkers = 4
)

// binder sees to claims whose pods are not bound yet: it does what their classes ask to be done before that, and says so on the claim.
type binder struct {
	client kubernetes.Interface
	teller *teller
	// pool is the one whose devices wait.
	pool, node string
	// ready does what must be done before a claim's pod is bound, and says on the claim why it could not.
	ready func(context.Context, *resourceapi.ResourceClaim, v1alpha1.BindAfter) error
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

func (p *Plugin) newBinder() *binder {
	const first, longest = time.Second, 15 * time.Second
	return &binder{
		client: p.clients.Kube, teller: p.teller, pool: poolName(p.config.Node, device.KindFPGA), node: p.config.Node, ready: p.readyToBind,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](first, longest)),
	}
}

// run ends with ctx.
func (b *binder) run(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithTransform(b.trim))
	informer := factory.Resource().V1().ResourceClaims().Informer()
	enqueue := func(object any) {
		if c, ok := object.(*resourceapi.ResourceClaim); ok && b.waits(c) {
			b.queue.Add(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, now any) { enqueue(now) },
	}); err != nil {
		klog.FromContext(ctx).Error(err, "Pods that wait for their bitstreams are not bound")
		return
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
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
	if c.Status.Allocation == nil || c.DeletionTimestamp != nil {
		return false
	}
	return slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		if r.Driver != v1alpha1.DriverName || r.Pool != b.pool || !slices.Contains(r.BindingConditions, conditionReady) {
			return false
		}
		i := slices.IndexFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return keyOf(d.Driver, d.Pool, d.Device, d.ShareID) == keyOf(r.Driver, r.Pool, r.Device, (*string)(r.ShareID))
		})
		return i < 0 || !meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, conditionReady) &&
			!meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, conditionFailed)
	})
}

func (b *binder) next(ctx context.Context) bool {
	key, down := b.queue.Get()
	if down {
		return false
	}
	defer b.queue.Done(key)
	if err := b.handle(ctx, key); err != nil {
		klog.FromContext(ctx).Info("A pod waits for its bitstream", "claim", key, "reason", err)
		b.queue.AddRateLimited(key)
		return true
	}
	b.queue.Forget(key)
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
	if !b.waits(c) {
		return nil
	}
	after := b.asked(c)
	if after == "" {
		return b.tell(ctx, c, conditionReady, reasonNotAsked, "no class asks to bind the pod later")
	}
	if err = b.ready(ctx, c, after); err == nil {
		return b.tell(ctx, c, conditionReady, string(after), "the bitstream is on node "+b.node)
	}
	if ctx.Err() != nil || !hopeless(err) && b.queue.NumRequeues(key) < bindingTries {
		return err
	}
	return b.tell(ctx, c, conditionFailed, reasonFor(err), err.Error())
}

func (b *binder) tell(ctx context.Context, c *resourceapi.ResourceClaim, condition, reason, message string) error {
	return b.teller.setCondition(ctx, c, metav1.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: reason, Message: message,
	})
}

// asked is what the classes want done before the pod is bound: the most that any of them asks for. A claim that is refused asks for
// nothing: it would be refused on every node, and where kubelet asks for it the refusal stays on the claim for people to read.
func (b *binder) asked(c *resourceapi.ResourceClaim) v1alpha1.BindAfter {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: b.node})
	if err != nil {
		return ""
	}
	var most v1alpha1.BindAfter
	for i := range allocation.Results {
		r := &allocation.Results[i]
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

// hopeless says whether it is of no use to try again on this node soon.
func hopeless(err error) bool {
	_, refused := errors.AsType[*claim.RefusedError](err)
	return refused || errors.Is(err, errUnhealthy) || errors.Is(err, errRetired)
}

// readyToBind brings a claim's bitstreams to the node or prepares the claim, which is what kubelet asks for once the pod is bound. A
// claim that was prepared for a pod that never came is collected.
func (p *Plugin) readyToBind(ctx context.Context, c *resourceapi.ResourceClaim, after v1alpha1.BindAfter) error {
	v, err := p.awaitView(ctx)
	if err != nil {
		return err
	}
	if after == v1alpha1.BindAfterLoaded {
		return p.prepareClaim(ctx, v, c, nil).Err
	}
	if err := p.fpgas.ahead(ctx, c, p.config.Node, inView(v)); err != nil {
		return errors.Join(err, p.teller.refused(ctx, c, err))
	}
	return nil
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
func bindLate(devices []resourceapi.Device) {
	for i := range devices {
		devices[i].BindsToNode = new(true)
		devices[i].BindingConditions = []string{conditionReady}
		devices[i].BindingFailureConditions = []string{conditionFailed}
	}
}
