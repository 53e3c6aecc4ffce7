// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/rollout"
)

// TestAdmitted: a node waits for its wave only while a controller leads the rollout.
func TestAdmitted(t *testing.T) {
	n := newNode(t)
	at := func(ago time.Duration) *metav1.Time { return &metav1.Time{Time: n.clock.Now().Add(-ago)} }
	of := func(admitted *int32, since *metav1.Time) *object {
		status := &v1alpha1.GPUKernelCacheStatus{ResolvedDigest: "sha256:a", Admitted: admitted, AdmittedSince: since}
		return &object{v1alpha1.CommonGPUKernelCache{Status: status}}
	}
	turn := int32(0) // of the node
	for !rollout.Admits(turn, n.Node, "sha256:a") {
		turn++
	}
	for name, test := range map[string]struct {
		o    *object
		want bool
	}{
		"a controller without waves":   {of(nil, nil), true},
		"before its wave":              {of(new(turn-1), at(time.Minute)), false},
		"in its wave":                  {of(new(turn), at(time.Minute)), true},
		"all":                          {of(new(rollout.All), at(time.Minute)), true},
		"the controller is gone":       {of(new(int32), at(rollout.Stale)), true},
		"it went before the first one": {of(new(int32), nil), true},
	} {
		if got := admitted(test.o, n.Node, n.clock.Now()); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// TestClaimBeforeItsWave: a claim gets a cache at once on a node whose wave has not begun.
func TestClaimBeforeItsWave(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Status.Admitted, c.Status.AdmittedSince = new(int32), &metav1.Time{Time: n.clock.Now()}
	})
	o, err := n.objects.get(t.Context(), v1alpha1.KindGPUKernelCache, "team-a", "add")
	if n.must(err); admitted(o, n.Node, n.clock.Now()) {
		t.Error("is fetched ahead")
	}
	n.only(n.decide("team-a", "claim", named))
}
