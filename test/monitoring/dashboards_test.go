// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestDashboards: identifiers are unique, and every query is of the data source that the user chooses.
func TestDashboards(t *testing.T) {
	const chosen = "${datasource}"
	uids := map[string]string{}
	for name, d := range dashboards(t) {
		if other := uids[d.UID]; other != "" || d.UID+".json" != name {
			t.Errorf("%s has the uid %q, as %q", name, d.UID, other)
		}
		uids[d.UID] = name
		if d.SchemaVersion != 42 || d.Title == "" || len(d.Panels) == 0 {
			t.Errorf("%s: version %d, title %q, %d panels", name, d.SchemaVersion, d.Title, len(d.Panels))
		}
		if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
			t.Errorf("%s: its first variable is not the data source", name)
		}
		ids := map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.ID == 0 || p.Title == "" || len(p.Targets) == 0 || p.Datasource.UID != chosen {
				t.Errorf("%s: panel %d %q: used before: %v, %d queries of %s", name, p.ID, p.Title, ids[p.ID], len(p.Targets), p.Datasource.UID)
			}
			ids[p.ID] = true
			for _, target := range p.Targets {
				if target.Datasource.UID != chosen || target.Expr == "" || target.RefID == "" {
					t.Errorf("%s: panel %q: query %q %q of %s", name, p.Title, target.RefID, target.Expr, target.Datasource.UID)
				}
			}
		}
	}
}

// TestExpressionsParse: promtool reads every expression of the dashboards and of the page, as rules of a file.
func TestExpressionsParse(t *testing.T) {
	all := expressions(t)
	shown := examples(t)
	if len(shown) < 3 {
		t.Errorf("the page shows %d expressions", len(shown))
	}
	for i, e := range shown {
		all[fmt.Sprintf("%s, example %d", page, i+1)] = e
	}
	var file strings.Builder
	file.WriteString("groups:\n- name: all\n  rules:\n")
	for i, where := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&file, "  # %s\n  - record: r%d\n    expr: %q\n", where, i, all[where])
	}
	dir := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(file.String()), 0o600))
	promtool(t, dir, "check", "rules", "all.yaml")
	if t.Failed() {
		t.Log(file.String())
	}
}
