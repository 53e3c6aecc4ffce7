// SPDX-License-Identifier: Apache-2.0

package vfio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func (b *Binder) present(address pci.Address) bool {
	return b.config.Tree.Exists(path.Join(sysfs.PCIDevice(address.String()), "vendor"))
}

func (b *Binder) state(ctx context.Context, address pci.Address) (driver, override string, err error) {
	driver, err = driverOf(b.config.Tree, address)
	if err == nil {
		override, err = b.overrideOf(ctx, address)
	}
	return driver, override, err
}

// noOverride is what the kernel shows of a function without an override: the C library's text of a null pointer.
const noOverride = "(null)"

// overrideOf is the driver that alone may hold a function, empty if any may.
func (b *Binder) overrideOf(ctx context.Context, address pci.Address) (string, error) {
	file := overrideFile(address)
	name, err := b.writer.Read(ctx, file, func() (string, error) { return b.config.Tree.ReadString(file) })
	if name == noOverride {
		name = ""
	}
	return name, err
}

func overrideFile(address pci.Address) string {
	return path.Join(sysfs.PCIDevice(address.String()), "driver_override")
}

// bind makes a driver hold a function that another one, or none, holds. A function that the driver holds is left as it is, with its
// override.
func (b *Binder) bind(ctx context.Context, address pci.Address, driver string) error {
	now, override, err := b.state(ctx, address)
	if err != nil || now == driver {
		return err
	}
	if override != driver {
		if err := b.setOverride(ctx, address, driver); err != nil {
			return err
		}
	}
	if now != "" {
		if err := b.writer.Write(ctx, path.Join(sysfs.PCIDriver(now), "unbind"), address.String()); err != nil {
			return fmt.Errorf("take %s from %s: %w", address, now, err)
		}
	}
	return b.attach(ctx, address, driver)
}

// attach binds a function that no driver holds. Whoever had the kernel probe it meanwhile could only bind the same driver.
func (b *Binder) attach(ctx context.Context, address pci.Address, driver string) error {
	if now, err := driverOf(b.config.Tree, address); err != nil || now == driver {
		return err
	}
	err := b.writer.Write(ctx, path.Join(sysfs.PCIDriver(driver), "bind"), address.String())
	now, again := driverOf(b.config.Tree, address)
	if again != nil || now == driver {
		return again
	}
	if err == nil {
		err = fmt.Errorf("the kernel took it and shows the driver %q", now)
	}
	return fmt.Errorf("bind %s to %s: %w", address, driver, err)
}

// giveBack makes a function again what it was before the step bound it to a driver. What others did to it since stays: another driver that
// holds it, another override. The former driver's name stands in the override while the function has no driver, so that no other driver
// can come in between.
func (b *Binder) giveBack(ctx context.Context, f Before, driver string) error {
	if f.Driver == driver || !b.present(f.Address) {
		return nil
	}
	now, override, err := b.state(ctx, f.Address)
	if err != nil || now != "" && now != driver && now != f.Driver {
		return err
	}
	ours := slices.Contains([]string{driver, f.Driver, f.Override}, override)
	if now != f.Driver {
		if override, err = b.returnTo(ctx, f, now, override, ours); err != nil {
			return err
		}
	}
	if !ours || override == f.Override {
		return nil
	}
	return b.setOverride(ctx, f.Address, f.Override)
}

// returnTo takes a function from the driver that the step bound, if that holds it, and binds the former one. It returns the override of
// then. A former driver that is not loaded binds the function when it is; an override that is another program's may forbid it.
func (b *Binder) returnTo(ctx context.Context, f Before, now, override string, ours bool) (string, error) {
	back := f.Driver != "" && (ours || override == "") && b.config.Tree.Exists(sysfs.PCIDriver(f.Driver))
	if back && ours && override != f.Driver {
		if err := b.setOverride(ctx, f.Address, f.Driver); err != nil {
			return override, err
		}
		override = f.Driver
	}
	if now != "" {
		if err := b.writer.Write(ctx, path.Join(sysfs.PCIDriver(now), "unbind"), f.Address.String()); err != nil {
			return override, fmt.Errorf("take %s from %s: %w", f.Address, now, err)
		}
	}
	if !back {
		return override, nil
	}
	return override, b.attach(ctx, f.Address, f.Driver)
}

// setOverride lets only one driver hold a function, or any if the name is empty, which the kernel wants as an empty line.
func (b *Binder) setOverride(ctx context.Context, address pci.Address, driver string) error {
	if err := b.writer.Write(ctx, overrideFile(address), driver+"\n"); err != nil {
		return fmt.Errorf("let only %q hold %s: %w", driver, address, err)
	}
	return nil
}
