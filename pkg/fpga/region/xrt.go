// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/xrt"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// XRT programs cards through XRT's own program. Such a card shows the uuid of its xclbin. open and locks are as for DFL.
func XRT(open func() (*xrt.Host, error), locks string) Backend {
	return xrtBackend{open: open, locks: locks}
}

type xrtBackend struct {
	open  func() (*xrt.Host, error)
	locks string
}

// ErrEmpty says that the card holds no image.
var ErrEmpty = errors.New("the card holds no image")

// card opens the host and returns the card of the region.
func (b xrtBackend) card(r *fpga.Region) (*xrt.Host, xrt.Card, error) {
	management, err := pci.Parse(r.XRT.Management)
	if err != nil {
		return nil, xrt.Card{}, err
	}
	user, err := pci.Parse(r.XRT.User)
	if err != nil {
		return nil, xrt.Card{}, err
	}
	host, err := b.open()
	return host, xrt.Card{Name: r.XRT.User, Management: management, User: user, LockFile: lockFile(b.locks, r)}, err
}

func (b xrtBackend) State(r *fpga.Region) (State, error) {
	host, card, err := b.card(r)
	if err != nil {
		return State{}, err
	}
	defer closeQuietly(host)
	s, err := host.State(card)
	switch {
	case err != nil:
		return State{}, err
	case !s.Locked:
		err = xrt.ErrNotLocked
	case s.Image == "":
		err = ErrEmpty
	}
	return State{AFU: s.Image, Fault: err}, nil
}

func (xrtBackend) Params(_ context.Context, r *fpga.Region, names []string) (map[string]int32, error) {
	return map[string]int32{}, noParams(r, "read parameters of", len(names))
}

func (b xrtBackend) Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (Lease, error) {
	host, card, err := b.card(r)
	if err != nil {
		return nil, err
	}
	lease, err := host.Acquire(ctx, card, interfaceID)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return xrtLease{lease, host, card, r}, nil
}

type xrtLease struct {
	lease  *xrt.Lease
	host   *xrt.Host
	card   xrt.Card
	region *fpga.Region
}

// Program gives the driver the whole file. If the card already holds the image, XRT does nothing, so Program resets such a card first.
func (l xrtLease) Program(ctx context.Context, load Load) (time.Duration, error) {
	if load.Offset != 0 || load.Size != load.Image.Size() {
		err := fmt.Errorf("bytes %d to %d of a file of %d are the image, want an xclbin", load.Offset, load.Offset+load.Size, load.Image.Size())
		return 0, &backend.Error{Kind: backend.Terminal, Device: l.card.Name, Op: "program", Err: err, Next: backend.NextRequest}
	}
	s, err := l.host.State(l.card)
	if err != nil {
		return 0, err
	}
	var resetting time.Duration
	if s.Image == load.AFU {
		start := time.Now()
		if err := l.lease.Reset(ctx); err != nil {
			return time.Since(start), err
		}
		resetting = time.Since(start)
	}
	took, err := l.lease.Program(ctx, xrt.Load{Image: load.Image, UUID: load.AFU})
	return resetting + took, err
}

func (l xrtLease) SetParams(_ context.Context, params []Param) error {
	return noParams(l.region, "set parameters of", len(params))
}

// Reset fails: a reset would remove the image.
func (xrtLease) Reset() error { return ErrNoReset }

// ResetForRelease empties the card. Its memory would otherwise outlive the image, if the next one divides it in the same way.
func (l xrtLease) ResetForRelease(ctx context.Context) error { return l.lease.Reset(ctx) }

func (l xrtLease) Release() error { return errors.Join(l.lease.Release(), l.host.Close()) }
