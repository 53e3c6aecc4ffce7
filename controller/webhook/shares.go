// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/pkg/budget"
)

const (
	// shareOfNamespace is how many bytes of the reviews of one namespace are worked on at once.
	shareOfNamespace = maxInFlight / 4
	// maxLookups is how many objects are read for one review, and how many claims of a pod are looked at.
	maxLookups = 64
	// lookupsAtOnce is how many objects are read at once, and lookupsOfNamespace how many of these for one namespace.
	lookupsAtOnce      = 16
	lookupsOfNamespace = 4
)

// errTooManyLookups says that an object names more than a review looks at.
var errTooManyLookups = fmt.Errorf("it names more than %d objects, which is what a review looks at", maxLookups)

// busy is why an object is not reviewed.
const busy = "its namespace has too many reviews at once"

// shares keep the reviews of one namespace from holding up those of others. Anybody who may make pods there can cause as many reviews as
// the API server takes, by dry runs too. The namespaceless objects are the administrators' and not limited.
type shares struct {
	turns *budget.Turns

	mu    sync.Mutex
	bytes map[string]int
}

func newShares() *shares {
	return &shares{
		turns: budget.NewTurns(budget.Limit{Node: lookupsAtOnce, Namespace: lookupsOfNamespace}), bytes: map[string]int{},
	}
}

// take counts a review until done is called. It returns false if the namespace has too many already.
func (s *shares) take(req *ctrladmission.Request) (done func(), ok bool) {
	if s == nil || req.Namespace == "" {
		return func() {}, true
	}
	size := max(leastReview, len(req.Object.Raw)+len(req.OldObject.Raw))
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken := s.bytes[req.Namespace]; taken > 0 && taken+size > shareOfNamespace {
		return nil, false
	}
	s.bytes[req.Namespace] += size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bytes[req.Namespace] -= size; s.bytes[req.Namespace] == 0 {
			delete(s.bytes, req.Namespace)
		}
	}, true
}

// reader returns what reads the objects for one review of a namespace.
func (s *shares) reader(from client.Reader, namespace string) client.Reader {
	l := &lookups{Reader: from, namespace: namespace, found: map[lookup]found{}}
	if s != nil {
		l.turns = s.turns
	}
	return l
}

// lookups reads objects for one review: each once, in turn with the reviews of other namespaces, and no more than maxLookups.
type lookups struct {
	client.Reader

	turns     *budget.Turns
	namespace string
	found     map[lookup]found
}

// lookup names an object, and found is the answer.
type lookup struct {
	kind reflect.Type
	key  client.ObjectKey
}

type found struct {
	object runtime.Object
	err    error
}

// Get implements [client.Reader].
func (l *lookups) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	name := lookup{reflect.TypeOf(into), key}
	known, ok := l.found[name]
	switch {
	case ok && known.err != nil:
		return known.err
	case ok:
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(known.object.DeepCopyObject()).Elem())
		return nil
	case len(l.found) >= maxLookups:
		return errTooManyLookups
	}
	if l.turns != nil {
		done, err := l.turns.Take(ctx, l.namespace)
		if err != nil {
			return fmt.Errorf("wait for the reviews of the same namespace: %w", err)
		}
		defer done()
	}
	err := l.Reader.Get(ctx, key, into, options...)
	l.found[name] = found{into.DeepCopyObject(), err}
	return err
}

// lookable returns the items that a review looks at, and says whether these are all.
func lookable[T any](items []T) (few []T, all bool) {
	if len(items) > maxLookups {
		return items[:maxLookups], false
	}
	return items, true
}

// worthALine says whether an error of a lookup is to be logged: tenants cause the others as often as they like.
func worthALine(err error) bool {
	return !errors.Is(err, errTooManyLookups) && !errors.Is(err, context.DeadlineExceeded)
}
