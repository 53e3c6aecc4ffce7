// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// The names of the kernel's devices below a base region (drivers/fpga/dfl.h), each followed by a number that depends on the order in
// which cards were found.
const (
	dflFME        = "dfl-fme."
	dflFMERegion  = "dfl-fme-region."
	dflFMEManager = "dfl-fme-mgr."
	managerPrefix = "fpga"
	dflPort       = "dfl-port."
	fpgaRegion    = "region"
)

// maxDFLPorts is how many ports an FME can have: the hardware names them with three bits.
const maxDFLPorts = 8

// dflTree is every FME and port of a machine, and the functions that have a base region, whatever is in it.
type dflTree struct {
	engines []dflEngine
	ports   []dflPortDir
	based   map[pci.Address]bool
}

// dflEngine is one management engine (FME): it programs the regions of a card's ports.
type dflEngine struct {
	dir      string
	function pci.Function
	// manager is the directory of what programs, empty where managerErr says why there is none.
	manager    string
	managerErr error
	// ports is how many ports the engine can have, implemented or not; 0 if that cannot be read.
	ports int64
	// regions are in the order of their numbers. There is one for each port that is implemented, released or not.
	regions []dflRegion
}

// dflRegion is what can be programmed behind one port. Nothing in sysfs names that port.
type dflRegion struct {
	number uint64
	// dir has the attribute compat_id.
	dir string
	// interfaceID is canonical, and empty where err says why there is none.
	interfaceID string
	err         error
}

// dflPortDir is one port, before it is known to be of use.
type dflPortDir struct {
	dir, name string
	// number is the kernel's, of the name; id is the port's on its engine. idErr says why there is none.
	number   uint64
	id       int64
	idErr    error
	function pci.Function
}

// readDFL reads the base regions: a region is one if it holds an FME or a port. Regions that can be programmed are in the same
// class, and hold neither.
func readDFL(tree *sysfs.Tree, functions []pci.Function) (dflTree, []Problem) {
	found := dflTree{based: map[pci.Address]bool{}}
	names, err := tree.ReadDir(sysfs.ClassFPGARegion)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, []Problem{driverProblem(sysfs.ClassFPGARegion, ReasonListingFailed, err)}
	}
	var problems []Problem
	for _, name := range names {
		if !isNumbered(name, fpgaRegion) {
			continue
		}
		if problem, ok := found.readBase(tree, path.Join(sysfs.ClassFPGARegion, name), functions); !ok {
			problems = append(problems, problem)
		}
	}
	return found, problems
}

func (t *dflTree) readBase(tree *sysfs.Tree, dir string, functions []pci.Function) (Problem, bool) {
	names, err := tree.ReadDir(dir)
	if err != nil {
		return driverProblem(dir, ReasonListingFailed, err), false
	}
	// Parent devices that are no PCI functions are those of regions that can be programmed, and of boards without PCI.
	function, err := functionOf(tree, path.Join(dir, "device"), functions)
	if err == nil {
		t.based[function.Address] = true
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isNumbered(name, dflFME) && !isNumbered(name, dflPort) })
	if len(names) == 0 {
		return Problem{}, true
	}
	if err != nil {
		return driverProblem(dir, ReasonIdentityUnreadable,
			fmt.Errorf("it holds %s, and which PCI function it belongs to is unknown: %w", strings.Join(names, ", "), err)), false
	}
	for _, name := range names {
		if isNumbered(name, dflFME) {
			t.engines = append(t.engines, readEngine(tree, path.Join(dir, name), function))
		} else {
			t.ports = append(t.ports, readPort(tree, path.Join(dir, name), function))
		}
	}
	return Problem{}, true
}

// functionOf finds the PCI function that a link to a parent device names.
func functionOf(tree *sysfs.Tree, link string, functions []pci.Function) (pci.Function, error) {
	base, err := tree.LinkBase(link)
	if err != nil {
		return pci.Function{}, err
	}
	i := slices.IndexFunc(functions, func(f pci.Function) bool { return f.Address.String() == base })
	if i < 0 {
		return pci.Function{}, fmt.Errorf("link %s: no PCI function %q: %w", sysfs.HostPath(link), base, fs.ErrNotExist)
	}
	return functions[i], nil
}

