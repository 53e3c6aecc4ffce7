// SPDX-License-Identifier: Apache-2.0

package waitlist

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWaits(t *testing.T) {
	result := func(ready ...string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{
			Driver: "fettle.dev", Pool: "n/gpu", Device: "g0", BindingConditions: ready, BindingFailureConditions: []string{"Failed"},
		}
	}
	type said map[string]metav1.ConditionStatus
	share := types.UID("share")
	for name, tt := range map[string]struct {
		result resourceapi.DeviceRequestAllocationResult
		said   said
		other  func(*resourceapi.ResourceClaim)
		want   bool
	}{
		"nothing to wait for": {result: result()},
		"nothing is said":     {result: result("Ready"), want: true},
		"ready":               {result: result("Ready"), said: said{"Ready": metav1.ConditionTrue}},
		"failed":              {result: result("Ready"), said: said{"Failed": metav1.ConditionTrue}},
		"taken back":          {result: result("Ready"), said: said{"Ready": metav1.ConditionFalse}, want: true},
		"no failure":          {result: result("Ready"), said: said{"Failed": metav1.ConditionFalse}, want: true},
		"one of two":          {result: result("A", "B"), said: said{"A": metav1.ConditionTrue}, want: true},
		"both":                {result: result("A", "B"), said: said{"A": metav1.ConditionTrue, "B": metav1.ConditionTrue}},
		"something else":      {result: result("Ready"), said: said{"Prepared": metav1.ConditionTrue}, want: true},
		"deleted": {result: result("Ready"), other: func(c *resourceapi.ResourceClaim) {
			c.DeletionTimestamp = new(metav1.Now())
		}},
		"another share's": {
			result: result("Ready"), said: said{"Ready": metav1.ConditionTrue},
			other: func(c *resourceapi.ResourceClaim) { c.Status.Devices[0].ShareID = new(string(share)) }, want: true,
		},
	} {
		c := &resourceapi.ResourceClaim{}
		d := resourceapi.AllocatedDeviceStatus{Driver: "fettle.dev", Pool: "n/gpu", Device: "g0"}
		for condition, status := range tt.said {
			d.Conditions = append(d.Conditions, metav1.Condition{Type: condition, Status: status})
		}
		if tt.said != nil {
			c.Status.Devices = append(c.Status.Devices, d)
		}
		if tt.other != nil {
			tt.other(c)
		}
		if got := Waits(c, &tt.result); got != tt.want {
			t.Errorf("%s: waits: %v, want %v", name, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	claims := func(names ...string) (out []types.NamespacedName) {
		for _, name := range names {
			out = append(out, Parse(name)...)
		}
		return out
	}
	for name, tt := range map[string]struct {
		claims []types.NamespacedName
		want   string
	}{
		"none":           {},
		"one":            {claims("a/x"), "a/x"},
		"in order":       {claims("a/z", "a/x"), "a/z,a/x"},
		"turns":          {claims("a/1", "a/2", "a/3", "b/1", "b/2", "c/1"), "a/1,b/1,c/1,a/2,b/2,a/3"},
		"one of another": {claims("a/1", "a/2", "b/1"), "a/1,b/1,a/2"},
	} {
		if got := Names(tt.claims); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestManyNames: however many claims wait, the text is bounded, no name in it is cut, and each namespace has its turn.
func TestManyNames(t *testing.T) {
	var all []types.NamespacedName
	for i := range 5000 {
		all = append(all, types.NamespacedName{Namespace: "mallory", Name: fmt.Sprint(strings.Repeat("x", 60), i)})
	}
	all = append(all, types.NamespacedName{Namespace: "alice", Name: strings.Repeat("y", 253)})
	text := Names(all)
	if len(text) > MaxBytes || len(text) < MaxBytes-400 {
		t.Errorf("%d bytes, want close to %d", len(text), MaxBytes)
	}
	for _, c := range Parse(text) {
		if !slices.Contains(all, c) {
			t.Errorf("%s is no claim", c)
		}
	}
	if second := Parse(text)[1]; second.Namespace != "alice" {
		t.Errorf("second is %s", second)
	}
}

func TestParse(t *testing.T) {
	got := Parse("a/b,,c,/d,e/,f/g/h,i/j")
	want := []types.NamespacedName{{Namespace: "a", Name: "b"}, {Namespace: "i", Name: "j"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
