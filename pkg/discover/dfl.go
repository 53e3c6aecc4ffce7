// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// dflDriver is the kernel driver of FPGA cards with a device feature list (Documentation/fpga/dfl.rst).
const dflDriver = "dfl-pci"

// dflFPGAs finds the ports of DFL cards, each with the region behind it: one device a port. Its second result are the nodes of the
// engines, which can program and belong to no device.
func dflFPGAs(ctx context.Context, tree *sysfs.Tree, functions []pci.Function, listing error) (Inventory, []container.Node) {
	cards, problems := readDFL(tree, functions)
	found := Inventory{Problems: append(problems, pciProblems(listing, cards.functions())...)}
	for _, f := range functions {
		if problem, ok := cards.held(f); !ok {
			found.Problems = append(found.Problems, problem)
		}
	}
	var engines []container.Node
	for _, e := range cards.engines {
		node, problem := cards.engine(tree, e)
		engines = append(engines, node...)
		found.Problems = append(found.Problems, problem...)
	}
	for _, p := range cards.ports {
		if ctx.Err() != nil {
			break
		}
		found.add(cards.describe(tree, p))
	}
	return found, engines
}

// functions are those that hold something.
func (t dflTree) functions() []pci.Function {
	out := []pci.Function{} // Not nil, which would ask for the faults of all functions.
	for _, e := range t.engines {
		out = append(out, e.function)
	}
	for _, p := range t.ports {
		out = append(out, p.function)
	}
	return out
}

// held finds cards that the driver does not hold, or holds in vain. Only a card's first function is asked: the others may be meant
// for other drivers, as virtual functions are.
func (t dflTree) held(f pci.Function) (Problem, bool) {
	card := dflCard(f)
	switch {
	case f.Driver == dflDriver && !t.based[f.Address]:
		return Problem{
			Subject: f.Address.String(), Reason: ReasonDriverNotLoaded,
			Message: "dfl-pci holds the function and made no FPGA region for it: see the kernel log for why it refused",
		}, false
	case f.Driver == dflDriver, card == "", f.PhysicalFunction != nil, f.Address.Function != 0:
		return Problem{}, true
	}
	return notHeld(f, card, "load dfl-pci, or see the kernel log for why it refused", dflDriver), false
}

// engine gives the node of an engine, and says how many of its ports are nowhere: a released port has no directory.
func (t dflTree) engine(tree *sysfs.Tree, e dflEngine) ([]container.Node, []Problem) {
	subject := e.function.Address.String()
	var problems []Problem
	if missing := len(e.regions) - len(t.portsOf(e)); missing > 0 {
		problems = append(problems, Problem{Subject: subject, Reason: ReasonPortReleased, Message: fmt.Sprintf(
			"%d of the %d ports of %s are released to virtual functions, and dfl-pci holds none that has them: "+
				"bind the virtual functions to dfl-pci, or assign the ports back to the card", missing, len(e.regions), path.Base(e.dir))})
	}
	major, minor, err := tree.ReadDev(path.Join(e.dir, "dev"))
	if err != nil {
		return nil, append(problems, Problem{Subject: subject, Reason: ReasonAttributeUnreadable, Message: err.Error()})
	}
	return []container.Node{newNode(path.Base(e.dir), major, minor)}, problems
}

