// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	sliceA = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"0-a"},"spec":{"driver":"fettle.dev",
"nodeName":"a","pool":{"name":"a/gpu","generation":1,"resourceSliceCount":1},
"sharedCounters":[{"name":"gpu-a","counters":{"memory":{"value":"24Gi"},"memory-slice-0":{"value":"1"},"memory-slice-1":{"value":"1"}}}],
"devices":[{"name":"gpu-a","attributes":{"type":{"string":"gpu"},"resource.kubernetes.io/numaNode":{"int":1}},
"capacity":{"memory":{"value":"24Gi"}},"consumesCounters":[{"counterSet":"gpu-a","counters":
{"memory":{"value":"24Gi"},"memory-slice-0":{"value":"1"},"memory-slice-1":{"value":"1"}}}]},
{"name":"gpu-a-half","attributes":{"type":{"string":"mig"},"profile":{"string":"1g.12gb"}},"consumesCounters":[{"counterSet":"gpu-a",
"counters":{"memory":{"value":"11Gi"},"memory-slice-1":{"value":"1"}}}]}]}}`
	sliceB = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"0-b"},"spec":{"driver":"fettle.dev",
"nodeName":"b","pool":{"name":"b/gpu","generation":1,"resourceSliceCount":1},"devices":[{"name":"gpu-b"}]}}`
	claimB = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"train","namespace":"ml"},"status":{"allocation":
{"devices":{"results":[{"request":"r","driver":"fettle.dev","pool":"b/gpu","device":"gpu-b"}]}}}}`
	nodeA = `{"apiVersion":"fettle.dev/v1alpha1","kind":"AcceleratorNode","metadata":{"name":"a"},"status":{"problems":[
{"subject":"0000:18:00.0","reason":"LeftToAnotherDriver","message":"is left to NVIDIA device plugin"},
{"subject":"0000:19:00.0","reason":"DriverNotLoaded","message":"no kernel driver"}]}}`
)

// draCluster answers the lists of slices, in two pages, and of claims, with some status.
func draCluster(t *testing.T, sliceStatus, claimStatus int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, next, items, status := "ResourceClaimList", "", claimB, claimStatus
		if strings.HasSuffix(r.URL.Path, "/resourceslices") {
			kind, next, items, status = "ResourceSliceList", "more", sliceA, sliceStatus
			if r.URL.Query().Get("continue") != "" {
				next, items = "", sliceB
			}
		}
		if strings.HasSuffix(r.URL.Path, "/acceleratornodes") {
			kind, next, items, status = "AcceleratorNodeList", "", nodeA, http.StatusOK
			if r.URL.Query().Get("fieldSelector") == "metadata.name=b" {
				items = ""
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		text := fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":%q,"metadata":{"continue":%q},"items":[%s]}`, kind, next, items)
		if status != http.StatusOK {
			text = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":%d,"reason":%q}`,
				status, map[int]string{http.StatusForbidden: "Forbidden", http.StatusConflict: "Conflict"}[status])
		}
		_, _ = fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c}}")
}

// kubeconfig writes a file of one cluster, c, whose contexts are in YAML's short form. The first one, c, is the current one.
func kubeconfig(t *testing.T, server, contexts string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [%s]\n",
		server, contexts)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestDevicesOfCluster: who may not see claims sees the devices, and is told what is missing.
func TestDevicesOfCluster(t *testing.T) {
	for _, test := range []struct {
		name           string
		slices, claims int
		args           []string
		want           []string // parts of what is printed
		wantErr        string
		code           int
	}{
		{name: "all", slices: 200, claims: 200, want: []string{
			"node a\n", "24Gi  1     -          -       all              all   free\n", "  gpu-a-half  1g.12gb  ", "slice 1, 11 GiB        free\n",
			"node b\n", "held by ml/train\n",
		}},
		{name: "one node", slices: 200, claims: 200, args: []string{"--node", "b"}, want: []string{"gpu-b", "held by ml/train\n"}},
		{name: "without claims", slices: 200, claims: 403, want: []string{"gpu-a", "gpu-b"}, wantErr: "without claims: told so"},
		{name: "failing claims", slices: 200, claims: 409, wantErr: "fettle: devices: list the ResourceClaims: told so", code: 1},
		{name: "without slices", slices: 403, claims: 200, wantErr: "fettle: devices: list the ResourceSlices: told so", code: 1},
		{name: "json", slices: 200, claims: 200, args: []string{"-o", "json"}, want: []string{`"state": "Held"`, `"namespace": "ml"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"devices", "--cluster", "--kubeconfig", draCluster(t, test.slices, test.claims)}, test.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("got %q, want %q in it", stdout.String(), want)
				}
			}
			said := strings.ReplaceAll(stderr.String(), "a/0000:18:00.0: LeftToAnotherDriver: is left to NVIDIA device plugin\n", "")
			told := said != stderr.String() || strings.Contains(stdout.String(), `"reason": "LeftToAnotherDriver"`)
			if want := test.code == 0 && test.name != "one node"; told != want {
				t.Errorf("the GPU of another driver is told: %v, want %v; stderr %q", told, want, stderr.String())
			}
			if !strings.HasPrefix(said, test.wantErr) || test.wantErr == "" && said != "" {
				t.Errorf("stderr %q, want %q", stderr.String(), test.wantErr)
			}
			if test.name == "one node" && strings.Contains(stdout.String(), "gpu-a") {
				t.Errorf("another node's device: %s", stdout.String())
			}
		})
	}
}
