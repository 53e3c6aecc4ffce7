// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/paging"
)

// TenantPage is how many objects are asked for at once of a kind that tenants make. Each may have a megabyte and a half, and takes more in
// memory.
const TenantPage = 25

// Pages calls each with all objects of a kind, which it lists page by page, as [paging.List] does.
func Pages(
	ctx context.Context, live client.Reader, list client.ObjectList, size int64, begin func(), each func(runtime.Object) error,
	options ...client.ListOption,
) error {
	return paging.List(begin, func(token string) (string, error) {
		page, ok := list.DeepCopyObject().(client.ObjectList) // the objects stay in the page
		if !ok {
			return "", fmt.Errorf("%T is no list", list)
		}
		all := append([]client.ListOption{client.Limit(size), client.Continue(token)}, options...)
		if err := live.List(ctx, page, all...); err != nil {
			return "", err
		}
		return page.GetContinue(), meta.EachListItem(page, each)
	})
}
