// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// labelValue is a part of an annotation that Prometheus fills in.
var labelValue = regexp.MustCompile(`\{\{ (?:\$labels\.(\w+)|\$value)[^}]*\}\}`)

// TestAlerts: the page of alerts has every alert of the chart, with what it says and the link to its runbook.
func TestAlerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	check.Must(t, yaml.Unmarshal([]byte(read(t, filepath.Join(chart, "files/rules.yaml"))), &rules))
	var out strings.Builder
	out.WriteString(made + "# Alerts\n\nThe link of each leads to what to look at and how to end it.\n\n")
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			if r.Alert == "" {
				continue
			}
			_, runbook, ok := strings.Cut(r.Annotations["runbook_url"], "/docs/user/")
			if !ok {
				t.Errorf("%s has no runbook", r.Alert)
			}
			fmt.Fprintf(&out, "- [%s](../%s) (%s, after %s). %s. %s\n\n      %s\n\n", r.Alert, runbook, r.Labels["severity"], r.For,
				filled(r.Annotations["summary"]), filled(r.Annotations["description"]), strings.Join(strings.Fields(r.Expr), " "))
		}
	}
	check.Golden(t, filepath.Join(pages, "alerts.md"), strings.TrimRight(out.String(), "\n")+"\n")
}

// filled puts words for what Prometheus fills in.
func filled(text string) string {
	return prose(labelValue.ReplaceAllStringFunc(text, func(part string) string {
		if label := labelValue.FindStringSubmatch(part)[1]; label != "" {
			return strings.ToUpper(label)
		}
		return "VALUE"
	}))
}
