// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of include/uapi/linux/fpga-dfl.h. Those of form _IO carry no size: their structs begin with it.
const (
	portReset   = 0xb640     // _IO, argument 0
	portGetInfo = 0xb641     // _IO, dfl_fpga_port_info
	fmePortPR   = 0xb680     // _IO, dfl_fpga_fme_port_pr
	fmeRelease  = 0x4004b681 // _IOW, int
	fmeAssign   = 0x4004b682 // _IOW, int
)

// portInfo mirrors struct dfl_fpga_port_info.
type portInfo struct {
	argsz, flags, regions, userMessages uint32
}

// portPR mirrors struct dfl_fpga_fme_port_pr.
type portPR struct {
	argsz, flags, port, size uint32
	address                  uint64
}

// control calls ioctl(2) with a pointer, or with 0 for nil. The pointer must stay valid during the call, which may take long and cannot be
// interrupted.
func control(f *os.File, request uintptr, argument unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument))
	runtime.KeepAlive(f)
	if errno != 0 {
		return errno
	}
	return nil
}

func resetPort(port *os.File) error { return control(port, portReset, nil) }

func readInfo(port *os.File) (Info, error) {
	info := portInfo{argsz: uint32(unsafe.Sizeof(portInfo{}))}
	if err := control(port, portGetInfo, unsafe.Pointer(&info)); err != nil { //nolint:gosec // G103: the kernel's ABI takes a pointer
		return Info{}, err
	}
	return Info{Regions: info.regions, UserMessages: info.userMessages}, nil
}

// programPort blocks until the hardware has answered or given up: four times 8 s at worst. The part must be mapped memory, not memory of
// Go, so that its address stays.
func programPort(fme *os.File, port uint32, part []byte) error {
	pr := portPR{argsz: uint32(unsafe.Sizeof(portPR{})), port: port, size: uint32(len(part))}
	pr.address = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part)))) //nolint:gosec // G103: the kernel's ABI takes an address
	err := control(fme, fmePortPR, unsafe.Pointer(&pr))                  //nolint:gosec // G103: the kernel's ABI takes a pointer
	runtime.KeepAlive(part)
	return err
}

// transferPort hands a port to its virtual function, or takes it back.
func transferPort(fme *os.File, request uintptr, port uint32) error {
	id := int32(port)
	return control(fme, request, unsafe.Pointer(&id)) //nolint:gosec // G103: the kernel's ABI takes a pointer
}
