// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// trustPolicies reads the TrustPolicies of the cluster.
type trustPolicies struct {
	reader client.Reader
	cache  *trust.Cache
}

// all returns every policy, sorted by name.
func (t *trustPolicies) all(ctx context.Context) ([]*trust.Policy, error) {
	var list v1alpha1.TrustPolicyList
	if err := t.reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list TrustPolicies: %w", err)
	}
	objects := make([]*v1alpha1.TrustPolicy, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.TrustPolicy) int { return strings.Compare(a.Name, b.Name) })
	return t.cache.All(objects), nil
}