// describe makes the device of a port.
func (t dflTree) describe(tree *sysfs.Tree, p dflPortDir) Inventory {
	vendor := vendors.NameOf(p.function.Vendor)
	d := newCard(tree, vendor, p.function, fmt.Sprintf("%s-%s-port%d", vendor, p.function.Address.Label(), p.id))
	if p.idErr != nil {
		d.withhold(ReasonIdentityUnreadable, fmt.Errorf("%s: its port id is unknown; is the module dfl-afu loaded? %w", p.name, p.idErr))
		return d.finish()
	}
	major, minor, err := tree.ReadDev(path.Join(p.dir, "dev"))
	if err != nil {
		d.withhold(ReasonDeviceNumbersUnknown, err)
	} else {
		d.node(newNode(p.name, major, minor))
	}
	d.text(device.AttributeBackend, fpga.BackendDFL)
	d.text(device.AttributeProductName, dflCard(p.function))
	d.device.Attributes[device.AttributeRegionIndex] = device.Int(p.id)
	d.driverVersion("dfl_pci")
	d.accelerator(p)
	engine, err := t.engineOf(p)
	if err != nil {
		d.withhold(ReasonManagerMissing, fmt.Errorf("%s cannot be checked or programmed: %w", p.name, err))
		return d.finish()
	}
	d.shell(engine)
	d.region(engine, p, t.portsOf(engine))
	return d.finish()
}

// accelerator adds what is programmed now. A port that is disabled says EBUSY, and all f once its firmware crashed.
func (d *draft) accelerator(p dflPortDir) {
	id, err := readID(d.tree, path.Join(p.dir, "afu_id"))
	switch {
	case errors.Is(err, unix.EBUSY):
	case errors.Is(err, errAllF):
		d.note(ReasonAcceleratorDead, fmt.Errorf("%s: %w: the accelerator or its firmware crashed, program it anew", p.name, err))
	case err != nil:
		d.noteUnreadable(err)
	default:
		d.text(device.AttributeAFUID, id)
	}
}

// shell adds what the card's static part tells of itself, and the address by which devices of one card are found.
func (d *draft) shell(e dflEngine) {
	d.text(device.AttributeCard, e.function.Address.String())
	d.text(device.AttributeShellID, d.readHex(path.Join(e.dir, "bitstream_id")))
	d.text(device.AttributeShellVersion, d.readHex(path.Join(e.dir, "bitstream_metadata")))
}

// readHex reads a hexadecimal number in its shortest form; empty if it is absent or, with a note, unreadable.
func (d *draft) readHex(name string) string {
	value, err := d.tree.ReadHex(name)
	d.noteUnreadable(err)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%#x", value)
}

// region adds the interface id, without which no bitstream can be judged. The kernel programs whatever it is given.
func (d *draft) region(e dflEngine, p dflPortDir, siblings []dflPortDir) {
	if slices.ContainsFunc(siblings, func(s dflPortDir) bool { return s.dir != p.dir && s.idErr == nil && s.id == p.id }) {
		d.withhold(ReasonRegionAmbiguous, fmt.Errorf("%s: another port of %s has the id %d too: %w",
			p.name, path.Base(e.dir), p.id, errAmbiguous))
		return
	}
	region, err := e.regionOf(p, len(siblings))
	switch {
	case errors.Is(err, errAmbiguous):
		d.withhold(ReasonRegionAmbiguous, fmt.Errorf("%s: %w", p.name, err))
	case errors.Is(err, errNoDriver):
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf("%s cannot be programmed yet, and what fits it is unknown: %w", p.name, err))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNoID):
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf(
			"%s: its region has no interface id, so that no bitstream fits: %w; load a shell that has one", p.name, err))
	case err != nil:
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf("%s: the interface id of its region is unknown: %w", p.name, err))
	case e.managerErr != nil:
		d.withhold(ReasonManagerMissing, fmt.Errorf("%s cannot be programmed: %w", p.name, e.managerErr))
	default:
		d.text(device.AttributeInterfaceID, region.interfaceID)
		d.device.Region = &fpga.Region{
			Backend: fpga.BackendDFL, Card: e.function.Address.String(), InterfaceID: region.interfaceID, Requester: p.function.Dir(),
			DFL: &fpga.DFLRegion{
				Port: p.name, PortID: uint32(p.id),
				Node: path.Join("dev", p.name), EngineNode: path.Join("dev", path.Base(e.dir)),
				Attributes: p.dir, Compat: region.dir, Manager: e.manager,
			},
		}
		d.isolation()
	}
}

