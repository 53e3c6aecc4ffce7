// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// planObjects are the lists of a small cluster, by path.
func planObjects() map[string]string {
	return map[string]string{
		"/api/v1/nodes":      `{"metadata":{"name":"n1"}},{"metadata":{"name":"n2"}}`,
		"/api/v1/namespaces": `{"metadata":{"name":"team"}}`,
		"/api/v1/pods": `{"metadata":{"name":"late","namespace":"team","creationTimestamp":"2026-02-02T00:00:00Z"},"spec":{"containers":[],
"resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"one"}]}},
{"metadata":{"name":"early","namespace":"team","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"containers":[],
"resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"one"}]}},
{"metadata":{"name":"urgent","namespace":"team","creationTimestamp":"2026-03-03T00:00:00Z"},"spec":{"priority":5,"containers":[],
"resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"one"}]}}`,
		"/api/v1/resourcequotas": ``,
		"/apis/resource.k8s.io/v1/resourceslices": `{"metadata":{"name":"n1"},"spec":{"driver":"d.io","nodeName":"n1",
"pool":{"name":"n1","generation":1,"resourceSliceCount":1},
"devices":[{"name":"gpu-0"},{"name":"gpu-1","taints":[{"key":"k","effect":"NoSchedule"}]}]}}`,
		"/apis/resource.k8s.io/v1/deviceclasses":  `{"metadata":{"name":"gpu"}}`,
		"/apis/resource.k8s.io/v1/resourceclaims": ``,
		"/apis/resource.k8s.io/v1/resourceclaimtemplates": `{"metadata":{"name":"one","namespace":"team"},"spec":{"spec":
{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","allocationMode":"ExactCount","count":1}}]}}}}`,
		"/apis/resource.k8s.io/v1alpha3/devicetaintrules": ``,
		"/apis/scheduling.k8s.io/v1alpha3/podgroups":      `{"metadata":{"name":"gang","namespace":"team"},"spec":{}}`,
		"/metrics": "kubernetes_feature_enabled{name=\"DRADeviceTaints\",stage=\"BETA\"} 0\n",
	}
}

// planCluster answers lists. What is forbidden is answered with 403, and below a namespace only if it is not.
func planCluster(t *testing.T, forbidden ...string) string {
	t.Helper()
	objects := planObjects()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items, served := objects[strings.Replace(r.URL.Path, "/namespaces/team/", "/", 1)]
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason string) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":%d,"reason":%q}`, code, reason)
		}
		switch {
		case r.URL.Path == "/version":
			fmt.Fprint(w, `{"major":"1","minor":"36+","gitVersion":"v1.36.2"}`)
		case slices.Contains(forbidden, r.URL.Path):
			status(http.StatusForbidden, "Forbidden")
		case !served:
			status(http.StatusNotFound, "NotFound")
		case r.URL.Path == "/metrics":
			fmt.Fprint(w, items)
		default:
			fmt.Fprint(w, listText(r.URL.Path, items))
		}
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c, namespace: team}}")
}

// TestPlanOfCluster: pods are planned by priority and age, with the version and the gates of the API server, and what may not be read is
// said.
func TestPlanOfCluster(t *testing.T) {
	const urgent = "team/urgent  n1    n1    gpu=d.io/n1/gpu-0\nteam/early   n1    n1    gpu=d.io/n1/gpu-1\nteam/late    -     -     -\n"
	for _, test := range []struct {
		name      string
		forbidden []string
		want      string
		wantErr   []string
		code      int
	}{
		{
			name: "all", want: urgent, code: 3,
			wantErr: []string{"ResourceSlice n1: spec.devices[].taints is dropped: DRADeviceTaints is off in Kubernetes 1.36\n"},
		},
		{
			name: "without metrics", forbidden: []string{"/metrics"}, code: 3, want: "team/urgent  n1    n1    gpu=d.io/n1/gpu-0\nteam/early   -  ",
			wantErr: []string{"Snapshot kubernetes: feature gates are taken for the defaults of 1.36"},
		},
		{
			name: "one namespace", want: urgent, code: 3,
			forbidden: []string{"/api/v1/pods", "/api/v1/resourcequotas", "/api/v1/namespaces"},
			wantErr: []string{
				"Snapshot pods: only those of namespace team were read: no\n", "Snapshot resourcequotas: only those of namespace team were read: no\n",
				"Snapshot namespaces: none were read, and the plan is made as if there were none: no\n",
			},
		},
		{
			name: "without slices", forbidden: []string{"/apis/resource.k8s.io/v1/resourceslices"}, code: 3,
			want: "team/late: 0/2 nodes are available: 2 cannot allocate all claims.", wantErr: []string{"Snapshot resourceslices: none were read"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := planCluster(t, test.forbidden...)
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), []string{"plan", "--from-cluster", "--kubeconfig", config}, &stdout, &stderr); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.want) {
				t.Errorf("got %s\nwant %s", stdout.String(), test.want)
			}
			for _, want := range test.wantErr {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr %s\nwant %s", stderr.String(), want)
				}
			}
			// A saved snapshot is the same, and says the same of what is missing.
			file := filepath.Join(t.TempDir(), "cluster.yaml")
			if code := run(t.Context(), []string{"snapshot", "--kubeconfig", config, "-o", file}, &bytes.Buffer{}, &bytes.Buffer{}); code != 0 {
				t.Fatalf("snapshot: exit status %d", code)
			}
			var again, saved bytes.Buffer
			run(t.Context(), []string{"plan", "-f", file}, &again, &saved)
			if again.String() != stdout.String() {
				t.Errorf("the saved snapshot is planned as\n%swant\n%s", again.String(), stdout.String())
			}
			for _, want := range test.wantErr {
				if !strings.Contains(saved.String(), want) {
					t.Errorf("stderr of the saved snapshot %s\nwant %s", saved.String(), want)
				}
			}
		})
	}
}

// TestVersionsOfOneNamespace: who may read one namespace gets its objects in the version that is served, whichever that is.
func TestVersionsOfOneNamespace(t *testing.T) {
	const groups = "/apis/scheduling.k8s.io/v1beta1/podgroups"
	for _, forbidden := range [][]string{nil, {groups, strings.Replace(groups, "v1beta1", "v1alpha3", 1)}} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"snapshot", "--kubeconfig", planCluster(t, forbidden...), "-o", "-"}, &stdout, &stderr)
		if code != 0 || !strings.Contains(stdout.String(), "kind: PodGroup") || !strings.Contains(stdout.String(), "name: gang") {
			t.Errorf("forbidden %q: exit status %d, no PodGroup in\n%s%s", forbidden, code, &stdout, &stderr)
		}
	}
}

// TestPlanOfNoCluster: one that does not answer is an error.
func TestPlanOfNoCluster(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	var stdout, stderr bytes.Buffer
	args := []string{"plan", "--from-cluster", "--kubeconfig", kubeconfig(t, server.URL, "{name: c, context: {cluster: c}}")}
	code := run(t.Context(), args, &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "ask the API server for its version") {
		t.Errorf("exit status %d, stderr %s", code, stderr.String())
	}
}
