// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/pause"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// accelerator creates an AcceleratorNode, retired as the value says, and its Node if it is to have one.
func (c cluster) accelerator(t *testing.T, name, retire string, withNode bool) *v1alpha1.AcceleratorNode {
	t.Helper()
	if withNode {
		c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if retire != "" {
		a.Annotations = map[string]string{v1alpha1.RetireAnnotation: retire}
	}
	c.create(t, a)
	return a
}

// retirement is the value of the annotation, or the error.
func (c cluster) retirement(t *testing.T, name string) string {
	t.Helper()
	var a v1alpha1.AcceleratorNode
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &a); err != nil {
		return err.Error()
	}
	return a.Annotations[v1alpha1.RetireAnnotation]
}

// testNodes: the running controller takes an uninstall's retirement back, unless one is in progress, and never an admin's.
func (c cluster) testNodes(t *testing.T) {
	// An uninstall changes nothing before controllers know of its Lease.
	const known, lasts = 6 * time.Second, 10 * time.Second
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names.UninstallLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("test"), LeaseDurationSeconds: ptr.To(int32(lasts / time.Second)), RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
	c.waitCRD(t)
	c.create(t, lease)
	held := func() time.Duration { return time.Since(lease.Spec.RenewTime.Time) }
	apitest.Eventually(t, func() string {
		if held() < known {
			return "controllers may go by what they read before"
		}
		return ""
	})
	c.accelerator(t, "left-behind", v1alpha1.RetireByUninstall, true)
	c.accelerator(t, "by-admin", v1alpha1.RetireByAdmin, true)
	apitest.Eventually(t, func() string { return c.retirement(t, "left-behind") })
	if took := held(); took < lasts {
		t.Errorf("the retirement was taken back %s after the uninstall's last word, want %s or more", took, lasts)
	}
	if got := c.retirement(t, "by-admin"); got != v1alpha1.RetireByAdmin {
		t.Errorf("an admin's retirement became %q", got)
	}
}

// waitCRD waits until AcceleratorNodes can be created.
func (c cluster) waitCRD(t *testing.T) {
	t.Helper()
	apitest.Eventually(t, func() string {
		return errorText(c.client.List(t.Context(), &v1alpha1.AcceleratorNodeList{}))
	})
}

// testPrune drives the reconciler with a clock of its own.
func (c cluster) testPrune(t *testing.T) {
	c.accelerator(t, "here", "", true)
	c.accelerator(t, "gone", "", false)
	c.accelerator(t, "back", "", false)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	pauses := &pause.Reader{Live: c.client, Namespace: namespace, Clock: clock, Started: clock.Now()}
	r := nodes.New(reconciler.Services{Client: c.client, Live: c.client, Clock: clock, Pause: pauses.Remaining}).Queues[0].Reconciler
	look := func(name string) time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	if wait := look("here"); wait != 0 {
		t.Errorf("here: look again in %s, want never", wait)
	}
	for _, name := range []string{"gone", "back"} {
		if wait := look(name); wait != time.Minute {
			t.Errorf("%s: look again in %s, want 1m", name, wait)
		}
	}
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}})
	clock.SetTime(clock.Now().Add(time.Minute))
	for _, name := range []string{"here", "gone", "back"} {
		if wait := look(name); wait != 0 {
			t.Errorf("%s: look again in %s, want never", name, wait)
		}
	}
	for name, want := range map[string]bool{"here": true, "gone": false, "back": true} {
		err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.AcceleratorNode{})
		if err == nil != want || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: read gives %v, want it kept: %v", name, err, want)
		}
	}
}

// testDeletedClaims: a node is told of a claim that was deleted while it was allocated, and not of one that ended in the usual way.
func (c cluster) testDeletedClaims(t *testing.T) {
	c.waitCRD(t)
	for _, name := range []string{"first", "usual", "last"} {
		c.accelerator(t, name, "", true)
	}
	told := func(name string) bool {
		var a v1alpha1.AcceleratorNode
		check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: name}, &a))
		return a.Annotations[v1alpha1.ClaimDeletedAnnotation] != ""
	}
	untilTold := func(name string) {
		t.Helper()
		apitest.Eventually(t, func() string {
			if !told(name) {
				c.allocatedAndDeleted(t, name, false) // the controller may not have watched before
				return "the node was not told"
			}
			return ""
		})
	}
	untilTold("first")
	c.allocatedAndDeleted(t, "usual", true)
	untilTold("last")
	if told("usual") {
		t.Error("a node was told of a claim that ended in the usual way")
	}
}

// testWaitingClaims: a node is told which claims wait for it, also one whose AcceleratorNode comes later, and of none once the pods may be
// bound.
func (c cluster) testWaitingClaims(t *testing.T) {
	c.waitCRD(t)
	c.accelerator(t, "waited", "", true)
	first, second := c.waiting(t, "first", "waited"), c.waiting(t, "second", "waited-later")
	named := func(node, want string) {
		t.Helper()
		apitest.Eventually(t, func() string {
			var a v1alpha1.AcceleratorNode
			check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: node}, &a))
			if got := a.Annotations[v1alpha1.WaitingClaimsAnnotation]; got != want {
				return fmt.Sprintf("node %s is told of %q, want %q", node, got, want)
			}
			return ""
		})
	}
	named("waited", "default/first")
	c.accelerator(t, "waited-later", "", true)
	named("waited-later", "default/second")
	first.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: v1alpha1.DriverName, Pool: "waited/gpu", Device: "gpu0",
		Conditions: []metav1.Condition{{
			Type: "fettle.dev/KernelCachesReady", Status: metav1.ConditionTrue, Reason: "Fetched", LastTransitionTime: metav1.Now(),
		}},
	}}
	check.Must(t, c.client.Status().Update(t.Context(), first))
	named("waited", "")
	check.Must(t, c.client.Delete(t.Context(), second))
	named("waited-later", "")
}

// waiting makes a claim whose pod waits for a node.
func (c cluster) waiting(t *testing.T, name, node string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := objects.Claim("default", name, objects.Request("gpu", "any"))
	c.create(t, claim)
	result := objects.Result("gpu", v1alpha1.DriverName, node+"/gpu", "gpu0")
	result.BindingConditions = []string{"fettle.dev/KernelCachesReady"}
	result.BindingFailureConditions = []string{"fettle.dev/KernelCachesFailed"}
	claim.Status.Allocation = objects.Allocation(result)
	check.Must(t, c.client.Status().Update(t.Context(), claim))
	return claim
}

// allocatedAndDeleted makes a claim with a device of a node and deletes it. In the usual way, its allocation goes first.
func (c cluster) allocatedAndDeleted(t *testing.T, node string, usual bool) {
	t.Helper()
	claim := objects.Claim("default", "on-"+node, objects.Request("gpu", "any"))
	c.create(t, claim)
	claim.Status.Allocation = objects.Allocation(objects.Result("gpu", v1alpha1.DriverName, node+"/gpu", "gpu0"))
	check.Must(t, c.client.Status().Update(t.Context(), claim))
	if usual {
		claim.Status.Allocation = nil
		check.Must(t, c.client.Status().Update(t.Context(), claim))
	}
	check.Must(t, c.client.Delete(t.Context(), claim))
}
