// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/test/check"
)

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
			check.Golden(t, filepath.Join("testdata", name+".html"), render(t, in))
		})
	}
}
