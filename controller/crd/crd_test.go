// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/fettle-dev/fettle/deployments/crds"
)

const crdYAML = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  creationTimestamp: null
  name: things.example.com
spec:
  group: example.com
  names: {kind: Thing, plural: things}
  scope: Cluster
  versions:
  - {name: v1alpha1, served: true, storage: true}
`

func TestLoad(t *testing.T) {
	t.Parallel()
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tests := []struct {
		name    string
		files   fstest.MapFS
		want    map[string][]string
		wantErr string
	}{
		{"none", fstest.MapFS{}, map[string][]string{}, ""},
		{
			"one, and a file that is no YAML",
			fstest.MapFS{"a.yaml": file(crdYAML), "embed.go": file("package x")},
			map[string][]string{"things.example.com": {"v1alpha1"}},
			"",
		},
		{
			"another kind",
			fstest.MapFS{"b.yaml": file("apiVersion: v1\nkind: Namespace\n")},
			map[string][]string{},
			"b.yaml: is a Namespace",
		},
		{
			"unknown field",
			fstest.MapFS{"c.yaml": file(crdYAML + "  colour: red\n")},
			map[string][]string{},
			"colour",
		},
		{"not YAML", fstest.MapFS{"d.yaml": file("\x00{")}, map[string][]string{}, "d.yaml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			definitions, err := Load(tt.files)
			got := map[string][]string{}
			for _, d := range definitions {
				got[d.Name] = d.Versions
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("definitions (-want +got):\n%s", diff)
			}
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error = %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// TestLoadEmbedded reads what the binaries carry.
func TestLoadEmbedded(t *testing.T) {
	t.Parallel()
	definitions, err := Load(crds.Files)
	if err != nil || len(definitions) == 0 {
		t.Fatalf("Load = %d definitions, error %v", len(definitions), err)
	}
	for _, d := range definitions {
		if !strings.HasSuffix(d.Name, ".fettle.dev") {
			t.Errorf("%s is not in the group fettle.dev", d.Name)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		stored []string
		known  []string
		want   []string // refused versions
	}{
		{"not there yet", nil, []string{"v1alpha1"}, nil},
		{"same", []string{"v1alpha1"}, []string{"v1alpha1"}, nil},
		{"upgrade that keeps the old version", []string{"v1alpha1"}, []string{"v1alpha1", "v1beta1"}, nil},
		{"upgrade that drops it", []string{"v1alpha1"}, []string{"v1beta1"}, []string{"v1alpha1"}},
		{"downgrade", []string{"v1beta1", "v1"}, []string{"v1alpha1"}, []string{"v1", "v1beta1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			live := &apiextensionsv1.CustomResourceDefinition{}
			live.Status.StoredVersions = tt.stored
			err := check(live, Definition{Name: "things.example.com", Versions: tt.known})
			var got []string
			if refused, ok := err.(*RefusedError); ok { //nolint:errorlint // the very type is the contract
				got = refused.Stored
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("refused versions (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(crdYAML))
	f.Add([]byte("kind: [\n"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := parse(content)
		if err == nil && d.object == nil {
			t.Error("a definition without content")
		}
	})
}
