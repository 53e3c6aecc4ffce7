// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
)

// job is one change of a GPU. It may be done already.
type job func(ctx context.Context) error

// layouts makes what policies want beside claims: static layouts, virtual functions, modes. It belongs to Run.
type layouts struct {
	node     string
	records  *record.Store
	holdings Holdings
	mig      *mig.Instances
	points   *restorepoint.Store
	maker    *sriov.Maker
	library  *nvml.Prober
	// kinds are the steps of the feature.
	kinds    step.Kinds
	quiesced func(vendor string) bool
	// retired reports whether the node was asked to retire. Nil: it never is.
	retired func() bool
	requery notify.Signal
	event   func(device, eventType, reason, note string)
	errors  *prometheus.CounterVec
	// said has what was reported last of each GPU.
	said map[string]string
}

// jobs lists the changes that a card needs, in their order.
func (l *layouts) jobs(c *card) []job {
	if c.busy() {
		return l.jobsOfHeld(c)
	}
	if c.frozen {
		return nil
	}
	if !c.left.empty() {
		return l.takeBack(c.left)
	}
	if l.retired != nil && l.retired() {
		return nil // the node's files are gone, or will be, and its GPUs may be another driver's
	}
	var jobs []job
	if c.MIG != nil && !c.MIGUnknown { // an answer of before may lack what was made since
		jobs = l.migJobs(c)
	}
	if c.settings.SRIOV != nil && c.VirtualFunctions > 0 {
		jobs = append(jobs, l.functionJobs(c, c.settings.SRIOV.VirtualFunctions)...)
	}
	if want := c.settings.AMD; c.AMD != nil && want != nil && want.Compute != "" && want.Compute != c.AMD.Compute && c.division.Card == nil {
		jobs = append(jobs, func(ctx context.Context) error { return l.setCompute(ctx, c, want.Compute) })
	}
	return jobs
}

// jobsOfHeld makes again what a reboot ended while claims had it, and what no claim's step makes: MIG mode where claims do not switch it,
// instances that outlive their claims, and virtual functions. It takes nothing away.
func (l *layouts) jobsOfHeld(c *card) []job {
	var jobs []job
	hasFunction := false
	for _, name := range slices.Sorted(maps.Keys(c.held)) {
		switch part := c.division.Parts[name]; part.Type {
		case device.TypeVF:
			hasFunction = true
		case device.TypeMIG:
			jobs = append(jobs, l.jobsOfInstance(c, name, &part)...)
		}
	}
	if want := c.settings.SRIOV; hasFunction && want != nil && len(c.functions()) == 0 {
		jobs = append(jobs, func(ctx context.Context) error { return l.makeFunctions(ctx, c, want.VirtualFunctions) })
	}
	return jobs
}

// jobsOfInstance is jobsOfHeld for an instance. To switch a mode that is on changes nothing.
func (l *layouts) jobsOfInstance(c *card, name string, part *partition.Part) []job {
	if c.MIG == nil || c.MIGUnknown {
		return nil
	}
	var jobs []job
	stands := c.stands(name, part)
	if !c.MIG.Current && (stands || !c.switchesMIG()) && !partition.MIGNeedsReset(c.Device) {
		jobs = append(jobs, func(ctx context.Context) error { return l.setMode(ctx, c, true) })
	}
	if stands && c.standing(name, part) == nil {
		w := c.place(name, part.Profile, part.ProfileID, part.Placement)
		jobs = append(jobs, func(ctx context.Context) error { return l.do(ctx, w.Step) })
	}
	return jobs
}

// migJobs destroys the instances of former layouts, switches the mode where a claim cannot, and makes the instances of the layout.
func (l *layouts) migJobs(c *card) []job {
	var jobs []job
	var held []mig.Held
	if len(c.division.Destroy) > 0 {
		var err error
		if held, err = l.mig.Held(); err != nil {
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
		jobs = append(jobs, func(ctx context.Context) error { return l.mig.Destroy(ctx, &held[i].Partition) })
	}
	if on, wanted := c.modeByPolicy(); wanted && on != c.MIG.Current {
		jobs = append(jobs, func(ctx context.Context) error { return l.setMode(ctx, c, on) })
	}
	for _, slot := range c.division.Create {
		w := c.place(partition.MIGName(c.Device.Name, slot.Profile, slot.Placement.Start), slot.Profile, slot.ProfileID, slot.Placement)
		jobs = append(jobs, func(ctx context.Context) error { return l.do(ctx, w.Step) })
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
func (l *layouts) setMode(ctx context.Context, c *card, on bool) (err error) {
	if !partition.MIGNeedsReset(c.Device) {
		s, err := c.migMode(on)
		if err != nil {
			return err
		}
		return l.kinds.Apply(ctx, s)
	}
	lock, err := l.mig.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if c.MIG.Pending == on {
		return c.resetNeeded(on)
	}
	place := nvml.MIGPlace{PCIBusID: c.Address.String(), Parent: c.uuid()}
	_, err = l.library.SetMIGMode(ctx, lock, place, on, true)
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
func (l *layouts) functionJobs(c *card, want int) []job {
	if len(c.functions()) == want {
		return nil
	}
	var jobs []job
	point, mine, err := l.points.Mine(nodeClaim, sriov.StepKind, c.Address.String())
	if err != nil {
		return []job{func(context.Context) error { return err }}
	}
	if mine {
		jobs = append(jobs, func(ctx context.Context) error { return l.maker.Kinds().Undo(ctx, point.Step) })
	}
	if want == 0 && !mine {
		return []job{func(context.Context) error {
			return fmt.Errorf("PCI function %s %w (%d): remove them, or set virtualFunctions of the policy to their number",
				c.Address, sriov.ErrForeign, len(c.functions()))
		}}
	}
	if want == 0 {
		return jobs
	}
	return append(jobs, func(ctx context.Context) error { return l.makeFunctions(ctx, c, want) })
}

func (l *layouts) makeFunctions(ctx context.Context, c *card, want int) error {
	if err := l.points.Make(); err != nil {
		return err
	}
	s, err := l.maker.Plan(ctx, c.Address, nodeClaim, want, sriov.Options{Provisioning: provisioning(c.settings.SRIOV)})
	if err != nil {
		return err
	}
	return l.maker.Kinds().Apply(ctx, s)
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
func (l *layouts) setCompute(ctx context.Context, c *card, compute string) error {
	s, err := c.mode(compute)
	if err != nil {
		return err
	}
	return l.kinds.Apply(ctx, s)
}

func (l *layouts) do(ctx context.Context, make func() (step.Step, error)) error {
	s, err := make()
	if err != nil {
		return err
	}
	return l.mig.Kinds().Apply(ctx, s)
}

// takeBack lists the changes that leave a GPU as it was before any policy held for it. Instances come first, since the mode cannot change
// before.
func (l *layouts) takeBack(made left) []job {
	var jobs []job
	for _, h := range made.instances {
		jobs = append(jobs, func(ctx context.Context) error { return l.mig.Destroy(ctx, &h.Partition) })
	}
	for _, p := range made.points {
		jobs = append(jobs, func(ctx context.Context) error {
			if p.Step.Kind == sriov.StepKind {
				return l.maker.Kinds().Undo(ctx, p.Step)
			}
			if err := l.kinds.Apply(ctx, p.Step); err != nil {
				return err
			}
			return l.points.End(nodeClaim, p.Step.Kind, p.Step.Target)
		})
	}
	return jobs
}
