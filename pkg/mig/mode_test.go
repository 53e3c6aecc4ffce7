// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package mig_test

import (
	"errors"
	"testing"

	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

func (n *node) mode(on bool) step.Step {
	n.t.Helper()
	s, err := (&mig.Mode{Parent: small().Parent, PCIAddress: pci.Address{Bus: 0x41}, On: on}).Step()
	check.Must(n.t, err)
	return s
}

// TestModeStep: an instance and the whole GPU each get the mode that they need, and nothing of an instance is lost by it.
func TestModeStep(t *testing.T) {
	n := start(t, nvmlsim.H100)
	kinds := n.process().Kinds()
	w := small()
	for range 2 {
		check.Must(t, kinds.Apply(t.Context(), n.mode(false)))
	}
	if err := n.apply(w); !errors.Is(err, nvml.ErrMIGOff) {
		t.Errorf("made an instance with the mode off: %v", err)
	}
	check.Must(t, kinds.Apply(t.Context(), n.mode(true)))
	check.Must(t, n.apply(w))
	if err := kinds.Apply(t.Context(), n.mode(false)); !errors.Is(err, nvml.ErrInUse) {
		t.Errorf("switched off beside an instance: %v", err)
	}
	check.Must(t, kinds.Verify(t.Context(), n.mode(true)))
	check.Must(t, kinds.Undo(t.Context(), n.mode(true)))
	n.has([]string{"19@4"}, w.Device)
	check.Must(t, n.undo(w))
	check.Must(t, kinds.Apply(t.Context(), n.mode(false)))
}

// TestModeStepRefuses: a GPU that needs a reset, or that something uses, is as it was.
func TestModeStepRefuses(t *testing.T) {
	for model, want := range map[string]error{nvmlsim.A100x80: nvml.ErrNeedsReset, nvmlsim.H200: nvml.ErrInUse} {
		n := start(t, model)
		check.Must(t, n.Change(func(s *nvmlsim.State) error {
			s.Cards[0].Clients = 1
			return nil
		}))
		if err := n.process().Kinds().Apply(t.Context(), n.mode(false)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", model, err, want)
		}
		s, err := n.Look()
		check.Must(t, err)
		if c := s.Cards[0]; !c.MIG || !c.Pending {
			t.Errorf("%s: %+v", model, c)
		}
	}
}
