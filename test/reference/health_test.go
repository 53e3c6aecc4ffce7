// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/test/check"
)

// TestHealthRules: the page of the rules of health has the table that Fettle brings, in its order.
func TestHealthRules(t *testing.T) {
	var out strings.Builder
	out.WriteString(made + "# Rules of device health\n\nThe first rule that matches a fault decides. " +
		"Those of the [configuration](../health.md#change-the-table) " +
		"come before these. `*` stands for any text.\n")
	source := ""
	for _, r := range health.DefaultTable() {
		if r.Source != source {
			source = r.Source
			fmt.Fprintf(&out, "\n## %s\n\n", source)
		}
		code := r.Code
		if code == "" {
			code = "all others"
		}
		line := fmt.Sprintf("- `%s`: %s", code, r.Severity)
		if r.RecoverAfter.Duration > 0 {
			line += ", for " + r.RecoverAfter.Duration.String()
		}
		if r.Message != "" {
			line += ". " + prose(r.Message)
		}
		out.WriteString(line + "\n")
	}
	check.Golden(t, filepath.Join(pages, "health-rules.md"), out.String())
}
