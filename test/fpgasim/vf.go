// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func (p *port) deviceNumber() string {
	return either(p.Dev, "245:"+strings.TrimPrefix(p.home.Name, "dfl-port."))
}

// appear makes a port where it is now, with the node of its driver.
func (t *tree) appear(s *model, p *port) {
	ctx := context.Background()
	t.port(ctx, s, p)
	t.link(ctx, "sys/bus/platform/devices/"+p.place.Name, p.place.Attributes)
	if t.dev == "" {
		return
	}
	major, minor, _ := strings.Cut(p.deviceNumber(), ":")
	a, errA := strconv.ParseUint(major, 10, 32)
	b, errB := strconv.ParseUint(minor, 10, 32)
	if errA == nil && errB == nil { // Where none can be made, discovery says that it is missing.
		_ = unix.Mknod(filepath.Join(t.dev, p.place.Name), unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(a), uint32(b))))
	}
}

func (t *tree) vanish(p *port) {
	t.Remove(p.place.Attributes)
	t.Remove(p.place.Node)
	t.Remove("dev/char/" + p.deviceNumber())
	t.Remove("sys/bus/platform/devices/" + p.place.Name)
	if t.dev != "" {
		_ = os.Remove(filepath.Join(t.dev, p.place.Name)) // There may be none.
	}
}

// link makes a relative link of sys to a directory of sys.
func (t *tree) link(ctx context.Context, name, directory string) {
	up := strings.Repeat("../", strings.Count(name, "/")-1)
	t.Fixed(ctx, name, "-> "+up+strings.TrimPrefix(directory, "sys/"))
}

// setNumVFs is sriov_numvfs (drivers/pci/pci-sysfs.c) of dfl-pci: there is a virtual function for each port that was released.
func (s *model) setNumVFs(c *card, value string) (errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		data := strings.TrimSpace(value)
		s.log(Event{Op: "write", Path: c.Function + "/sriov_numvfs", Data: data, Errno: unix.ErrnoName(errno)})
	}()
	wanted, ok := number(value)
	released := 0
	for _, p := range c.ports {
		if p.released {
			released++
		}
	}
	switch {
	case !ok:
		return unix.EINVAL
	case wanted > uint64(len(c.ports)):
		return unix.ERANGE
	case int(wanted) == c.numVFs:
		return 0
	case wanted > 0 && c.numVFs > 0:
		return unix.EBUSY
	case wanted > 0 && int(wanted) != released:
		return unix.EINVAL
	}
	c.numVFs = int(wanted)
	for _, p := range c.ports {
		if p.released {
			s.moveToVF(c, p, wanted > 0)
		}
	}
	return 0
}

func (s *model) moveToVF(c *card, p *port, there bool) {
	function := virtualFunction(c.Function, p.number)
	region := path.Dir(p.virtual.Attributes)
	links := map[string]string{
		"sys/bus/pci/devices/" + path.Base(function):         function,
		"sys/bus/pci/drivers/dfl-pci/" + path.Base(function): function,
		"sys/class/fpga_region/" + path.Base(region):         region,
	}
	own := c.Function + "/virtfn" + strconv.Itoa(p.number)
	if !there {
		s.tree.vanish(p)
		s.tree.Remove(function)
		s.tree.Remove(own)
		for name := range links {
			s.tree.Remove(name)
		}
		return
	}
	ctx := context.Background()
	p.place = p.virtual
	s.tree.Fixed(ctx, own, "-> ../"+path.Base(function))
	s.tree.Fixed(ctx, function+"/physfn", "-> ../"+path.Base(c.Function))
	s.tree.Fixed(ctx, region+"/device", "-> ../../../"+path.Base(function))
	for name, content := range s.virtualFiles(c) {
		s.tree.Fixed(ctx, function+"/"+name, content)
	}
	for name, directory := range links {
		s.tree.link(ctx, name, directory)
	}
	s.tree.appear(s, p)
}

// detach leaves the virtual functions without the physical one.
func (s *model) detach(c *card) error {
	if c.Function == "" || slices.ContainsFunc(c.ports, func(p *port) bool { return p.place != p.virtual }) {
		return fmt.Errorf("card %d is detached while it has ports of its own, want all of them on virtual functions", c.number)
	}
	for name, content := range s.files {
		target, link := strings.CutPrefix(content, "-> ")
		if link && strings.HasPrefix(path.Join(path.Dir(name), target)+"/", c.Function+"/") {
			s.tree.Remove(name)
		}
	}
	for _, p := range c.ports {
		s.tree.Remove(virtualFunction(c.Function, p.number) + "/physfn")
	}
	s.tree.Remove(c.Function)
	s.tree.Remove(c.node)
	if s.tree.dev != "" {
		_ = os.Remove(filepath.Join(s.tree.dev, path.Base(c.node))) // There may be none.
	}
	return nil
}

// virtualFiles are what a virtual function has of its physical one, but for the identifier that is its own.
func (s *model) virtualFiles(c *card) map[string]string {
	files := map[string]string{}
	for _, name := range []string{
		"vendor", "device", "class", "revision", "subsystem_vendor", "subsystem_device", "numa_node", "driver", "subsystem",
	} {
		if content, ok := s.files[c.Function+"/"+name]; ok {
			files[name] = content
		}
	}
	own := map[string]string{"0x09c4": "0x09c5", "0x0b2b": "0x0b2c", "0xbcbd": "0xbcbf", "0xbcc0": "0xbcc1"}
	if id, ok := own[strings.TrimSpace(files["device"])]; ok {
		files["device"] = fmt.Sprintf("%s\n", id)
	}
	return files
}
