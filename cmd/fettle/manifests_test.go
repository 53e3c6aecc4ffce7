// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// written writes a file and returns its name.
func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestPolicyFiles: a file of policies may begin with comments, have documents without content, and be a stream of JSON.
func TestPolicyFiles(t *testing.T) {
	const policy = `{"apiVersion":"fettle.dev/v1alpha1","kind":"TrustPolicy","metadata":{"name":"%s"},` +
		`"spec":{"images":["registry.example/**"]}}`
	a, b := fmt.Sprintf(policy, "a"), fmt.Sprintf(policy, "b")
	for name, text := range map[string]string{
		"a comment first":         "# Licensed.\n---\n" + a + "\n---\n" + b,
		"a comment last":          a + "\n---\n" + b + "\n---\n# The end.\n",
		"JSON":                    a + "\n" + b,
		"the mark of UTF-8":       "\xef\xbb\xbf---\n" + a + "\n---\n" + b,
		"a marker with a comment": a + "\n--- # the other\n" + b,
	} {
		policies, err := readPolicies(written(t, "policies.yaml", text))
		if err != nil || len(policies) != 2 || policies[0].Name != "a" || policies[1].Name != "b" {
			t.Errorf("%s: got %d policies, %v; want a and b", name, len(policies), err)
		}
	}
	_, err := readPolicies(written(t, "policies.yaml", strings.Replace(a, `["registry.example/**"]`, "7", 1)))
	check.WantErr(t, err, nil, "spec.images: got a number, want a list")
}

// TestEveryDocumentOfFiles: whichever command reads manifests reads all of a stream, and names a value of the wrong type without the words
// of Go.
func TestEveryDocumentOfFiles(t *testing.T) {
	const claims = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"good"},"spec":{"devices":{"requests":` +
		`[{"name":"r","exactly":{"deviceClassName":"gpu.fettle.dev"}}]}}}` + "\n" + `{"apiVersion":"resource.k8s.io/v1","kind":` +
		`"ResourceClaim","metadata":{"name":"bad"},"spec":{"devices":{"requests":7}}}` + "\n"
	file := written(t, "claims.json", claims)
	for _, args := range [][]string{
		{"validate", file},
		{"plan", "-f", file},
		{"quota", "-f", file},
		{"explain", "claim", "good", "-f", file},
		{"stack", "plan", "-f", file},
		{"preset", "explain", "--claim", file},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, &stdout, &stderr)
		said := stdout.String() + stderr.String()
		wanted := strings.Contains(said, "bad") && strings.Contains(said, "got a number, want a list")
		if code == 0 || !wanted || strings.Contains(said, "Go struct") {
			t.Errorf("%s: exit status %d, %s", args[0], code, said)
		}
	}
	list := written(t, "list.yaml", "[1, 2]\n")
	for _, args := range [][]string{{"stack", "plan", "-f", list}, {"plan", "-f", list}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code == 0 || strings.Contains(stderr.String(), "Go ") {
			t.Errorf("%s: exit status %d, %s", args[0], code, &stderr)
		}
	}
}
