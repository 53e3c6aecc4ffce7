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

// presetObjects are what a cluster answers to each path.
func presetObjects() map[string]string {
	const (
		namespace = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"team-a","labels":{"stage":"dev"}}}`
		configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lists"},"data":{"a":"of a"}}`
		claim     = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q,"namespace":"team-a","ownerReferences":[
{"apiVersion":"v1","kind":"Pod","name":"work","uid":"1","controller":true}]},"spec":{"devices":{"requests":[
{"name":"gpu","exactly":{"deviceClassName":"gpu.fettle.dev"}}]}},"status":{"allocation":{"devices":{"results":[
{"request":"gpu","driver":"fettle.dev","pool":"node/gpu","device":%q}]}}}}`
		pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"work","namespace":"team-a","uid":"1"},"spec":{"containers":[
{"name":"main","image":"i","resources":{"claims":[{"name":"a"},{"name":"b"}]}}],"resourceClaims":[
{"name":"a","resourceClaimTemplateName":"t"},{"name":"b","resourceClaimTemplateName":"t"}]},"status":{"resourceClaimStatuses":[
{"name":"a","resourceClaimName":"work-a"},{"name":"b","resourceClaimName":"work-b"}]}}`
		slices = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSliceList","metadata":{},"items":[{"apiVersion":"resource.k8s.io/v1",
"kind":"ResourceSlice","metadata":{"name":"s"},"spec":{"driver":"fettle.dev","pool":{"name":"node/gpu"},"devices":[
{"name":"gpu0","attributes":{"vendor":{"string":"nvidia"}}},{"name":"gpu1","attributes":{"vendor":{"string":"amd"}}}]}}]}`
		own = `{"apiVersion":"fettle.dev/v1alpha1","kind":"DevicePresetList","metadata":{},"items":[{"apiVersion":"fettle.dev/v1alpha1",
"kind":"DevicePreset","metadata":{"name":"own","namespace":"team-a","generation":5},"spec":{"deviceSelector":{
"cel":"device.attributes[\"fettle.dev\"].vendor == \"amd\""},"env":[{"name":"LIST","mode":"append","value":"of b"}]}}]}`
		ofCluster = `{"apiVersion":"fettle.dev/v1alpha1","kind":"ClusterDevicePresetList","metadata":{},"items":[
{"apiVersion":"fettle.dev/v1alpha1","kind":"ClusterDevicePreset","metadata":{"name":"all","generation":4},"spec":{"deviceSelector":{
"cel":"device.attributes[\"fettle.dev\"].vendor == \"nvidia\""},"namespaceSelector":{"matchLabels":{"stage":"dev"}},"env":[
{"name":"LIST","mode":"append","valueFrom":{"configMapKeyRef":{"name":"lists","key":"a"}}}]}}]}`
	)
	return map[string]string{
		"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/work-a": fmt.Sprintf(claim, "work-a", "gpu0"),
		"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/work-b": fmt.Sprintf(claim, "work-b", "gpu1"),
		"/api/v1/namespaces/team-a/pods/work":                              pod,
		"/apis/resource.k8s.io/v1/resourceslices":                          slices,
		"/apis/fettle.dev/v1alpha1/namespaces/team-a/devicepresets":        own,
		"/apis/fettle.dev/v1alpha1/clusterdevicepresets":                   ofCluster,
		"/api/v1/namespaces/team-a":                                        namespace,
		"/api/v1/namespaces/fettle-system/configmaps/lists":                configMap,
	}
}

// presetCluster answers reads, but for the paths that are given another status, and gives the kubeconfig's name.
func presetCluster(t *testing.T, statuses map[string]int) string {
	t.Helper()
	objects := presetObjects()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, ok := objects[r.URL.Path]
		status := statuses[r.URL.Path]
		switch {
		case status == 0 && ok:
			_, _ = fmt.Fprint(w, text)
			return
		case status == 0:
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":%d,"reason":%q}`, status,
			map[int]string{http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound"}[status])
	}))
	t.Cleanup(server.Close)
	name := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, namespace: other}}]\n", server.URL)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestPresetExplainCluster: the claim's value is the one that it shares with the pod's other claim, and what may not be read is told.
func TestPresetExplainCluster(t *testing.T) {
	const (
		slices     = "/apis/resource.k8s.io/v1/resourceslices"
		namespace  = "/api/v1/namespaces/team-a"
		configMap  = "/api/v1/namespaces/fettle-system/configmaps/lists"
		kind       = "/apis/fettle.dev/v1alpha1/clusterdevicepresets"
		podOfClaim = "/api/v1/namespaces/team-a/pods/work"
	)
	for _, test := range []struct {
		name     string
		statuses map[string]int
		args     []string
		// Want are lines of the answer, or the beginning of the error.
		want    []string
		wantErr string
	}{
		{name: "claim", args: []string{"claim/work-a"}, want: []string{
			"claim team-a/work-a, of pod work alone\n", "  request gpu: node/gpu/gpu0; containers main\n", "    env LIST=of a:of b\n",
			"      from ClusterDevicePreset all (generation 4), DevicePreset team-a/own (generation 5)\n",
		}},
		{name: "without kind", args: []string{"work-b"}, want: []string{"claim team-a/work-b, of pod work alone\n", "    env LIST=of a:of b\n"}},
		{name: "no ConfigMap", args: []string{"claim/work-a", "--driver-namespace", "elsewhere"}, want: []string{
			"  missing: ClusterDevicePreset all (generation 4), spec.env[0].valueFrom.configMapKeyRef: there is no ConfigMap elsewhere/lists",
		}},
		{name: "namespace not seen", args: []string{"claim/work-a"}, statuses: map[string]int{namespace: 403}, want: []string{
			"  note: the labels of namespace team-a are not known",
		}},
		{name: "slices not seen", args: []string{"claim/work-a"}, statuses: map[string]int{slices: 403}, want: []string{
			"  note: CEL sees no attributes of node/gpu/gpu0",
		}},
		{name: "ConfigMap not seen", args: []string{"claim/work-a"}, statuses: map[string]int{configMap: 403}, wantErr: "read ConfigMap lists: "},
		{name: "no such claim", args: []string{"claim/none"}, wantErr: "there is no claim none in namespace team-a"},
		{
			name: "no kind", args: []string{"claim/work-a"}, statuses: map[string]int{kind: 404},
			wantErr: "list the ClusterDevicePresets: told so: install",
		},
		{
			name: "pod gone", args: []string{"claim/work-a"}, statuses: map[string]int{podOfClaim: 404},
			wantErr: "claim team-a/work-a: was made for pod work",
		},
		{name: "no answer", args: []string{"claim/work-a"}, statuses: map[string]int{slices: 500}, wantErr: "list the ResourceSlices: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"preset", "explain", "--kubeconfig", presetCluster(t, test.statuses), "-n", "team-a"}, test.args...)
			code := run(t.Context(), args, &stdout, &stderr)
			if (code != 0) != (test.wantErr != "") || !strings.Contains(stderr.String(), test.wantErr) {
				t.Errorf("exit status %d, stderr %q, want %q", code, &stderr, test.wantErr)
			}
			for _, line := range test.want {
				if !strings.Contains(stdout.String(), line) {
					t.Errorf("want %q in\n%s", line, &stdout)
				}
			}
		})
	}
}
