// SPDX-License-Identifier: Apache-2.0

package page

import (
	"crypto/sha256"
	_ "embed" // the template and the style sheet are files of their own
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var document string

//go:embed page.css
var style string

// view is a page with what its head needs.
type view struct {
	Page
	Style template.CSS
	// Policy allows this style sheet by its hash, and nothing else.
	Policy string
}

// Write writes the page as HTML. Names and messages of objects are escaped: they cannot become elements or styles.
func Write(out io.Writer, p Page) error {
	t, err := template.New("page").Funcs(template.FuncMap{"join": strings.Join, "more": more, "moreNodes": moreNodes}).Parse(document)
	if err != nil {
		return fmt.Errorf("read the template of the page: %w", err)
	}
	sum := sha256.Sum256([]byte(style))
	v := view{
		Page:   p,
		Style:  template.CSS(style), //nolint:gosec // the style sheet is this package's own file
		Policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'",
	}
	if err := t.Execute(out, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// manyNames are so many that the rest of them is folded.
const manyNames = 4

// more says how many names there are beyond those that are always shown.
func more(names []string) int { return max(len(names)-manyNames, 0) }

func moreNodes(nodes []Reference) int { return max(len(nodes)-manyNames, 0) }
