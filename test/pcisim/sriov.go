// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/pci"
)

// setNumVFs is sriov_numvfs_store (drivers/pci/iov.c).
func (s *model) setNumVFs(f *function, value string) syscall.Errno {
	wanted, err := strconv.ParseUint(value, 0, 16)
	switch {
	case err != nil:
		return unix.EINVAL
	case int(wanted) > f.total:
		return unix.ERANGE
	case int(wanted) == len(f.vfs):
		return 0
	case f.driver == "" || isVFIO(f.driver):
		return unix.ENOENT
	case wanted > 0 && len(f.vfs) > 0:
		return unix.EBUSY
	case wanted == 0:
		s.removeVFs(f)
	}
	for i := range int(wanted) {
		s.makeVF(f, i)
	}
	return 0
}

// removeVFs also clears what was provisioned, as xe does.
func (s *model) removeVFs(f *function) {
	for i := len(f.vfs) - 1; i >= 0; i-- {
		s.tree.Remove(fmt.Sprintf("%s/virtfn%d", f.dir, i))
		s.vanish(f.vfs[i])
	}
	f.vfs = nil
	for name := range s.machine.Files {
		if strings.HasPrefix(name, f.dir+"/sriov_admin/vf") && strings.HasSuffix(name, "/vram_quota") {
			s.machine.Files[name] = "0\n"
		}
	}
}

// makeVF makes the virtual function with a number, in an IOMMU group of its own if the physical one is in one.
func (s *model) makeVF(f *function, number int) {
	ctx := context.Background()
	address, err := pci.Parse(f.address)
	if err != nil {
		return
	}
	routing := int(address.Device)<<3 + int(address.Function) + 1 + number
	address.Bus += uint8(routing >> 8)
	address.Device, address.Function = uint8(routing>>3&0x1f), uint8(routing&7)
	vf := &function{
		address: address.String(), dir: path.Join(f.parent(), address.String()), native: []string{f.driver}, physfn: f.address, total: -1,
		own: map[string]string{},
	}
	for _, name := range []string{
		"vendor", "device", "class", "revision", "subsystem_vendor", "subsystem_device", "numa_node", "subsystem", "modalias",
	} {
		if content, ok := s.machine.Files[f.dir+"/"+name]; ok {
			s.tree.Fixed(ctx, vf.dir+"/"+name, content)
		}
	}
	s.tree.Fixed(ctx, vf.dir+"/physfn", "-> ../"+f.address)
	s.tree.Fixed(ctx, fmt.Sprintf("%s/virtfn%d", f.dir, number), "-> ../"+vf.address)
	s.link(ctx, devicesDir+vf.address, vf.dir)
	if f.group != "" {
		vf.group = strconv.Itoa(s.freeGroup())
		s.tree.Fixed(ctx, groupsDir+vf.group+"/type", "DMA-FQ\n")
		s.link(ctx, vf.dir+"/iommu_group", groupsDir+vf.group)
		s.link(ctx, groupsDir+vf.group+"/devices/"+vf.address, vf.dir)
	}
	s.functions[vf.address] = vf
	f.vfs = append(f.vfs, vf)
	s.addGraphics(f, vf)
	s.reactTo(ctx, vf)
	if f.autoprobe {
		s.autobind(vf)
	}
}

// addGraphics gives a virtual function of a GPU what the driver makes for it: a card and a render node, with the first numbers that no
// other function has. Its driver shows them.
func (s *model) addGraphics(physical, vf *function) {
	graphics := false
	for name := range physical.own {
		graphics = graphics || strings.HasPrefix(name, physical.dir+"/drm/")
	}
	if !graphics {
		return
	}
	taken := map[string]bool{}
	for _, f := range s.functions {
		for name := range f.own {
			taken[path.Base(name)], taken[path.Base(path.Dir(name))] = true, true
		}
	}
	for _, kind := range []struct {
		prefix string
		first  int
	}{{"card", 0}, {"renderD", 128}} {
		n := kind.first
		for taken[kind.prefix+strconv.Itoa(n)] {
			n++
		}
		name := kind.prefix + strconv.Itoa(n)
		major, minor := uint32(226), uint32(n)
		if s.machine.DRMMajor != 0 {
			major, minor = s.machine.DRMMajor, s.freeMinor()
		}
		at := vf.dir + "/drm/" + name
		vf.own[at+"/dev"] = fmt.Sprintf("%d:%d\n", major, minor)
		up := strings.Repeat("../", strings.Count(at, "/"))
		vf.own[at+"/subsystem"] = "-> " + up + "class/drm"
		vf.own["sys/class/drm/"+name] = "-> ../../" + strings.TrimPrefix(at, "sys/")
		vf.nodes = append(vf.nodes, "dri/"+name)
		s.makeNode("dri/"+name, major, minor)
	}
}

// freeMinor is the first minor that no graphics node of a virtual function has.
func (s *model) freeMinor() uint32 {
	minor := s.machine.DRMMinor
	for {
		number, used := fmt.Sprintf("%d:%d\n", s.machine.DRMMajor, minor), false
		for _, f := range s.functions {
			for _, content := range f.own {
				used = used || content == number
			}
		}
		if !used {
			return minor
		}
		minor++
	}
}

// freeGroup is the first number above those of all groups.
func (s *model) freeGroup() int {
	free := 0
	for _, f := range s.functions {
		if n, err := strconv.Atoi(f.group); err == nil {
			free = max(free, n+1)
		}
	}
	return free
}

// setting is an attribute of xe's provisioning: a number, or one of three words.
func (s *model) setting(ctx context.Context, name string) {
	choices := []string{"low", "normal", "high"}
	s.writable(ctx, name, func() string { return s.machine.Files[name] }, func(value string) syscall.Errno {
		if path.Base(name) != "sched_priority" {
			if _, err := strconv.ParseUint(value, 0, 64); err != nil {
				return unix.EINVAL
			}
			s.machine.Files[name] = value + "\n"
			return 0
		}
		text := ""
		for _, c := range choices {
			if c == value {
				c = "[" + c + "]"
			}
			text += c + " "
		}
		if !strings.Contains(text, "[") {
			return unix.EINVAL
		}
		s.machine.Files[name] = strings.TrimSpace(text) + "\n"
		return 0
	})
}
