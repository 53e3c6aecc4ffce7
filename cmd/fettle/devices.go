// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

const devicesHelp = `
Shows the devices that the driver would publish for a machine, and what is wrong with the others. It reads only. With json or yaml
the document has the devices with everything that a pod would get, and the problems; the table has its problems on stderr.`

// runDevices is the same discovery as the driver's, without a cluster.
func runDevices(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newArguments("devices", devicesHelp)
	machine := flags.machine()
	format := flags.format()
	if _, err := flags.parse(args, stdout); err != nil {
		return err
	}
	inventory, err := machine.look(ctx)
	if err != nil {
		return err
	}
	return show(*format, inventory, stdout, func(stdout io.Writer) error { return showDevices(inventory, stdout, stderr) })
}

// machineFlags say which machine is looked at, and how.
type machineFlags struct {
	root, config, nvml string
}

func (a *arguments) machine() *machineFlags {
	m := &machineFlags{}
	a.StringVar(&m.root, "root", "/", "`directory` that holds the machine's sys, proc and dev")
	a.StringVar(&m.config, "config", "", "the driver's configuration `file`, for its host devices and FPGA regions")
	a.StringVar(&m.nvml, "nvml", "", "`path` of fettle-nvml, to ask NVIDIA's library too (default: not asked)")
	return m
}

func (m *machineFlags) look(ctx context.Context) (discover.Inventory, error) {
	file, err := nodeconfig.Load(m.config)
	if err != nil {
		return discover.Inventory{}, err
	}
	opts := discover.Options{HostDevices: file.HostDevices, FPGARegions: file.FPGARegions}
	if m.nvml != "" {
		command := nvml.Command{Path: m.nvml, DriverRoot: file.NVML.DriverRoot, Timeout: file.NVML.Timeout.Duration}
		opts.NVML = func(ctx context.Context) (nvml.Report, error) { return nvml.Query(ctx, command) }
	}
	return look(ctx, m.root, opts)
}

// look discovers the devices of a host tree.
func look(ctx context.Context, root string, opts discover.Options) (inventory discover.Inventory, err error) {
	tree, err := sysfs.Open(root)
	if err != nil {
		return discover.Inventory{}, fmt.Errorf("%w; --root must be a directory that holds the host's sys, proc and dev", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	return discover.Discover(ctx, tree, opts), nil
}
