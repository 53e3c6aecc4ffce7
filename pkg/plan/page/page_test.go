// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/test/check"
)

var update = flag.Bool("update", false, "write the golden files")

// render is the page as HTML.
func render(t testing.TB, in page.Input) string {
	t.Helper()
	return written(t, page.Of(in))
}

func written(t testing.TB, p page.Page) string {
	t.Helper()
	var out bytes.Buffer
	check.Must(t, page.Write(&out, p))
	return out.String()
}

// TestGolden: the pages are as they were looked at in a browser.
func TestGolden(t *testing.T) {
	for name, in := range inputs(t) {
		t.Run(name, func(t *testing.T) {
			got := render(t, in)
			file := filepath.Join("testdata", name+".html")
			if *update {
				check.Must(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			check.Must(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got); if it is meant, go test ./pkg/plan/page -run TestGolden -update:\n%s", file, diff)
			}
		})
	}
}
