// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sim"
)

// MachineRoot is the chart's hostRoot for simulated machines.
const MachineRoot = "/opt/machine"

// LoadMachine reads machines of test/machines and puts them into one host.
func (h *Harness) LoadMachine(names ...string) (*sim.Machine, error) {
	machines := make([]*sim.Machine, len(names))
	for i, name := range names {
		path := filepath.Join(h.Root, "test", "machines", name+".txtar")
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read machine: %w", err)
		}
		if machines[i], err = sim.Parse(data); err != nil {
			return nil, fmt.Errorf("machine %s: %w", path, err)
		}
	}
	return merge(machines)
}

// Place makes a node be the machine from now on, in place: a plugin that runs there sees the hardware change. Containers can open
// the devices where the machine has at most 63 device numbers; others have the numbers that they were recorded with.
func (m Machines) Place(ctx context.Context, node string, of *sim.Machine) error {
	if openable, err := of.Openable(); err == nil {
		of = openable
	}
	dir := m.MachineDir(node)
	// Within the machine's directory, which is a mount point: what is on another mount cannot be renamed into it.
	staging, err := os.MkdirTemp(dir, stagingPrefix)
	if err != nil {
		return fmt.Errorf("expand a machine for %s: %w", node, err)
	}
	defer os.RemoveAll(staging) //nolint:errcheck // what matters has been moved out of it
	if _, err := of.Expand(staging, sim.Options{}); err != nil {
		return fmt.Errorf("expand a machine for %s: %w", node, err)
	}
	if err := m.clearDev(ctx, node); err != nil {
		return err
	}
	if err := replaceTree(staging, dir); err != nil {
		return fmt.Errorf("place a machine on %s: %w", node, err)
	}
	return m.mirror(ctx, node)
}

// privateDev guards every change of a node's /dev: on a tmpfs it is the node's own, on a devtmpfs it would be this machine's.
const privateDev = `[ "$(stat -f -c %T /dev)" = tmpfs ] || { echo "/dev of the node is not its own" >&2; exit 1; }; `

// clearDev removes the nodes of the machine before from the node's /dev.
func (m Machines) clearDev(ctx context.Context, node string) error {
	const script = privateDev + `cd ` + MachineRoot + ` && [ -d dev ] || exit 0; find dev -type c | while read -r n; do rm -f "/$n"; done`
	_, err := m.OnNode(ctx, node, "sh", "-c", script)
	return err
}

// mirror makes the machine's nodes and disks be where the node's runtime looks for them: it binds nodes into containers with a user
// namespace, in which none can be made, and it mounts host directories by their path on the host.
func (m Machines) mirror(ctx context.Context, node string) error {
	const script = privateDev + `cp -a ` + MachineRoot + `/dev/. /dev/ && ` +
		`{ [ ` + MachineRoot + `/mnt/disks -ef /mnt/disks ] || mount --bind ` + MachineRoot + `/mnt/disks /mnt/disks; }`
	_, err := m.OnNode(ctx, node, "sh", "-c", script)
	return err
}

// mounted are the directories of a host tree that the chart mounts into the plugin, and those above them: they must stay the same
// directories while their content changes.
func mounted() map[string]bool {
	return map[string]bool{".": true, "sys": true, "dev": true, "proc": true, "proc/driver": true, "mnt": true, "mnt/disks": true}
}

// mountedFile is the file that the chart mounts; it is written anew, never replaced.
const mountedFile = "proc/devices"

// stagingPrefix names the directory that a machine is expanded into before it is placed.
const stagingPrefix = ".expand-"

// replaceTree makes the content of to be that of from, which loses it.
func replaceTree(from, to string) error {
	for dir := range mounted() {
		for _, root := range []string{from, to} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
	}
	return replaceDir(from, to, ".")
}

func replaceDir(from, to, dir string) error {
	stay := mounted()
	old, err := os.ReadDir(filepath.Join(to, dir))
	if err != nil {
		return err
	}
	for _, entry := range old {
		path := filepath.Join(dir, entry.Name())
		if !stay[path] && path != mountedFile && !strings.HasPrefix(path, stagingPrefix) {
			if err := os.RemoveAll(filepath.Join(to, path)); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(from, dir))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case stay[path]:
			err = replaceDir(from, to, path)
		case path == mountedFile:
			err = overwrite(filepath.Join(from, path), filepath.Join(to, path))
		default:
			err = os.Rename(filepath.Join(from, path), filepath.Join(to, path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func overwrite(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// PCIName is the device name for a PCI address of a vendor: nvidia-0000-18-00-0.
func PCIName(vendor, address string) string {
	return vendor + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(address)
}
