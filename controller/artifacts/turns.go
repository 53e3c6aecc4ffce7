// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/trust"
)

const (
	// turnsPerNamespace is how many objects of one namespace are resolved at once: a registry that answers slowly must not hold up others.
	turnsPerNamespace = 2
	// nextTurn is when an object tries again that got no turn.
	nextTurn = 2 * time.Second
)

// turns counts the objects that are being resolved, by namespace. The zero value may be used at once.
type turns struct {
	mu    sync.Mutex
	taken map[string]int
}

// take says whether the namespace has a turn left, and takes it.
func (t *turns) take(namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken[namespace] >= turnsPerNamespace {
		return false
	}
	if t.taken == nil {
		t.taken = map[string]int{}
	}
	t.taken[namespace]++
	return true
}

func (t *turns) giveBack(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken[namespace]--; t.taken[namespace] == 0 {
		delete(t.taken, namespace)
	}
}

// judges remembers the policies by which each object was judged last, by the object's name. The zero value may be used at once.
type judges struct{ sync.Map }

// same says whether an object was judged last by these policies.
func (j *judges) same(key types.NamespacedName, policies []*trust.Policy) bool {
	last, ok := j.Load(key)
	then, _ := last.([]*trust.Policy)
	return ok && slices.Equal(then, policies)
}
