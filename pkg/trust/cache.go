// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Cache compiles each version of a TrustPolicy once. As long as a policy is not changed, the cache returns the same *Policy for it, so two
// lists from the cache are equal if and only if the policies in them are the same and unchanged, also if one was deleted and made again. It
// is safe for concurrent use.
type Cache struct {
	publicRoot []byte

	mu       sync.Mutex
	compiled map[types.UID]*Policy
}

// NewCache returns an empty cache. The public root is as in [Load].
func NewCache(publicRoot []byte) *Cache {
	return &Cache{publicRoot: publicRoot, compiled: map[types.UID]*Policy{}}
}

// All returns the policies that there are, in the given order, and forgets all others.
func (c *Cache) All(objects []*v1alpha1.TrustPolicy) []*Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, policies := make(map[types.UID]*Policy, len(objects)), make([]*Policy, 0, len(objects))
	for _, object := range objects {
		p := c.load(object)
		kept[object.UID] = p
		policies = append(policies, p)
	}
	c.compiled = kept
	return policies
}

// One returns one policy.
func (c *Cache) One(object *v1alpha1.TrustPolicy) *Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.load(object)
}

func (c *Cache) load(object *v1alpha1.TrustPolicy) *Policy {
	p := c.compiled[object.UID]
	if p == nil || p.generation != object.Generation {
		p = Load(object, c.publicRoot)
		c.compiled[object.UID] = p
	}
	return p
}
