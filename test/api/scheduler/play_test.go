// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long the scheduler may take for what a plan says; only a disagreement takes as long.
const patience = 20 * time.Second

// scenarioLabel is on every object of a scenario that belongs to no namespace.
const scenarioLabel = "example.com/scenario"

// write creates an object with its status, or replaces the one that is there.
func (c *cluster) write(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.put(t.Context(), object); err != nil {
		t.Fatalf("write %T %s: %v", object, object.GetName(), err)
	}
}

func (c *cluster) put(ctx context.Context, object client.Object) error {
	stored, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	err := c.client.Create(ctx, stored)
	if apierrors.IsAlreadyExists(err) {
		if err = c.client.Get(ctx, client.ObjectKeyFromObject(object), stored); err != nil {
			return err
		}
		version := stored.GetResourceVersion()
		if stored, ok = object.DeepCopyObject().(client.Object); !ok {
			return nil
		}
		stored.SetResourceVersion(version)
		return c.client.Update(ctx, stored)
	}
	if claim, ok := object.(*resourceapi.ResourceClaim); ok && err == nil && claim.Status.Allocation != nil {
		withStatus := claim.DeepCopy()
		withStatus.ResourceVersion = stored.GetResourceVersion()
		err = c.client.Status().Update(ctx, withStatus)
	}
	if err == nil && object.GetDeletionTimestamp() != nil {
		err = c.client.Delete(ctx, stored)
	}
	return err
}

// arrange creates the namespace of a scenario and all of its objects but the pods, and returns once the scheduler knows them.
func (c *cluster) arrange(t *testing.T, s scenario) {
	t.Helper()
	c.write(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace(), Labels: s.labels}})
	for _, o := range s.objects {
		if _, ok := o.(*corev1.Pod); ok {
			continue
		}
		c.checkRefusal(t, s, o)
		if q, ok := o.(*corev1.ResourceQuota); ok {
			c.waitForQuota(t, q)
		}
	}
	c.sync(t)
}

// checkRefusal creates an object, and wants it to be refused exactly if the scenario says so.
func (c *cluster) checkRefusal(t *testing.T, s scenario, object client.Object) bool {
	t.Helper()
	err := c.put(t.Context(), object)
	text := s.refused(c.version, kindAndName(object))
	switch {
	case text == "" && err != nil:
		t.Fatalf("create %s: %v", kindAndName(object), err)
	case text != "" && err == nil:
		t.Errorf("%s is not refused, want %q", kindAndName(object), text)
	case text != "" && !strings.Contains(err.Error(), text):
		t.Errorf("%s is refused with %q, want %q", kindAndName(object), err, text)
	}
	return err != nil
}

// waitForQuota waits for the status without which a quota holds nothing back.
func (c *cluster) waitForQuota(t *testing.T, quota *corev1.ResourceQuota) {
	t.Helper()
	c.eventually(t, func() string {
		got := &corev1.ResourceQuota{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(quota), got); err != nil {
			return err.Error()
		}
		if len(got.Status.Hard) == 0 {
			return "the quota has no status"
		}
		return ""
	})
}

// settle waits until a pod has a node if it is to have one, and else until the scheduler says that it waits for the reason.
func (c *cluster) settle(t *testing.T, p *corev1.Pod, want outcome) outcome {
	t.Helper()
	var got outcome
	deadline := time.Now().Add(patience)
	poll(t, 2*patience, func() string {
		got = c.outcome(t, p)
		if want.node != "" && got.node != "" || want.node == "" && got.reason == want.reason || time.Now().After(deadline) {
			return ""
		}
		return "the pod has not settled"
	})
	return got
}

