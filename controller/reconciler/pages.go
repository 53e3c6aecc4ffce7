// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"cmp"
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

// Listing is a list of objects that is read page by page.
type Listing struct {
	// Reader reads from the API server. A cache has no pages.
	Reader client.Reader
	// List is an empty list of the objects' kind.
	List client.ObjectList
	// Page is how many objects are asked for at once. 0 means TenantPage.
	Page int64
	// Options select some of the objects.
	Options []client.ListOption
}

// Read calls each with all objects. It calls begin before the first of them, and again if the list begins anew, as [paging.List] does.
func (l *Listing) Read(ctx context.Context, begin func(), each func(runtime.Object) error) error {
	size := cmp.Or(l.Page, TenantPage)
	return paging.List(begin, func(token string) (string, error) {
		page, ok := l.List.DeepCopyObject().(client.ObjectList) // the objects stay in the page
		if !ok {
			return "", fmt.Errorf("%T is no list", l.List)
		}
		all := append([]client.ListOption{client.Limit(size), client.Continue(token)}, l.Options...)
		if err := l.Reader.List(ctx, page, all...); err != nil {
			return "", err
		}
		return page.GetContinue(), meta.EachListItem(page, each)
	})
}
