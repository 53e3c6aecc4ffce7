// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// parts matches what a description tells of a metric beside its name.
var parts = regexp.MustCompile(`help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// TestMetricsPage: the page of metrics has every metric of Fettle's own, with its labels and its help.
func TestMetricsPage(t *testing.T) {
	var out strings.Builder
	out.WriteString("<!-- Made from the code by: go test ./test/reference ./test/monitoring -update -->\n\n# Metrics\n\n")
	out.WriteString("Names that begin with `fettle_controller_` are the controller's and the webhook's, all others the kubelet plugin's. " +
		"Each program also has the metrics of Go, of its process and, in the controller, of controller-runtime.\n\n")
	known := registered(t)
	for _, name := range slices.Sorted(maps.Keys(known)) {
		found := parts.FindStringSubmatch(known[name])
		if !strings.HasPrefix(name, "fettle_") {
			continue
		}
		if found == nil {
			t.Fatalf("%s: %q tells no help", name, known[name])
		}
		labels := ""
		if found[2] != "" {
			labels = "{" + found[2] + "}"
		}
		fmt.Fprintf(&out, "- `%s%s`: %s\n", name, labels, strings.ReplaceAll(found[1], `\"`, `"`))
	}
	check.Golden(t, repository+"/docs/user/reference/metrics.md", out.String())
}
