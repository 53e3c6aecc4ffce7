// SPDX-License-Identifier: Apache-2.0

// Package region implements the steps for a claim's FPGA regions: driver parameters, wiping between tenants, and programming. Each step
// looks its region up when it acts, since kernel numbers change. It reads and writes the region's content file, which outlives claims: what
// a region holds, and whose it was, decides what the next claim needs.
//
// Before an operation that may leave a region in an unknown state, the file says so, durably. Only the hardware's own answer makes the
// state known again: the image's accelerator id, read back under the lease.
package region

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/step"
)

// The kinds of step.
const (
	// ParamsKind sets driver parameters and restores them.
	ParamsKind = "fpga.params"
	// ScrubKind wipes what another tenant left in a region. Undo does nothing: the region stays wiped.
	ScrubKind = "fpga.scrub"
	// ProgramKind programs a region, or checks that it is as the claim wants it. Undo releases it.
	ProgramKind = "fpga.program"
)

// ErrGone says that the region is not on this node now.
var ErrGone = errors.New("the region is not on this node now")

// Config configures a Programmer.
type Config struct {
	// Find looks a region up by the name of its device. It fails with ErrGone if discovery ran and did not find it.
	Find     func(name string) (*fpga.Region, error)
	Backends map[string]Backend
	Contents *Contents
	// Open opens a file of the node's store by its digest.
	Open func(digest string) (Blob, error)
	// Siblings returns the other regions of the card that a region is on, nil: there are none.
	Siblings func(name string) []string
	// Failures limits the failed programmings of a namespace, nil: it does not.
	Failures *Failures
	// Memory is the most memory that images have at once. Default DefaultMemory.
	Memory int64
	// Clock defaults to the real clock.
	Clock clock.Clock
	// HostRoot is the directory of the host's tree. BootID identifies the boot of the host.
	HostRoot, BootID string
	// Report is called after every attempt to program a region, unless it is nil.
	Report func(ctx context.Context, a Attempt)
}

// Attempt is one attempt to program a region.
type Attempt struct {
	// Device is the name of the region. Claim identifies the claim.
	Device string
	Claim  Claim
	Image  Image
	// Why is "program", "scrub" or "release".
	Why string
	// Took is the time in the driver.
	Took time.Duration
	Err  error
}

// Claim identifies the claim of a step.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// NamespaceUID tells the namespace from a later one of the same name. Steps of versions before this field have none.
	NamespaceUID string `json:"namespaceUID,omitempty"`
}

// Tenant is what a claim's traces are noted as: the UID of its namespace. A claim of a version that noted names has the name, which is
// no namespace's UID, so that it is another tenant to every claim of this version.
func (c *Claim) Tenant() string { return cmp.Or(c.NamespaceUID, c.Namespace) }

// Programmer applies and undoes the steps. It is safe for concurrent use. The caller must hold the device of a step.
type Programmer struct {
	config Config
	clock  clock.Clock
	// memory has the bytes that images may take.
	memory *semaphore.Weighted
}

// DefaultMemory leaves the plugin a quarter of its own memory limit, for which images count: 512 MiB, unless the chart's values say more.
const DefaultMemory = 384 << 20

// New makes a Programmer.
func New(c Config) *Programmer {
	c.Memory = cmp.Or(c.Memory, DefaultMemory)
	return &Programmer{config: c, clock: cmp.Or[clock.Clock](c.Clock, clock.RealClock{}), memory: semaphore.NewWeighted(c.Memory)}
}

// Kinds returns the step kinds.
func (p *Programmer) Kinds() step.Kinds {
	return step.Kinds{
		ParamsKind:  {Apply: step.Do(p.setParams), Undo: step.Do(p.restoreParams), Verify: nothing},
		ScrubKind:   {Apply: step.Do(p.scrub), Undo: nothing, Verify: nothing},
		ProgramKind: {Apply: step.Do(p.program), Undo: step.Do(p.undoProgram), Verify: step.Do(p.verify)},
	}
}

func nothing(context.Context, json.RawMessage) error { return nil }

