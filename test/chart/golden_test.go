// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/fettle-dev/fettle/test/check"
)

// TestGolden compares each variant with its file. default.yaml holds everything; the others hold only the documents that
// differ from it, so that a reviewer sees what a value changes.
func TestGolden(t *testing.T) {
	seen := map[string]bool{}
	for i, v := range variants() {
		var kept [][]byte
		for _, document := range render(t, v.args...) {
			if !seen[string(document)] {
				kept = append(kept, document)
			}
			if i == 0 {
				seen[string(document)] = true
			}
		}
		t.Run(v.name, func(t *testing.T) {
			check.Golden(t, filepath.Join("testdata/golden", v.name+".yaml"), append(bytes.Join(kept, []byte("\n---\n")), '\n'))
		})
	}
}

// TestStrictTypes parses every object into its Kubernetes type; a field that the type lacks is a fault.
func TestStrictTypes(t *testing.T) {
	foreign := map[string]bool{"PodMonitor": true, "PrometheusRule": true, "ServiceMonitor": true, "SecurityContextConstraints": true}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			for _, document := range render(t, v.args...) {
				object, kind, err := decoder.Decode(document, nil, nil)
				if runtime.IsNotRegisteredError(err) && foreign[kind.Kind] {
					continue
				}
				if err != nil {
					t.Errorf("%v in\n%s", err, document)
					continue
				}
				if object.GetObjectKind().GroupVersionKind().Empty() {
					t.Errorf("no kind in\n%s", document)
				}
			}
		})
	}
}

// TestLabels checks the labels that tools select by, and that no two objects have one name.
func TestLabels(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			names := map[string]bool{}
			for _, object := range renderObjects(t, v.args...) {
				name := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
				if names[name] {
					t.Errorf("%s is rendered twice", name)
				}
				names[name] = true
				checkLabels(t, name, object)
			}
		})
	}
}

func checkLabels(t *testing.T, name string, object unstructured.Unstructured) {
	t.Helper()
	labels := object.GetLabels()
	for _, key := range []string{"component", "instance", "managed-by", "name", "part-of", "version"} {
		if labels["app.kubernetes.io/"+key] == "" {
			t.Errorf("%s: label app.kubernetes.io/%s is missing", name, key)
		}
	}
	if labels["helm.sh/chart"] == "" {
		t.Errorf("%s: label helm.sh/chart is missing", name)
	}
}
