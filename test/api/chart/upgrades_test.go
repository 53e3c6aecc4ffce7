// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// testUpgrades: with the controller's token the annotations of an upgrade can be written to an AcceleratorNode, and nothing else of its
// metadata but what tells its plugin of deleted claims.
func testUpgrades(t *testing.T, server *apiServer) {
	resource := schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: "acceleratornodes"}
	_, node := server.as(t, plugin, "upgraded")
	_, controller := server.as(t, controllerAccount, "")
	if _, err := node.Resource(resource).Create(t.Context(), newAcceleratorNode("upgraded"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, client dynamic.Interface, metadata string) error {
		_, err := client.Resource(resource).Patch(ctx, "upgraded", types.MergePatchType, []byte(`{"metadata":`+metadata+`}`),
			metav1.PatchOptions{})
		return err
	}
	eventually(t, func(ctx context.Context) error {
		return refused(write(ctx, controller, `{"annotations":{"mine":"x"}}`), "writes only the annotations")
	})
	if err := write(t.Context(), node, `{"annotations":{"theirs":"x"},"labels":{"theirs":"x"}}`); err != nil {
		t.Fatal(err)
	}
	for metadata, why := range map[string]string{
		`{"annotations":{"theirs":null}}`:                 "writes only the annotations",
		`{"annotations":{"theirs":"y"}}`:                  "writes only the annotations",
		`{"annotations":null}`:                            "writes only the annotations",
		`{"annotations":{"fettle.dev/recover":"*"}}`:      "writes only the annotations",
		`{"annotations":{"fettle.dev/quiesce":"nvidia"}}`: "only the value *",
		`{"annotations":{"fettle.dev/retire":"admin"}}`:   "sets it on no AcceleratorNode",
		`{"labels":{"a":"b"}}`:                            "writes no labels",
		`{"labels":null}`:                                 "writes no labels",
		`{"finalizers":["a.example/b"]}`:                  "writes no labels",
	} {
		if err := refused(write(t.Context(), controller, metadata), why); err != nil {
			t.Errorf("%s: %v", metadata, err)
		}
	}
	for _, metadata := range []string{
		`{"annotations":{"fettle.dev/upgrade":"s 2026-11-25T00:00:00Z"}}`,
		`{"annotations":{"fettle.dev/upgrade":"s 2026-11-25T00:01:00Z","fettle.dev/quiesce":"*"}}`,
		`{"annotations":{"fettle.dev/upgrade":"s 2026-11-25T00:02:00Z","fettle.dev/quiesce":null}}`,
		`{"annotations":{"fettle.dev/upgrade":null}}`, `{"annotations":{"fettle.dev/claim-deleted":"2026-11-25T00:00:00Z"}}`,
		`{"annotations":{"fettle.dev/waiting-claims":"a/b,c/d"}}`, `{"annotations":{"fettle.dev/waiting-claims":null}}`,
	} {
		if err := write(t.Context(), controller, metadata); err != nil {
			t.Errorf("%s: %v", metadata, err)
		}
	}
	if err := write(t.Context(), node, `{"annotations":{"fettle.dev/quiesce":"nvidia","fettle.dev/retire":"true"}}`); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{`null`, `"*"`} {
		if err := refused(write(t.Context(), controller, `{"annotations":{"fettle.dev/quiesce":`+value+`}}`), "only the value *"); err != nil {
			t.Errorf("what a person had quiesced, to %s: %v", value, err)
		}
	}
	if err := write(t.Context(), controller, `{"annotations":{"fettle.dev/retire":null}}`); err != nil {
		t.Errorf("a retirement is taken back: %v", err)
	}
}
