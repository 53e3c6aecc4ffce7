// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// TestLabels: the labels of fettle_device_claim_info stay those of the pod that has the device, also where they are empty, although the
// target has labels of these names. The chart's rules load.
func TestLabels(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("%v: install Debian's package prometheus, or what your distribution calls it", err)
	}
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, "# TYPE fettle_device_claim_info gauge\n"+
			`fettle_device_claim_info{node="n1",device="gpu0",namespace="team-a",claim="c",pod="p1",container="main"} 1`+"\n"+
			`fettle_device_claim_info{node="n1",device="gpu1",namespace="team-a",claim="c",pod="",container=""} 1`+"\n"+
			"# TYPE fettle_published_timestamp_seconds gauge\nfettle_published_timestamp_seconds 0\n")
	}))
	t.Cleanup(metrics.Close)
	rules, err := filepath.Abs("../../deployments/helm/fettle/files/rules.yaml")
	check.Must(t, err)
	s, err := Start(program, t.TempDir(), rules, []Target{{
		Job: "fettle-system/fettle-kubeletplugin", URL: metrics.URL + "/metrics",
		Labels: map[string]string{"node": "n1", "namespace": "fettle-system", "pod": "fettle-kubeletplugin-x", "container": "plugin"},
	}})
	check.Must(t, err)
	t.Cleanup(func() {
		if log := s.Stop(); t.Failed() {
			t.Log(log)
		}
	})
	wants := func(expr, label string, want ...string) {
		t.Helper()
		var got []string
		check.Eventually(t, expr, func() bool {
			samples, err := s.Query(t.Context(), expr)
			got = nil
			for _, one := range samples {
				got = append(got, one.Metric[label])
			}
			return err == nil && len(got) >= len(want)
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, label %s (-want +got):\n%s", expr, label, diff)
		}
	}
	for label, want := range map[string][]string{
		"namespace": {"team-a", "team-a"}, "pod": {"p1", ""}, "container": {"main", ""}, "exported_pod": {"", ""},
	} {
		wants(`fettle_device_claim_info{device="gpu0"}`, label, want[0])
		wants(`fettle_device_claim_info{device="gpu1"}`, label, want[1])
	}
	wants("node:fettle_publish_age_seconds:max", "node", "n1")
	wants(`up{job=~"(.+/)?fettle-kubeletplugin"}`, "pod", "fettle-kubeletplugin-x")
}
