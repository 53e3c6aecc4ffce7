// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
)

// job is one change of a GPU. It may be done already.
type job func(ctx context.Context) error

// jobs lists the changes that a card needs, in their order.
func (f *Feature) jobs(c *card) []job {
	if c.busy() {
		return f.jobsOfHeld(c)
	}
	if c.frozen {
		return nil
	}
	if !c.left.empty() {
		return f.takeBack(c.left)
	}
	var jobs []job
	if c.MIG != nil && !c.MIGUnknown { // an answer of before may lack what was made since
		jobs = f.migJobs(c)
	}
	if c.settings.SRIOV != nil && c.VirtualFunctions > 0 {
		jobs = append(jobs, f.functionJobs(c, c.settings.SRIOV.VirtualFunctions)...)
	}
	if want := c.settings.AMD; c.AMD != nil && want != nil && want.Compute != "" && want.Compute != c.AMD.Compute && c.division.Card == nil {
		jobs = append(jobs, func(ctx context.Context) error { return f.setCompute(ctx, c, want.Compute) })
	}
	return jobs
}

// jobsOfHeld makes again what a reboot ended while claims had it, and what no claim's step makes: MIG mode where claims do not switch it,
// instances that outlive their claims, and virtual functions. It takes nothing away.
func (f *Feature) jobsOfHeld(c *card) []job {
	var jobs []job
	hasFunction := false
	for _, name := range slices.Sorted(maps.Keys(c.held)) {
		switch part := c.division.Parts[name]; part.Type {
		case device.TypeVF:
			hasFunction = true
		case device.TypeMIG:
			jobs = append(jobs, f.jobsOfInstance(c, name, &part)...)
		}
	}
	if want := c.settings.SRIOV; hasFunction && want != nil && c.functions == 0 {
		jobs = append(jobs, func(ctx context.Context) error { return f.makeFunctions(ctx, c, want.VirtualFunctions) })
	}
	return jobs
}

// jobsOfInstance is jobsOfHeld for an instance. To switch a mode that is on changes nothing.
func (f *Feature) jobsOfInstance(c *card, name string, part *partition.Part) []job {
	if c.MIG == nil || c.MIGUnknown {
		return nil
	}
	var jobs []job
	stands := c.stands(name, part)
	if !c.MIG.Current && (stands || !c.switchesMIG()) && !partition.MIGNeedsReset(c.Device) {
		jobs = append(jobs, func(ctx context.Context) error { return f.setMode(ctx, c, true) })
	}
	if stands && c.standing(name, part) == nil {
		w := c.place(name, part.Profile, part.ProfileID, part.Placement)
		jobs = append(jobs, func(ctx context.Context) error { return f.do(ctx, w.Step) })
	}
	return jobs
}

// migJobs destroys the instances of former layouts, switches the mode where a claim cannot, and makes the instances of the layout.
func (f *Feature) migJobs(c *card) []job {
	var jobs []job
	var held []mig.Held
	if len(c.division.Destroy) > 0 {
		var err error
		if held, err = f.mig.Held(); err != nil {
			return nil // Review reports it
		}
	}
	for _, gone := range c.division.Destroy {
		i := slices.IndexFunc(held, func(h mig.Held) bool {
			return h.PCIAddress == c.Address && h.ProfileID == gone.ProfileID && h.Start == gone.Placement.Start
		})
		if i < 0 {
			continue // it is destroyed since
		}
		jobs = append(jobs, func(ctx context.Context) error { return f.mig.Destroy(ctx, &held[i].Partition) })
	}
	if on, wanted := c.modeByPolicy(); wanted && on != c.MIG.Current {
		jobs = append(jobs, func(ctx context.Context) error { return f.setMode(ctx, c, on) })
	}
	for _, slot := range c.division.Create {
		w := c.place(partition.MIGName(c.Device.Name, slot.Profile, slot.Placement.Start), slot.Profile, slot.ProfileID, slot.Placement)
		jobs = append(jobs, func(ctx context.Context) error { return f.do(ctx, w.Step) })
	}
	return jobs
}

// modeByPolicy returns the MIG mode that a policy wants whether there are claims or not. Where no reset is needed, the claims on a dynamic
// GPU choose.
func (c *card) modeByPolicy() (on, wanted bool) {
	want := c.settings.MIG
	switch {
	case want == nil:
		return false, false
	case want.Mode == partition.MIGStatic:
		return true, len(c.division.Create) > 0 || len(want.Layout) == 0
	case want.Mode == partition.MIGDisabled:
		return false, len(c.MIG.Instances) == len(c.division.Destroy)
	}
	return true, partition.MIGNeedsReset(c.Device) && len(c.division.Parts) == 0 && !c.waitsForCounters()
}

