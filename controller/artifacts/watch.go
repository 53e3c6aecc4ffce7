// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// OnPolicies queues every listed artifact that the old or new version of a TrustPolicy is for, or that the policy judged before. To be for
// an image, a policy need not compile. The mirrors are as in [trust.Policy.AtMirrors].
func OnPolicies(mirrors registryname.Mirrors, list func(context.Context) ([]Head, error)) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		var versions []*trust.Policy
		for _, object := range []client.Object{before, now} {
			if p, ok := object.(*v1alpha1.TrustPolicy); ok {
				versions = append(versions, trust.Load(p, nil).AtMirrors(mirrors))
			}
		}
		all, err := list(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "List the objects whose TrustPolicies changed")
		}
		for _, h := range all {
			if h.ConcernedBy(versions) {
				q.Add(reconcile.Request{NamespacedName: h.Key()})
			}
		}
	})
}
