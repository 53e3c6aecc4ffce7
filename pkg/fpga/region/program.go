// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Program is the parameters of the step that programs a region.
type Program struct {
	Device string `json:"device"`
	Claim  Claim  `json:"claim"`
	// Image is nil where the region is used as it is.
	Image *Image `json:"image,omitempty"`
	Mode  Mode   `json:"mode"`
	// ResetBeforeUse resets a region that need not be programmed.
	ResetBeforeUse bool `json:"resetBeforeUse"`
	// OnRelease is what undoing does. Blank is programmed for that, and where the region's state is unknown; nil where there is none.
	OnRelease Release       `json:"onRelease"`
	Blank     *Image        `json:"blank,omitempty"`
	Timeout   time.Duration `json:"timeout"`
}

// Step makes the step.
func (p *Program) Step() (step.Step, error) { return stepOf(ProgramKind, p.Device, p) }

func stepOf(kind, device string, params any) (step.Step, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode step %s of %s: %w", kind, device, err)
	}
	return step.Step{Kind: kind, Target: device, Params: raw}, nil
}

// ErrOther refuses a region that must not be programmed and holds something else.
var ErrOther = errors.New("holds another accelerator and program is Never")

// ErrUnknownState is about a region of which nobody knows what it holds.
var ErrUnknownState = errors.New("is in an unknown state since a programming failed or was cut off")

// program makes a region hold what the claim wants. Nothing before the lease touches the hardware.
func (p *Programmer) program(ctx context.Context, raw json.RawMessage) (err error) {
	params, err := decode[Program](raw)
	if err != nil {
		return err
	}
	r, way, err := p.place(params.Device)
	if err != nil {
		return err
	}
	late := fmt.Errorf("region %s: not programmed within %s", params.Device, params.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, params.Timeout, late)
	defer cancel()
	var s *sealed
	interfaceID := ""
	if params.Image != nil {
		if err := fits(r, params.Image); err != nil {
			return err
		}
		interfaceID = params.Image.InterfaceID
	}
	if params.Image != nil && params.Mode != ModeNever {
		if s, err = p.seal(ctx, params.Image); err != nil {
			return err
		}
		defer closeQuietly(s)
	}
	lease, err := way.Acquire(ctx, r, interfaceID)
	if err != nil {
		return err
	}
	defer release(lease, &err)
	return p.fill(ctx, &params, r, way, lease, s)
}

// fill decides under the lease, when nobody else can change the region any more.
func (p *Programmer) fill(ctx context.Context, params *Program, r *fpga.Region, b Backend, lease Lease, s *sealed) error {
	before, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	state, err := b.State(r)
	if err != nil {
		return err
	}
	switch {
	case params.Image == nil || params.Mode == ModeNever:
		if err := p.usable(params, before, state); err != nil {
			return err
		}
	case params.Mode == ModeAlways || !p.same(params, before, state):
		return p.loadWanted(ctx, params, lease, s, before)
	}
	after := before
	after.Namespace, after.Claim = params.Claim.Namespace, params.Claim.UID
	if err := p.config.Contents.write(params.Device, after); err != nil {
		return err
	}
	if !params.ResetBeforeUse {
		return nil
	}
	err = lease.Reset()
	switch {
	case !errors.Is(err, ErrNoReset):
		return err
	case params.Image == nil || params.Mode == ModeNever:
		return nil // it is wanted as it is
	}
	return p.loadWanted(ctx, params, lease, s, after)
}

// loadWanted programs what the claim asks for.
func (p *Programmer) loadWanted(ctx context.Context, params *Program, lease Lease, s *sealed, before Content) error {
	after := Content{Digest: params.Image.Digest, AFU: params.Image.AFUID, Namespace: params.Claim.Namespace, Claim: params.Claim.UID}
	return p.load(ctx, lease, s, Attempt{Device: params.Device, Claim: params.Claim, Image: *params.Image, Why: "program"}, before, after)
}

// same says whether a region holds the very image already, for the same tenant. An accelerator id alone says nothing: all OpenCL images
// of a shell share one.
func (p *Programmer) same(params *Program, before Content, state State) bool {
	return !before.Unknown && p.held(before, state) == params.Image.Digest && before.Namespace == params.Claim.Namespace &&
		state.shows(params.Image.AFUID) && state.Fault == nil
}

// held is the digest of what a region holds, empty where that is not known: after a reboot, or where somebody else programmed it since.
func (p *Programmer) held(before Content, state State) string {
	if before.BootID != p.config.BootID || !state.shows(before.AFU) {
		return ""
	}
	return before.Digest
}

