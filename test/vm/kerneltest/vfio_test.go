// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"encoding/binary"
	"os"
	"path"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// Calls of VFIO (include/uapi/linux/vfio.h): _IO(';', 100 + n).
const (
	vfioGetAPIVersion     = ';'<<8 + 100
	vfioSetIOMMU          = ';'<<8 + 102
	vfioGroupGetStatus    = ';'<<8 + 103
	vfioGroupSetContainer = ';'<<8 + 104
	vfioGroupGetDeviceFD  = ';'<<8 + 106
	vfioGetRegionInfo     = ';'<<8 + 108

	// vfioType1v2 is the IOMMU's driver for x86, and vfioConfigRegion the number of the PCI configuration space.
	vfioType1v2      = 3
	vfioConfigRegion = 7
)

// ioctl is ioctl(2) with a pointer.
func ioctl(t *testing.T, f *os.File, call uintptr, argument unsafe.Pointer) uintptr {
	t.Helper()
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), call, uintptr(argument))
	if errno != 0 {
		t.Fatalf("call %d of %s: %v", call&0xff-100, f.Name(), errno)
	}
	return result
}

// openDevice does what a virtual machine monitor does first with the two nodes that a claim gives it. The files stay open until they are
// closed.
func openDevice(t *testing.T, group, address string) (container, groupFile, device *os.File) {
	t.Helper()
	container, err := os.OpenFile("/dev/vfio/vfio", os.O_RDWR, 0)
	check.Must(t, err)
	version, err := unix.IoctlRetInt(int(container.Fd()), vfioGetAPIVersion)
	if err != nil || version != 0 {
		t.Fatalf("VFIO has version %d of its calls, want 0 (%v)", version, err)
	}
	groupFile, err = os.OpenFile(group, os.O_RDWR, 0)
	check.Must(t, err)
	status := struct{ size, flags uint32 }{size: 8}
	ioctl(t, groupFile, vfioGroupGetStatus, unsafe.Pointer(&status))
	if status.flags&1 == 0 {
		t.Fatalf("%s is not viable", group)
	}
	containerFD := int32(container.Fd())
	ioctl(t, groupFile, vfioGroupSetContainer, unsafe.Pointer(&containerFD))
	check.Must(t, unix.IoctlSetInt(int(container.Fd()), vfioSetIOMMU, vfioType1v2))
	name, err := unix.BytePtrFromString(address)
	check.Must(t, err)
	fd := ioctl(t, groupFile, vfioGroupGetDeviceFD, unsafe.Pointer(name))
	return container, groupFile, os.NewFile(fd, address)
}

// TestVFIO binds a device to vfio-pci and uses it as a virtual machine monitor does: the nodes are all that this takes.
func TestVFIO(t *testing.T) {
	m := onMachine(t)
	address := m.device(edu)
	before, group := m.override(address), m.group(address)
	if exists(node(group)) {
		t.Fatalf("%s is there before anything was bound", node(group))
	}
	t.Run("bound", func(t *testing.T) {
		m := onMachine(t)
		m.toVFIO(address)
		if got := m.driver(address); got != "vfio-pci" {
			t.Fatalf("the driver is %q", got)
		}
		m.await("the group's node", func() bool { return exists(node(group)) })
		container, groupFile, device := openDevice(t, node(group), address)
		var region struct {
			size, flags, index, capabilities uint32
			length, offset                   uint64
		}
		region.size, region.index = uint32(unsafe.Sizeof(region)), vfioConfigRegion
		ioctl(t, device, vfioGetRegionInfo, unsafe.Pointer(&region))
		var ids [4]byte
		_, err := device.ReadAt(ids[:], int64(region.offset))
		check.Must(t, err)
		if vendor := uint64(binary.LittleEndian.Uint16(ids[:])); vendor != edu[0] {
			t.Errorf("the device's configuration space begins with vendor %04x, want %04x", vendor, edu[0])
		}
		for _, f := range []*os.File{device, groupFile, container} {
			check.Must(t, f.Close())
		}
	})
	m.await("the group's node is gone", func() bool { return !exists(node(group)) })
	if got := m.override(address); got != before {
		t.Errorf("driver_override is %q again, want %q", got, before)
	}
}

// TestHeldDevice: the kernel waits for the process that has a device open before it takes the driver away, however long that takes. So a
// device must be known to be free before it is unbound.
func TestHeldDevice(t *testing.T) {
	m := onMachine(t)
	address := m.device(edu)
	m.toVFIO(address)
	group := node(m.group(address))
	m.await("the group's node", func() bool { return exists(group) })
	container, groupFile, device := openDevice(t, group, address)
	ended := make(chan error, 1)
	go func() { ended <- m.write.WriteAttr(path.Join(sysfs.PCI, "drivers/vfio-pci/unbind"), address) }()
	select {
	case err := <-ended:
		t.Errorf("a device that is open was unbound: %v", err)
	case <-time.After(3 * time.Second): // fragile: the kernel does not tell that it waits, and a shorter time only sees less
	}
	for _, f := range []*os.File{device, groupFile, container} {
		check.Must(t, f.Close())
	}
	select {
	case err := <-ended:
		check.Must(t, err)
	case <-time.After(check.Patience):
		t.Fatal("the device is free, and unbinding it does not end")
	}
	// For the cleanup, which unbinds it again.
	m.set("drivers/vfio-pci/bind", address)
}
