// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/discovery"

	"github.com/fettle-dev/fettle/test/apitest"
)

// TestAPI compares the defaults of each version with those of an API server that emulates it, which tells them among its metrics.
func TestAPI(t *testing.T) {
	for _, version := range []string{"1.34", "1.35", "1.36", "1.37"} {
		t.Run(version, func(t *testing.T) {
			config := apitest.Start(t, map[string]string{"emulated-version": version})
			client, err := discovery.NewDiscoveryClientForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			set, notes, err := For(version, nil)
			if err != nil || len(notes) > 0 {
				t.Fatal(notes, err)
			}
			if diff := cmp.Diff(FromMetrics(metrics), set.on); diff != "" {
				t.Errorf("wrong defaults (-API server +table):\n%s", diff)
			}
		})
	}
}
