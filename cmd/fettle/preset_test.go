// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// presetObjects are what a cluster answers to each path.
func presetObjects() map[string]string {
	const (
		namespace = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"team-a","labels":{"stage":"dev"}}}`
		configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lists"},"data":{"a":"of a"}}`
		claim     = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%[1]q,"namespace":"team-a","ownerReferences":[
{"apiVersion":"v1","kind":"Pod","name":"work","uid":"1","controller":true}]},"spec":{"devices":{"requests":[
{"name":"gpu","exactly":{"deviceClassName":"gpu.fettle.dev"}}]}},"status":{"allocation":{"devices":{"results":[
{"request":"gpu","driver":"fettle.dev","pool":"node/gpu","device":%[2]q}]}},"devices":[{"driver":"fettle.dev","pool":"node/gpu",
"device":%[2]q,"data":{"presets":[{"name":"all","generation":3}]}}]}}`
		pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"work","namespace":"team-a","uid":"1"},"spec":{"containers":[
{"name":"main","image":"i","resources":{"claims":[{"name":"a"},{"name":"b"}]}}],"resourceClaims":[
{"name":"a","resourceClaimTemplateName":"t"},{"name":"b","resourceClaimTemplateName":"t"}]},"status":{"resourceClaimStatuses":[
{"name":"a","resourceClaimName":"work-a"},{"name":"b","resourceClaimName":"work-b"}],
"containerStatuses":[{"name":"main","state":{"running":{}}}]}}`
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
	list := func(kind, apiVersion string, items ...string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":"%sList","metadata":{},"items":[%s]}`, apiVersion, kind, strings.Join(items, ","))
	}
	const plain = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"plain","namespace":"team-a"},"spec":{"containers":[]}}`
	return map[string]string{
		"/api/v1/namespaces/team-a/pods/plain": plain,
		"/api/v1/namespaces/team-a/pods":       list("Pod", "v1", pod, plain),
		"/api/v1/namespaces":                   list("Namespace", "v1", namespace),
		"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims": list("ResourceClaim", "resource.k8s.io/v1",
			fmt.Sprintf(claim, "work-a", "gpu0"), fmt.Sprintf(claim, "work-b", "gpu1")),
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
	return kubeconfig(t, server.URL, "{name: c, context: {cluster: c, namespace: other}}")
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
		{name: "pod", args: []string{"pod/work"}, want: []string{
			"claim team-a/work-a, of pod work alone\n", "claim team-a/work-b, of pod work alone\n", "    env LIST=of a:of b\n",
			"      not in running main, prepared with generation 3 of ClusterDevicePreset all, without DevicePreset team-a/own: delete the pod",
		}},
		{name: "kinds of kubectl", args: []string{"po/work"}, want: []string{"claim team-a/work-a", "claim team-a/work-b"}},
		{name: "claim's whole kind", args: []string{"resourceclaims.resource.k8s.io/work-b"}, want: []string{"claim team-a/work-b"}},
		{name: "pod without kind", args: []string{"work"}, want: []string{"claim team-a/work-a", "claim team-a/work-b"}},
		{name: "no such pod", args: []string{"pod/none"}, wantErr: "there is no pod none in namespace team-a"},
		{name: "neither", args: []string{"none"}, wantErr: "there is neither a claim nor a pod none in namespace team-a"},
		{name: "without claims", args: []string{"pod/plain"}, wantErr: "pod plain uses no claim, and presets are for what a claim holds"},
		{name: "pod not seen", args: []string{"pod/work"}, statuses: map[string]int{podOfClaim: 403}, wantErr: "read pod work: "},
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

// TestCompleteNames: names come from the cluster, and a cluster that cannot be asked has none.
func TestCompleteNames(t *testing.T) {
	kubeconfig := presetCluster(t, nil)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"preset", "explain", "-n", "team-a", ""}, "claim/work-a\nclaim/work-b\npod/work\n:4\n"},
		{[]string{"preset", "explain", "--namespace=team-a", "wor"}, "work-a\nwork-b\nwork\n:4\n"},
		{[]string{"preset", "explain", "-n", "team-a", "pod/work", ""}, ":4\n"},
		{[]string{"preset", "explain", "-n", "other", ""}, ":4\n"},
		{[]string{"preset", "explain", "-n", ""}, "team-a\n:4\n"},
		{[]string{"devices", "--context", ""}, "c\n:4\n"},
		{[]string{"devices", "--context", "wrong", "--node", ""}, ":4\n"},
	} {
		args := append([]string{"__complete"}, test.args[:len(test.args)-1]...)
		args = append(args, "--kubeconfig", kubeconfig)
		if last := test.args[len(test.args)-2]; strings.HasPrefix(last, "-") && !strings.Contains(last, "=") {
			// The flag whose value is completed comes last.
			args = append(append([]string{"__complete"}, test.args[:len(test.args)-2]...), "--kubeconfig", kubeconfig, last)
		}
		var stdout, stderr bytes.Buffer
		run(t.Context(), append(args, test.args[len(test.args)-1]), &stdout, &stderr)
		if !strings.HasSuffix("\n"+stdout.String(), "\n"+test.want) {
			t.Errorf("%q: got\n%swant\n%s", test.args, &stdout, test.want)
		}
	}
}
