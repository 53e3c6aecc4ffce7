// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// later is a queue that notes what comes after a while.
type later struct {
	reconciler.RequestQueue
	keys []string
}

func (l *later) AddAfter(r reconcile.Request, after time.Duration) {
	if after != reconciler.Gathering {
		l.keys = append(l.keys, "too soon")
	}
	l.keys = append(l.keys, r.String())
}

// TestGathered: every change of an object queues it for a while later.
func TestGathered(t *testing.T) {
	h := reconciler.Gathered[client.Object](client.ObjectKeyFromObject)
	var q later
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	h.Create(t.Context(), event.CreateEvent{Object: class}, &q)
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: class, ObjectNew: class}, &q)
	h.Delete(t.Context(), event.DeleteEvent{Object: class}, &q)
	h.Generic(t.Context(), event.GenericEvent{Object: class}, &q)
	if diff := cmp.Diff([]string{"/x", "/x", "/x", "/x"}, q.keys); diff != "" {
		t.Errorf("queued (-want +got):\n%s", diff)
	}
}

// TestPause: while an uninstall is in progress a queue is not served, unless it says that it is.
func TestPause(t *testing.T) {
	away := errors.New("away")
	for name, test := range map[string]struct {
		wait   time.Duration
		err    error
		during bool
		want   reconcile.Result
		served bool
	}{
		"no uninstall":      {0, nil, false, reconcile.Result{}, true},
		"uninstall":         {time.Minute, nil, false, reconcile.Result{RequeueAfter: time.Minute}, false},
		"not known":         {0, away, false, reconcile.Result{}, false},
		"served anyway":     {time.Minute, nil, true, reconcile.Result{}, true},
		"anyway, not known": {0, away, true, reconcile.Result{}, true},
	} {
		served := false
		q := reconciler.Queue{DuringUninstall: test.during, Reconciler: reconcile.Func(
			func(context.Context, reconcile.Request) (reconcile.Result, error) {
				served = true
				return reconcile.Result{}, nil
			},
		)}
		pause := func(context.Context) (time.Duration, error) { return test.wait, test.err }
		got, err := q.Handler(pause).Reconcile(t.Context(), reconcile.Request{})
		wantErr := test.err
		if test.during {
			wantErr = nil
		}
		if got != test.want || served != test.served || !errors.Is(err, wantErr) {
			t.Errorf("%s: %v, %v, served %v; want %v, served %v", name, got, err, served, test.want, test.served)
		}
	}
}

func TestDifference(t *testing.T) {
	for _, test := range []struct{ a, b, want []string }{
		{nil, nil, nil},
		{[]string{"x", "y"}, []string{"y", "x"}, nil},
		{[]string{"x", "y"}, []string{"y", "z"}, []string{"x", "z"}},
		{nil, []string{"z"}, []string{"z"}},
	} {
		if got := reconciler.Difference(test.a, test.b); !slices.Equal(got, test.want) {
			t.Errorf("of %q and %q: %q, want %q", test.a, test.b, got, test.want)
		}
	}
}

func TestSchedule(t *testing.T) {
	now := time.Now()
	object := func(uid types.UID, generation int64) client.Object {
		return &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation}}
	}
	key := types.NamespacedName{Namespace: "a", Name: "b"}
	var s reconciler.Schedule
	expect := func(what string, o client.Object, at time.Time, want time.Duration, wantDone bool) {
		t.Helper()
		if got, done := s.Remaining(key, o, at); done != wantDone || done && got != want {
			t.Errorf("%s: %v %v, want %v %v", what, got, done, want, wantDone)
		}
	}
	expect("never done", object("1", 1), now, 0, false)
	s.Done(key, object("1", 1), time.Minute, now)
	expect("early", object("1", 1), now.Add(time.Second), 59*time.Second, true)
	expect("due", object("1", 1), now.Add(time.Minute), 0, false)
	expect("changed", object("1", 2), now, 0, false)
	expect("made again", object("2", 1), now, 0, false)
	s.Done(key, object("1", 1), 0, now)
	expect("settled", object("1", 1), now.Add(1000*time.Hour), 0, true)
	s.Forget(key)
	expect("forgotten", object("1", 1), now, 0, false)
}
