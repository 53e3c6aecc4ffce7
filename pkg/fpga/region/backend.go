// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
)

// Backend is one way of programming regions. Its errors say by dfl.KindOf what they leave behind.
type Backend interface {
	// State reads what a region holds and changes nothing, so that it may be asked while a pod uses the region.
	State(r *device.Region) (State, error)
	// Params reads what driver parameters are now.
	Params(ctx context.Context, r *device.Region, names []string) (map[string]int32, error)
	// Acquire waits for the chip and takes a region for the caller alone. interfaceID is that of the images to program; empty for a
	// lease that programs nothing.
	Acquire(ctx context.Context, r *device.Region, interfaceID string) (Lease, error)
}

// State is what a region says of itself.
type State struct {
	// AFU is the accelerator's id; empty while the region does not tell, as one that is disabled.
	AFU string
	// Errors is what its registers complain of, empty for nothing.
	Errors string
}

// alive says why a region does not work, nil where it does.
func (s State) alive() error {
	switch {
	case s.AFU == "":
		return dfl.ErrNotEnabled
	case allF(s.AFU):
		return dfl.ErrDead
	case s.Errors != "":
		return fmt.Errorf("it reports errors %s", s.Errors)
	}
	return nil
}

// Lease is a region that nobody else can open or program.
type Lease interface {
	// Program loads an image once; nil means that the region shows its accelerator id.
	Program(ctx context.Context, load dfl.Load) (time.Duration, error)
	SetParams(ctx context.Context, params []dfl.Param) error
	Reset() error
	Release() error
}

// DFL programs ports of cards with a device feature list. The host's tree is opened anew for each use, since a driver's container may
// mount over it. locks is the directory of the locks, one a card, that every process which programs this machine's cards sees.
func DFL(open func() (*dfl.Host, error), locks string) Backend {
	return dflBackend{open: open, locks: locks}
}

type dflBackend struct {
	open  func() (*dfl.Host, error)
	locks string
}

func (b dflBackend) port(r *device.Region) dfl.Port {
	return dfl.Port{
		Name: r.DFL.Port, Node: r.DFL.Node, FMENode: r.DFL.EngineNode, ID: r.DFL.PortID, Attributes: r.DFL.Attributes,
		Region: r.DFL.Compat, Manager: r.DFL.Manager, LockFile: filepath.Join(b.locks, r.Card+".lock"),
	}
}

func (b dflBackend) State(r *device.Region) (State, error) {
	host, err := b.open()
	if err != nil {
		return State{}, err
	}
	defer closeQuietly(host)
	s, err := host.State(b.port(r))
	if err != nil {
		return State{}, err
	}
	state := State{AFU: s.AFU}
	if s.Errors != 0 {
		state.Errors = fmt.Sprintf("%#x", s.Errors)
	}
	return state, nil
}

func (b dflBackend) Params(ctx context.Context, r *device.Region, names []string) (map[string]int32, error) {
	if len(names) == 0 {
		return map[string]int32{}, nil
	}
	host, err := b.open()
	if err != nil {
		return nil, err
	}
	defer closeQuietly(host)
	return host.ReadParams(ctx, b.port(r), names)
}

func (b dflBackend) Acquire(ctx context.Context, r *device.Region, interfaceID string) (Lease, error) {
	host, err := b.open()
	if err != nil {
		return nil, err
	}
	lease, err := host.Acquire(ctx, b.port(r), interfaceID)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return dflLease{lease, host}, nil
}

// closeQuietly closes what was only read from.
func closeQuietly(c io.Closer) { _ = c.Close() }

// dflLease keeps the host's tree open for as long as it lives.
type dflLease struct {
	*dfl.Lease
	host *dfl.Host
}

func (l dflLease) Release() error { return errors.Join(l.Lease.Release(), l.host.Close()) }
