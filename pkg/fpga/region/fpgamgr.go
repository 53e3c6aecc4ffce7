// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/fpgamgr"
)

// FPGAManager programs chips through the attributes of AMD's fpga_manager. Such a chip has no readback: it only shows whether its manager
// operates, without errors and with open bridges. open and locks are as for DFL.
func FPGAManager(open func() (*fpgamgr.Host, error), locks string) Backend {
	return managerBackend{open: open, locks: locks}
}

type managerBackend struct {
	open  func() (*fpgamgr.Host, error)
	locks string
}

func (b managerBackend) manager(r *fpga.Region) fpgamgr.Manager {
	return fpgamgr.Manager{Name: r.Card, Platform: r.Manager.Platform, InterfaceID: r.InterfaceID, LockFile: lockFile(b.locks, r)}
}

func (b managerBackend) State(r *fpga.Region) (State, error) {
	host, err := b.open()
	if err != nil {
		return State{}, err
	}
	defer closeQuietly(host)
	s, err := host.State(b.manager(r))
	if err != nil {
		return State{}, err
	}
	return State{NoReadback: r.NoReadback(), Fault: faultOfManager(s)}, nil
}

func faultOfManager(s fpgamgr.State) error {
	switch {
	case s.Operating():
		return nil
	case len(s.Closed) > 0:
		return fmt.Errorf("its bridges %s are closed", strings.Join(s.Closed, ", "))
	case s.Status != "":
		return fmt.Errorf("its fpga_manager is in state %q and reports %q", s.Manager, s.Status)
	}
	return fmt.Errorf("its fpga_manager is in state %q", s.Manager)
}

func (managerBackend) Params(_ context.Context, r *fpga.Region, names []string) (map[string]int32, error) {
	return map[string]int32{}, noParams(r, "read parameters of", len(names))
}

func (b managerBackend) Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (Lease, error) {
	host, err := b.open()
	if err != nil {
		return nil, err
	}
	lease, err := host.Acquire(ctx, b.manager(r), interfaceID)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return managerLease{lease, host, r}, nil
}

type managerLease struct {
	lease  *fpgamgr.Lease
	host   *fpgamgr.Host
	region *fpga.Region
}

func (l managerLease) Program(ctx context.Context, load Load) (time.Duration, error) {
	return l.lease.Program(ctx, fpgamgr.Load{
		Image: load.Image, Offset: load.Offset, Size: load.Size, Partial: l.region.Manager.Partial,
	})
}

func (l managerLease) SetParams(_ context.Context, params []Param) error {
	return noParams(l.region, "set parameters of", len(params))
}

func (managerLease) Reset() error { return ErrNoReset }

// ResetForRelease leaves the logic running: only another image can stop it. The content file keeps whose logic it is.
func (managerLease) ResetForRelease(context.Context) error { return ErrNoReset }

func (l managerLease) Release() error { return errors.Join(l.lease.Release(), l.host.Close()) }
