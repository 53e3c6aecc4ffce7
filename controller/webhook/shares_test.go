// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/pkg/admission"
)

// slow reads objects that all take a while, and counts.
type slow struct {
	client.Reader
	took  time.Duration
	reads atomic.Int64
}

func (s *slow) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	s.reads.Add(1)
	select {
	case <-time.After(s.took):
		return s.Reader.Get(ctx, key, into, options...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// podOfClaims returns the review of a new pod that names claims.
func podOfClaims(t *testing.T, namespace string, claims ...string) ctrladmission.Request {
	t.Helper()
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
	for i, name := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprint("c", i), ResourceClaimName: ptr.To(name),
		})
	}
	raw, err := json.Marshal(&pod)
	if err != nil {
		t.Fatal(err)
	}
	var req ctrladmission.Request
	req.Namespace, req.Kind = namespace, metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	req.Resource.Resource, req.Object = "pods", runtime.RawExtension{Raw: raw}
	return req
}

func manyClaims(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("foreign", i))
	}
	return names
}

// TestPodOfManyClaims: a pod that names 1,000 claims costs no more reads than any review may, and its review says what was not looked at.
// One that names the same claim as often costs one.
func TestPodOfManyClaims(t *testing.T) {
	p, _ := podsUnderTest(tainting())
	reader := &slow{Reader: p.reader}
	p.reader = reader
	if got := p.Handle(t.Context(), podOfClaims(t, "ns", manyClaims(1000)...)); !got.Allowed || len(got.Warnings) != 1 || got.Patch != nil {
		t.Errorf("allowed %v, patch %s, warnings %q", got.Allowed, got.Patch, got.Warnings)
	}
	if got := reader.reads.Swap(0); got > maxLookups {
		t.Errorf("the pod's tolerations took %d reads", got)
	}
	_ = p.Handle(t.Context(), podOfClaims(t, "ns", strings.Split(strings.Repeat("foreign,", 60)+"foreign", ",")...))
	if got := reader.reads.Swap(0); got != 1 {
		t.Errorf("one claim took %d reads", got)
	}
	h := Handler{
		Validate: admission.Validate, Observe: func(string, string) {}, Refer: references{reader: reader, judge: &admission.Judge{}}.check,
	}
	got := h.Handle(t.Context(), podOfClaims(t, "ns", manyClaims(1000)...))
	warnings := strings.Join(got.Warnings, "\n")
	if reads := reader.reads.Load(); !got.Allowed || reads > maxLookups || !strings.Contains(warnings, "only the first 64") {
		t.Errorf("allowed %v, %d reads, warnings %q", got.Allowed, reads, got.Warnings)
	}
}

// TestNamespacesTakeTurns: reviews of large pods by the hundred, of three namespaces, keep those of a fourth from nothing.
func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := podsUnderTest(tainting())
		p.reader, p.shares = &slow{Reader: p.reader, took: 20 * time.Millisecond}, newShares()
		p.observe = func(string, string) {}
		var all sync.WaitGroup
		for i := range 600 {
			req := podOfClaims(t, fmt.Sprint("mallory", i%3), manyClaims(64)...)
			all.Go(func() { _ = p.Handle(t.Context(), req) })
		}
		synctest.Wait()
		begun := time.Now()
		got := p.Handle(t.Context(), podOfClaims(t, "ns", "claim"))
		if took := time.Since(begun); took > 100*time.Millisecond || string(got.Patch) != added {
			t.Errorf("another namespace's review took %s: patch %s, warnings %q", took, got.Patch, got.Warnings)
		}
		all.Wait()
	})
}

// TestShareOfNamespace: one namespace's reviews have a quarter of the memory of all, and any one review is let in.
func TestShareOfNamespace(t *testing.T) {
	s := newShares()
	review := func(namespace string, size int) *ctrladmission.Request {
		req := &ctrladmission.Request{}
		req.Namespace, req.Object.Raw = namespace, make([]byte, size)
		return req
	}
	alone, ok := s.take(review("a", maxReview))
	if !ok {
		t.Fatal("the largest review was refused")
	}
	if _, ok := s.take(review("a", 1)); ok {
		t.Error("another beside the largest of the same namespace was let in")
	}
	other, ok := s.take(review("b", 1))
	if !ok {
		t.Error("another namespace's was refused")
	}
	alone()
	other()
	for range shareOfNamespace / leastReview {
		if _, ok := s.take(review("a", 1)); !ok {
			t.Fatal("small reviews of one namespace within its share were refused")
		}
	}
	if _, ok := s.take(review("a", 1)); ok {
		t.Error("more than the share was let in")
	}
	for range 10 {
		if _, ok := s.take(review("", maxReview)); !ok {
			t.Error("an object of the cluster was refused")
		}
	}
}
