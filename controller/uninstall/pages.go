// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// pagedReader lists tenants' objects page by page, and keeps of each what the controller's cache would.
type pagedReader struct{ client.Reader }

// List lists objects without options.
func (r pagedReader) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	var kept []runtime.Object
	begin := func() { kept = nil }
	err := reconciler.Pages(ctx, r.Reader, list, reconciler.TenantPage, begin, func(o runtime.Object) error {
		trimmed, err := nodes.Trim(o)
		if object, ok := trimmed.(runtime.Object); ok {
			kept = append(kept, object)
		}
		return err
	})
	if err != nil {
		return err
	}
	return meta.SetList(list, kept)
}
