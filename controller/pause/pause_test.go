// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/test/check"
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

// counted is a reader of the API server that counts, and has the Lease of an uninstall.
func counted(gets *atomic.Int64) client.WithWatch {
	return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			gets.Add(1)
			return c.Get(ctx, key, o, options...)
		},
	}).Build()
}

// TestLiveReads: 1,000 reconciles in 100 seconds read the Lease 20 times, whether an uninstall holds it or not.
func TestLiveReads(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var gets atomic.Int64
			c := counted(&gets)
			if held {
				release, err := Lease{Client: c, Namespace: "n", Clock: clock.RealClock{}}.Hold(t.Context())
				check.Must(t, err)
				defer func() { check.Must(t, release(false)) }()
			}
			r := &Reader{Live: c, Namespace: "n", Clock: clock.RealClock{}, Started: time.Now()}
			before, renewals := gets.Load(), int64(0)
			for range 1000 {
				wait, err := r.Remaining(t.Context())
				if check.Must(t, err); (wait > 0) != held || wait > remembered {
					t.Fatalf("wait for %s", wait)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if held {
				renewals = int64(100 * time.Second / leaseRenewal) // read the Lease, too
			}
			if got := gets.Load() - before - renewals; got < 19 || got > 21 {
				t.Errorf("1,000 reconciles read the Lease %d times", got)
			}
		})
	}
}

// TestUninstallSettles: from when an uninstall may change something, no controller goes on, whenever it asked before: until the uninstall
// fails, and some seconds more.
func TestUninstallSettles(t *testing.T) {
	for _, phase := range []time.Duration{0, time.Millisecond, 2 * time.Second, 4999 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var gets atomic.Int64
			c := counted(&gets)
			r := &Reader{Live: c, Namespace: "n", Clock: clock.RealClock{}, Started: time.Now()}
			goesOn := func() bool {
				wait, err := r.Remaining(t.Context())
				check.Must(t, err)
				return wait == 0
			}
			if !goesOn() {
				t.Fatal("waits without an uninstall")
			}
			time.Sleep(phase)
			release, err := Lease{Client: c, Namespace: "n", Clock: clock.RealClock{}}.Hold(t.Context())
			check.Must(t, err)
			for range 1200 {
				if goesOn() {
					t.Fatal("goes on during the uninstall")
				}
				time.Sleep(100 * time.Millisecond)
			}
			check.Must(t, release(false))
			time.Sleep(remembered)
			if !goesOn() {
				t.Error("waits after the uninstall failed")
			}
		})
	}
}

// ahead is a clock that goes before that of the uninstall.
type ahead struct {
	clock.PassiveClock
	by time.Duration
}

func (a ahead) Now() time.Time { return a.PassiveClock.Now().Add(a.by) }

// TestClockAhead: a controller on a node whose clock goes before that of the uninstall's node does not take the Lease for run out: it would
// make again what the uninstall deletes, and have nodes serve again. It goes on once the uninstall has died, and waits for none that died
// before.
func TestClockAhead(t *testing.T) {
	for _, by := range []time.Duration{time.Minute, time.Hour} {
		for _, before := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var gets atomic.Int64
				c := counted(&gets)
				uninstall := Lease{Client: c, Namespace: "n", Clock: clock.RealClock{}}
				if before {
					check.Must(t, uninstall.write(t.Context(), names.UninstallLease))
					time.Sleep(time.Minute)
				}
				mine := ahead{clock.RealClock{}, by}
				r := &Reader{Live: c, Namespace: "n", Clock: mine, Started: mine.Now()}
				goesOn := func() bool {
					wait, err := r.Remaining(t.Context())
					check.Must(t, err)
					return wait == 0
				}
				if !goesOn() {
					t.Fatal("waits without an uninstall")
				}
				ctx, die := context.WithCancel(t.Context())
				check.Must(t, uninstall.write(ctx, names.UninstallLease))
				go uninstall.renew(ctx)
				time.Sleep(settle)
				for range 600 {
					if goesOn() {
						t.Fatal("goes on during the uninstall")
					}
					time.Sleep(100 * time.Millisecond)
				}
				die()
				for wait := time.Duration(0); !goesOn(); wait += time.Second {
					if wait > leaseDuration+settle {
						t.Fatal("waits for an uninstall that has died")
					}
					time.Sleep(time.Second)
				}
				check.Must(t, uninstall.write(t.Context(), names.UninstallLease))
				time.Sleep(settle)
				if goesOn() {
					t.Fatal("goes on during the next uninstall")
				}
				check.Must(t, uninstall.write(t.Context(), ""))
				time.Sleep(settle)
				if goesOn() {
					t.Error("the old controller goes on after the uninstall has succeeded")
				}
			})
		}
	}
}

// TestRenewalHangs: a renewal that gets no answer, as over a connection that is broken, is given up and repeated before the Lease runs out.
func TestRenewalHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int64
		updates := 0
		c := interceptor.NewClient(counted(&gets), interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
				if updates++; updates == 2 {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(time.Minute):
					}
				}
				return c.Update(ctx, o, options...)
			},
		})
		release, err := Lease{Client: c, Namespace: "n", Clock: clock.RealClock{}}.Hold(t.Context())
		check.Must(t, err)
		r := &Reader{Live: c, Namespace: "n", Clock: clock.RealClock{}, Started: time.Now()}
		for range 100 {
			wait, err := r.Remaining(t.Context())
			if check.Must(t, err); wait == 0 {
				t.Error("the controller goes on during the uninstall")
				break
			}
			time.Sleep(time.Second)
		}
		check.Must(t, release(false))
	})
}

// TestHoldInterrupted: an uninstall that is stopped while it waits for controllers gives the Lease back.
func TestHoldInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int64
		c := counted(&gets)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := Lease{Client: c, Namespace: "n", Clock: clock.RealClock{}}.Hold(ctx)
		check.WantErr(t, err, context.DeadlineExceeded)
		if err := c.Get(t.Context(), leaseKey("n"), &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease is there: %v", err)
		}
	})
}
