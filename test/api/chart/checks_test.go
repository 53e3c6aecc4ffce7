// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// testChecks: with the controller's token the results of checks can be written to an AcceleratorNode, and no other field of its status.
func testChecks(t *testing.T, server *apiServer) {
	resource := schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: "acceleratornodes"}
	_, node := server.as(t, plugin, "checked")
	_, controller := server.as(t, controllerAccount, "")
	if _, err := node.Resource(resource).Create(t.Context(), newAcceleratorNode("checked"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, client dynamic.Interface, status string) error {
		_, err := client.Resource(resource).Patch(ctx, "checked", types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{},
			"status")
		return err
	}
	if err := write(t.Context(), node, `{"preparedClaims":1,"facts":{"bootID":"a"}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		return refused(write(ctx, controller, `{"preparedClaims":2}`), "writes only status.checks of an AcceleratorNode, not status.prepared")
	})
	for _, status := range []string{`{"facts":{"bootID":"b"}}`, `{"facts":null}`, `{"vendors":[{"name":"nvidia"}]}`, `null`} {
		if err := refused(write(t.Context(), controller, status), "writes only status.checks"); err != nil {
			t.Errorf("%s: %v", status, err)
		}
	}
	const checks = `{"checks":[{"deviceClassName":"gpu.fettle.dev","evidence":"e","passed":true,"reason":"Passed",` +
		`"time":"2026-01-01T00:00:00Z"}]}`
	if err := write(t.Context(), controller, checks); err != nil {
		t.Errorf("results of checks: %v", err)
	}
	policies := server.clients.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy, err := policies.Get(t.Context(), "fettle-checks", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := reflect.TypeFor[v1alpha1.AcceleratorNodeStatus]()
	for i := range all.NumField() {
		name, _, _ := strings.Cut(all.Field(i).Tag.Get("json"), ",")
		named := false
		for _, v := range policy.Spec.Validations {
			named = named || v.Expression == "object.?status.?"+name+" == oldObject.?status.?"+name
		}
		if named == (name == "checks") {
			t.Errorf("the policy keeps the controller from status.%s: %t", name, named)
		}
	}
}
