// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/plan/explain"
)

// playInFlight holds back the write of an allocation, so that a second pod meets the claim while the first is about to get it.
func (c *cluster) playInFlight(t *testing.T) {
	s := scenario{
		name: "a claim in flight",
		objects: cat(on("a", gpus(1)...), class("gpu"), claim("c", exactly("r", 1)),
			pod("p", named("gpu", "c")), pod("q", named("gpu", "c"))),
	}.placed()
	defer c.clear(t, s)
	c.arrange(t, s)
	h := newHold()
	server := httptest.NewTLSServer(h)
	defer server.Close()
	webhook := h.webhook(server, s.namespace())
	c.write(t, webhook)
	defer func() { c.removed(t, c.client.Delete(t.Context(), webhook)) }()
	c.eventually(t, func() string { return c.asked(t, s, h) })
	p, q := s.pods()[0], s.pods()[1]
	c.write(t, p)
	<-h.held
	c.write(t, q)
	if got := c.settle(t, q, outcome{reason: "claim-in-flight"}); got.reason != "claim-in-flight" {
		t.Errorf("the scheduler says of a claim in flight: %q %s", got.node, got.text)
	}
	c.checkExplanation(t, q, because{explain.Fits, "the pod fits node a"}) // nothing that is stored speaks against it
	close(h.done)
	for _, pod := range s.pods() {
		if got := c.settle(t, pod, outcome{node: "a"}); got.node != "a" {
			t.Errorf("pod %s has no node after the claim was allocated: %s", pod.Name, got.text)
		}
	}
}

// asked tries the write of a status until the API server asks for leave: it takes a moment to know that it should.
func (c *cluster) asked(t *testing.T, s scenario, h *hold) string {
	t.Helper()
	tried := claim("c")
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: "c"}, tried); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Status().Update(t.Context(), tried, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if h.trials.Load() == 0 {
		return "the API server does not ask before it writes the status of a claim"
	}
	return ""
}

// hold is a webhook that keeps writes waiting.
type hold struct {
	// held is closed when the first write has come, done lets all go on.
	held, done chan struct{}
	once       sync.Once
	// trials counts writes that were only tried.
	trials atomic.Int32
}

func newHold() *hold { return &hold{held: make(chan struct{}), done: make(chan struct{})} }

// ServeHTTP allows every write, once it may go on.
func (h *hold) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	if ptr.Deref(review.Request.DryRun, false) {
		h.trials.Add(1)
	} else {
		h.once.Do(func() { close(h.held) })
		select {
		case <-h.done:
		case <-r.Context().Done():
		}
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(w).Encode(review)
}

// webhook has the API server ask before it writes the status of a claim of a namespace.
func (h *hold) webhook(server *httptest.Server, namespace string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hold"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hold.example.com", FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: ptr.To(int32(30)),
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"resourceclaims/status"},
				},
			}},
		}},
	}
}
