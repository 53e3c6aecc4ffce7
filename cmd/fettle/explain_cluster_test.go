// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// objectCluster is an API server that lists the objects of a file, and refuses what a user of namespace default may not read.
type objectCluster struct {
	objects []map[string]any
	// tenant may read claims, pods and what else has a namespace in default only, and not the resources in refused.
	tenant  bool
	refused []string
}

func (c *objectCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, namespace := parts[len(parts)-1], ""
	if at := slices.Index(parts, "namespaces"); at >= 0 && at < len(parts)-2 {
		namespace = parts[at+1]
	}
	namespaced := slices.Contains([]string{"pods", "resourceclaims", "resourceclaimtemplates", "resourcequotas", "events"}, resource)
	switch {
	case r.URL.Path == "/version":
		_, _ = fmt.Fprint(w, `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`)
		return
	case r.URL.Path == "/metrics" && c.tenant, c.tenant && namespaced && namespace != "default", slices.Contains(c.refused, resource):
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":403,"reason":"Forbidden"}`)
		return
	}
	var items []string
	for _, o := range c.objects {
		metadata, _ := o["metadata"].(map[string]any)
		if strings.ToLower(fmt.Sprint(o["kind"]))+"s" == strings.Replace(resource, "classes", "classs", 1) &&
			(namespace == "" || metadata["namespace"] == namespace) {
			text, _ := json.Marshal(o)
			items = append(items, string(text))
		}
	}
	_, _ = fmt.Fprint(w, listText(r.URL.Path, items...))
}

// newObjectCluster serves the files of the script explain.txtar, and an Event of the pod.
func newObjectCluster(t *testing.T, change func(c *objectCluster)) string {
	t.Helper()
	data, err := os.ReadFile("testdata/script/explain.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, files, _ := strings.Cut(string(data), "-- cluster.yaml --\n")
	c := &objectCluster{}
	change(c)
	for _, document := range strings.Split(strings.ReplaceAll(files, "-- pods.yaml --\n", "---\n"), "\n---\n") {
		o := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		c.objects = append(c.objects, o)
	}
	c.objects = append(c.objects, map[string]any{
		"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"namespace": "default", "name": "e"}, "type": "Warning",
		"reason": "FailedScheduling", "message": "0/2 nodes are available: 2 cannot allocate all claims.",
		"involvedObject": map[string]any{"kind": "Pod", "name": "train"},
	})
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c}}")
}

// TestExplainOfCluster explains with the rights that a reader has: what may not be read is not named, and a note says so.
func TestExplainOfCluster(t *testing.T) {
	for _, test := range []struct {
		name   string
		tenant bool
		refuse []string
		args   []string
		want   []string
		code   int
	}{
		{name: "administrator", want: []string{
			"2 GPUs with memory > 40Gi are free on n1, but on different PCIe roots", "\nFailedScheduling: 0/2 nodes are available: 2 cannot",
			"  so many nodes do not have the devices", "held by research/notebook",
		}},
		{name: "tenant", tenant: true, want: []string{
			"note: claims of other namespaces may not be read", "note: pods of other namespaces may not be read", "node n1: fits",
		}},
		{name: "tenant without nodes", tenant: true, refuse: []string{"nodes", "namespaces"}, want: []string{
			"node n1: fits", "note: nodes may not be read: they are taken from ResourceSlices",
		}},
		{name: "tenant without slices", tenant: true, refuse: []string{"nodes", "namespaces", "resourceslices"}, want: []string{
			"devices cannot be explained, since you may not list resourceslices; the scheduler has said nothing of the pod yet",
		}},
		{
			name: "claim without slices", tenant: true, refuse: []string{"resourceslices"}, args: []string{"explain", "claim", "train"},
			want: []string{"devices cannot be explained, since you may not list resourceslices", "note: it is explained for pod train"},
		},
		{name: "no right to Events", refuse: []string{"events"}, want: []string{
			"Events of pod train: none were read, and the scheduler may have said more: told so", "2 GPUs with memory > 40Gi are free on n1",
		}},
		{name: "not there", args: []string{"explain", "claim", "none"}, code: 1, want: []string{
			"explain claim none: namespace default has no such object: look with kubectl get resourceclaims -A; claims of templates",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := newObjectCluster(t, func(c *objectCluster) { c.tenant, c.refused = test.tenant, test.refuse })
			args := test.args
			if args == nil {
				args = []string{"explain", "pod", "train", "-v"}
			}
			var out bytes.Buffer
			if code := run(t.Context(), append(args, "--kubeconfig", config), &out, &out); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in:\n%s", want, out.String())
				}
			}
			if test.tenant && (strings.Contains(out.String(), "research") || strings.Contains(out.String(), "notebook")) {
				t.Errorf("it names an object of another namespace:\n%s", out.String())
			}
		})
	}
}