func readEngine(tree *sysfs.Tree, dir string, function pci.Function) dflEngine {
	engine := dflEngine{dir: dir, function: function}
	engine.manager, engine.managerErr = readManager(tree, dir)
	if ports, err := tree.ReadInt(path.Join(dir, "ports_num")); err == nil && ports > 0 && ports <= maxDFLPorts {
		engine.ports = ports
	}
	names, err := tree.ReadDir(dir)
	if err != nil {
		return engine // Without regions its ports say that they have none.
	}
	for _, name := range names {
		if isNumbered(name, dflFMERegion) {
			engine.regions = append(engine.regions, readRegion(tree, path.Join(dir, name), numberOf(name)))
		}
	}
	slices.SortFunc(engine.regions, func(a, b dflRegion) int { return int(int64(a.number) - int64(b.number)) })
	return engine
}

// readManager finds the one fpga_manager of an engine.
func readManager(tree *sysfs.Tree, dir string) (string, error) {
	for _, class := range []struct{ prefix, below string }{{dflFMEManager, "fpga_manager"}, {managerPrefix, ""}} {
		names, err := tree.ReadDir(dir)
		if err != nil {
			return "", err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !isNumbered(name, class.prefix) })
		if len(names) != 1 {
			return "", fmt.Errorf("list %s: %w: %d entries %sN, want 1", sysfs.HostPath(dir), sysfs.ErrMalformed, len(names), class.prefix)
		}
		engine := dir
		dir = path.Join(dir, names[0], class.below)
		if err := checkBound(tree, engine, dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// errNoDriver says that what programs a card waits for kernel modules.
var errNoDriver = errors.New("no driver has")

// checkBound fails with errNoDriver if a directory is not there since the drivers of an engine's parts are not: a region is only there once
// the manager and the bridge are (fme_region_probe in drivers/fpga/dfl-fme-region.c).
func checkBound(tree *sysfs.Tree, engine, dir string) error {
	if tree.Exists(dir) {
		return nil
	}
	names, err := tree.ReadDir(engine)
	if err != nil {
		return err
	}
	var unbound, modules []string
	for _, name := range names {
		part, _, _ := strings.Cut(name, ".")
		_, unboundErr := tree.ReadLink(path.Join(engine, name, "driver"))
		if unboundErr == nil || !slices.Contains([]string{"dfl-fme-br", "dfl-fme-mgr", "dfl-fme-region"}, part) {
			continue
		}
		unbound = append(unbound, name)
		if module := strings.ReplaceAll(part, "-", "_"); !tree.Exists(path.Join(sysfs.Modules, module)) && !slices.Contains(modules, module) {
			modules = append(modules, module)
		}
	}
	switch {
	case len(unbound) == 0:
		return nil
	case len(modules) == 0:
		return fmt.Errorf("%w %s, although the modules are loaded: see the kernel's log", errNoDriver, strings.Join(unbound, ", "))
	}
	return fmt.Errorf("%w %s: load the kernel modules %s", errNoDriver, strings.Join(unbound, ", "), strings.Join(modules, ", "))
}

func readRegion(tree *sysfs.Tree, dir string, number uint64) dflRegion {
	region := dflRegion{number: number}
	if region.err = checkBound(tree, path.Dir(dir), path.Join(dir, "fpga_region")); region.err != nil {
		return region
	}
	names, err := tree.ReadDir(path.Join(dir, "fpga_region"))
	names = slices.DeleteFunc(names, func(name string) bool { return !isNumbered(name, fpgaRegion) })
	switch {
	case err != nil:
		region.err = err
	case len(names) != 1:
		region.err = fmt.Errorf("list %s: %w: %d regions, want 1",
			sysfs.HostPath(path.Join(dir, "fpga_region")), sysfs.ErrMalformed, len(names))
	default:
		region.dir = path.Join(dir, "fpga_region", names[0])
		region.interfaceID, region.err = readID(tree, path.Join(region.dir, "compat_id"))
	}
	return region
}

func readPort(tree *sysfs.Tree, dir string, function pci.Function) dflPortDir {
	port := dflPortDir{dir: dir, name: path.Base(dir), number: numberOf(path.Base(dir)), function: function}
	port.id, port.idErr = tree.ReadInt(path.Join(dir, "id"))
	if port.idErr == nil && (port.id < 0 || port.id >= maxDFLPorts) {
		port.idErr = fmt.Errorf("read %s: %w: %d, want 0 to %d",
			sysfs.HostPath(path.Join(dir, "id")), sysfs.ErrMalformed, port.id, maxDFLPorts-1)
	}
	return port
}

// numberOf is the number at the end of a name that isNumbered accepted.
func numberOf(name string) uint64 {
	number, err := strconv.ParseUint(name[strings.LastIndexByte(name, '.')+1:], 10, 32)
	if err != nil {
		return 0
	}
	return number
}

// errNoID marks ids that the hardware gives where it has none, errAllF the one among them that it gives after a crash.
var (
	errNoID = errors.New("no usable id")
	errAllF = fmt.Errorf("it is all f: %w", errNoID)
)

// readID reads an interface or accelerator id.
func readID(tree *sysfs.Tree, name string) (string, error) {
	text, err := tree.ReadString(name)
	if err != nil {
		return "", err
	}
	id, err := canonicalID(text)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", sysfs.HostPath(name), err)
	}
	return id, nil
}

// canonicalID makes the form that is compared and published, 32 hexadecimal digits in lower case, of an id that may be written
// with dashes or in upper case. All 0 or all f means none, and is errNoID, as is empty text.
func canonicalID(text string) (string, error) {
	const digits = 32
	id := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	if id == "" {
		return "", fmt.Errorf("it is empty: %w", errNoID)
	}
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != digits/2 {
		return "", fmt.Errorf("%w: %.40q, want %d hexadecimal digits", sysfs.ErrMalformed, text, digits)
	}
	switch {
	case strings.Trim(id, "0") == "":
		return "", fmt.Errorf("it is all 0: %w", errNoID)
	case strings.Trim(id, "f") == "":
		return "", errAllF
	}
	return id, nil
}

// engineOf finds the FME that programs a port: on the port's own function, for a virtual function on its physical one, and otherwise
// on another function of the same card, as in the Open FPGA Stack.
func (t dflTree) engineOf(p dflPortDir) (dflEngine, error) {
	home := p.function.Address
	if p.function.PhysicalFunction != nil {
		home = *p.function.PhysicalFunction
	}
	for _, near := range []func(pci.Address) bool{
		func(a pci.Address) bool { return a == p.function.Address },
		func(a pci.Address) bool { return a == home },
		func(a pci.Address) bool { return cardOf(a) == cardOf(home) },
	} {
		var engines []dflEngine
		for _, engine := range t.engines {
			if near(engine.function.Address) {
				engines = append(engines, engine)
			}
		}
		switch len(engines) {
		case 0:
			continue
		case 1:
			return engines[0], nil
		}
		return dflEngine{}, fmt.Errorf("%d management engines (FMEs) are on its card, and which is the port's cannot be told", len(engines))
	}
	if p.function.PhysicalFunction != nil {
		return dflEngine{}, fmt.Errorf("the virtual function's physical function %s has no management engine (FME): bind it to dfl-pci", home)
	}
	return dflEngine{}, errors.New("no function of its card has a management engine (FME): see the kernel log of dfl-pci and dfl-fme")
}

// cardOf is what the functions of one card have in common.
func cardOf(a pci.Address) pci.Address {
	a.Function = 0
	return a
}

// portsOf are the ports that an engine programs.
func (t dflTree) portsOf(e dflEngine) []dflPortDir {
	return slices.DeleteFunc(slices.Clone(t.ports), func(p dflPortDir) bool {
		engine, err := t.engineOf(p)
		return err != nil || engine.dir != e.dir
	})
}

// errAmbiguous marks a port whose region cannot be told from others.
var errAmbiguous = errors.New("which region is the port's cannot be told")

// regionOf is the port's own region among the engine's, of which siblings ports are known.
//
// The kernel's own driver gives all regions of an engine the same id, which settles it. Where they differ, two signs must agree: the
// kernel makes regions in the order of ports, and the number in the region's name is that in the port's.
func (e dflEngine) regionOf(p dflPortDir, siblings int) (dflRegion, error) {
	switch {
	case len(e.regions) == 0:
		return dflRegion{}, fmt.Errorf("%s has no region that can be programmed: %w", path.Base(e.dir), errNoID)
	case len(e.regions) < siblings:
		return dflRegion{}, fmt.Errorf("%s has %d regions for %d ports: %w", path.Base(e.dir), len(e.regions), siblings, errAmbiguous)
	}
	first := e.regions[0]
	if errors.Is(first.err, errNoDriver) {
		return first, first.err // as all others have
	}
	var errs []error
	for _, r := range e.regions {
		errs = append(errs, r.err)
	}
	if !slices.ContainsFunc(e.regions, func(r dflRegion) bool { return r.interfaceID != first.interfaceID }) {
		return first, errors.Join(errs...)
	}
	rank := int(p.id)
	if e.ports == int64(len(e.regions)) && rank < len(e.regions) && e.regions[rank].number == p.number {
		return e.regions[rank], e.regions[rank].err
	}
	return dflRegion{}, fmt.Errorf("the %d regions of %s have different interface ids: %w", len(e.regions), path.Base(e.dir), errAmbiguous)
}
