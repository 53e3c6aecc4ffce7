// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Program are the parameters of the step that programs a region.
type Program struct {
	Device string `json:"device"`
	Claim  Claim  `json:"claim"`
	// Image is nil if the claim uses the region as it is.
	Image *Image `json:"image,omitempty"`
	Mode  Mode   `json:"mode"`
	// ResetBeforeUse resets a region that need not be programmed.
	ResetBeforeUse bool `json:"resetBeforeUse"`
	// OnRelease says what Undo does. Blank is programmed for ReleaseBlank, and if the state of the region is unknown. It is nil if there is no
	// blank image.
	OnRelease Release       `json:"onRelease"`
	Blank     *Image        `json:"blank,omitempty"`
	Timeout   time.Duration `json:"timeout"`
	// RequireIOMMU refuses a region whose logic reaches all memory of the machine.
	RequireIOMMU bool `json:"requireIOMMU,omitempty"`
	// MarkCard counts all memory of the card as used by the claim's namespace, also for the card's other regions.
	MarkCard bool `json:"markCard,omitempty"`
}

// Step makes the step.
func (p *Program) Step() (step.Step, error) { return step.New(ProgramKind, p.Device, p) }

// ErrOther refuses a region that must not be programmed and holds another accelerator.
var ErrOther = errors.New("holds another accelerator and program is Never")

// ErrUnknownState refuses a region that may hold anything.
var ErrUnknownState = errors.New("is in an unknown state since a programming failed or was cut off")

// program makes a region hold what the claim wants. It does not touch the hardware before it has the lease.
func (p *Programmer) program(ctx context.Context, params *Program) (err error) {
	r, b, err := p.find(params.Device)
	if err != nil {
		return err
	}
	late := fmt.Errorf("region %s: not programmed within %s", params.Device, params.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, params.Timeout, late)
	defer cancel()
	var s *sealed
	interfaceID := ""
	if params.Image != nil {
		if err := checkInterface(r, params.Image); err != nil {
			return err
		}
		interfaceID = params.Image.InterfaceID
	}
	if params.Image != nil && params.Mode != ModeNever {
		if s, err = p.seal(ctx, params.Image); err != nil {
			return err
		}
		defer closeQuietly(s)
		params = params.withAFU(s.about.AFUID)
	}
	lease, err := b.Acquire(ctx, r, interfaceID)
	if err != nil {
		return err
	}
	defer release(lease, &err)
	// The type of an IOMMU group changes only while no driver has the device, so it stays as long as the lease lives.
	if params.RequireIOMMU {
		if err := p.CheckDMA(r); err != nil {
			return fmt.Errorf("region %s: %w", params.Device, err)
		}
	}
	l := &leased{Lease: lease, region: r, backend: b, file: s}
	if err := p.programUnderLease(ctx, params, l); err != nil || !params.MarkCard {
		return err
	}
	return p.markCard(params.Device, params.Claim.Tenant())
}

// withAFU returns the parameters with the AFU id that the file of their image states.
func (p *Program) withAFU(id string) *Program {
	known, image := *p, *p.Image
	image.AFUID = id
	known.Image = &image
	return &known
}

// programUnderLease decides whether to program the region. Under the lease no other caller can change it.
func (p *Programmer) programUnderLease(ctx context.Context, params *Program, l *leased) error {
	before, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	state, err := l.backend.State(l.region)
	if err != nil {
		return err
	}
	switch {
	case params.Image == nil || params.Mode == ModeNever:
		if err := p.checkUsable(params, before, state); err != nil {
			return err
		}
	case params.Mode == ModeAlways || !p.alreadyHolds(params, before, state):
		return p.programImage(ctx, params, l, before)
	}
	after := before.usedBy(params.Claim.Tenant())
	after.Claim = params.Claim.UID
	if err := p.config.Contents.write(params.Device, after); err != nil {
		return err
	}
	if !params.ResetBeforeUse {
		return nil
	}
	err = l.Reset()
	switch {
	case !errors.Is(err, ErrNoReset):
		return err
	case params.Image == nil || params.Mode == ModeNever:
		return nil // The claim wants the region as it is.
	}
	return p.programImage(ctx, params, l, after)
}