// isolation tells whether an IOMMU is between the region's logic and the machine's memory.
func (d *draft) isolation() {
	d.device.Attributes[device.AttributeDMAIsolated] = device.Bool(d.device.Region.CheckDMA(d.tree) == nil)
}

// withoutEngines drops the devices that would give a pod an engine's node, whether the admin named it or a port has its numbers:
// who can open it can program every region of the card.
func (inv *Inventory) withoutEngines(engines []container.Node) {
	isEngine := func(n container.Node) bool {
		return programs(path.Base(n.Path)) || slices.ContainsFunc(engines, func(e container.Node) bool {
			return e.Major == n.Major && e.Minor == n.Minor
		})
	}
	inv.Devices = slices.DeleteFunc(inv.Devices, func(d device.Device) bool {
		i := slices.IndexFunc(d.Edits.Nodes, isEngine)
		if i < 0 {
			return false
		}
		next := "take it out of fpgaRegions, or see what the kernel says of both"
		if d.Kind == device.KindHost {
			next = "take it out of hostDevices, and ask for an FPGA instead"
		}
		inv.Problems = append(inv.Problems, Problem{Subject: subjectOf(d), Reason: ReasonProgrammingNode, Message: fmt.Sprintf(
			"%s has the device numbers or the name of an FPGA's management engine, with which a pod could program the whole card: %s",
			d.Edits.Nodes[i].Path, next)})
		return true
	})
}

// programs knows the names of nodes that can program FPGAs.
func programs(node string) bool {
	return isNumbered(node, dflFME) || isNumbered(node, xrtManagement) || isNumbered(node, managerPrefix)
}

// dflCard is what the identifiers tell of a card; empty if it is not in the table, which follows the driver's own
// (drivers/fpga/dfl-pci.c). Cards of the Open FPGA Stack share one identifier and differ in the subsystem's.
func dflCard(f pci.Function) string {
	const intel, silicom = 0x8086, 0x1c2c
	for _, row := range []struct {
		vendor, device, subsystem uint16
		name                      string
	}{
		{intel, 0xbcce, 0x138d, "Intel FPGA PAC D5005"},
		{intel, 0xbcce, 0x1770, "Intel FPGA SmartNIC N6000-PL"},
		{intel, 0xbcce, 0x1771, "Intel FPGA SmartNIC N6001-PL"},
		{intel, 0xbcce, 0x17d4, "Intel IPU C6100"},
		{intel, 0xbccf, 0x1770, "Intel FPGA SmartNIC N6000-PL"},
		{intel, 0xbccf, 0x1771, "Intel FPGA SmartNIC N6001-PL"},
		{intel, 0xbccf, 0x17d4, "Intel IPU C6100"},
		{intel, 0xbcce, 0, "Intel FPGA with a device feature list"},
		{intel, 0xbccf, 0, "Intel FPGA with a device feature list"},
		{intel, 0x09c4, 0, "Intel PAC with Arria 10 GX"},
		{intel, 0x09c5, 0, "Intel PAC with Arria 10 GX"},
		{intel, 0x0b2b, 0, "Intel FPGA PAC D5005"},
		{intel, 0x0b2c, 0, "Intel FPGA PAC D5005"},
		{intel, 0x0b30, 0, "Intel FPGA PAC N3000"},
		{intel, 0xbcbd, 0, "Intel integrated FPGA"},
		{intel, 0xbcbf, 0, "Intel integrated FPGA"},
		{intel, 0xbcc0, 0, "Intel integrated FPGA"},
		{intel, 0xbcc1, 0, "Intel integrated FPGA"},
		{silicom, 0x1000, 0, "Silicom PAC N5010"},
		{silicom, 0x1001, 0, "Silicom PAC N5011"},
	} {
		if row.vendor == f.Vendor && row.device == f.Device && (row.subsystem == 0 || row.subsystem == f.SubsystemDevice) {
			return row.name
		}
	}
	return ""
}
