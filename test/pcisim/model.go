// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/fusetree"
)

// model is the machine's state.
type model struct {
	mu        sync.Mutex
	changed   *sync.Cond
	machine   Machine
	tree      *fusetree.Tree
	functions map[string]*function // by address
	drivers   []string
	faults    []Fault
	trace     []Event
	resumes   int
	held      int
	locked    string // ends the name of what cannot be read now
	vfio      vfioNodes
	amd       topology
}

// function is one PCI function.
type function struct {
	address, dir     string
	driver, override string
	// native are the drivers that match it without an override.
	native []string
	group  string // number of the IOMMU group, empty for none
	physfn string // address
	vfs    []*function
	// total is how many virtual functions it can have, -1 for one without SR-IOV.
	total     int
	autoprobe bool
	users     int
	// own are the files that its driver makes, with the links of classes to them.
	own map[string]string
	// nodes are the device nodes of a virtual function that was made here.
	nodes []string
}

const (
	devicesDir = "sys/bus/pci/devices/"
	driversDir = "sys/bus/pci/drivers/"
	groupsDir  = "sys/kernel/iommu_groups/"
)

var (
	functionFile = regexp.MustCompile(`^(sys/devices/.*/([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))/vendor$`)
	driverFile   = regexp.MustCompile(`^sys/bus/pci/drivers/([^/]+)/`)
	driversOwn   = regexp.MustCompile(`^(drm|sound|nvme|net|tile[0-9]+)/`)
)

func newModel(m Machine) *model {
	s := &model{machine: m, functions: map[string]*function{}}
	s.changed = sync.NewCond(&s.mu)
	for name := range m.Files {
		if match := functionFile.FindStringSubmatch(name); match != nil {
			s.functions[match[2]] = s.newFunction(match[1], match[2])
		}
		if match := driverFile.FindStringSubmatch(name); match != nil && !slices.Contains(s.drivers, match[1]) {
			s.drivers = append(s.drivers, match[1])
		}
	}
	slices.Sort(s.drivers)
	for _, f := range s.functions {
		s.adopt(f)
	}
	s.vfio = vfioNodes{major: either(m.VFIOMajor, 511), next: m.VFIOMinor}
	s.amd = newTopology(s)
	return s
}

func either(n, other uint32) uint32 {
	if n != 0 {
		return n
	}
	return other
}

func (s *model) text(name string) string { return strings.TrimSpace(s.machine.Files[name]) }

// target is the last element of a link, empty if there is none.
func (s *model) target(name string) string {
	to, ok := strings.CutPrefix(s.machine.Files[name], "-> ")
	if !ok {
		return ""
	}
	return path.Base(to)
}

func (s *model) newFunction(dir, address string) *function {
	f := &function{
		address: address, dir: dir, driver: s.target(dir + "/driver"), group: s.target(dir + "/iommu_group"),
		physfn: s.target(dir + "/physfn"), total: -1, autoprobe: true, own: map[string]string{},
	}
	if o := s.text(dir + "/driver_override"); o != "(null)" {
		f.override = o
	}
	if f.driver != "" {
		f.native = []string{f.driver}
	}
	if _, ok := s.machine.Files[dir+"/sriov_totalvfs"]; ok {
		f.total, _ = strconv.Atoi(s.text(dir + "/sriov_totalvfs")) // 0 for what is no number.
	}
	return f
}

// adopt finds the files of a function's driver, and a physical function's virtual ones.
func (s *model) adopt(f *function) {
	for name, content := range s.machine.Files {
		if below, ok := strings.CutPrefix(name, f.dir+"/"); ok && driversOwn.MatchString(below) {
			f.own[name] = content
		}
		to, link := strings.CutPrefix(content, "-> ")
		below, ours := strings.CutPrefix(path.Join(path.Dir(name), to), f.dir+"/")
		if link && ours && strings.HasPrefix(name, "sys/class/") && driversOwn.MatchString(below) {
			f.own[name] = content
		}
	}
	for i := 0; ; i++ {
		vf := s.functions[s.target(fmt.Sprintf("%s/virtfn%d", f.dir, i))]
		if vf == nil {
			break
		}
		f.vfs = append(f.vfs, vf)
	}
}

