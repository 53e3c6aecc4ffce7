// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"net/http"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/test/check"
)

// testFlows: what a Prepare waits for does not share a queue with the lists of all nodes, as the API server itself says.
func testFlows(t *testing.T, server *apiServer) {
	schema, err := server.clients.FlowcontrolV1().FlowSchemas().Get(t.Context(), plugin, metav1.GetOptions{})
	check.Must(t, err)
	for _, c := range schema.Status.Conditions {
		if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionTrue {
			t.Errorf("the FlowSchema is not in force: %s", c.Message)
		}
	}
	const dra, core = "/apis/resource.k8s.io/v1", "/api/v1"
	eventually(t, func(ctx context.Context) error {
		if server.flowOf(ctx, t, plugin, http.MethodGet, dra+"/namespaces/default/resourceclaims/x") != string(schema.UID) {
			return errors.New("a claim's GET is not in the flow")
		}
		return nil
	})
	for _, test := range []struct {
		account, method, path string
		own                   bool
	}{
		{plugin, http.MethodGet, dra + "/namespaces/default/resourceclaims/x", true},
		{plugin, http.MethodPatch, dra + "/namespaces/default/resourceclaims/x/status", true},
		{plugin, http.MethodGet, core + "/namespaces/default/pods/x", true},
		{plugin, http.MethodGet, core + "/namespaces/default/secrets/x", true},
		{plugin, http.MethodGet, core + "/namespaces/default", true},
		{plugin, http.MethodGet, dra + "/resourceclaims", false},
		{plugin, http.MethodGet, dra + "/resourceslices", false},
		{plugin, http.MethodGet, core + "/nodes/x", false},
		{controllerAccount, http.MethodGet, dra + "/namespaces/default/resourceclaims/x", false},
	} {
		if got := server.flowOf(t.Context(), t, test.account, test.method, test.path) == string(schema.UID); got != test.own {
			t.Errorf("%s of %s by %s is in the flow: %v, want %v", test.method, test.path, test.account, got, test.own)
		}
	}
}

// flowOf returns the UID of the FlowSchema that the API server applied to a request of an account, whether or not it may make it.
func (s *apiServer) flowOf(ctx context.Context, t *testing.T, account, method, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(s.configOf(account, "node1"))
	check.Must(t, err)
	request, err := http.NewRequestWithContext(ctx, method, s.config.Host+path, http.NoBody)
	check.Must(t, err)
	response, err := client.Do(request)
	check.Must(t, err)
	check.Must(t, response.Body.Close())
	return response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
}
