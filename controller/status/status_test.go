// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPatch: a status is written if it changed, by one patch that a change of the object in between makes fail.
func TestPatch(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	patches := 0
	policy := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy).WithStatusSubresource(policy).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			patches++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		}}).Build()
	w := Writer{Client: api}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil {
		t.Fatal(err)
	}
	stale := policy.DeepCopy()
	write := func(p *v1alpha1.TrustPolicy, generation int64) (bool, error) {
		before := Copy(p)
		p.Status.ObservedGeneration = generation
		return w.Patch(t.Context(), before, p)
	}
	if written, err := write(policy, 0); err != nil || written || patches != 0 {
		t.Errorf("without a change: written %v by %d patches, %v", written, patches, err)
	}
	if written, err := write(policy, 1); err != nil || !written || patches != 1 {
		t.Errorf("with a change: written %v by %d patches, %v", written, patches, err)
	}
	if written, err := write(stale, 2); !apierrors.IsConflict(err) || written {
		t.Errorf("of an object that changed meanwhile: written %v, %v", written, err)
	}
	if err := api.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if written, err := write(policy, 3); err != nil || written {
		t.Errorf("of an object that is gone: written %v, %v", written, err)
	}
}

func TestAnnounce(t *testing.T) {
	const kind = "Good"
	condition := func(text string) []metav1.Condition {
		status, reason, _ := strings.Cut(text, " ")
		if status == "" {
			return nil
		}
		return []metav1.Condition{{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: reason + "!"}}
	}
	well := Rule{Type: kind, Well: metav1.ConditionTrue}
	for name, test := range map[string]struct {
		before, now string
		rules       []Rule
		want        []string
	}{
		"well from the beginning": {"", "True A", []Rule{well}, nil},
		"news all the same":       {"", "True A", []Rule{{Type: kind, Well: metav1.ConditionTrue, News: true}}, []string{"Normal A A!"}},
		"bad from the beginning":  {"", "False B", []Rule{well}, []string{"Warning B B!"}},
		"unchanged":               {"False B", "False B", []Rule{well}, nil},
		"another reason":          {"False B", "False C", []Rule{well}, []string{"Warning C C!"}},
		"mended":                  {"False B", "True A", []Rule{well}, []string{"Normal A A!"}},
		"silent":                  {"True A", "Unknown B", []Rule{{Type: kind, Well: metav1.ConditionTrue, Silent: []string{"B"}}}, nil},
		"not a warning": {
			"True A", "Unknown B", []Rule{{Type: kind, Well: metav1.ConditionTrue, Normal: []string{"B"}}}, []string{"Normal B B!"},
		},
		"one reason twice":  {"True A", "False B", []Rule{well, well}, []string{"Warning B B!"}},
		"not there":         {"True A", "", []Rule{well}, nil},
		"of another's rule": {"True A", "False B", []Rule{{Type: "Other", Well: metav1.ConditionTrue, News: true}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(10)
			w := Writer{Recorder: recorder}
			w.Announce(t.Context(), Change{
				Object: &v1alpha1.TrustPolicy{}, Kind: "TrustPolicy", Action: "Judge", Before: condition(test.before), Now: condition(test.now),
			}, test.rules...)
			var got []string
			for len(recorder.Events) > 0 {
				got = append(got, <-recorder.Events)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPatchReports: what nodes report waits for the budget and is not lost, and news do not wait.
func TestPatchReports(t *testing.T) {
	scheme := runtime.NewScheme()
	check.Must(t, v1alpha1.AddToScheme(scheme))
	policy := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	objects := []client.Object{policy}
	for i := range 5000 {
		objects = append(objects, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(policy).Build()
	check.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	clock := clocktesting.NewFakePassiveClock(time.Now())
	w := Writer{Client: api, Budget: NewBudget(clock)}
	write := func(n int64, weight Weight) (bool, time.Duration) {
		t.Helper()
		now := policy.DeepCopy()
		now.Status.ObservedGeneration = n
		written, early, err := w.PatchReports(t.Context(), policy, now, weight)
		check.Must(t, err)
		if written {
			policy = now
		}
		return written, early
	}
	if written, early := write(0, Counts); written || early > 0 {
		t.Errorf("no change: written %v, early by %s", written, early)
	}
	n := int64(0)
	var early time.Duration
	for early == 0 {
		n++
		_, early = write(n, Turn)
	}
	if n < 2 || n > 5 {
		t.Errorf("%d writes to 5,000 nodes at once", n)
	}
	if written, early := write(n+1, News); !written || early > 0 {
		t.Errorf("news: written %v, early by %s", written, early)
	}
	clock.SetTime(clock.Now().Add(early))
	if written, early := write(n+2, Turn); !written || early > 0 {
		t.Errorf("after the wait: written %v, early by %s", written, early)
	}
}
