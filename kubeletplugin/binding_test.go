// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
)

// waiting is a region of this node whose pod is not bound yet.
func waiting(name string) apiResult {
	r := result("region", device.KindFPGA, name)
	r.BindingConditions = []string{conditionReady}
	r.BindingFailureConditions = []string{conditionFailed}
	return r
}

// said adds a condition to the claim's device.
func said(c *resourceapi.ResourceClaim, i int, condition string, status metav1.ConditionStatus) *resourceapi.ResourceClaim {
	entry := entryOf(&c.Status, &c.Status.Allocation.Devices.Results[i])
	entry.Conditions = append(entry.Conditions, metav1.Condition{Type: condition, Status: status})
	return c
}

func TestWhoWaits(t *testing.T) {
	elsewhere := waiting("r0")
	elsewhere.Pool = "other-node/fpga"
	another := waiting("r0")
	another.Driver = "other.example"
	going := allocated("u1", waiting("r0"))
	going.DeletionTimestamp = new(metav1.Now())
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  bool
	}{
		"nothing is said yet":         {allocated("u1", waiting("r0")), true},
		"not allocated":               {&resourceapi.ResourceClaim{}, false},
		"a device that waits not":     {allocated("u1", result("region", device.KindFPGA, "r0")), false},
		"on another node":             {allocated("u1", elsewhere), false},
		"of another driver":           {allocated("u1", another), false},
		"ready":                       {said(allocated("u1", waiting("r0")), 0, conditionReady, metav1.ConditionTrue), false},
		"failed":                      {said(allocated("u1", waiting("r0")), 0, conditionFailed, metav1.ConditionTrue), false},
		"ready was taken back":        {said(allocated("u1", waiting("r0")), 0, conditionReady, metav1.ConditionFalse), true},
		"something else is said":      {said(allocated("u1", waiting("r0")), 0, conditionPrepared, metav1.ConditionTrue), true},
		"one of two":                  {said(allocated("u1", waiting("r0"), waiting("r1")), 0, conditionReady, metav1.ConditionTrue), true},
		"of a claim that is deleted":  {going, false},
		"beside a device that is not": {allocated("u1", result("gpu", device.KindGPU, "g0"), waiting("r0")), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := &binder{pool: poolName(testNode, device.KindFPGA)}
			if got := b.waits(tt.claim); got != tt.want {
				t.Errorf("waits: %v, want %v", got, tt.want)
			}
			kept, err := b.trim(tt.claim)
			must(t, err)
			if got := b.waits(kept.(*resourceapi.ResourceClaim)); got != tt.want {
				t.Errorf("what is kept in memory waits: %v, want %v", got, tt.want)
			}
		})
	}
}

