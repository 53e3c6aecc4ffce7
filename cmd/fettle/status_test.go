// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
)

// statusCluster answers lists with the items of each resource, and with a status if that is all there is.
func statusCluster(t *testing.T, answers map[string]any) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		resource := path.Base(r.URL.Path)
		labels, fields := r.URL.Query().Get("labelSelector"), r.URL.Query().Get("fieldSelector")
		workload := resource == "daemonsets" || resource == "deployments"
		if workload != (labels == "app.kubernetes.io/name=fettle") || (resource == "pods") != (fields == "status.phase=Pending") {
			t.Errorf("%s are asked for by labels %q and fields %q", resource, labels, fields)
		}
		kind, version := map[string]string{
			"daemonsets": "DaemonSetList", "deployments": "DeploymentList", "pods": "PodList", "deviceclasses": "DeviceClassList",
		}[resource], "v1"
		for _, group := range []string{"apps/v1", "resource.k8s.io/v1"} {
			if strings.HasPrefix(r.URL.Path, "/apis/"+group+"/") {
				version = group
			}
		}
		if kind == "" {
			kind, version = "List", "fettle.dev/v1alpha1"
		}
		if code, refused := answers[resource].(int); refused {
			w.WriteHeader(code)
			reason := strings.ReplaceAll(http.StatusText(code), " ", "")
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":%d,"reason":%q}`, code, reason)
			return
		}
		items, _ := answers[resource].(string)
		_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{},"items":[%s]}`, version, kind, items)
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c}}")
}

const (
	statusPlugin = `{"metadata":{"namespace":"fettle-system","name":"fettle-kubeletplugin"},"spec":{"template":{"spec":{"containers":
[{"name":"plugin","image":"r/p:v1"}]}}},"status":{"desiredNumberScheduled":1,"numberReady":1}}`
	statusNode = `{"apiVersion":"fettle.dev/v1alpha1","kind":"AcceleratorNode","metadata":{"name":"node-1"},"status":{"pools":[
{"name":"node-1/gpu","kind":"gpu","devices":2,"used":1,"free":1}],"conditions":[{"type":"Ready","status":"True"}]}}`
	statusCache = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUKernelCache","metadata":{"namespace":"ml","name":"llm"},"status":
{"conditions":[{"type":"Verified","status":"False","reason":"NotSigned","message":"nobody"}]}}`
	statusPod = `{"metadata":{"namespace":"ml","name":"train","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"containers":[],
"resourceClaims":[{"name":"gpu","resourceClaimName":"gpu"}]},"status":{"phase":"Pending"}}`
)

// statusAsks is a pod that waits and asks for a resource.
func statusAsks(name, resource string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"ml","name":%q,"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"containers":[{"name":"c",
"resources":{"requests":{%q:"1"},"limits":{%[2]q:"1"}}}]},"status":{"phase":"Pending"}}`, name, resource)
}

// TestStatus: what is wrong on a cluster is told with a command, and sets the exit status; what may not be read is named.
func TestStatus(t *testing.T) {
	for name, test := range map[string]struct {
		answers map[string]any
		args    string
		code    int
		want    []string
	}{
		"well": {
			map[string]any{"daemonsets": statusPlugin, "acceleratornodes": statusNode},
			"status", 0,
			[]string{"fettle-kubeletplugin  v1", "node-1  2 gpu (1 used, 1 free)", "nothing is wrong"},
		},
		"ill": {
			map[string]any{"daemonsets": statusPlugin, "gpukernelcaches": statusCache, "pods": statusPod},
			"status", 3,
			[]string{
				"next: fettle explain pod train -n ml", "wrong: GPUKernelCache ml/llm: Verified is False: NotSigned: nobody", "in 2 places",
			},
		},
		"by extended resources": {
			map[string]any{
				"daemonsets": statusPlugin, "deviceclasses": `{"metadata":{"name":"gpu.fettle.dev"},"spec":{"extendedResourceName":"fettle.dev/gpu"}}`,
				"pods": statusAsks("named", "fettle.dev/gpu") + "," + statusAsks("by-class", "deviceclass.resource.kubernetes.io/gpu.fettle.dev") +
					"," + statusAsks("other", "example.com/nic"),
			},
			"status", 3,
			[]string{"next: fettle explain pod named -n ml", "next: fettle explain pod by-class -n ml", "in 2 places"},
		},
		"without the right to see classes": {
			map[string]any{"daemonsets": statusPlugin, "deviceclasses": http.StatusForbidden, "pods": statusPod},
			"status", 3,
			[]string{"note: deviceclasses are not known: ", "in 1 place"},
		},
		"as JSON": {map[string]any{"pods": statusPod, "daemonsets": statusPlugin}, "status -o json", 3, []string{`"about": "Pod ml/train"`}},
		"without Fettle": {
			map[string]any{"acceleratornodes": http.StatusNotFound, "gpukernelcaches": http.StatusNotFound},
			"status", 3,
			[]string{"is not installed"},
		},
		"without rights": {
			map[string]any{"daemonsets": http.StatusForbidden, "acceleratornodes": statusNode},
			"status", 0,
			[]string{"note: daemonsets are not known: ", "node-1", "nothing is wrong, as far as was read"},
		},
		"an API server that fails": {
			map[string]any{"deployments": http.StatusInternalServerError}, "status", 1, []string{"list the deployments"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append(strings.Fields(test.args), "--kubeconfig", statusCluster(t, test.answers))
			if code := run(t.Context(), args, &out, &out); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in:\n%s", want, out.String())
				}
			}
		})
	}
}
