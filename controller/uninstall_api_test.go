// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/uninstall"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// workload is a pod that holds a claim, and the node that prepared it.
type workload struct {
	node  *v1alpha1.AcceleratorNode
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
}

// startWorkload makes what scheduler and kubelet would leave behind. The pod has no node, so that an eviction ends it although
// there is no kubelet.
func (c cluster) startWorkload(t *testing.T, name string) workload {
	t.Helper()
	w := workload{node: c.readyNode(t, name, 1)}
	w.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	c.create(t, w.pod)
	w.claim = claimWith(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`)
	w.claim.Name = name
	c.create(t, w.claim)
	w.claim.Status = resourceapi.ResourceClaimStatus{
		Allocation:  objects.Allocation(objects.Result("gpu", v1alpha1.DriverName, name+"/gpu", "nvidia-0000-1b-00-0")),
		ReservedFor: objects.ReservedFor(name, w.pod.UID),
	}
	if err := c.client.Status().Update(t.Context(), w.claim); err != nil {
		t.Fatal(err)
	}
	return w
}

// readyNode makes a Ready Node whose plugin counts prepared claims.
func (c cluster) readyNode(t *testing.T, name string, prepared int32) *v1alpha1.AcceleratorNode {
	t.Helper()
	node := c.accelerator(t, name, "", true)
	before := node.DeepCopy()
	node.Status.PreparedClaims = prepared
	check.Must(t, c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)))
	var live corev1.Node
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &live); err != nil {
		t.Fatal(err)
	}
	was := live.DeepCopy()
	live.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	check.Must(t, c.client.Status().Patch(t.Context(), &live, client.MergeFrom(was)))
	return node
}

// uninstaller is an uninstall as the hook's Job would run it.
func (c cluster) uninstaller(t *testing.T, force bool, timeout time.Duration) uninstall.Uninstall {
	t.Helper()
	recorder, stop, err := uninstall.NewRecorder(t.Context(), c.config, c.client.Scheme())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return uninstall.Uninstall{
		Client: c.client, Recorder: recorder, Clock: clock.RealClock{},
		Namespace: namespace, Force: force, Timeout: timeout,
	}
}

// testUninstallRefused: the error names the pods that hold devices, and nothing was changed.
func (c cluster) testUninstallRefused(t *testing.T) {
	w := c.startWorkload(t, "holder")
	err := c.uninstaller(t, false, apitest.Patience()).Run(t.Context())
	var inUse *uninstall.InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("uninstall returned %v, want a refusal", err)
	}
	for _, part := range []string{"claim default/holder", "pod default/holder", "node holder", "--force"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("message %q lacks %q", err, part)
		}
	}
	if got := c.retirement(t, w.node.Name); got != "" {
		t.Errorf("a refused uninstall retired a node: %q", got)
	}
	if wrong := c.wrongClass(t, "gpu.fettle.dev"); wrong != "" {
		t.Errorf("a refused uninstall changed a class: %s", wrong)
	}
}

// testUninstallDeadline: a plugin that does not answer is named, and the controller takes the retirement back.
func (c cluster) testUninstallDeadline(t *testing.T) {
	c.readyNode(t, "deaf", 0)
	late, now := c.uninstaller(t, false, apitest.Patience()), clocktesting.NewFakeClock(time.Now())
	late.Clock = now
	done := make(chan error, 1)
	go func() { done <- late.Run(t.Context()) }()
	apitest.Eventually(t, func() string {
		if c.retirement(t, "deaf") == "" {
			now.Step(time.Second) // it waits until controllers know of it
			return "the plugin was not asked to retire"
		}
		return ""
	})
	now.Step(apitest.Patience())
	err := <-done
	check.WantErr(t, err, nil, "deaf", "--timeout")
	apitest.Eventually(t, func() string { return c.retirement(t, "deaf") })
	if wrong := c.wrongClass(t, "gpu.fettle.dev"); wrong != "" {
		t.Errorf("an uninstall that gave up changed a class: %s", wrong)
	}
}

// testUninstallForced goes the whole way while a controller runs, which must not make again what was deleted.
func (c cluster) testUninstallForced(t *testing.T) {
	w := c.startWorkload(t, "drained")
	c.accelerator(t, "down", "", true) // its Node is not Ready, so the uninstall does not wait for it
	c.create(t, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "down-slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To("down"),
			Pool: resourceapi.ResourcePool{Name: "down/gpu", Generation: 1, ResourceSliceCount: 1},
		},
	})
	granted := c.grantedBitstream(t, "left-behind")
	roleOfCache := c.grantedCache(t, "left-behind")
	preset := ownPreset("left-behind", "x", "left-behind")
	c.create(t, preset)
	c.awaitPreset(t, preset, "True Valid", "False NoConflict", 0, 0)
	apitest.Eventually(t, func() string { return c.wrongMapGrant(t, true) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	played := make(chan error, 1)
	go func() { played <- c.playCluster(ctx, w) }()
	if err := c.uninstaller(t, true, apitest.Patience()).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-played; err != nil {
		t.Error(err)
	}
	apitest.Eventually(t, func() string { return c.missingEvent(w.pod.Name, "Evicted") })
	c.wantNone(t, &v1alpha1.AcceleratorNodeList{})
	c.wantNone(t, &resourceapi.ResourceSliceList{})
	c.wantNone(t, &resourceapi.DeviceClassList{})
	apitest.Eventually(t, func() string { return c.wrongGrants(t, granted) })
	for _, live := range []client.Object{&rbacv1.Role{}, &rbacv1.RoleBinding{}} {
		if err := c.client.Get(t.Context(), roleOfCache, live); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s after the uninstall: %v", live, roleOfCache, err)
		}
	}
	apitest.Eventually(t, func() string { return c.wrongMapGrant(t, false) })
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(preset), preset); err != nil {
		t.Errorf("the preset itself is its author's: %v", err)
	}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(granted), granted); err != nil {
		t.Errorf("the bitstream itself is its author's: %v", err)
	}

	// The old controller holds still for as long as the Lease says; without it, it goes back to work.
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: namespace, Name: names.UninstallLease}
	if err := c.client.Get(t.Context(), key, lease); err != nil || lease.Spec.HolderIdentity != nil {
		t.Fatalf("lease after success: error %v, holder %v; want one without holder", err, lease.Spec.HolderIdentity)
	}
	if err := c.client.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, func() string { return c.wrongClass(t, "gpu.fettle.dev") })
}

// playCluster stands in for what this API server lacks: the claim controller, which releases the claim of a pod that is gone, and
// the node's kubelet and plugin, which then unprepare and retire.
func (c cluster) playCluster(ctx context.Context, w workload) error {
	for {
		if err := c.play(ctx, w); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c cluster) play(ctx context.Context, w workload) error {
	err := c.client.Get(ctx, client.ObjectKeyFromObject(w.pod), &corev1.Pod{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	var claim resourceapi.ResourceClaim
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(w.claim), &claim); err != nil {
		return err
	}
	if claim.Status.Allocation != nil {
		claim.Status = resourceapi.ResourceClaimStatus{}
		return c.client.Status().Update(ctx, &claim)
	}
	var node v1alpha1.AcceleratorNode
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(w.node), &node); err != nil {
		return err
	}
	node.Status.PreparedClaims = 0
	if node.Annotations[v1alpha1.RetireAnnotation] != "" && len(node.Status.Conditions) == 0 {
		node.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionRetired, Status: metav1.ConditionTrue, Reason: "Asked", LastTransitionTime: metav1.Now(),
		}}
	}
	return c.client.Status().Update(ctx, &node)
}

// wantNone fails when objects of the kind are left.
func (c cluster) wantNone(t *testing.T, list client.ObjectList) {
	t.Helper()
	if err := c.client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	switch l := list.(type) {
	case *v1alpha1.AcceleratorNodeList:
		if len(l.Items) > 0 {
			t.Errorf("%d AcceleratorNodes are left", len(l.Items))
		}
	case *resourceapi.ResourceSliceList:
		if len(l.Items) > 0 {
			t.Errorf("%d ResourceSlices are left", len(l.Items))
		}
	case *resourceapi.DeviceClassList:
		if len(l.Items) > 0 {
			t.Errorf("%d DeviceClasses are left", len(l.Items))
		}
	}
}