// find looks up a region and its backend.
func (p *Programmer) find(name string) (*fpga.Region, Backend, error) {
	r, err := p.config.Find(name)
	if err != nil {
		return nil, nil, fmt.Errorf("region %s: %w", name, err)
	}
	if r == nil {
		return nil, nil, fmt.Errorf("device %s is no region that can be programmed", name)
	}
	b, err := p.backendOf(r, name)
	return r, b, err
}

// backendOf returns the backend of a region.
func (p *Programmer) backendOf(r *fpga.Region, name string) (Backend, error) {
	b, ok := p.config.Backends[r.Backend]
	if !ok {
		return nil, fmt.Errorf("region %s: this node's plugin does not program regions of kind %q: "+
			"add it to fpga.backends in the chart's values, or upgrade the plugin", name, r.Backend)
	}
	return b, nil
}

// leased is a region that no other caller can change.
type leased struct {
	Lease
	region  *fpga.Region
	backend Backend
	// file is what is programmed. It is nil if nothing is.
	file *sealed
}

// loading is an attempt to program an image.
type loading struct {
	Attempt
	// before is what the region held. after is what it holds once the image is loaded.
	before, after Content
	// finish is called after the image was loaded, and what it returns counts as the result. Nil: nothing is left to do.
	finish func() error
}

// load programs an image and notes the result. If the hardware was not touched, it notes again what the region held before. If a failure
// leaves the region in an unknown state, load tries once more. That counts only if the region then shows the image, as far as it has a
// readback.
func (p *Programmer) load(ctx context.Context, l *leased, a *loading) error {
	unknown := a.before
	unknown.Unknown, unknown.Claim, unknown.Memory = true, a.Claim.UID, combined(a.before.Memory, a.after.Namespace)
	if err := p.config.Contents.write(a.Device, unknown); err != nil {
		return err
	}
	took, err := l.Program(ctx, l.file.load)
	if err != nil && backend.KindOf(err) == backend.Unknown && ctx.Err() == nil {
		var again time.Duration
		var second error
		again, second = l.Program(ctx, l.file.load)
		took += again
		if second != nil {
			err = fmt.Errorf("%w; once more: %w", err, second)
		} else {
			err = nil
		}
	}
	if err == nil && a.finish != nil {
		err = a.finish()
	}
	a.Took, a.Err = took, err
	if p.config.Report != nil {
		p.config.Report(ctx, a.Attempt)
	}
	switch {
	case err == nil:
		a.after.BootID = p.config.BootID
		return p.config.Contents.write(a.Device, a.after)
	case backend.KindOf(err) == backend.Unknown:
		return fmt.Errorf("region %s may hold anything now: %w", a.Device, err)
	default:
		return errors.Join(err, p.config.Contents.write(a.Device, a.before))
	}
}

// wipe programs a blank image, which removes all logic that was in the region. Data in the card's memory are gone if the image clears it.
func (p *Programmer) wipe(ctx context.Context, r *fpga.Region, b Backend, a Attempt) (err error) {
	if err := checkInterface(r, &a.Image); err != nil {
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
	l := &leased{Lease: lease, region: r, backend: b, file: s}
	blank := &loading{Attempt: a, before: before, after: Content{Digest: a.Image.Digest, AFU: a.Image.AFUID}}
	if a.Image.ClearTime <= 0 {
		blank.after.Memory = before.Data()
		return p.load(ctx, l, blank)
	}
	sharers, err := p.sharers(a.Device)
	if err != nil {
		return err
	}
	if len(sharers) > 0 {
		return fmt.Errorf("region %s %w (%s)", a.Device, ErrCardInUse, strings.Join(sharers, ", "))
	}
	blank.finish = func() error { return p.awaitCleared(ctx, b, r, &a.Image) }
	if err := p.load(ctx, l, blank); err != nil {
		return err
	}
	return p.markCleared(a.Device)
}

// checkInterface refuses an image for another interface before anything is opened.
func checkInterface(r *fpga.Region, image *Image) error {
	if r.InterfaceID != image.InterfaceID {
		return fmt.Errorf("bitstream of %s: %w %s, the region has %s", image.Origin, backend.ErrInterface, image.InterfaceID, r.InterfaceID)
	}
	return nil
}

func release(lease Lease, err *error) { *err = errors.Join(*err, lease.Release()) }
