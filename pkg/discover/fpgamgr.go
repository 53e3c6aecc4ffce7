// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

const (
	// zoclDriver begins the name of the DRM driver that loads images for whoever opens its node (XRT's zocl).
	zoclDriver = "zocl"
	// memMajor is that of /dev/mem and its like (Documentation/admin-guide/devices.txt).
	memMajor = 1
)

// fpgaManagers finds the chips that AMD's kernel lets programs load images into: one device a manager. Its second result are nodes that
// can program, and belong to no device.
func fpgaManagers(ctx context.Context, tree *sysfs.Tree, opts Options) (Inventory, []container.Node) {
	var found Inventory
	names, err := tree.ReadDir(sysfs.ClassFPGAManager)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		found.Problems = append(found.Problems, driverProblem(sysfs.ClassFPGAManager, ReasonListingFailed, err))
	}
	engines := zoclNodes(tree)
	// Managers and the miscellaneous nodes that AMD's kernel makes for them have the same names. Those of DFL cards are programmed
	// through their ports.
	for _, name := range names {
		dir := path.Join(sysfs.ClassFPGAManager, name)
		platform, err := tree.LinkBase(path.Join(dir, "device"))
		if !isNumbered(name, managerPrefix) || isNumbered(platform, dflFMEManager) || ofDFL(tree, dir) || ctx.Err() != nil {
			continue
		}
		if err != nil {
			found.Problems = append(found.Problems, driverProblem(dir, ReasonIdentityUnreadable, err))
			continue
		}
		if major, minor, err := tree.ReadDev(path.Join(sysfs.ClassMisc, name, "dev")); err == nil {
			engines = append(engines, newNode(name, major, minor))
		}
		found.add(describeManager(tree, opts, dir, platform))
	}
	return found, engines
}

// ofDFL says whether a manager is that of a DFL card, by where its link leads.
func ofDFL(tree *sysfs.Tree, dir string) bool {
	target, err := tree.ReadLink(dir)
	return err == nil && slices.ContainsFunc(strings.Split(target, "/"), func(s string) bool { return isNumbered(s, dflFMEManager) })
}

// zoclNodes are the DRM nodes whose driver programs.
func zoclNodes(tree *sysfs.Tree) []container.Node {
	names, err := tree.ReadDir(sysfs.ClassDRM)
	if err != nil {
		return nil // Without the class there are no nodes.
	}
	var nodes []container.Node
	for _, name := range names {
		driver, err := tree.LinkBase(path.Join(sysfs.ClassDRM, name, "device/driver"))
		if err != nil || !strings.HasPrefix(driver, zoclDriver) {
			continue
		}
		if major, minor, err := tree.ReadDev(path.Join(sysfs.ClassDRM, name, "dev")); err == nil {
			nodes = append(nodes, newNode(path.Join("dri", name), major, minor))
		}
	}
	return nodes
}

// describeManager makes the device of a manager, named after its platform device, whose name is the device tree's.
func describeManager(tree *sysfs.Tree, opts Options, dir, platform string) Inventory {
	d := newDraft(tree, sysfs.HostPath(dir), device.KindFPGA, platformName("amd", platform))
	family, err := chipFamily(tree)
	switch {
	case err != nil:
		d.withhold(ReasonIdentityUnreadable, fmt.Errorf("%s: which chip it is cannot be told: %w", d.device.Name, err))
		return d.finish()
	case family == "":
		d.withhold(ReasonDriverNotSupported, fmt.Errorf("%s: it programs none of AMD's chips Zynq, ZynqMP and Versal", platform))
		return d.finish()
	case !tree.Exists(path.Join(dir, "firmware")) || !tree.Exists(path.Join(dir, "flags")):
		d.withhold(ReasonNotProgrammable, fmt.Errorf("%s: the kernel lets no program load an image: boot AMD's kernel, "+
			"whose fpga_manager has the attributes firmware and flags", d.device.Name))
		return d.finish()
	}
	d.text(device.AttributeType, string(device.KindFPGA))
	d.text(device.AttributeVendor, "amd")
	d.text(device.AttributeBackend, fpga.BackendFPGAManager)
	d.text(device.AttributeArchitecture, family)
	d.text(device.AttributeCard, platform)
	d.device.Attributes[device.AttributeRegionIndex] = device.Int(0)
	model, err := treeStrings(tree, "model")
	d.noteUnreadable(err)
	if len(model) > 0 {
		d.text(device.AttributeProductName, model[0])
	}
	driver, err := tree.LinkBase(path.Join(dir, "device/driver"))
	d.noteUnreadable(err)
	d.text(device.AttributeDriver, driver)
	d.driverVersion(driver)
	d.managerState(dir)
	d.configured(opts, platform)
	return d.finish()
}

