// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"sync"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// holdings remembers what the records of claims hold, so that a record is read again only after it changed. The records alone decide:
// whatever is lost here is read again.
type holdings struct {
	store *record.Store
	kinds step.Kinds

	mu    sync.Mutex
	known map[string]knownHolding
}

type knownHolding struct {
	stamp record.Stamp
	budget.Holding
}

// of returns what a record makes the node hold: the needs of its steps that are not undone. With an error it returns those that can be
// read.
func (h *holdings) of(r *record.Record) (budget.Holding, error) {
	out := budget.Holding{Namespace: r.Namespace}
	var errs []error
	for i := range r.Steps {
		if r.Steps[i].State == step.Undone {
			continue
		}
		needs, err := h.kinds.Needs(r.Steps[i].Step)
		if err != nil {
			errs = append(errs, fmt.Errorf("claim %s: %w", r.UID, err))
			continue
		}
		out.Needs = append(out.Needs, needs...)
	}
	return out, errors.Join(errs...)
}

// ofOthers returns what all claims but one hold according to their records. A record or step that cannot be read counts as nothing, since
// it must not keep other claims from being prepared.
func (h *holdings) ofOthers(except string) ([]budget.Holding, error) {
	uids, err := h.store.UIDs()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known := make(map[string]knownHolding, len(uids))
	var out []budget.Holding
	for _, uid := range uids {
		if uid == except {
			continue
		}
		found, ok := h.read(uid)
		if !ok {
			continue
		}
		known[uid] = found
		if len(found.Needs) > 0 {
			out = append(out, found.Holding)
		}
	}
	h.known = known
	return out, nil
}

// read returns what the record of a claim holds, and false if there is no readable record. The caller holds the lock.
func (h *holdings) read(uid string) (knownHolding, bool) {
	stamp, err := h.store.Stamp(uid) // before the record is read, so that a change meanwhile is read the next time
	if err != nil {
		return knownHolding{}, false
	}
	if before, ok := h.known[uid]; ok && before.stamp == stamp {
		return before, true
	}
	r, err := h.store.Load(uid)
	if err != nil {
		return knownHolding{}, false
	}
	now, _ := h.of(r) // a step that cannot be read counts as nothing, and the others count
	return knownHolding{stamp: stamp, Holding: now}, true
}
