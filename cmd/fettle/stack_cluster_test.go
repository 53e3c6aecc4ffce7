// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/test/check"
)

// stackFixture returns a file of the script of stack plan.
func stackFixture(t *testing.T, name string) []byte {
	t.Helper()
	script, err := txtar.ParseFile("testdata/script/stack.txtar")
	check.Must(t, err)
	at := slices.IndexFunc(script.Files, func(f txtar.File) bool { return f.Name == name })
	if at < 0 {
		t.Fatalf("the script has no file %s", name)
	}
	return script.Files[at].Data
}

// stackCluster answers lists of the objects of the script. Resources that are forbidden are refused, and those without an object are not
// served, as those of an operator that is not installed.
func stackCluster(t *testing.T, forbidden, absent string) string {
	t.Helper()
	items := map[string][]string{"acceleratorstacks": nil}
	for _, document := range manifest.Split(stackFixture(t, "cluster.yaml")) {
		raw, err := yaml.YAMLToJSON(document.Text)
		check.Must(t, err)
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		check.Must(t, json.Unmarshal(raw, &list))
		if list.Items == nil {
			list.Items = []json.RawMessage{raw}
		}
		for _, item := range list.Items {
			var head struct {
				Kind string `json:"kind"`
			}
			check.Must(t, json.Unmarshal(item, &head))
			resource := strings.ToLower(head.Kind) + "s"
			items[resource] = append(items[resource], string(item))
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource := path.Base(r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		of, served := items[resource]
		switch {
		case resource == forbidden:
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":403,"reason":"Forbidden"}`)
		case !served || resource == absent:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not served","code":404,"reason":"NotFound"}`)
		default:
			_, _ = fmt.Fprint(w, listText(r.URL.Path, of...))
		}
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c}}")
}

// TestStackPlanOfCluster: a cluster gives the plan that its objects in files do, a file takes the place of one object, and what may not be
// read is named.
func TestStackPlanOfCluster(t *testing.T) {
	dir := t.TempDir()
	file := func(name, from, to string) string {
		text, _, _ := strings.Cut(string(stackFixture(t, "cluster.yaml")), "---\n")
		name = filepath.Join(dir, name)
		text = strings.NewReplacer(from, to, "  creationTimestamp: \"2026-11-01T00:00:00Z\"\n", "").Replace(text)
		check.Must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	next, other := file("next.yaml", `"580"`, `"590"`), file("other.yaml", "name: h100", "name: a-new-one")
	for _, test := range []struct {
		name, forbidden, absent string
		args                    []string
		code                    int
		want                    []string
		not                     string
	}{
		{name: "as it is", want: []string{string(stackFixture(t, "table"))}},
		{
			name: "a change", args: []string{"--from-cluster", "-f", next}, not: "nvidia:580",
			want: []string{"1     a     Draining  UpgradeDraining  nvidia:570-6.1.0-1  nvidia:590-6.1.0-1  6.1.0-1\n"},
		},
		{name: "another stack is younger", args: []string{"--from-cluster", "-f", other}, want: []string{
			"stack a-new-one, engine DaemonSet: 1 node at once, stops once more than 1 failed, drains for 30m0s\n\nstack h100",
			string(stackFixture(t, "table")),
		}},
		{name: "no budgets", forbidden: "poddisruptionbudgets", not: "needs 2 healthy pods", want: []string{
			"not known: poddisruptionbudgets: none were read, and the plan is made as if there were none: told so\n",
		}},
		{name: "KMM's objects", forbidden: "nodemodulesconfigs", want: []string{"not known: nodemodulesconfigs: none were read"}},
		{name: "no Fettle", absent: "acceleratorstacks", code: 1, want: []string{"fettle: stack plan: list the acceleratorstacks: not served"}},
	} {
		var out bytes.Buffer
		args := append([]string{"stack", "plan", "--kubeconfig", stackCluster(t, test.forbidden, test.absent)}, test.args...)
		if code := run(t.Context(), args, &out, &out); code != test.code {
			t.Errorf("%s: exit status %d, want %d", test.name, code, test.code)
		}
		for _, want := range test.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: want %q in\n%s", test.name, want, out.String())
			}
		}
		if test.not != "" && strings.Contains(out.String(), test.not) {
			t.Errorf("%s: %q is in\n%s", test.name, test.not, out.String())
		}
	}
}
