// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestHeldFor(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	lease := func(holder string, renewed time.Duration) *coordinationv1.Lease {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			LeaseDurationSeconds: ptr.To[int32](30), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(renewed))),
		}}
		if holder != "" {
			l.Spec.HolderIdentity = &holder
		}
		return l
	}
	tests := []struct {
		name    string
		lease   *coordinationv1.Lease
		started time.Duration
		want    time.Duration
	}{
		{"held, renewed now", lease("uninstall", 0), -time.Hour, 30 * time.Second},
		{"held, by a controller restarted since", lease("uninstall", -10*time.Second), -time.Second, 20 * time.Second},
		{"held by one that died", lease("uninstall", -31*time.Second), -time.Hour, 0},
		{"given up, the old controller", lease("", -10*time.Second), -time.Hour, 20 * time.Second},
		{"given up, a newly installed controller", lease("", -10*time.Second), -time.Second, 0},
		{"never renewed", &coordinationv1.Lease{}, -time.Hour, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := heldFor(tt.lease, now.Add(tt.started), now); got != tt.want {
				t.Errorf("heldFor = %v, want %v", got, tt.want)
			}
		})
	}
}
