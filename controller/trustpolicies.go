// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// trustPolicies are the TrustPolicies of the cluster, each compiled once a generation. So two lists of it are equal if and only if the
// policies in them are the same and unchanged, also where one was deleted and made again.
type trustPolicies struct {
	reader client.Reader
	// root is the public trusted root, if the administrator gave one.
	root []byte

	mu       sync.Mutex
	compiled map[types.UID]*trust.Policy
}

// all are those that there are, by name. They may be changed by nobody.
func (t *trustPolicies) all(ctx context.Context) ([]*trust.Policy, error) {
	var list v1alpha1.TrustPolicyList
	if err := t.reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list TrustPolicies: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.TrustPolicy) int { return cmp.Compare(a.Name, b.Name) })
	there := map[types.UID]bool{}
	policies := make([]*trust.Policy, 0, len(list.Items))
	for i := range list.Items {
		there[list.Items[i].UID] = true
		policies = append(policies, t.load(&list.Items[i]))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for uid := range t.compiled {
		if !there[uid] {
			delete(t.compiled, uid)
		}
	}
	return policies, nil
}

// load compiles a policy, if it is not one that was compiled before.
func (t *trustPolicies) load(object *v1alpha1.TrustPolicy) *trust.Policy {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.compiled[object.UID]; p != nil && p.Generation() == object.Generation {
		return p
	}
	if t.compiled == nil {
		t.compiled = map[types.UID]*trust.Policy{}
	}
	p := trust.Load(object, t.root)
	t.compiled[object.UID] = p
	return p
}
