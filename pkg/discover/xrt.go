// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/xrt"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

const (
	// xrtManagement and xrtUser are XRT's drivers for the two functions of a card, xrtManagement also begins the name of its node.
	xrtManagement = "xclmgmt"
	xrtUser       = "xocl"
)

// xrtCard is a card's functions that XRT's drivers hold.
type xrtCard struct {
	management, user *pci.Function
	// twice says that a driver holds more than one function.
	twice bool
}

// xrtCards finds cards with XRT's drivers: one device a card, reached through its user function. Its second result are nodes that can
// program, and belong to no device.
func xrtCards(ctx context.Context, tree *sysfs.Tree, opts Options, functions []pci.Function, listing error) (Inventory, []container.Node) {
	var found Inventory
	var engines []container.Node
	var order []pci.Address
	cards, ours := map[pci.Address]*xrtCard{}, []pci.Function{}
	for _, f := range functions {
		if _, ok := vendors.MakesXRT(f.Vendor); !ok {
			continue
		}
		at := cardOf(f.Address)
		if cards[at] == nil {
			cards[at], order = &xrtCard{}, append(order, at)
		}
		switch {
		case holds(tree, f, xrtManagement, "mgmt_pf"):
			cards[at].twice = cards[at].twice || cards[at].management != nil
			cards[at].management = &f
		case holds(tree, f, xrtUser, "user_pf"):
			cards[at].twice = cards[at].twice || cards[at].user != nil
			cards[at].user = &f
		default:
			if problem, ok := xrtHeld(f); !ok {
				found.Problems = append(found.Problems, problem)
			}
			continue
		}
		ours = append(ours, f)
		engines = append(engines, xrtEngines(tree, f)...)
	}
	found.Problems = append(found.Problems, pciProblems(listing, ours)...)
	for _, at := range order {
		if ctx.Err() != nil {
			break
		}
		found.add(cards[at].describe(tree, opts))
	}
	return found, engines
}

// holds says whether a driver of XRT holds a function. It marks what it holds with an empty attribute.
func holds(tree *sysfs.Tree, f pci.Function, driver, mark string) bool {
	return f.Driver == driver || f.Driver != "" && tree.Exists(path.Join(f.Dir(), mark))
}

// xrtHeld finds accelerators that XRT does not hold.
func xrtHeld(f pci.Function) (Problem, bool) {
	if f.BaseClass() != vendors.ClassAccelerator || f.PhysicalFunction != nil || f.Vendor == vendors.Amazon {
		return Problem{}, true
	}
	return notHeld(f, fmt.Sprintf("accelerator %04x:%04x", f.Vendor, f.Device),
		"load xclmgmt and xocl, or see the kernel log for why they refused", "XRT's driver"), false
}

// xrtEngines are the nodes of a management function, with which the card is programmed, and the primary nodes of a user function: they
// take the same calls as the render node, and nothing hands them out.
func xrtEngines(tree *sysfs.Tree, f pci.Function) []container.Node {
	var nodes []container.Node
	for class, parent := range map[string]string{"xrt_mgmt": "", "drm": "dri"} {
		names, err := tree.ReadDir(path.Join(f.Dir(), class))
		if err != nil {
			continue // Most functions have one or the other.
		}
		for _, name := range names {
			major, minor, err := tree.ReadDev(path.Join(f.Dir(), class, name, "dev"))
			if err == nil && (isNumbered(name, xrtManagement) || isNumbered(name, drmCard)) {
				nodes = append(nodes, newNode(path.Join(parent, name), major, minor))
			}
		}
	}
	return nodes
}

// first is a function that is held.
func (c xrtCard) first() *pci.Function { return cmp.Or(c.management, c.user) }

// describe makes the device of a card.
func (c xrtCard) describe(tree *sysfs.Tree, opts Options) Inventory {
	switch {
	case c.user == nil && c.management == nil:
		return Inventory{}
	case c.twice:
		return Inventory{Problems: []Problem{{
			Subject: cardOf(c.first().Address).String(), Reason: ReasonRegionAmbiguous,
			Message: "a driver of XRT holds several functions of the card, and which belong together cannot be told",
		}}}
	case c.user == nil:
		return Inventory{Problems: []Problem{{
			Subject: c.management.Address.String(), Reason: ReasonDriverNotLoaded,
			Message: "xclmgmt holds the card and xocl does not: load xocl, or see the kernel log for why it refused",
		}}}
	}
	f := *c.user
	vendor, _ := vendors.MakesXRT(f.Vendor)
	d := newCard(tree, vendor, f, vendor+"-"+f.Address.Label())
	d.text(device.AttributeBackend, fpga.BackendXRT)
	d.device.Attributes[device.AttributeRegionIndex] = device.Int(0)
	version, err := moduleVersion(tree, f.Driver)
	d.noteUnreadable(err)
	version, _, _ = strings.Cut(version, ",") // What follows is the commit that XRT was built from.
	d.setDriverVersion(version)
	d.renderNode(f)
	d.xrtShell(f)
	d.xrtInterface(f, opts)
	d.xrtReady(f)
	if c.management == nil {
		d.withhold(ReasonManagerMissing, errors.New("the card's management function is not held by xclmgmt, so that the card can be neither "+
			"checked nor programmed: load xclmgmt; in a virtual machine there is none"))
		return d.finish()
	}
	d.text(device.AttributeCard, c.management.Address.String())
	d.xrtLock(c.management.Address)
	if id := d.device.Attributes[device.AttributeInterfaceID].StringValue; id != nil {
		management := c.management.Address.String()
		d.device.Region = &fpga.Region{
			Backend: fpga.BackendXRT, Card: management, InterfaceID: *id, Requester: f.Dir(),
			XRT: &fpga.XRTRegion{Management: management, User: f.Address.String()},
		}
		d.isolation()
	}
	return d.finish()
}