// grow makes the whole machine.
func (s *model) grow(ctx context.Context) {
	reactive := map[string]bool{}
	for _, f := range s.functions {
		for _, name := range []string{"driver_override", "sriov_numvfs", "sriov_drivers_autoprobe", "current_compute_partition"} {
			reactive[f.dir+"/"+name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.machine.Files)) {
		if !reactive[name] && !strings.HasPrefix(name, nodesDir) && !strings.Contains(name, "/sriov_admin/") {
			s.tree.Fixed(ctx, name, s.machine.Files[name])
		}
		if strings.Contains(name, "/sriov_admin/") {
			s.setting(ctx, name)
		}
	}
	for _, driver := range s.drivers {
		s.driverFiles(ctx, driver)
	}
	s.writable(ctx, "sys/bus/pci/drivers_probe", nil, s.probe)
	for _, f := range s.functions {
		s.reactTo(ctx, f)
	}
	s.amd.grow(ctx)
}

// reactTo makes the files of a function that react.
func (s *model) reactTo(ctx context.Context, f *function) {
	s.writable(ctx, f.dir+"/driver_override", func() string {
		if f.override == "" {
			return "(null)\n"
		}
		return f.override + "\n"
	}, func(value string) syscall.Errno {
		f.override = value
		return 0
	})
	if f.total >= 0 {
		s.writable(ctx, f.dir+"/sriov_numvfs", func() string { return fmt.Sprintf("%d\n", len(f.vfs)) },
			//nolint:contextcheck // What it makes outlives the request.
			func(value string) syscall.Errno { return s.setNumVFs(f, value) })
		s.writable(ctx, f.dir+"/sriov_drivers_autoprobe", func() string {
			if f.autoprobe {
				return "1\n"
			}
			return "0\n"
		}, func(value string) syscall.Errno {
			if value != "0" && value != "1" {
				return unix.EINVAL
			}
			f.autoprobe = value == "1"
			return 0
		})
	}
}

// writable is an attribute whose reads and writes happen one at a time. Writes are traced, and faults come first. A function must not
// wait in its write.
func (s *model) writable(ctx context.Context, name string, read func() string, write func(string) syscall.Errno) {
	a := &fusetree.Attribute{OnWrite: func(data string) (errno syscall.Errno) {
		value := strings.TrimSuffix(data, "\n")
		s.mu.Lock()
		defer s.mu.Unlock()
		defer func() { s.trace = append(s.trace, Event{Path: name, Data: value, Errno: unix.ErrnoName(errno)}) }()
		if errno, failed := s.disturb(name, value); failed {
			return errno
		}
		return write(value)
	}}
	if read != nil {
		a.OnRead = func() (string, syscall.Errno) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for s.locked != "" && strings.HasSuffix(name, s.locked) {
				s.changed.Wait()
			}
			return read(), 0
		}
	}
	s.tree.Add(ctx, name, a, syscall.S_IFREG)
}

// disturb does what a fault says.
func (s *model) disturb(name, value string) (errno syscall.Errno, failed bool) {
	for i := range s.faults {
		f := s.faults[i]
		if !strings.HasSuffix(name, f.Path) || f.Data != "" && f.Data != value {
			continue
		}
		if s.faults[i].Times--; s.faults[i].Times <= 0 {
			s.faults = slices.Delete(s.faults, i, i+1)
		}
		resumes := s.resumes
		s.held++
		if f.Lock != "" {
			s.locked = f.Lock
		}
		for f.Hold && s.resumes == resumes {
			s.changed.Wait()
		}
		s.held--
		if f.Lock != "" {
			s.locked = ""
			s.changed.Broadcast()
		}
		return errnoOf(f.Errno), f.Errno != ""
	}
	return 0, false
}

// errnoOf is the number of "EIO", 0 for "".
func errnoOf(name string) syscall.Errno {
	for n := range syscall.Errno(134) {
		if name != "" && unix.ErrnoName(n) == name {
			return n
		}
	}
	return 0
}

// set is the world's doing.
func (s *model) set(change Set) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.functions[change.Function]
	if f == nil {
		return fmt.Errorf("there is no PCI function %q", change.Function)
	}
	if change.Users != nil {
		f.users = *change.Users
	}
	if change.Override != nil {
		f.override = *change.Override
	}
	if change.Driver != nil {
		s.detach(f)
		if *change.Driver != "" {
			s.attach(f, *change.Driver)
		}
	}
	if change.VFs != nil {
		s.removeVFs(f)
		for i := range *change.VFs {
			s.makeVF(f, i)
		}
	}
	if change.Gone {
		s.vanish(f)
	}
	return nil
}
