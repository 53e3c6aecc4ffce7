// SPDX-License-Identifier: Apache-2.0

package trustpolicies

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

func cluster(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.TrustPolicy{}).Build()
}

func skipping(name, uid string, generation int64, images ...string) *v1alpha1.TrustPolicy {
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
	p.Spec.Images, p.Spec.Mode = images, v1alpha1.VerificationSkip
	return p
}

// told returns the Events since the last call: "Warning Refused".
func told(recorder *events.FakeRecorder) (out []string) {
	for {
		select {
		case e := <-recorder.Events:
			out = append(out, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return out
		}
	}
}

// TestPoliciesInOrder: a list of policies that did not change is equal to the last one, whatever order the cache has them in.
func TestPoliciesInOrder(t *testing.T) {
	api := cluster(t, skipping("b", "1", 1, "**"), skipping("a", "2", 1, "**"), skipping("c", "3", 1, "**"))
	lists := 0
	policies := NewReader(interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			err := w.List(ctx, list, o...)
			if lists++; lists > 1 {
				found, _ := list.(*v1alpha1.TrustPolicyList)
				slices.Reverse(found.Items)
			}
			return err
		},
	}), nil, nil)
	first, err := policies.All(t.Context())
	if err != nil || len(first) != 3 || first[0].Name() != "a" || first[2].Name() != "c" {
		t.Fatalf("%v, %v", first, err)
	}
	second, err := policies.All(t.Context())
	if err != nil || !slices.Equal(first, second) {
		t.Errorf("%v and then %v, %v", first, second, err)
	}
}

// TestStatus: the status says whether a policy can be used, and an Event says when that becomes another.
func TestStatus(t *testing.T) {
	policy := skipping("team", "1", 1, "**")
	api, recorder := cluster(t, policy), events.NewFakeRecorder(100)
	r := New(reconciler.Services{
		Client: api, Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}, NewReader(api, nil, nil)).Queues[0].Reconciler
	expect := func(what, condition string, want ...string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(policy)}); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil {
			t.Fatal(err)
		}
		got := policy.Status.Conditions[0]
		if string(got.Status)+" "+got.Reason != condition || got.ObservedGeneration != policy.Generation || len(policy.Status.Conditions) != 1 {
			t.Errorf("%s: %+v", what, got)
		}
		if diff := gocmp.Diff(want, told(recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", what, diff)
		}
	}
	expect("valid", "True Valid")
	policy.Generation = 2
	policy.Spec.Authorities = []v1alpha1.TrustAuthority{
		{Name: "a", Key: &v1alpha1.TrustKey{PEM: "-----BEGIN PUBLIC KEY-----\nno\n"}}, {Name: "b", Key: &v1alpha1.TrustKey{}},
	}
	if err := api.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	expect("invalid", "False Invalid", "Warning Invalid")
	if m := policy.Status.Conditions[0].Message; !strings.Contains(m, "authorities[0].key.pem") || !strings.Contains(m, "are refused") {
		t.Errorf("it says %q", m)
	}
	expect("the same", "False Invalid")
	policy.Generation, policy.Spec.Authorities = 3, nil
	if err := api.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	expect("mended", "True Valid", "Normal Valid")
}