// managerState notes what the last programming came to.
func (d *draft) managerState(dir string) {
	state, status := d.read(path.Join(dir, "state")), d.read(path.Join(dir, "status"))
	if strings.Contains(state, "error") || status != "" {
		d.note(ReasonAcceleratorDead, fmt.Errorf("%s: its state is %q, its status %q: the chip may hold nothing that works, program it anew",
			d.device.Name, state, status))
	}
}

// configured adds what only the admin can tell: which bitstreams fit, and by which nodes a pod uses them.
func (d *draft) configured(opts Options, platform string) {
	region, ok := opts.regionOf(d.device.Name)
	if !ok {
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf("%s: nothing tells which bitstreams fit: give it an interfaceID under fpgaRegions "+
			"in the plugin's configuration, and the same to the bitstreams that are built for it", d.device.Name))
		return
	}
	d.text(device.AttributeInterfaceID, region.InterfaceID)
	d.device.Region = &fpga.Region{
		Backend: fpga.BackendFPGAManager, Card: platform, InterfaceID: region.InterfaceID,
		Manager: &fpga.ManagerRegion{Platform: platform, Partial: region.Partial},
	}
	d.isolation()
	if len(region.Nodes) == 0 {
		d.withhold(ReasonNodesMissing, fmt.Errorf("%s: a pod would have nothing to use it by: name the character devices of the driver of "+
			"what is programmed as nodes under fpgaRegions in the plugin's configuration", d.device.Name))
	}
	for _, node := range region.Nodes {
		major, minor, err := d.tree.Rdev(strings.TrimPrefix(node, "/"))
		if err == nil && major == memMajor {
			err = fmt.Errorf("%s is %d:%d, the machine's memory: take it out of fpgaRegions", node, major, minor)
		}
		if err != nil {
			d.withhold(ReasonHostPathUnusable, fmt.Errorf("%s: %w", d.device.Name, err))
			continue
		}
		d.device.Edits.Nodes = append(d.device.Edits.Nodes, container.Node{Path: node, Major: major, Minor: minor, Permissions: workload})
	}
}

// platformName makes a device's name of a vendor and a platform device's name. Where something had to be cut, a hash keeps names apart.
func platformName(vendor, platform string) string {
	const hashDigits = 8
	name := vendor + "-" + strings.Trim(strings.Map(labelRune, strings.ToLower(platform)), "-")
	if len(name) <= validation.DNS1123LabelMaxLength {
		return strings.Trim(name, "-")
	}
	sum := sha256.Sum256([]byte(platform))
	keep := validation.DNS1123LabelMaxLength - hashDigits - 1
	return strings.TrimRight(name[:keep], "-") + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}

// chipFamily is the chip that the machine is, by the device tree; empty if it is none of AMD's.
func chipFamily(tree *sysfs.Tree) (string, error) {
	compatible, err := treeStrings(tree, "compatible")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	for _, row := range []struct{ compatible, family string }{
		{"xlnx,zynqmp", "zynqmp"}, {"xlnx,zynq-7000", "zynq"}, {"xlnx,versal-net", "versal-net"}, {"xlnx,versal", "versal"},
	} {
		if slices.Contains(compatible, row.compatible) {
			return row.family, nil
		}
	}
	return "", err
}

// treeStrings reads a property of the device tree's root, which is strings that end with NUL.
func treeStrings(tree *sysfs.Tree, property string) ([]string, error) {
	const limit = 4 << 10
	name := path.Join(sysfs.DeviceTree, property)
	host := tree.FS()
	info, err := fs.Stat(host, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %w: %s, want a plain file", sysfs.HostPath(name), sysfs.ErrMalformed, info.Mode().Type())
	}
	f, err := host.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // It was only read.
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutSuffix(string(raw), "\x00")
	if !ok || len(raw) > limit || strings.Trim(text, "\x00") != text || strings.ContainsFunc(text, notPrintable) {
		return nil, fmt.Errorf("read %s: %w: want strings that end with NUL", sysfs.HostPath(name), sysfs.ErrMalformed)
	}
	return strings.Split(text, "\x00"), nil
}

func notPrintable(r rune) bool { return r != 0 && (r < ' ' || r > '~') }
