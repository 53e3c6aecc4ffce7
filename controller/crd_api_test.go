// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/names"
)

// testCRDs upgrades a definition and tries to take it back.
func (c cluster) testCRDs(t *testing.T) {
	object := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "things.example.com"}}
	t.Cleanup(func() { _ = c.client.Delete(t.Context(), object) })
	read := func() *apiextensionsv1.CustomResourceDefinition {
		var live apiextensionsv1.CustomResourceDefinition
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), &live); err != nil {
			t.Fatal(err)
		}
		return &live
	}
	apply := func(versions ...string) error {
		return crd.Apply(t.Context(), c.client, definition(t, versions), names.Controller)
	}
	if err := apply("v1alpha1"); err != nil {
		t.Fatalf("first install: %v", err)
	}
	before := read()
	if err := apply("v1alpha1"); err != nil {
		t.Fatalf("again: %v", err)
	}
	if after := read(); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("applying the same changed resourceVersion %s to %s", before.ResourceVersion, after.ResourceVersion)
	}
	if err := apply("v1alpha1", "v1beta1"); err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	before = read()
	err := apply("v1alpha1")
	var refused *crd.RefusedError
	if !errors.As(err, &refused) || strings.Join(refused.Stored, " ") != "v1beta1" {
		t.Fatalf("downgrade: error %v, want a refusal that names v1beta1", err)
	}
	if after := read(); after.ResourceVersion != before.ResourceVersion {
		t.Error("a refused downgrade wrote the definition")
	}
}

// definition has the given versions; the last is the one to store.
func definition(t *testing.T, versions []string) crd.Definition {
	t.Helper()
	text := `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  versions:
`
	for i, v := range versions {
		text += fmt.Sprintf("  - {name: %s, served: true, storage: %v, schema: {openAPIV3Schema: {type: object}}}\n",
			v, i == len(versions)-1)
	}
	definitions, err := crd.Load(fstest.MapFS{"things.yaml": &fstest.MapFile{Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return definitions[0]
}
