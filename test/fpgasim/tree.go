// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sim"
)

// SysNodes is where a machine that FromTree made has its device nodes: in sys, which is what is served, while dev has the character
// devices that discovery wants and pods open.
const SysNodes = "sys/fpgasim"

// The names that hold an FME, a port, and what belongs to an FME.
var (
	fmeName     = regexp.MustCompile(`^(.*/fpga_region/region[0-9]+/dfl-fme\.[0-9]+)/dev$`)
	portName    = regexp.MustCompile(`^(.*/fpga_region/region[0-9]+/dfl-port\.[0-9]+)/id$`)
	regionName  = regexp.MustCompile(`^(.*/dfl-fme\.[0-9]+)/dfl-fme-region\.([0-9]+)/fpga_region/region[0-9]+/compat_id$`)
	managerName = regexp.MustCompile(`^(.*/dfl-fme\.[0-9]+)/dfl-fme-mgr\.[0-9]+/fpga_manager/fpga[0-9]+/state$`)
)

// reactive are the files that react, so that those of the tree are only how they begin.
var reactive = regexp.MustCompile(`/dfl-port\.[0-9]+/(afu_id|power_state|ltr|debug|errors/(errors|first_error)|userclk_[a-z]+)$` +
	`|/sriov_numvfs$|/fpga_manager/fpga[0-9]+/(state|status)$|/dfl-fme-region\.[0-9]+/fpga_region/region[0-9]+/compat_id$`)

// FromTree is the machine of a host tree, whose DFL cards react: their sys, with everything that is in it, to be mounted over the sys of
// the same tree. Ports of an Arria 10 have user clocks, as their header is of revision 0; others have not. Every FME needs a manager,
// and each port the region of its number on its FME.
func FromTree(host *sim.Machine) (Machine, error) {
	m := Machine{Files: map[string]string{}, Nodes: SysNodes, Base: "sys"}
	read := map[string]string{}
	var errs []error
	for _, e := range host.Entries {
		name, inside := e.Path, strings.HasPrefix(e.Path, m.Base+"/")
		switch {
		case !inside:
		case e.Kind == sim.File:
			read[name] = strings.TrimSpace(string(e.Data))
			if !reactive.MatchString(name) {
				m.Files[name] = string(e.Data)
			}
		case e.Kind == sim.Symlink:
			m.Files[name] = "-> " + e.Target
		case e.Kind == sim.Dir:
			m.Files[name+"/"] = ""
		default:
			errs = append(errs, fmt.Errorf("%s is %s: only files, directories and links can be served", name, e.Kind))
		}
	}
	for _, e := range host.Entries {
		if match := fmeName.FindStringSubmatch(e.Path); match != nil {
			c, err := cardOf(match[1], host, read, m.Files)
			errs = append(errs, err)
			m.Cards = append(m.Cards, c)
		}
	}
	slices.SortFunc(m.Cards, func(a, b Card) int { return numbered(a.Directory) - numbered(b.Directory) })
	return m, errors.Join(errs...)
}

// cardOf is an FME and the ports that it programs.
func cardOf(fme string, host *sim.Machine, read, files map[string]string) (Card, error) {
	function := functionOf(fme)
	c := Card{Directory: fme, Dev: read[fme+"/dev"], Function: function}
	var regions []string
	ports := map[int]string{}
	for _, e := range host.Entries {
		if match := managerName.FindStringSubmatch(e.Path); match != nil && match[1] == fme {
			c.Manager = path.Dir(e.Path)
		}
		if match := regionName.FindStringSubmatch(e.Path); match != nil && match[1] == fme {
			regions = append(regions, path.Dir(e.Path))
		}
		if match := portName.FindStringSubmatch(e.Path); match != nil && programs(function, functionOf(match[1]), files) {
			id, err := strconv.Atoi(read[e.Path])
			if err != nil || ports[id] != "" {
				return c, fmt.Errorf("%s is %q, want a number that no other port of %s has", e.Path, read[e.Path], fme)
			}
			ports[id] = match[1]
		}
	}
	slices.SortFunc(regions, func(a, b string) int { return numbered(path.Dir(path.Dir(a))) - numbered(path.Dir(path.Dir(b))) })
	if c.Manager == "" || len(regions) < len(ports) {
		return c, fmt.Errorf("%s has %d regions for %d ports and the manager %q: want one", fme, len(regions), len(ports), c.Manager)
	}
	for id := range len(ports) {
		at, ok := ports[id]
		if !ok {
			return c, fmt.Errorf("%s has no port %d of %d", fme, id, len(ports))
		}
		c.Ports = append(c.Ports, portOf(at, regions[id], read, files))
	}
	return c, nil
}

func portOf(at, region string, read, files map[string]string) Port {
	const arria10PF, arria10VF = "0x09c4", "0x09c5"
	function := functionOf(at)
	p := Port{
		Interface: read[region+"/compat_id"], AFU: read[at+"/afu_id"], Directory: at, Region: region, Dev: read[at+"/dev"],
		Virtual: files[function+"/physfn"] != "", Revision: 1, LTR: read[at+"/ltr"] == "1",
	}
	if level, err := strconv.ParseInt(read[at+"/debug"], 0, 32); err == nil {
		p.Debug = new(int32(level))
	}
	if id := read[function+"/device"]; id == arria10PF || id == arria10VF {
		p.Revision = 0
	}
	return p
}

// functionOf is the PCI function that holds an FME or a port.
func functionOf(at string) string { return path.Dir(path.Dir(path.Dir(at))) }

// programs says whether the FME of a function programs the ports of another: its own, those of its virtual functions, and those of a
// card's other functions where it is the first.
func programs(fme, port string, files map[string]string) bool {
	if target := files[port+"/physfn"]; target != "" {
		return path.Base(target) == path.Base(fme)
	}
	slot := func(function string) string { return function[:strings.LastIndexByte(function, '.')+1] }
	return slot(fme) == slot(port)
}

// numbered is the number at the end of a name.
func numbered(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '.')+1:])
	if err != nil {
		return 0
	}
	return n
}