// programImage programs the claim's image, unless too many of the namespace's failed.
func (p *Programmer) programImage(ctx context.Context, params *Program, l *leased, before Content) error {
	after := before.usedBy(params.Claim.Tenant())
	after = Content{
		Digest: params.Image.Digest, AFU: params.Image.AFUID, Namespace: after.Namespace, Memory: after.Memory, Claim: params.Claim.UID,
	}
	end, err := p.config.Failures.Begin(ctx, &params.Claim)
	if err != nil {
		return fmt.Errorf("region %s is not programmed: %w", params.Device, err)
	}
	a := Attempt{Device: params.Device, Claim: params.Claim, Image: *params.Image, Why: "program"}
	err = p.load(ctx, l, &loading{Attempt: a, before: before, after: after})
	// A failure that left the region as it was costs others nothing.
	return errors.Join(err, end(err != nil && backend.KindOf(err) == backend.Unknown))
}

// alreadyHolds reports whether a region holds the same bytes already, for the same tenant. An accelerator id does not prove that: all
// OpenCL images of a shell share one.
func (p *Programmer) alreadyHolds(params *Program, before Content, state State) bool {
	return !before.Unknown && p.knownDigest(before, state) == params.Image.Digest && before.Namespace == params.Claim.Tenant() &&
		state.shows(params.Image.AFUID) && state.Fault == nil
}

// knownDigest returns the digest of what a region holds. It returns "" after a reboot, or if another program has programmed the region
// since.
func (p *Programmer) knownDigest(before Content, state State) string {
	if before.BootID != p.config.BootID || !state.shows(before.AFU) {
		return ""
	}
	return before.Digest
}

// checkUsable fails if a region that must not be programmed cannot be used as it is.
func (p *Programmer) checkUsable(params *Program, before Content, state State) error {
	if before.Unknown {
		return fmt.Errorf("region %s %w: let a claim program it", params.Device, ErrUnknownState)
	}
	if state.Fault != nil {
		return fmt.Errorf("region %s: %w: let a claim program it", params.Device, state.Fault)
	}
	image, digest := params.Image, p.knownDigest(before, state)
	if image == nil {
		return nil
	}
	// If the digest is not known, the id that the region shows is enough. A region without readback shows none, and of an image whose file
	// alone states the id none is known.
	held := digest == image.Digest || digest == "" && image.AFUID != "" && !state.NoReadback
	if !held || image.AFUID != "" && !state.shows(image.AFUID) {
		return fmt.Errorf("region %s %w: it has AFU id %s (digest %s), want %s (%s): use program IfDifferent, or select by the attribute %s",
			params.Device, ErrOther, orNone(state.AFU), orNone(digest), orNone(image.AFUID), image.Digest, selector(state, image))
	}
	return nil
}

// selector names the attribute by which a claim selects regions that hold an image.
func selector(state State, image *Image) string {
	if state.NoReadback || image.AFUID == "" {
		return attributeDigest
	}
	return attributeAFUID
}

func orNone(id string) string { return cmp.Or(id, "not known") }

// verify checks that the region still shows what it was programmed with. It opens nothing, since a pod may use the region.
func (p *Programmer) verify(_ context.Context, params *Program) error {
	r, b, err := p.find(params.Device)
	if err != nil {
		return err
	}
	content, err := p.config.Contents.Read(params.Device)
	if err != nil {
		return err
	}
	state, err := b.State(r)
	if err != nil {
		return err
	}
	switch {
	case content.Unknown || content.Claim != params.Claim.UID:
		return fmt.Errorf("region %s %w", params.Device, ErrUnknownState)
	case params.Image == nil:
		return nil
	}
	if want := cmp.Or(params.Image.AFUID, content.AFU); !state.shows(want) {
		err := fmt.Errorf("region %s has AFU id %q, want %s: delete the pod", params.Device, state.AFU, want)
		return errors.Join(err, state.Fault)
	}
	return nil
}

