// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Params are the parameters of the step that sets driver parameters.
type Params struct {
	Device string `json:"device"`
	Claim  Claim  `json:"claim"`
	// Set is what the claim asks for.
	Set []Param `json:"set,omitempty"`
	// Image may state clocks in its metadata. They are set if Set has no clocks and the region has user clocks.
	Image *Image `json:"image,omitempty"`
	// Before holds the former values of everything that may be set. Undo restores them.
	Before []Param `json:"before,omitempty"`
}

// Param is one driver parameter, in the unit of the backend.
type Param struct {
	Name  string `json:"name"`
	Value int32  `json:"value"`
}

// Step makes the step.
func (p *Params) Step() (step.Step, error) { return step.New(ParamsKind, p.Device, p) }

// PlanParams completes the parameters of the step for a region: it reads the present values into Before, and leaves Image out if it has no
// clocks to set. It returns nil if there is nothing to set. It changes nothing.
func (p *Programmer) PlanParams(ctx context.Context, r *fpga.Region, wanted Params) (*Params, error) {
	b, err := p.backendOf(r, wanted.Device)
	if err != nil {
		return nil, err
	}
	params := &Params{Device: wanted.Device, Claim: wanted.Claim, Set: wanted.Set}
	var others []string
	for _, s := range params.Set {
		if !isClock(s) {
			others = append(others, s.Name)
		}
	}
	if clocked := len(others) < len(params.Set); clocked || wanted.Image != nil {
		before, err := currentClocks(ctx, b, r)
		switch {
		case err != nil && (clocked || !errors.Is(err, backend.ErrNoParam)):
			return nil, err
		case err == nil && !clocked:
			params.Image = wanted.Image
		}
		params.Before = before
	}
	if len(params.Set) == 0 && params.Image == nil {
		return nil, nil //nolint:nilnil // documented above
	}
	before, err := b.Params(ctx, r, others)
	if err != nil {
		return nil, err
	}
	for _, name := range others {
		params.Before = append(params.Before, Param{Name: name, Value: before[name]})
	}
	return params, nil
}

// currentClocks reads both clocks, since setting either sets both, and a high clock that is off does not tell the low one. Clocks that do
// not run, or that the card cannot be set to, cannot be restored: what a claim sets then stays.
func currentClocks(ctx context.Context, b Backend, r *fpga.Region) ([]Param, error) {
	values, err := b.Params(ctx, r, clockNames())
	if err != nil || !dfl.CanSetClocks(values[dfl.ParamClock], values[dfl.ParamClockLow]) {
		return nil, err
	}
	var out []Param
	for _, name := range clockNames() {
		out = append(out, Param{Name: name, Value: values[name]})
	}
	return out, nil
}

func clockNames() []string { return []string{dfl.ParamClock, dfl.ParamClockLow} }

func isClock(p Param) bool { return slices.Contains(clockNames(), p.Name) }

func (p *Programmer) setParams(ctx context.Context, params *Params) error {
	if params.Image != nil {
		r, _, err := p.find(params.Device)
		if err == nil {
			err = checkInterface(r, params.Image)
		}
		if err != nil {
			return err
		}
	}
	set, err := p.parametersToSet(ctx, params)
	if err != nil || len(set) == 0 {
		return err
	}
	return p.writeParams(ctx, params.Device, set)
}

// KeepBefore takes over the former values from the step of an earlier boot for the same device. A card that kept its power through the
// reboot still has the claim's values.
func (p *Params) KeepBefore(earlier step.Step) error {
	old, err := step.Decode[Params](earlier.Params)
	if err != nil {
		return err
	}
	for i := range p.Before {
		own := &p.Before[i]
		if at := slices.IndexFunc(old.Before, func(p Param) bool { return p.Name == own.Name }); at >= 0 {
			own.Value = old.Before[at].Value
		}
	}
	return nil
}

func (p *Programmer) restoreParams(ctx context.Context, params *Params) error {
	former, err := p.toRestore(ctx, params)
	if err != nil || len(former) == 0 {
		return err
	}
	return p.writeParams(ctx, params.Device, former)
}

// toRestore returns the former values of parameters, if any of these has another value now. A region that left the node took its parameters
// with it, and the card may have another shell since, which has fewer.
func (p *Programmer) toRestore(ctx context.Context, params *Params) (former []Param, err error) {
	r, b, err := p.find(params.Device)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	changed := false
	for _, before := range params.Before {
		now, err := b.Params(ctx, r, []string{before.Name})
		if errors.Is(err, backend.ErrNoParam) {
			continue
		}
		if err != nil {
			return nil, err
		}
		former, changed = append(former, before), changed || now[before.Name] != before.Value
	}
	if !changed {
		return nil, nil
	}
	return former, nil
}

func (p *Programmer) writeParams(ctx context.Context, device string, set []Param) (err error) {
	r, b, err := p.find(device)
	if err != nil {
		return err
	}
	lease, err := b.Acquire(ctx, r, "")
	if err != nil {
		return err
	}
	defer release(lease, &err)
	return lease.SetParams(ctx, set)
}

// parametersToSet returns the claim's parameters and the clocks of the image's metadata.
func (p *Programmer) parametersToSet(ctx context.Context, params *Params) ([]Param, error) {
	if params.Image == nil {
		return params.Set, nil
	}
	s, err := p.seal(ctx, params.Image)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(s)
	return append(slices.Clone(params.Set), clocksOf(&s.about)...), nil
}

// clocksOf returns the clocks that the metadata of an image asks for. "auto" asks for none. The low clock is half of the high one.
func clocksOf(b *fpga.Bitstream) []Param {
	kHz := func(c *fpga.Clock) int32 {
		if c == nil || c.Auto || c.MHz <= 0 || c.MHz > math.MaxInt32/1000 {
			return 0
		}
		return int32(math.Round(c.MHz * 1000))
	}
	if high := kHz(b.Clocks.High); high > 0 {
		return []Param{{Name: dfl.ParamClock, Value: high}}
	}
	if low := kHz(b.Clocks.Low); low > 0 {
		return []Param{{Name: dfl.ParamClockLow, Value: low}}
	}
	return nil
}