// xrtShell adds what the card's static part tells of itself, and what is programmed now.
func (d *draft) xrtShell(f pci.Function) {
	d.text(device.AttributeProductName, d.read(d.first(f, "rom*/VBNV")))
	if built := d.readHex(d.first(f, "rom*/timestamp")); built != "0x0" { // Later shells have their uuid instead.
		d.text(device.AttributeShellVersion, built)
	}
	d.text(device.AttributeSerial, d.read(d.first(f, "xmc.u.*/serial_num")))
	if ids := strings.Fields(d.read(path.Join(f.Dir(), "logic_uuids"))); len(ids) == 1 {
		id, err := canonicalID(ids[0])
		if err != nil {
			d.note(ReasonAttributeUnreadable, fmt.Errorf("logic_uuids: %w", err))
		}
		d.text(device.AttributeShellID, id)
	}
	image, err := xrt.ReadImage(d.tree, f.Address)
	d.noteUnreadable(err)
	d.text(device.AttributeAFUID, image)
}

// first is the first file of a function that matches. The numbers of the driver's parts say nothing.
func (d *draft) first(f pci.Function, pattern string) string {
	names, err := d.tree.Glob(path.Join(f.Dir(), pattern))
	d.noteUnreadable(err)
	if len(names) == 0 {
		return path.Join(f.Dir(), pattern) // Which is absent.
	}
	return names[0]
}

// xrtInterface adds which xclbins fit. Of several ids the admin must choose one, since a device is asked for by one.
func (d *draft) xrtInterface(f pci.Function, opts Options) {
	ids, err := xrt.ReadInterfaces(d.tree, f.Address)
	region, chosen := opts.regionOf(d.device.Name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf("the card's interface ids are unknown: %w", err))
	case len(ids) == 0:
		d.withhold(ReasonInterfaceUnknown, errors.New("the card's shell has no interface id, so that no xclbin can be checked against it: "+
			"flash a shell that has one"))
	case chosen && !slices.Contains(ids, region.InterfaceID):
		d.withhold(ReasonInterfaceUnknown, fmt.Errorf("fpgaRegions gives %s the interfaceID %s, and the card has %s: correct the configuration",
			d.device.Name, region.InterfaceID, strings.Join(ids, ", ")))
	case chosen:
		d.text(device.AttributeInterfaceID, region.InterfaceID)
	case len(ids) > 1:
		d.withhold(ReasonRegionAmbiguous, fmt.Errorf("the card has the interface ids %s: choose one for %s under fpgaRegions in the plugin's "+
			"configuration", strings.Join(ids, ", "), d.device.Name))
	default:
		d.text(device.AttributeInterfaceID, ids[0])
	}
	if chosen && (len(region.Nodes) > 0 || region.Partial) {
		d.note(ReasonInvalid, fmt.Errorf("fpgaRegions gives %s nodes or partial, which are left out: a card has its own", d.device.Name))
	}
}

// xrtReady withholds a card whose two functions do not reach each other.
func (d *draft) xrtReady(f pci.Function) {
	ready, err := d.tree.ReadHex(path.Join(f.Dir(), "ready"))
	d.noteUnreadable(err)
	if err == nil && ready == 0 {
		d.withhold(ReasonNotResponding, errors.New("xocl says that the card is not ready: see the kernel log of xocl and xclmgmt"))
	}
}

// xrtLock withholds a card that its user could program: the render node takes an xclbin from whoever opens it, unless the management
// function was told not to.
func (d *draft) xrtLock(management pci.Address) {
	locked, err := xrt.ReadLock(d.tree, management)
	if err != nil {
		d.withhold(ReasonProgrammingUnlocked, fmt.Errorf("whether pods could program the card is unknown: %w", err))
		return
	}
	if !locked {
		d.withhold(ReasonProgrammingUnlocked, fmt.Errorf("pods could program and reset the card: %s", xrt.NextLock(management.String())))
		return
	}
	d.device.Attributes[device.AttributeProgrammingLocked] = device.Bool(true)
}