// usable says why a region that is not to be programmed cannot be used as it is.
func (p *Programmer) usable(params *Program, before Content, state State) error {
	if before.Unknown {
		return fmt.Errorf("region %s %w: let a claim program it", params.Device, ErrUnknownState)
	}
	if state.Fault != nil {
		return fmt.Errorf("region %s: %w: let a claim program it", params.Device, state.Fault)
	}
	image, digest := params.Image, p.held(before, state)
	if image == nil {
		return nil
	}
	// What a region shows will do where nobody knows which bytes it holds. One that is mute shows nothing.
	if !state.shows(image.AFUID) || digest != image.Digest && (digest != "" || state.Mute) {
		return fmt.Errorf("region %s %w: it has AFU id %s (digest %s), want %s (%s): use program IfDifferent, or select by the attribute %s",
			params.Device, ErrOther, orNone(state.AFU), orNone(digest), image.AFUID, image.Digest, selector(state))
	}
	return nil
}

// selector is the attribute that tells regions which hold an image from others.
func selector(state State) string {
	if state.Mute {
		return attributeDigest
	}
	return attributeAFUID
}

func orNone(id string) string {
	if id == "" {
		return "not known"
	}
	return id
}

// verify looks whether the region still shows what it was programmed with. It opens nothing: a pod may use the region.
func (p *Programmer) verify(_ context.Context, raw json.RawMessage) error {
	params, err := decode[Program](raw)
	if err != nil {
		return err
	}
	r, way, err := p.place(params.Device)
	if err != nil {
		return err
	}
	content, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	state, err := way.State(r)
	if err != nil {
		return err
	}
	switch {
	case content.Unknown || content.Claim != params.Claim.UID:
		return fmt.Errorf("region %s %w", params.Device, ErrUnknownState)
	case params.Image != nil && !state.shows(params.Image.AFUID):
		err := fmt.Errorf("region %s has AFU id %q, want %s: delete the pod", params.Device, state.AFU, params.Image.AFUID)
		return errors.Join(err, state.Fault)
	}
	return nil
}

// giveBack undoes: it wipes, resets or keeps as the claim said. A region in an unknown state is wiped in any case or, where there is no
// blank image, must prove that it works; until then this fails, and the region stays out of use. A region that this claim never
// touched, or that has left the node, is left alone.
func (p *Programmer) giveBack(ctx context.Context, raw json.RawMessage) error {
	params, err := decode[Program](raw)
	if err != nil {
		return err
	}
	content, err := p.config.Contents.Read(params.Device)
	if err != nil || !content.concerns(params.Claim.UID) {
		return err
	}
	r, way, err := p.place(params.Device)
	if errors.Is(err, ErrGone) {
		return nil // the file keeps what it knows for when the region comes back
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(params.Timeout, leastTimeout))
	defer cancel()
	if params.Blank != nil && (content.Unknown || params.OnRelease == ReleaseBlank) {
		err := p.wipe(ctx, r, way, Attempt{Device: params.Device, Claim: params.Claim, Image: *params.Blank, Why: "release"})
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// The blank image is not on the node: what the region says of itself must do.
	}
	return p.settle(ctx, &params, r, way)
}

// concerns says whether a claim that is given back has to do anything. Where nobody knows who left the region as it is, everybody has.
func (c *Content) concerns(uid string) bool { return c.Claim == uid || c.Unknown && c.Claim == "" }

// leastTimeout is what giving back may take at least: a claim's own timeout is about its own programming.
const leastTimeout = 2 * time.Minute

// settle resets a region and notes that nobody uses it. The lease waits for a programming that outlived the process which began it.
func (p *Programmer) settle(ctx context.Context, params *Program, r *fpga.Region, b Backend) (err error) {
	lease, err := b.Acquire(ctx, r, "")
	if err != nil {
		return err
	}
	defer release(lease, &err)
	content, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	if content.Unknown {
		state, err := b.State(r)
		if err == nil {
			err = state.Fault
		}
		if err != nil {
			return fmt.Errorf("region %s %w (%w): there is no blank image for interface %s; "+
				"bind its device to the driver anew, or add a ClusterFPGABitstream that is blank", params.Device, ErrUnknownState, err, r.InterfaceID)
		}
		// It works; which bytes it holds nobody can tell, so the next claim programs it.
		// What was cut off may not have begun, so that it is still the tenant's before.
		tenant := params.Claim.Namespace
		if content.Namespace != "" && content.Namespace != tenant {
			tenant = severalTenants
		}
		content = Content{AFU: state.AFU, BootID: p.config.BootID, Namespace: tenant}
	}
	if params.OnRelease != ReleaseKeep {
		if err := lease.Leave(ctx); err != nil && !errors.Is(err, ErrNoReset) {
			return err
		}
	}
	content.Claim = ""
	return p.config.Contents.write(params.Device, content)
}
