// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

const devicesHelp = `
Shows the devices of a machine, or those that nodes publish.

Of this machine:  fettle devices
Of a cluster:     fettle devices --cluster [--node NODE]
Of files:         kubectl get resourceslices,resourceclaims -A -o yaml | fettle devices --slices -

Of a machine it shows what the driver would find there before a PartitionPolicy divides it, and what is wrong with the others. It reads
only. With json or yaml the document has the devices with everything that a pod would get, and the problems; the table has its problems on
stderr. With a configuration file that leaves devices to other drivers (foreignDevices), OWNER says who has each device.

Of a cluster or files it shows what is published and which claims have it. Parts of a card stand below the card, with what each takes of
it. STATE says of a device that nobody has what of it other claims hold; LEFT is what is left of the card. Devices that nodes leave to other
drivers are on stderr, as far as their AcceleratorNodes may be read.`

const devicesExamples = `
fettle devices
fettle devices --cluster --node node-1
fettle devices --cluster --watch
kubectl get resourceslices,resourceclaims -A -o yaml | fettle devices --slices -`

// devicesFlags are those of devices.
type devicesFlags struct {
	*cluster
	machine        *machineFlags
	ofCluster      bool
	node           string
	slices, claims list
	watching       *bool
}

// runDevices is the same discovery as the driver's, without a cluster, or a look at what was published.
func devices(flags *arguments) action {
	f := devicesFlags{machine: flags.machine(), cluster: flags.connection()}
	flags.BoolVar(&f.ofCluster, "cluster", false, "show what the nodes of a cluster publish, which is that of kubectl")
	flags.StringVar(&f.node, "node", "", "`name` of the one node to show")
	flags.where("node", unless(isName))
	flags.Var(&f.slices, "slices", "`file` with ResourceSlices, and perhaps ResourceClaims; may be repeated")
	flags.Var(&f.claims, "claims", "`file` with ResourceClaims; may be repeated")
	format := flags.format()
	f.watching = flags.watch()
	flags.completeFlagBy("node", func(ctx context.Context) []string { return f.names(ctx, nodesOf) })
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		if err := f.check(flags); err != nil {
			return flags.misused(err)
		}
		if f.published() {
			to := &outputs{stdout: stdout, stderr: stderr, format: *format}
			return f.follow(ctx, *f.watching, to, func(stdout, stderr io.Writer) error {
				report, err := f.report(ctx, stderr)
				if err != nil {
					return fmt.Errorf("devices: %w", err)
				}
				return show(*format, report, stdout, func(stdout io.Writer) error { return showUsage(report, stdout, stderr) })
			})
		}
		found, err := f.machine.lookAll(ctx)
		if err != nil {
			return err
		}
		return show(*format, found, stdout, func(stdout io.Writer) error { return showDevices(found, stdout, stderr) })
	}
}

// published says whether the devices are those of slices.
func (f *devicesFlags) published() bool { return f.ofCluster || len(f.slices) > 0 }

// check wants a machine, a cluster or files.
func (f *devicesFlags) check(flags *arguments) error {
	ofMachine := flags.given("root") || flags.given("config") || flags.given("nvml")
	switch {
	case f.published() && ofMachine:
		return errors.New("want a machine (--root, --config, --nvml), a cluster (--cluster) or files (--slices)")
	case f.ofCluster && len(f.slices)+len(f.claims) > 0:
		return errors.New("want a cluster (--cluster) or files (--slices, --claims)")
	case len(f.claims) > 0 && len(f.slices) == 0:
		return errors.New("--claims: want --slices FILE too, with the devices that the claims have")
	case f.node != "" && !f.published():
		return errors.New("--node: want --cluster or --slices FILE")
	case *f.watching && !f.ofCluster:
		return errors.New("--watch: want --cluster")
	case flags.whichCluster() != "" && !f.ofCluster:
		return fmt.Errorf("--%s: want --cluster", flags.whichCluster())
	}
	return nil
}

// report reads the slices and claims.
func (f *devicesFlags) report(ctx context.Context, stderr io.Writer) (usage.Report, error) {
	read := f.usageOfFiles
	if f.ofCluster {
		read = f.usageOfCluster
	}
	objects, unread, err := read(ctx)
	if err == nil && unread != nil {
		_, err = fmt.Fprintf(stderr, "without claims: %v\n", unread)
	}
	if err != nil {
		return usage.Report{}, err
	}
	objects.Node, objects.ClaimsUnknown = f.node, unread != nil
	report := usage.Of(objects)
	if f.ofCluster {
		report.Problems = append(report.Problems, f.foreignDevices(ctx)...)
	}
	return report, nil
}

// machineFlags say which machine is looked at, and how.
type machineFlags struct {
	root, config, nvml string
}

func (a *arguments) machine() *machineFlags {
	m := &machineFlags{}
	a.StringVar(&m.root, "root", "/", "`directory` that holds the machine's sys, proc and dev")
	a.StringVar(&m.config, "config", "", "the driver's configuration `file`, for its host devices, FPGA regions and foreign devices")
	a.StringVar(&m.nvml, "nvml", "", "`path` of fettle-nvml, to ask NVIDIA's library too (default: not asked)")
	return m
}

func (m *machineFlags) look(ctx context.Context) (discover.Inventory, error) {
	file, err := nodeconfig.Load(m.config)
	if err != nil {
		return discover.Inventory{}, err
	}
	opts := discover.Options{
		HostDevices: file.HostDevices, FPGARegions: file.FPGARegions, PublishUnlinked: file.NVML.PublishUnlinked,
		RenderNodes: file.NVML.RenderNodes,
	}
	if m.nvml != "" {
		command := nvml.Command{Path: m.nvml, DriverRoot: file.NVML.DriverRoot, Timeout: file.NVML.Timeout.Duration}
		opts.NVML = func(ctx context.Context) (nvml.Report, error) { return nvml.Query(ctx, command) }
	}
	return look(ctx, m.root, opts)
}

// machineDevices is what a machine has.
type machineDevices struct {
	discover.Inventory
	// Foreign are those devices that the configuration leaves to other drivers. Devices lacks them.
	Foreign []foreign.Device `json:"foreign,omitempty"`
	// whole has the foreign ones, too.
	whole []device.Device
}

// lookAll discovers the devices, and says which of them the configuration leaves to other drivers. The node's labels are not known.
func (m *machineFlags) lookAll(ctx context.Context) (machineDevices, error) {
	file, err := nodeconfig.Load(m.config)
	if err != nil {
		return machineDevices{}, err
	}
	inventory, err := m.look(ctx)
	if err != nil {
		return machineDevices{}, err
	}
	out := machineDevices{Inventory: inventory, whole: slices.Clone(inventory.Devices)}
	left := (&foreign.Finder{Entries: file.ForeignDevices}).Find(ctx, inventory, nil)
	out.Foreign = left.Devices
	out.Devices = slices.DeleteFunc(out.Devices, func(d device.Device) bool { return out.owner(&d) != nil })
	out.Problems = slices.DeleteFunc(out.Problems, func(p discover.Problem) bool {
		return slices.ContainsFunc(out.Foreign, func(d foreign.Device) bool { return d.Subject == p.Subject })
	})
	out.Problems = append(out.Problems, left.Problems...)
	return out, nil
}

// owner says to which driver a device is left. Nil: it is Fettle's.
func (m *machineDevices) owner(d *device.Device) *foreign.Device {
	i := slices.IndexFunc(m.Foreign, func(o foreign.Device) bool { return o.Name == d.Name && o.Kind == d.Kind })
	if i < 0 {
		return nil
	}
	return &m.Foreign[i]
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
