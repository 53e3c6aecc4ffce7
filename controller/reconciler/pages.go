// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listAttempts is how often a list is begun whose pages the API server does not keep long enough.
const listAttempts = 3

// Pages calls each with all objects of a kind, which it lists page by page. The API server keeps the pages of a list for some minutes. When
// they are gone the list begins anew, and begin is called so that nothing of the first pages is left: a list is read as a whole or not at
// all.
func Pages(
	ctx context.Context, live client.Reader, list client.ObjectList, size int64, begin func(), each func(runtime.Object) error,
	options ...client.ListOption,
) error {
	for attempt := 1; ; attempt++ {
		begin()
		err := pagesOnce(ctx, live, list, size, each, options)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) || attempt == listAttempts {
			return err
		}
	}
}

func pagesOnce(
	ctx context.Context, live client.Reader, list client.ObjectList, size int64, each func(runtime.Object) error, options []client.ListOption,
) error {
	for next := ""; ; {
		page, ok := list.DeepCopyObject().(client.ObjectList) // the objects stay in the page
		if !ok {
			return fmt.Errorf("%T is no list", list)
		}
		all := append([]client.ListOption{client.Limit(size), client.Continue(next)}, options...)
		if err := live.List(ctx, page, all...); err != nil {
			return err
		}
		err := meta.EachListItem(page, each)
		if next = page.GetContinue(); next == "" || err != nil {
			return err
		}
	}
}
