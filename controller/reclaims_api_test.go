// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reclaims"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	reclaimNode = "reclaimed-node"
	holdersTeam = "reclaim-holders"
)

// testReclaim: of three holders the one with the lowest priority is kept by a PodDisruptionBudget and one has the priority of the waiting
// pod. The API server evicts the third, and no other.
func (c cluster) testReclaim(t *testing.T) {
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: reclaimNode, Labels: map[string]string{"pool": "reclaimed"}}})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: holdersTeam}})
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: reclaimNode}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(reclaimNode),
		Pool: resourceapi.ResourcePool{Name: reclaimNode, Generation: 1, ResourceSliceCount: 1},
	}}
	values := map[string]int32{"lowest": 10, "middle": 20, "equal": 1000}
	for name, value := range values {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
		})
		c.create(t, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "reclaim-" + name}, Value: value})
	}
	c.create(t, slice)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: holdersTeam, Name: "keeps"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"holder": "lowest"}},
		},
	}
	c.create(t, budget)
	budget.Status.ObservedGeneration = budget.Generation // no controller of Kubernetes does it
	check.Must(t, c.client.Status().Update(t.Context(), budget))
	holders := map[string]*corev1.Pod{}
	for name := range values {
		holders[name] = c.claimPod(t, holdersTeam, name, "reclaim-"+name, reclaimNode)
	}
	waits := c.claimPod(t, "default", "reclaim-waits", "reclaim-equal", "")
	p := nodePolicy("reclaims", "reclaimed")
	p.Spec.Nodes.Reclaim = v1alpha1.ReclaimEvict
	p.Spec.Nodes.PriorityClasses = []v1alpha1.NodePriorityClass{{Name: "reclaim-equal", Value: 1000, ReclaimNamespaces: []string{"default"}}}
	c.create(t, p)

	apitest.Eventually(t, func() string {
		err := c.client.Get(t.Context(), client.ObjectKeyFromObject(holders["middle"]), &corev1.Pod{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("pod middle is there, error %v", err)
		}
		return ""
	})
	for _, name := range []string{"lowest", "equal"} {
		var pod corev1.Pod
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(holders[name]), &pod))
		if pod.DeletionTimestamp != nil {
			t.Errorf("pod %s was evicted, too", name)
		}
	}
	if note := c.awaitNote(t, holders["middle"], reclaims.ReasonEvicted); !strings.Contains(note, "a pod with priority 1000 waits") ||
		strings.Contains(note, waits.Name) {
		t.Errorf("the Event on the evicted pod says %q", note)
	}
	if note := c.awaitNote(t, waits, reclaims.ReasonReclaimed); strings.Contains(note, "middle") || strings.Contains(note, holdersTeam) {
		t.Errorf("the Event on the waiting pod says %q", note)
	}
}

// claimPod makes a pod with a claim. With a node it runs there and has the device of its name; else the scheduler found no node a minute
// ago.
func (c cluster) claimPod(t *testing.T, namespace, name, class, node string) *corev1.Pod {
	t.Helper()
	claim := objects.Claim(namespace, name, objects.Request("gpu", "gpu.fettle.dev"))
	c.create(t, claim)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"holder": name}},
		Spec: corev1.PodSpec{
			NodeName: node, PriorityClassName: class, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:     []corev1.Container{{Name: "c", Image: "registry.example/c"}},
			Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // no kubelet makes the node ready
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(name)}},
		},
	}
	c.create(t, pod)
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	pod.Status.Phase = corev1.PodRunning
	if node == "" {
		pod.Status.Phase = corev1.PodPending
		condition = corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute)),
		}
	}
	pod.Status.Conditions = []corev1.PodCondition{condition}
	check.Must(t, c.client.Status().Update(t.Context(), pod))
	if node == "" {
		return pod
	}
	claim.Status = resourceapi.ResourceClaimStatus{
		Allocation:  objects.Allocation(objects.Result("gpu", v1alpha1.DriverName, node, name)),
		ReservedFor: objects.ReservedFor(name, pod.UID),
	}
	check.Must(t, c.client.Status().Update(t.Context(), claim))
	return pod
}

// awaitNote waits for an Event about a pod and returns what it says.
func (c cluster) awaitNote(t *testing.T, pod *corev1.Pod, reason string) (note string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		var all eventsv1.EventList
		check.Must(t, c.client.List(t.Context(), &all, client.InNamespace(pod.Namespace)))
		for i := range all.Items {
			if event := &all.Items[i]; event.Reason == reason && event.Regarding.UID == pod.UID {
				note = event.Note
				return ""
			}
		}
		return fmt.Sprintf("pod %s has no Event %s", pod.Name, reason)
	})
	return note
}