// classSays is an allocated claim whose class has a policy.
func classSays(policy string) *resourceapi.ResourceClaim {
	return configured(allocated("u1", waiting("r0")), resourceapi.AllocationConfigSourceClass,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{`+policy+`}}`)
}

// TestSeenTo: what is done before a pod is bound, and what is said of it.
func TestSeenTo(t *testing.T) {
	refused := &claim.RefusedError{Reason: claim.ReasonForbiddenByPolicy}
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		fails error
		asked v1alpha1.BindAfter
		// said is the condition and its reason; none: it is tried again.
		said, reason string
	}{
		"nothing asked": {claim: classSays(""), said: conditionReady, reason: "NotAsked"},
		"fetched":       {claim: classSays(`"bindAfter":"Fetched"`), asked: "Fetched", said: conditionReady, reason: "Fetched"},
		"loaded":        {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", said: conditionReady, reason: "Loaded"},
		"the most that is asked": {
			claim: configured(classSays(`"bindAfter":"Loaded"`), resourceapi.AllocationConfigSourceClass,
				`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"bindAfter":"Fetched"}}`),
			asked: "Loaded", said: conditionReady, reason: "Loaded",
		},
		"not now": {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: errors.New("the registry is away")},
		"never": {
			claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: refused, said: conditionFailed, reason: "ForbiddenByPolicy",
		},
		"not to be understood": {claim: classSays(`"bindAfter":"Later"`), said: conditionReady, reason: "NotAsked"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, client, asked := newTestBinder(tt.claim, tt.fails)
			err := b.handle(t.Context(), keyOfClaim(tt.claim))
			if tt.said != "" {
				must(t, err)
			} else if !errors.Is(err, tt.fails) {
				t.Errorf("error %v, want %v", err, tt.fails)
			}
			if *asked != tt.asked {
				t.Errorf("done: %q, want %q", *asked, tt.asked)
			}
			if diff := cmp.Diff(tt.said+" "+tt.reason, verdict(t, client, tt.claim)); diff != "" {
				t.Errorf("said (-want +got):\n%s", diff)
			}
		})
	}
}

// TestGivenUp: a node that cannot bring a bitstream for some time gives the pod back to the scheduler.
func TestGivenUp(t *testing.T) {
	c := classSays(`"bindAfter":"Fetched"`)
	b, client, _ := newTestBinder(c, errors.New("the registry is away"))
	for i := range bindingTries {
		if got := verdict(t, client, c); got != " " {
			t.Fatalf("after %d tries: %s", i, got)
		}
		b.queue.Add(keyOfClaim(c))
		if !b.next(t.Context()) {
			t.Fatal("the queue is down")
		}
	}
	b.queue.Add(keyOfClaim(c))
	b.next(t.Context())
	if got, want := verdict(t, client, c), conditionFailed+" PrepareFailed"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestStoppedWhileBusy: a plugin that is stopped says nothing. The next one goes on.
func TestStoppedWhileBusy(t *testing.T) {
	c := classSays(`"bindAfter":"Loaded"`)
	b, client, _ := newTestBinder(c, &claim.RefusedError{})
	ctx, cancel := context.WithCancel(t.Context())
	b.ready = func(context.Context, *resourceapi.ResourceClaim, v1alpha1.BindAfter) error {
		cancel()
		return &claim.RefusedError{}
	}
	if err := b.handle(ctx, keyOfClaim(c)); err == nil {
		t.Error("no error")
	}
	if got := verdict(t, client, c); got != " " {
		t.Errorf("said %s", got)
	}
}

func newTestBinder(c *resourceapi.ResourceClaim, fails error) (*binder, *fake.Clientset, *v1alpha1.BindAfter) {
	client := fake.NewClientset(c)
	asked := new(v1alpha1.BindAfter)
	return &binder{
		client: client, pool: poolName(testNode, device.KindFPGA), node: testNode,
		teller: &teller{client: client, events: events.NewFakeRecorder(100), now: time.Now},
		ready: func(_ context.Context, _ *resourceapi.ResourceClaim, after v1alpha1.BindAfter) error {
			*asked = after
			return fails
		},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemFastSlowRateLimiter[types.NamespacedName](0, 0, 1)),
	}, client, asked
}

func keyOfClaim(c *resourceapi.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

// verdict is the binding condition that is true on the claim's device, and its reason.
func verdict(t *testing.T, client *fake.Clientset, c *resourceapi.ResourceClaim) string {
	t.Helper()
	now, err := client.ResourceV1().ResourceClaims(c.Namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
	must(t, err)
	for _, d := range now.Status.Devices {
		for _, condition := range d.Conditions {
			if strings.HasPrefix(condition.Type, v1alpha1.GroupName) && condition.Status == metav1.ConditionTrue {
				return condition.Type + " " + condition.Reason
			}
		}
	}
	return " "
}

// TestLateDevices: only pods with FPGAs are bound late, and only where that is asked for.
func TestLateDevices(t *testing.T) {
	fpga := device.Device{Kind: device.KindFPGA, Name: "r0"}
	for _, late := range []bool{false, true} {
		v := viewWith(gpu("g0", 0), fpga)
		v.bindLate = late
		for name, pool := range resources(testNode, v).Pools {
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					want := late && strings.HasSuffix(name, "/fpga")
					if got := len(d.BindingConditions) > 0 && len(d.BindingFailureConditions) > 0 && *d.BindsToNode; got != want {
						t.Errorf("late %v: %s of %s: %v, want %v", late, d.Name, name, got, want)
					}
				}
			}
		}
	}
}
