// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/step"
)

// The kinds of step.
const (
	// ParamsKind sets driver parameters and restores them.
	ParamsKind = "fpga.params"
	// ScrubKind wipes what another tenant left in a region. Undoing it does nothing: what is wiped stays wiped.
	ScrubKind = "fpga.scrub"
	// ProgramKind programs a region or makes sure that it is as the claim wants it, and gives it back.
	ProgramKind = "fpga.program"
)

// ErrGone is about a region that is not on this node now.
var ErrGone = errors.New("the region is not on this node now")

// Config is what a Programmer works with.
type Config struct {
	// Find looks a region up by its device's name. It fails with ErrGone where the machine was looked at and does not have it.
	Find     func(name string) (*fpga.Region, error)
	Backends map[string]Backend
	Contents *Contents
	// Open opens a file of the node's store by its digest.
	Open func(digest string) (Blob, error)
	// HostRoot is the directory of the host's tree, BootID the host's boot.
	HostRoot, BootID string
	// Report is told of every attempt to program a region. Nil: nobody is.
	Report func(ctx context.Context, a Attempt)
}

// Attempt is one attempt to program a region.
type Attempt struct {
	// Device is the region's, Claim the claim's identity.
	Device string
	Claim  Claim
	Image  Image
	// Why says what for: "program", "scrub", "release".
	Why string
	// Took is the time in the driver.
	Took time.Duration
	Err  error
}

// Claim says for whom a step is.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Programmer does and undoes the steps. It is safe for concurrent use; the caller has each step's device to itself.
type Programmer struct{ config Config }

// New makes a Programmer.
func New(c Config) *Programmer { return &Programmer{config: c} }

// Kinds are the steps for a table of kinds.
func (p *Programmer) Kinds() step.Kinds {
	return step.Kinds{
		ParamsKind:  {Apply: p.setParams, Undo: p.restoreParams, Verify: nothing},
		ScrubKind:   {Apply: p.scrub, Undo: nothing, Verify: nothing},
		ProgramKind: {Apply: p.program, Undo: p.giveBack, Verify: p.verify},
	}
}

func nothing(context.Context, json.RawMessage) error { return nil }

// place finds a region and the way to it.
func (p *Programmer) place(name string) (*fpga.Region, Backend, error) {
	r, err := p.config.Find(name)
	if err != nil {
		return nil, nil, fmt.Errorf("region %s: %w", name, err)
	}
	if r == nil {
		return nil, nil, fmt.Errorf("device %s is no region that can be programmed", name)
	}
	way, err := p.backend(r, name)
	return r, way, err
}

// backend is the way to a region.
func (p *Programmer) backend(r *fpga.Region, name string) (Backend, error) {
	way, ok := p.config.Backends[r.Backend]
	if !ok {
		return nil, fmt.Errorf("region %s: this node's plugin does not program regions of kind %q: "+
			"add it to fpga.backends in the chart's values, or upgrade the plugin", name, r.Backend)
	}
	return way, nil
}

func decode[T any](raw json.RawMessage) (T, error) {
	var params T
	if err := json.Unmarshal(raw, &params); err != nil {
		return params, fmt.Errorf("decode the parameters: %w", err)
	}
	return params, nil
}

// load programs an image and notes what came of it. before is what the region held; it is noted again where the hardware was not
// touched. A failure that leaves the region in an unknown state gets one more attempt, which counts only if the region then shows the
// image, as far as it shows anything.
func (p *Programmer) load(ctx context.Context, lease Lease, s *sealed, a Attempt, before, after Content) error {
	unknown := before
	unknown.Unknown, unknown.Claim = true, a.Claim.UID
	if err := p.config.Contents.write(a.Device, unknown); err != nil {
		return err
	}
	took, err := lease.Program(ctx, s.load)
	if err != nil && backend.KindOf(err) == backend.Unknown && ctx.Err() == nil {
		var again time.Duration
		var second error
		again, second = lease.Program(ctx, s.load)
		took += again
		if second != nil {
			err = fmt.Errorf("%w; once more: %w", err, second)
		} else {
			err = nil
		}
	}
	a.Took, a.Err = took, err
	if p.config.Report != nil {
		p.config.Report(ctx, a)
	}
	switch {
	case err == nil:
		after.BootID = p.config.BootID
		return p.config.Contents.write(a.Device, after)
	case backend.KindOf(err) == backend.Unknown:
		return fmt.Errorf("region %s may hold anything now: %w", a.Device, err)
	default:
		return errors.Join(err, p.config.Contents.write(a.Device, before))
	}
}

// wipe programs a blank image. Whatever was in the region before is gone with it.
func (p *Programmer) wipe(ctx context.Context, r *fpga.Region, b Backend, a Attempt) (err error) {
	if err := fits(r, &a.Image); err != nil {
		return err
	}
	s, err := p.seal(ctx, &a.Image)
	if err != nil {
		return err
	}
	defer closeQuietly(s)
	lease, err := b.Acquire(ctx, r, a.Image.InterfaceID)
	if err != nil {
		return err
	}
	defer release(lease, &err)
	before, err := p.config.Contents.Read(a.Device)
	if err != nil {
		return err
	}
	return p.load(ctx, lease, s, a, before, Content{Digest: a.Image.Digest, AFU: a.Image.AFUID})
}

// fits refuses an image for another region before anything is opened.
func fits(r *fpga.Region, image *Image) error {
	if r.InterfaceID != image.InterfaceID {
		return fmt.Errorf("bitstream of %s: %w %s, the region has %s", image.Origin, backend.ErrInterface, image.InterfaceID, r.InterfaceID)
	}
	return nil
}

func release(lease Lease, err *error) { *err = errors.Join(*err, lease.Release()) }