// waitsForCounters says whether nothing of a dynamic GPU could be published if it were in MIG mode.
func (c *card) waitsForCounters() bool {
	return slices.ContainsFunc(c.division.Reasons, func(r partition.Reason) bool { return r.Reason == partition.ReasonNoCounters })
}

// setMode switches the MIG mode. Where it takes a reset of the GPU, the change stays pending until an administrator resets it.
func (f *Feature) setMode(ctx context.Context, c *card, on bool) (err error) {
	if !partition.MIGNeedsReset(c.Device) {
		s, err := c.migMode(on)
		if err != nil {
			return err
		}
		return f.Kinds().Apply(ctx, s)
	}
	lock, err := f.mig.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if c.MIG.Pending == on {
		return c.resetNeeded(on)
	}
	place := nvml.MIGPlace{PCIBusID: c.Address.String(), Parent: c.uuid()}
	_, err = f.Library.SetMIGMode(ctx, lock, place, on, true)
	if errors.Is(err, nvml.ErrNeedsReset) {
		return errors.Join(err, c.resetNeeded(on))
	}
	return err
}

func (c *card) resetNeeded(on bool) error {
	state := "off"
	if on {
		state = "on"
	}
	return fmt.Errorf("MIG mode is to be switched %s, which takes a reset of this GPU: stop what uses it, such as DCGM, and run "+
		"nvidia-smi --gpu-reset -i %s, or restart the node", state, c.Address)
}

// functionJobs makes the virtual functions that a policy wants, and removes those that Fettle made before.
func (f *Feature) functionJobs(c *card, want int) []job {
	if c.functions == want {
		return nil
	}
	var jobs []job
	point, mine, err := f.points.Mine(nodeClaim, sriov.StepKind, c.Address.String())
	if err != nil {
		return []job{func(context.Context) error { return err }}
	}
	if mine {
		jobs = append(jobs, func(ctx context.Context) error { return f.maker.Kinds().Undo(ctx, point.Step) })
	}
	if want == 0 && !mine {
		return []job{func(context.Context) error {
			return fmt.Errorf("PCI function %s %w (%d): remove them, or set virtualFunctions of the policy to their number",
				c.Address, sriov.ErrForeign, c.functions)
		}}
	}
	if want == 0 {
		return jobs
	}
	return append(jobs, func(ctx context.Context) error { return f.makeFunctions(ctx, c, want) })
}

func (f *Feature) makeFunctions(ctx context.Context, c *card, want int) error {
	if err := f.points.Make(); err != nil {
		return err
	}
	s, err := f.maker.Plan(ctx, c.Address, nodeClaim, want, sriov.Options{Provisioning: provisioning(c.settings.SRIOV)})
	if err != nil {
		return err
	}
	return f.maker.Kinds().Apply(ctx, s)
}

// provisioning returns what each virtual function gets.
func provisioning(s *partition.SRIOV) []sriov.Provisioning {
	if s.Xe == nil {
		return nil
	}
	var out []sriov.Provisioning
	for i := range s.VirtualFunctions {
		p := sriov.Provisioning{VF: i + 1, SchedPriority: s.Xe.SchedPriority}
		if n := s.Xe.ExecQuantumMS; n != nil {
			p.ExecQuantum = new(uint32(*n))
		}
		if n := s.Xe.PreemptTimeoutUS; n != nil {
			p.PreemptTimeout = new(uint32(*n))
		}
		if s.Xe.VRAMQuota > 0 {
			p.VRAMQuota = new(uint64(s.Xe.VRAMQuota))
		}
		out = append(out, p)
	}
	return out
}

// setCompute switches the compute mode of an AMD GPU. Where the API server keeps counters, the claims' steps do.
func (f *Feature) setCompute(ctx context.Context, c *card, compute string) error {
	s, err := c.mode(compute)
	if err != nil {
		return err
	}
	return f.Kinds().Apply(ctx, s)
}

func (f *Feature) do(ctx context.Context, make func() (step.Step, error)) error {
	s, err := make()
	if err != nil {
		return err
	}
	return f.mig.Kinds().Apply(ctx, s)
}
