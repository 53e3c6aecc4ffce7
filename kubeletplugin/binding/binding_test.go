// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"errors"
	"slices"
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
	r.BindingConditions = []string{forBitstream.ready}
	r.BindingFailureConditions = []string{forBitstream.failed}
	return r
}

// forBitstream and forCaches are what pods wait for.
var forBitstream, forCaches = waitsFor()[0], waitsFor()[1]

// waitingGPU is a GPU of this node whose pod is not bound yet.
func waitingGPU(name string) apiResult {
	r := result("gpu", device.KindGPU, name)
	r.BindingConditions = []string{forCaches.ready}
	r.BindingFailureConditions = []string{forCaches.failed}
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
		"ready":                       {said(allocated("u1", waiting("r0")), 0, forBitstream.ready, metav1.ConditionTrue), false},
		"failed":                      {said(allocated("u1", waiting("r0")), 0, forBitstream.failed, metav1.ConditionTrue), false},
		"ready was taken back":        {said(allocated("u1", waiting("r0")), 0, forBitstream.ready, metav1.ConditionFalse), true},
		"something else is said":      {said(allocated("u1", waiting("r0")), 0, conditionPrepared, metav1.ConditionTrue), true},
		"one of two":                  {said(allocated("u1", waiting("r0"), waiting("r1")), 0, forBitstream.ready, metav1.ConditionTrue), true},
		"of a claim that is deleted":  {going, false},
		"beside a device that is not": {allocated("u1", result("gpu", device.KindGPU, "g0"), waiting("r0")), true},
		"a GPU":                       {allocated("u1", waitingGPU("g0")), true},
		"a GPU that has its caches":   {said(allocated("u1", waitingGPU("g0")), 0, forCaches.ready, metav1.ConditionTrue), false},
		"a GPU of which another kind's condition is said": {
			said(allocated("u1", waitingGPU("g0")), 0, forBitstream.ready, metav1.ConditionTrue), true,
		},
		"beside a region that is ready": {
			said(allocated("u1", waiting("r0"), waitingGPU("g0")), 0, forBitstream.ready, metav1.ConditionTrue), true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := &binder{node: testNode, late: waitsFor()}
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

// namesCaches is an allocated claim that names caches.
func namesCaches(list string) *resourceapi.ResourceClaim {
	return configured(allocated("u1", waitingGPU("g0")), resourceapi.AllocationConfigSourceClaim,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[`+list+`]}`)
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
		"nothing asked": {claim: classSays(""), said: forBitstream.ready, reason: "NotAsked"},
		"fetched":       {claim: classSays(`"bindAfter":"Fetched"`), asked: "Fetched", said: forBitstream.ready, reason: "Fetched"},
		"loaded":        {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", said: forBitstream.ready, reason: "Loaded"},
		"the most that is asked": {
			claim: configured(classSays(`"bindAfter":"Loaded"`), resourceapi.AllocationConfigSourceClass,
				`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"bindAfter":"Fetched"}}`),
			asked: "Loaded", said: forBitstream.ready, reason: "Loaded",
		},
		"not now": {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: errors.New("the registry is away")},
		"never": {
			claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: refused, said: forBitstream.failed, reason: "ForbiddenByPolicy",
		},
		"not to be understood": {claim: classSays(`"bindAfter":"Later"`), said: forBitstream.ready, reason: "NotAsked"},
		"no cache":             {claim: allocated("u1", waitingGPU("g0")), said: forCaches.ready, reason: "NotAsked"},
		"a cache that nobody waits for": {
			claim: namesCaches(`{"name":"add"}`), said: forCaches.ready, reason: "NotAsked",
		},
		"a cache": {
			claim: namesCaches(`{"name":"other"},{"name":"add","bindAfter":"Fetched"}`), asked: "Fetched", said: forCaches.ready, reason: "Fetched",
		},
		"a cache that cannot be had": {
			claim: namesCaches(`{"name":"add","bindAfter":"Fetched"}`), asked: "Fetched", fails: refused, said: forCaches.failed,
			reason: "ForbiddenByPolicy",
		},
		"a cache that can only be fetched": {
			claim: namesCaches(`{"name":"add","bindAfter":"Loaded"}`), said: forCaches.ready, reason: "NotAsked",
		},
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
	if got, want := verdict(t, client, c), forBitstream.failed+" PrepareFailed"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestStoppedWhileBusy: a plugin that is stopped says nothing. The next one goes on.
func TestStoppedWhileBusy(t *testing.T) {
	c := classSays(`"bindAfter":"Loaded"`)
	b, client, _ := newTestBinder(c, &claim.RefusedError{})
	ctx, cancel := context.WithCancel(t.Context())
	b.ready = func(context.Context, *resourceapi.ResourceClaim, device.Kind, v1alpha1.BindAfter) error {
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
		client: client, node: testNode, late: waitsFor(),
		teller: &teller{client: client, events: events.NewFakeRecorder(100), now: time.Now},
		ready: func(_ context.Context, _ *resourceapi.ResourceClaim, _ device.Kind, after v1alpha1.BindAfter) error {
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

// TestTwoKinds: a claim with devices of both kinds waits for both, each with its own word.
func TestTwoKinds(t *testing.T) {
	c := configured(configured(allocated("u1", waiting("r0"), waitingGPU("g0")), resourceapi.AllocationConfigSourceClass,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"bindAfter":"Fetched"}}`), resourceapi.AllocationConfigSourceClaim,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[{"name":"add","bindAfter":"Fetched"}]}`)
	c.Status.Allocation.Devices.Config[0].Requests, c.Status.Allocation.Devices.Config[1].Requests = []string{"region"}, []string{"gpu"}
	b, client, _ := newTestBinder(c, nil)
	var seen []device.Kind
	b.ready = func(_ context.Context, _ *resourceapi.ResourceClaim, kind device.Kind, _ v1alpha1.BindAfter) error {
		seen = append(seen, kind)
		return nil
	}
	must(t, b.handle(t.Context(), keyOfClaim(c)))
	must(t, b.handle(t.Context(), keyOfClaim(c)))
	now, err := client.ResourceV1().ResourceClaims(c.Namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
	must(t, err)
	said := map[string][]string{}
	for _, d := range now.Status.Devices {
		for _, condition := range d.Conditions {
			said[d.Device] = append(said[d.Device], condition.Type)
		}
	}
	if diff := cmp.Diff(map[string][]string{"r0": {forBitstream.ready}, "g0": {forCaches.ready}}, said); diff != "" || len(seen) != 2 {
		t.Errorf("seen to %v; said (-want +got):\n%s", seen, diff)
	}
	if b.waits(now) {
		t.Error("it still waits")
	}
}

// TestLateDevices: pods are bound late only with devices for which that is asked.
func TestLateDevices(t *testing.T) {
	fpga := device.Device{Kind: device.KindFPGA, Name: "r0"}
	for _, late := range [][]device.Kind{nil, {device.KindFPGA}, {device.KindGPU}, {device.KindFPGA, device.KindGPU}} {
		v := viewWith(gpu("g0", 0), fpga)
		v.bindLate = late
		for name, pool := range resources(testNode, v).Pools {
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					_, kind, _ := strings.Cut(name, "/")
					want := slices.Contains(late, device.Kind(kind))
					if got := len(d.BindingConditions) > 0 && len(d.BindingFailureConditions) > 0 && *d.BindsToNode; got != want {
						t.Errorf("late %v: %s of %s: %v, want %v", late, d.Name, name, got, want)
					}
				}
			}
		}
	}
}