// undoProgram wipes, resets or keeps the region, as the claim said. It always wipes a region in an unknown state. If there is no blank
// image, such a region must prove that it works; until then undoProgram fails, and the region stays out of use. It leaves alone a region
// that this claim never touched, or that has left the node.
func (p *Programmer) undoProgram(ctx context.Context, params *Program) error {
	content, err := p.config.Contents.Read(params.Device)
	if err != nil || !content.needsRelease(params.Claim.UID) {
		return err
	}
	r, b, err := p.find(params.Device)
	if errors.Is(err, ErrGone) {
		// The content file stays for when the region comes back, and no claim uses it until then.
		content.Claim = ""
		return p.config.Contents.write(params.Device, content)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wipeTimeout(max(params.Timeout, leastTimeout), params.Blank))
	defer cancel()
	// A blank image for the shell that the card had before is none.
	if params.Blank != nil && params.Blank.InterfaceID == r.InterfaceID && (content.Unknown || params.OnRelease == ReleaseBlank) {
		err := p.wipe(ctx, r, b, Attempt{Device: params.Device, Claim: params.Claim, Image: *params.Blank, Why: "release"})
		if !cannotWipe(err) {
			return err
		}
		// So the region itself must prove that it works, and the next claim of another namespace finds its traces noted.
	}
	return p.resetAndRelease(ctx, params, r, b)
}

// cannotWipe reports whether a blank image was not loaded, and nothing was touched, for a reason that no claim must wait for: it is not on
// the node, or its file was replaced, or it has no room where the driver or program takes it from, or it would clear memory that another
// claim uses.
func cannotWipe(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, backend.ErrDigest) || errors.Is(err, ErrCardInUse) || noRoomForCopy(err)
}

// noRoomForCopy reports whether an image was not loaded, and nothing was touched, because its copy for the driver or program had no room.
func noRoomForCopy(err error) bool {
	return disk.NoRoom(err) && backend.KindOf(err) == backend.Retryable || errors.Is(err, errTooLarge)
}

// needsRelease reports whether the release of a claim has to act on the region. If no claim is known to have left the region in an unknown
// state, every claim has to.
func (c *Content) needsRelease(uid string) bool { return c.Claim == uid || c.Unknown && c.Claim == "" }

// leastTimeout is the shortest timeout of a release. The timeout of a claim is about its own programming.
const leastTimeout = 2 * time.Minute

// resetAndRelease resets a region and notes that no claim uses it. Its lease waits for a programming that outlived the process which began
// it.
func (p *Programmer) resetAndRelease(ctx context.Context, params *Program, r *fpga.Region, b Backend) (err error) {
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
				"bind its device to the driver again, or add a ClusterFPGABitstream that is blank", params.Device, ErrUnknownState, err, r.InterfaceID)
		}
		// The region works, but Fettle cannot tell which bytes it holds, so the next claim programs it. The programming that was cut off may
		// not have begun; then the traces are those of the tenant before. The step of a claim whose record is lost has no tenant: the traces
		// may be anybody's.
		tenant := params.Claim.Tenant()
		if tenant == "" || content.Namespace != "" && content.Namespace != tenant {
			tenant = severalTenants
		}
		content = Content{AFU: state.AFU, BootID: p.config.BootID, Namespace: tenant, Memory: content.Memory}
	}
	if params.OnRelease != ReleaseKeep {
		if err := lease.ResetForRelease(ctx); err != nil && !errors.Is(err, ErrNoReset) {
			return err
		}
	}
	content.Claim = ""
	return p.config.Contents.write(params.Device, content)
}