// waitForEvent waits for the Event that says why a claim of a pod was not made.
func (c *cluster) waitForEvent(t *testing.T, p *corev1.Pod, text string) {
	t.Helper()
	c.eventually(t, func() string {
		list := &corev1.EventList{}
		if err := c.client.List(t.Context(), list, client.InNamespace(p.Namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			e := &list.Items[i]
			if e.InvolvedObject.Name == p.Name && e.Reason == "FailedResourceClaimCreation" && strings.Contains(e.Message, text) {
				return ""
			}
		}
		return fmt.Sprintf("pod %s has no Event on a claim that says %q", p.Name, text)
	})
}

// outcome reads what became of a pod until now.
func (c *cluster) outcome(t *testing.T, p *corev1.Pod) outcome {
	t.Helper()
	got := &corev1.Pod{}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(p), got); err != nil {
		t.Fatal(err)
	}
	if got.Spec.NodeName != "" {
		return outcome{node: got.Spec.NodeName, devices: c.devices(t, got)}
	}
	for _, condition := range got.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Message != "" {
			return outcome{text: condition.Message, reason: classOf(condition.Message)}
		}
	}
	text := c.logged(t, p)
	return outcome{text: text, reason: classOf(text)}
}

// logged is what the scheduler wrote to its log on a pod that it does not even queue: neither a condition nor an Event says so.
func (c *cluster) logged(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	text, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.Contains(line, "after running PreEnqueue plugin") && strings.Contains(line, `pod="`+p.Namespace+"/"+p.Name+`"`) {
			return line
		}
	}
	return ""
}

// devices are those of the claims of a pod, by the pod's names for them.
func (c *cluster) devices(t *testing.T, p *corev1.Pod) map[string][]string {
	t.Helper()
	names := map[string]string{}
	for _, claim := range p.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			names[claim.Name] = *claim.ResourceClaimName
		}
	}
	for _, status := range p.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			names[status.Name] = *status.ResourceClaimName
		}
	}
	if e := p.Status.ExtendedResourceClaimStatus; e != nil {
		names["extended-resources"] = e.ResourceClaimName
	}
	out := map[string][]string{}
	for name, object := range names {
		claim := &resourceapi.ResourceClaim{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: p.Namespace, Name: object}, claim); err != nil {
			t.Fatal(err)
		}
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			out[name] = append(out[name], r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
	return out
}

// play makes the plan of a scenario, then has the scheduler do the same, and compares both with what the scenario wants. Where several
// nodes are as good, the scheduler may choose another than the plan: the plan is made again with its choice.
func (c *cluster) play(t *testing.T, s scenario) {
	t.Helper()
	planned := s.plan(t, c.version, nil)
	defer c.clear(t, s)
	c.arrange(t, s)
	want, chosen := s.lines(c.version), map[string]string{}
	for _, p := range s.pods() {
		c.write(t, p)
		got := c.settle(t, p, planned[p.Name])
		if line := got.line(p.Name, s.isLoose(c.version)); !slices.Contains(want, line) {
			t.Errorf("the scheduler: %s\nwant:\n%s\n%s", line, strings.Join(want, "\n"), got.text)
		}
		if text := s.events[p.Name]; text != "" {
			c.waitForEvent(t, p, text)
		}
		if got.node == "" {
			c.checkExplanation(t, p, s.because(c.version, p.Name))
		}
		chosen[p.Name] = got.node
		if got.node != planned[p.Name].node && slices.Contains(planned[p.Name].fits, got.node) {
			planned = s.plan(t, c.version, chosen)
		}
		if s.olderLoose && c.version != "" {
			continue // the scenario's line counted the devices
		}
		compare(t, p.Name, planned[p.Name], got)
	}
}

// compare holds the scheduler against the plan.
func compare(t *testing.T, pod string, planned, got outcome) {
	t.Helper()
	if got.node != planned.node || got.reason != planned.reason {
		t.Errorf("pod %s: the plan says %q %s\n%s\nthe scheduler says %q %s\n%s",
			pod, planned.node, planned.reason, planned.text, got.node, got.reason, got.text)
		return
	}
	if diff := cmp.Diff(planned.devices, got.devices, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("pod %s: devices of the plan (-) and of the scheduler (+):\n%s", pod, diff)
	}
}
