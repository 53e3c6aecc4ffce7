// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// holdings remembers what the records of claims hold, so that a record is read again only after it changed. The records alone decide:
// whatever is lost here is read again.
type holdings struct {
	mu    sync.Mutex
	known map[string]knownHolding
}

type knownHolding struct {
	stamp record.Stamp
	budget.Holding
}

// create creates the record of a claim that holds nothing yet, if what its steps need fits into the node's budget. Callers that
// need something of the budget decide and create one after the other, so two of them cannot both get what is left. A
// claim in doubt keeps the devices that it has if its record cannot be created.
func (s *records) create(ctx context.Context, r *record.Record, inDoubt bool) error {
	asked, err := s.holding(r)
	if err != nil {
		return err
	}
	return s.checkOverlaps(ctx, r, func() error { return s.createAsked(ctx, r, &asked, inDoubt) })
}

// createAsked creates a record if what it asks for fits into the node's budget.
func (s *records) createAsked(ctx context.Context, r *record.Record, asked *budget.Holding, inDoubt bool) error {
	if len(asked.Needs) > 0 {
		hold, err := s.Store.LockBudget(ctx)
		if err != nil {
			return err
		}
		defer hold.Release()
		held, err := s.held(r.UID)
		if err != nil {
			return err
		}
		if err := s.Limits.Check(*asked, held); err != nil {
			return err
		}
	}
	if err := s.Store.Acquire(r); err != nil {
		return err
	}
	err := s.Store.Create(r)
	if err != nil && !inDoubt {
		err = errors.Join(err, s.Store.Remove(r))
	}
	return err
}

// checkOverlaps calls write, which writes a record, unless another claim holds something that overlaps a device of the record.
func (s *records) checkOverlaps(ctx context.Context, r *record.Record, write func() error) error {
	machine := s.Machine()
	if machine == nil {
		return errNotScanned
	}
	return s.conflicts(machine).Overlaps(ctx, r, write)
}

func (s *records) conflicts(machine Machine) conflict.Check {
	return conflict.Check{Store: s.Store, Machine: machine, Node: s.Node, BootID: s.BootID}
}

// holding returns what a record makes the node hold: the needs of its steps that are not undone.
func (s *records) holding(r *record.Record) (budget.Holding, error) {
	out := budget.Holding{Namespace: r.Namespace}
	for i := range r.Steps {
		if r.Steps[i].State == step.Undone {
			continue
		}
		needs, err := s.kinds.Needs(r.Steps[i].Step)
		if err != nil {
			return out, fmt.Errorf("claim %s: %w", r.UID, err)
		}
		out.Needs = append(out.Needs, needs...)
	}
	return out, nil
}

// held returns what all claims but one hold according to their records. A record that cannot be read counts as nothing, since it must not
// keep other claims from being prepared.
func (s *records) held(except string) ([]budget.Holding, error) {
	uids, err := s.Store.UIDs()
	if err != nil {
		return nil, err
	}
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	known := make(map[string]knownHolding, len(uids))
	var out []budget.Holding
	for _, uid := range uids {
		if uid == except {
			continue
		}
		h, ok := s.readHolding(uid)
		if !ok {
			continue
		}
		known[uid] = h
		if len(h.Needs) > 0 {
			out = append(out, h.Holding)
		}
	}
	s.holdings.known = known
	return out, nil
}

// readHolding returns what the record of a claim holds, and false if there is no readable record. The caller holds the lock.
func (s *records) readHolding(uid string) (knownHolding, bool) {
	stamp, err := s.Store.Stamp(uid) // before the record is read, so that a change meanwhile is read the next time
	if err != nil {
		return knownHolding{}, false
	}
	if h, ok := s.holdings.known[uid]; ok && h.stamp == stamp {
		return h, true
	}
	r, err := s.Store.Load(uid)
	if err != nil {
		return knownHolding{}, false
	}
	h, err := s.holding(r)
	return knownHolding{stamp: stamp, Holding: h}, err == nil
}
