// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	bitstreamA = `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGABitstream","metadata":{"name":"nlb0","namespace":"team-a",
"managedFields":[{"manager":"m"}]},"spec":{"image":"registry.example/nlb0:v1"},"status":{"digest":"sha256:0a","nodes":3,
"images":[{"manifest":"sha256:0a","layer":"sha256:0b","size":439,"format":"gbs","afuID":"d8424d","interfaceID":"9926ab"},
{"manifest":"sha256:0c","layer":"sha256:0d","size":440,"format":"gbs","afuID":"d8424d","interfaceID":"ce4896"}],
"conditions":[{"type":"Resolved","status":"True"},{"type":"Verified","status":"Unknown"}]}}`
	bitstreamB = `{"apiVersion":"fettle.dev/v1alpha1","kind":"ClusterFPGABitstream","metadata":{"name":"blank"},"spec":{"blank":true}}`
)

// fakeCluster answers lists, two pages for the namespaced kind, and gives the kubeconfig's name.
func fakeCluster(t *testing.T, clusterStatus int) string {
	t.Helper()
	answer := func(w http.ResponseWriter, status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, text)
	}
	page := func(kind, next, items string) string {
		return fmt.Sprintf(`{"apiVersion":"fettle.dev/v1alpha1","kind":%q,"metadata":{"continue":%q},"items":[%s]}`, kind, next, items)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := strings.TrimPrefix(r.URL.Path, "/apis/fettle.dev/v1alpha1/"); {
		case path == "namespaces/team-b/fpgabitstreams":
			answer(w, http.StatusOK, page("FPGABitstreamList", "", ""))
		case path != "clusterfpgabitstreams" && r.URL.Query().Get("continue") == "":
			answer(w, http.StatusOK, page("FPGABitstreamList", "more", ""))
		case path == "fpgabitstreams", path == "namespaces/team-a/fpgabitstreams":
			answer(w, http.StatusOK, page("FPGABitstreamList", "", bitstreamA))
		case clusterStatus == http.StatusOK:
			answer(w, http.StatusOK, page("ClusterFPGABitstreamList", "", bitstreamB))
		default:
			answer(w, clusterStatus, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","code":%d,"reason":%q}`,
				clusterStatus, map[int]string{http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound"}[clusterStatus]))
		}
	}))
	t.Cleanup(server.Close)
	return kubeconfig(t, server.URL,
		"{name: c, context: {cluster: c, namespace: team-a}}, {name: other, context: {cluster: c, namespace: team-b}}")
}

func TestBitstreamList(t *testing.T) {
	head := "KIND                  NAMESPACE  NAME   RESOLVED  VERIFIED  INTERFACE  AFU     SIZE  NODES  DIGEST\n"
	namespaced := "FPGABitstream         team-a     nlb0   True      Unknown   9926ab     d8424d  439   3      sha256:0a\n" +
		"FPGABitstream         team-a     nlb0   True      Unknown   ce4896     d8424d  440   3      sha256:0a\n"
	shared := "ClusterFPGABitstream  -          blank  -         -         -          -       -     -      -\n"
	for _, test := range []struct {
		name          string
		status        int
		args          []string
		want, wantErr string
		code          int
	}{
		{name: "namespace of the context", status: 200, want: head + namespaced + shared},
		{name: "all", status: 200, args: []string{"-A"}, want: head + namespaced + shared},
		{name: "namespace", status: 200, args: []string{"-n", "team-a", "--context", "other"}, want: head + namespaced + shared},
		{name: "not the cluster's", status: 403, args: []string{"--context", "other"}, wantErr: "without ClusterFPGABitstreams: told so"},
		{name: "no kind", status: 404, wantErr: "list the ClusterFPGABitstreams: told so: install Fettle's chart", code: 1},
		{name: "format", status: 200, args: []string{"-o", "xml"}, wantErr: `output format "xml": want table, wide, json, yaml, name`, code: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"bitstream", "ls", "--kubeconfig", fakeCluster(t, test.status)}, test.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(test.want, stdout.String()); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if got := stderr.String(); !strings.Contains(got, test.wantErr) || test.wantErr == "" && got != "" {
				t.Errorf("stderr %q, want %q", got, test.wantErr)
			}
		})
	}
}

func TestBitstreamListObjects(t *testing.T) {
	kubeconfig := fakeCluster(t, http.StatusOK)
	for format, want := range map[string][]string{
		"json":                               {`"kind":"List"`, `"name":"nlb0"`, `"name":"blank"`},
		"yaml":                               {"kind: List\n", "    name: nlb0\n", "    blank: true\n"},
		"name":                               {"fpgabitstream.fettle.dev/nlb0\n", "clusterfpgabitstream.fettle.dev/blank\n"},
		"wide":                               {"  DIGEST     IMAGE\n", "  sha256:0a  "},
		"jsonpath={.items[*].metadata.name}": {"nlb0 blank"},
		"go-template={{range .items}}{{.metadata.name}}{{\"\\n\"}}{{end}}": {"nlb0\nblank\n"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"bitstream", "ls", "--kubeconfig", kubeconfig, "-o", format}, &stdout, &stderr); code != 0 {
			t.Errorf("%s: exit status %d: %s", format, code, &stderr)
		}
		for _, text := range want {
			if !strings.Contains(stdout.String(), text) {
				t.Errorf("%s: want %q in\n%s", format, text, &stdout)
			}
		}
		if strings.Contains(stdout.String(), "managedFields") {
			t.Errorf("%s: got managed fields, which nobody reads", format)
		}
	}
}
