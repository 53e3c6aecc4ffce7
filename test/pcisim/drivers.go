// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// driverFiles are the files of a driver by which functions are bound (drivers/base/bus.c).
func (s *model) driverFiles(ctx context.Context, driver string) {
	s.writable(ctx, driversDir+driver+"/unbind", nil, func(value string) syscall.Errno {
		f := s.functions[value]
		if f == nil || f.driver != driver {
			return unix.ENODEV
		}
		s.detach(f)
		return 0
	})
	//nolint:contextcheck // What it makes outlives the request.
	s.writable(ctx, driversDir+driver+"/bind", nil, func(value string) syscall.Errno {
		f := s.functions[value]
		switch {
		case f == nil || !f.matches(driver):
			return unix.ENODEV
		case f.driver != "":
			return unix.EBUSY
		}
		s.attach(f, driver)
		return 0
	})
}

// matches is pci_match_device: an override names the only driver, and without one a driver holds what it has identifiers of.
func (f *function) matches(driver string) bool {
	if f.override != "" {
		return f.override == driver
	}
	return slices.Contains(f.native, driver)
}

// probe binds a function without a driver to the first that matches.
func (s *model) probe(value string) syscall.Errno {
	f := s.functions[value]
	if f == nil {
		return unix.ENODEV
	}
	s.autobind(f)
	return 0
}

func (s *model) autobind(f *function) {
	for _, driver := range s.drivers {
		if f.driver == "" && f.matches(driver) {
			s.attach(f, driver)
		}
	}
}

// attach makes a driver hold a function, with the files that the driver makes.
func (s *model) attach(f *function, driver string) {
	ctx := context.Background()
	f.driver = driver
	s.link(ctx, f.dir+"/driver", driversDir+driver)
	s.link(ctx, driversDir+driver+"/"+f.address, f.dir)
	if isVFIO(driver) {
		s.vfio.appear(ctx, s, f)
		return
	}
	for name, content := range f.own {
		s.tree.Fixed(ctx, name, content)
	}
}

// detach takes the driver away. Without the driver of the physical function there are no virtual ones.
func (s *model) detach(f *function) {
	if f.driver == "" {
		return
	}
	s.removeVFs(f)
	driver := f.driver
	f.driver = ""
	s.tree.Remove(f.dir + "/driver")
	s.tree.Remove(driversDir + driver + "/" + f.address)
	if isVFIO(driver) {
		s.vfio.vanish(s, f)
		return
	}
	for name := range f.own {
		if below, ok := strings.CutPrefix(name, f.dir+"/"); ok {
			name = f.dir + "/" + strings.SplitN(below, "/", 2)[0]
		}
		s.tree.Remove(name)
	}
}

func isVFIO(driver string) bool {
	return strings.HasSuffix(strings.ReplaceAll(driver, "_", "-"), "vfio-pci")
}

// link makes a relative link of sys to a directory of sys.
func (s *model) link(ctx context.Context, name, directory string) {
	up := strings.Repeat("../", strings.Count(name, "/")-1)
	s.tree.Fixed(ctx, name, "-> "+up+strings.TrimPrefix(directory, "sys/"))
}

// vfioNodes are the nodes of the functions that VFIO drivers hold.
type vfioNodes struct {
	major, next uint32
	groups      map[string]uint32 // minors by number of the group
	devices     int               // how many functions there were so far: the kernel counts on until it can begin anew
}

const vfioDevices = "sys/devices/virtual/vfio/"

// appear makes the node of the group, if it is the first of it, and that of the function.
func (v *vfioNodes) appear(ctx context.Context, s *model, f *function) {
	if f.group != "" && !s.groupHeld(f) {
		if v.groups == nil {
			v.groups = map[string]uint32{}
		}
		v.groups[f.group] = v.take()
		s.tree.Fixed(ctx, vfioDevices+f.group+"/dev", v.number(v.groups[f.group])+"\n")
		s.link(ctx, "sys/class/vfio/"+f.group, vfioDevices+f.group)
		s.makeNode("vfio/"+f.group, v.major, v.groups[f.group])
	}
	name := fmt.Sprintf("vfio%d", v.devices)
	v.devices++
	minor := v.take()
	s.tree.Fixed(ctx, f.dir+"/vfio-dev/"+name+"/dev", v.number(minor)+"\n")
	s.makeNode("vfio/devices/"+name, v.major, minor)
	f.own["vfio"] = name
}

func (v *vfioNodes) take() uint32 {
	v.next++
	return v.next - 1
}

func (v *vfioNodes) number(minor uint32) string { return fmt.Sprintf("%d:%d", v.major, minor) }

func (v *vfioNodes) vanish(s *model, f *function) {
	s.removeNode("vfio/devices/" + f.own["vfio"])
	delete(f.own, "vfio")
	s.tree.Remove(f.dir + "/vfio-dev")
	if f.group != "" && !s.groupHeld(f) {
		s.tree.Remove("sys/class/vfio/" + f.group)
		s.tree.Remove(vfioDevices + f.group)
		s.removeNode("vfio/" + f.group)
	}
}

// groupHeld says whether VFIO holds another function of the same group.
func (s *model) groupHeld(f *function) bool {
	for _, other := range s.functions {
		if other != f && other.group == f.group && isVFIO(other.driver) {
			return true
		}
	}
	return false
}

// makeNode makes a real character device, where there is a place for it. Where none can be made, discovery says that it is missing.
func (s *model) makeNode(name string, major, minor uint32) {
	if s.machine.Dev == "" {
		return
	}
	at := filepath.Join(s.machine.Dev, name)
	_ = os.MkdirAll(filepath.Dir(at), 0o755)
	_ = unix.Mknod(at, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
}

func (s *model) removeNode(name string) {
	if s.machine.Dev != "" {
		_ = os.Remove(filepath.Join(s.machine.Dev, name)) // There may be none.
	}
}

// vanish takes a function out of the machine.
func (s *model) vanish(f *function) {
	s.detach(f)
	for _, name := range f.nodes {
		s.removeNode(name)
	}
	s.tree.Remove(devicesDir + f.address)
	s.tree.Remove(groupsDir + f.group + "/devices/" + f.address)
	if f.physfn != "" {
		s.tree.Remove(groupsDir + f.group) // A virtual function is alone in its group.
	}
	s.tree.Remove(f.dir)
	delete(s.functions, f.address)
	if physical := s.functions[f.physfn]; physical != nil {
		physical.vfs = slices.DeleteFunc(physical.vfs, func(vf *function) bool { return vf == f })
	}
}

// parent is the directory above a function.
func (f *function) parent() string { return path.Dir(f.dir) }
