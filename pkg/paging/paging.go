// SPDX-License-Identifier: Apache-2.0

// Package paging lists objects of an API server page by page, with any client.
package paging

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// Attempts is how often a list is begun whose pages the API server does not keep long enough.
const Attempts = 3

// List calls page with the token of each page, from "" on, until a page names no next one. The API server keeps the pages of a list for
// some minutes. When they are gone the list begins anew, and begin is called so that nothing of the first pages is left: a list is read as
// a whole or not at all.
func List(begin func(), page func(token string) (next string, err error)) error {
	for attempt := 1; ; attempt++ {
		begin()
		err := once(page)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) || attempt == Attempts {
			return err
		}
	}
}

func once(page func(string) (string, error)) error {
	for token := ""; ; {
		next, err := page(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}
