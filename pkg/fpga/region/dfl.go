// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
)

// DFL programs ports of cards with a device feature list. open opens the host's tree again for each use, since a driver's container may
// mount over it. locks is the directory of the lock files, one for each card. Every process that programs cards of this machine must see
// the same directory.
func DFL(open func() (*dfl.Host, error), locks string) Backend {
	return dflBackend{open: open, locks: locks}
}

type dflBackend struct {
	open  func() (*dfl.Host, error)
	locks string
}

func (b dflBackend) port(r *fpga.Region) dfl.Port {
	return dfl.Port{
		Name: r.DFL.Port, Node: r.DFL.Node, FMENode: r.DFL.EngineNode, ID: r.DFL.PortID, Attributes: r.DFL.Attributes,
		Region: r.DFL.Compat, Manager: r.DFL.Manager, LockFile: lockFile(b.locks, r),
	}
}

// lockFile returns the lock file of a card. All regions of a card share it.
func lockFile(dir string, r *fpga.Region) string { return filepath.Join(dir, r.Card+".lock") }

func (b dflBackend) State(r *fpga.Region) (State, error) {
	host, err := b.open()
	if err != nil {
		return State{}, err
	}
	defer closeQuietly(host)
	s, err := host.State(b.port(r))
	if err != nil {
		return State{}, err
	}
	return State{AFU: s.AFU, Fault: faultOfPort(s)}, nil
}

func faultOfPort(s dfl.State) error {
	switch {
	case s.AFU == "":
		return dfl.ErrNotEnabled
	case strings.Trim(s.AFU, "f") == "":
		return dfl.ErrDead
	case s.Errors != 0:
		return fmt.Errorf("it reports errors %#x", s.Errors)
	}
	return nil
}

func (b dflBackend) Params(ctx context.Context, r *fpga.Region, names []string) (map[string]int32, error) {
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

func (b dflBackend) Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (Lease, error) {
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

// dflLease keeps the host's tree open while it lives.
type dflLease struct {
	lease *dfl.Lease
	host  *dfl.Host
}

func (l dflLease) Program(ctx context.Context, load Load) (time.Duration, error) {
	return l.lease.Program(ctx, dfl.Load{Image: load.Image, Offset: load.Offset, Size: load.Size, AFU: load.AFU})
}

func (l dflLease) SetParams(ctx context.Context, params []Param) error {
	list := make([]dfl.Param, 0, len(params))
	for _, p := range params {
		list = append(list, dfl.Param(p))
	}
	return l.lease.SetParams(ctx, list)
}

func (l dflLease) Reset() error { return l.lease.Reset() }

// ResetForRelease resets the port, which stops everything that the accelerator does.
func (l dflLease) ResetForRelease(context.Context) error { return l.lease.Reset() }

func (l dflLease) Release() error { return errors.Join(l.lease.Release(), l.host.Close()) }
