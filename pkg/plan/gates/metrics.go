// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"bufio"
	"bytes"
	"regexp"
	"slices"
)

// FromMetrics returns the gates that decide about devices from the metrics of an API server, which has a line for each of its gates.
func FromMetrics(metrics []byte) map[string]bool {
	line := regexp.MustCompile(`^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])$`)
	out := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, len(metrics)+1)
	for lines.Scan() {
		m := line.FindSubmatch(lines.Bytes())
		if m != nil && slices.ContainsFunc(table(), func(g gate) bool { return g.name == string(m[1]) }) {
			out[string(m[1])] = string(m[2]) == "1"
		}
	}
	return out
}
