// SPDX-License-Identifier: Apache-2.0

package paging_test

import (
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/pkg/paging"
)

// TestList: a list whose pages are gone begins anew, not more often than it may, and any other error ends it.
func TestList(t *testing.T) {
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		// faults are those of the second page, one an attempt.
		faults []error
		want   error
		pages  []string
	}{
		"whole":            {pages: []string{"", "b", "c"}},
		"gone once":        {faults: []error{apierrors.NewResourceExpired("gone")}, pages: []string{"", "b", "c"}},
		"refused":          {faults: []error{refused}, want: refused, pages: []string{""}},
		"gone, then not":   {faults: []error{errGone, refused}, want: refused, pages: []string{""}},
		"gone every time":  {faults: slices.Repeat([]error{errGone}, paging.Attempts), want: errGone, pages: []string{""}},
		"gone not so long": {faults: slices.Repeat([]error{errGone}, paging.Attempts-1), pages: []string{"", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var pages []string
			attempt := -1
			err := paging.List(func() { pages = nil; attempt++ }, func(token string) (string, error) {
				if token == "b" && attempt < len(tc.faults) {
					return "", tc.faults[attempt]
				}
				pages = append(pages, token)
				return map[string]string{"": "b", "b": "c"}[token], nil
			})
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || !slices.Equal(pages, tc.pages) {
				t.Errorf("pages %q, error %v; want %q, %v", pages, err, tc.pages, tc.want)
			}
		})
	}
}

var errGone = apierrors.NewResourceExpired("the provided continue parameter is too old") //nolint:gochecknoglobals // a constant
