// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Scrub are the parameters of the step that wipes what another tenant left.
type Scrub struct {
	Device string `json:"device"`
	Claim  Claim  `json:"claim"`
	// Blank is nil if there is no blank image for the region.
	Blank *Image `json:"blank,omitempty"`
	// KeepMemory accepts that the memory of the card may hold another tenant's data.
	KeepMemory bool `json:"keepMemory,omitempty"`
	// Required refuses the region if it must be wiped and cannot be.
	Required bool `json:"required,omitempty"`
	// Keep refuses the region if it must be wiped, since the claim needs what it holds.
	Keep    bool          `json:"keep,omitempty"`
	Timeout time.Duration `json:"timeout"`
}

// Step makes the step.
func (s *Scrub) Step() (step.Step, error) { return step.New(ScrubKind, s.Device, s) }

// ErrTraces refuses a region that another tenant used and that cannot be wiped.
var ErrTraces = errors.New("has traces of another namespace's claim")

// clears reports whether the step can clear the card's memory.
func (s *Scrub) clears() bool { return !s.Keep && s.Blank != nil && s.Blank.ClearTime > 0 }

// unwiped refuses a region that must be wiped, for want of an image.
func (s *Scrub) unwiped(interfaceID string) error {
	if !s.Required {
		return nil
	}
	return fmt.Errorf("region %s %w and there is no blank image to wipe it with: "+
		"add a ClusterFPGABitstream for interface %s with spec.blank, or let the claim program the region", s.Device, ErrTraces, interfaceID)
}

func (p *Programmer) scrub(ctx context.Context, params *Scrub) error {
	r, b, err := p.find(params.Device)
	if err != nil {
		return err
	}
	content, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	logic := content.Unknown || foreign(content.Namespace, params.Claim.Tenant())
	memory := !params.KeepMemory && foreign(content.Data(), params.Claim.Tenant())
	if !logic && !memory {
		return nil
	}
	if params.Keep && !content.Unknown {
		return fmt.Errorf("region %s %w and program is Never, which leaves no way to wipe it: let the claim program the region",
			params.Device, ErrTraces)
	}
	if memory && !params.clears() {
		return fmt.Errorf("region %s %w, and no image clears it: ask an administrator for a ClusterFPGABitstream for interface %s "+
			"with spec.blank and spec.memoryClearTime, or for a class with policy.allowUnclearedMemory", params.Device, ErrMemory, r.InterfaceID)
	}
	if params.Blank == nil || params.Keep {
		return params.unwiped(r.InterfaceID)
	}
	ctx, cancel := context.WithTimeout(ctx, wipeTimeout(params.Timeout, params.Blank))
	defer cancel()
	return p.wipeFor(ctx, params, r, b, memory || content.Unknown)
}

// wipeFor wipes a region for a claim. If that is for the traces in its logic alone, and the image would clear memory in use, it is as
// without an image: the claim's own replaces the logic.
func (p *Programmer) wipeFor(ctx context.Context, params *Scrub, r *fpga.Region, b Backend, must bool) error {
	err := p.wipe(ctx, r, b, Attempt{Device: params.Device, Claim: params.Claim, Image: *params.Blank, Why: "scrub"})
	if errors.Is(err, ErrCardInUse) && !must && !params.Required {
		return nil
	}
	return err
}
