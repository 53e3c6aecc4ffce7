// SPDX-License-Identifier: Apache-2.0

// Package trustpolicies reads the cluster's TrustPolicies for the controller and says in their status whether they can be used.
package trustpolicies

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Reader reads the TrustPolicies of the cluster.
type Reader struct {
	client client.Reader
	cache  *trust.Cache
}

// NewReader returns a reader that compiles policies with the public trusted root of those that have none of their own.
func NewReader(c client.Reader, publicRoot []byte) *Reader {
	return &Reader{client: c, cache: trust.NewCache(publicRoot)}
}

// All returns every policy, sorted by name. Two results are equal if no policy changed in between.
func (r *Reader) All(ctx context.Context) ([]*trust.Policy, error) {
	var list v1alpha1.TrustPolicyList
	if err := r.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list TrustPolicies: %w", err)
	}
	objects := make([]*v1alpha1.TrustPolicy, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.TrustPolicy) int { return strings.Compare(a.Name, b.Name) })
	return r.cache.All(objects), nil
}
