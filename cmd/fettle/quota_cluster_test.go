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

// quotaCluster answers lists of what fettle quota reads, and refuses those of the resources that are forbidden. The paths that were asked
// for are added to asked.
func quotaCluster(t *testing.T, forbidden string, asked *[]string) string {
	t.Helper()
	items := map[string]string{
		"resourcequotas": `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"gpus","namespace":"ml"},"spec":{"hard":
{"gpus.deviceclass.resource.k8s.io/devices":"2"}},"status":{"hard":{"gpus.deviceclass.resource.k8s.io/devices":"2"},
"used":{"gpus.deviceclass.resource.k8s.io/devices":"1"}}}`,
		"resourceclaims": `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"train","namespace":"ml"},"spec":
{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpus","count":1}}]}},"status":{"allocation":
{"devices":{"results":[{"request":"r","driver":"fettle.dev","pool":"a/gpu","device":"gpu-a"}]}}}}`,
		"resourceslices": sliceA,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.Path)
		resource := path.Base(r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		if resource == "version" {
			_, _ = fmt.Fprint(w, `{"major":"1","minor":"37"}`)
			return
		}
		if resource == "metrics" || strings.Contains(forbidden, resource) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":403,"reason":"Forbidden"}`)
			return
		}
		_, _ = fmt.Fprint(w, listText(r.URL.Path, items[resource]))
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c, namespace: ml}}")
}

// TestQuotaOfCluster: of objects in namespaces only those of the namespace are read, and what a user may not read is named.
func TestQuotaOfCluster(t *testing.T) {
	for _, test := range []struct {
		name, forbidden string
		args            []string
		want            []string
		code            int
		// lists is a path that is asked for.
		lists string
	}{
		{name: "a namespace", lists: "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims", want: []string{
			"ml         gpus   1        1        0       0      24Gi\n", "gpus.deviceclass.resource.k8s.io/devices  1     2\n",
		}},
		{name: "all", args: []string{"-A"}, lists: "/apis/resource.k8s.io/v1/resourceclaims", want: []string{"24Gi\n"}},
		{
			name: "few rights", forbidden: "pods deviceclasses resourceslices resourceclaimtemplates",
			lists: "/api/v1/namespaces/ml/resourcequotas",
			want: []string{
				"ml         gpus   1        1        0       0      0, unknown of 1\n", "Snapshot resourceslices: memory is not known: ",
				"Snapshot deviceclasses: extended resources are not counted: ", "Snapshot pods: extended resources of pods are not counted: ",
			},
		},
		{name: "no claims", forbidden: "resourceclaims", code: 1, lists: "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims", want: []string{
			"fettle: quota: list the resourceclaims: told so",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var asked []string
			config := quotaCluster(t, test.forbidden, &asked)
			var out bytes.Buffer
			code := run(t.Context(), append([]string{"quota", "--kubeconfig", config}, test.args...), &out, &out)
			if code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in\n%s", want, out.String())
				}
			}
			all := strings.Join(asked, "\n")
			if !strings.Contains("\n"+all+"\n", "\n"+test.lists+"\n") {
				t.Errorf("want a list of %s, got\n%s", test.lists, all)
			}
			if len(test.args) == 0 && strings.Contains(all, "v1/resourceclaims") {
				t.Errorf("the claims of all namespaces were read:\n%s", all)
			}
		})
	}
}
