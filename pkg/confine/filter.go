// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// seccompFilter is SECCOMP_MODE_FILTER.
const seccompFilter = 2

// newNamespaces are the flags of clone that make a namespace; a user namespace would give back every capability.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// families are the address families of the plugin's own sockets: kubelet's, the network, and the kernel's events of devices.
func families() []uint64 {
	return []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
}

// rules say how a filter differs from that of every program.
type rules struct {
	// more are allowed too, less are not.
	more, less []string
	// sockets are the address families of sockets.
	sockets []uint64
	// fewNodes lets mknod make pipes, and character devices of majors, and nothing else.
	fewNodes bool
	majors   []uint32
}

// policy allows the system calls of every program, some more or less, and sockets of some families. All others fail with EPERM, those of
// the 32-bit ABI among them. clone3 fails as on a kernel without it, since its flags are out of the filter's reach; programs then call
// clone.
func policy(r rules) (*seccomp.Policy, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("make a filter of system calls: %w", err)
	}
	names := slices.Concat(everyProgram(), r.more)
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains(r.less, name) || r.fewNodes && (name == "mknod" || name == "mknodat")
	})
	allowed := seccomp.SyscallGroup{Action: seccomp.ActionAllow}
	for _, name := range slices.Compact(names) {
		if _, ok := machine.SyscallNames[name]; ok { // arm64 lacks the older ones
			allowed.Names = append(allowed.Names, name)
		}
	}
	only := func(name string, c ...seccomp.Condition) {
		if _, ok := machine.SyscallNames[name]; ok {
			allowed.NamesWithCondtions = append(allowed.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: c})
		}
	}
	only("clone", seccomp.Condition{Operation: seccomp.BitsNotSet, Value: newNamespaces})
	for _, family := range r.sockets {
		only("socket", seccomp.Condition{Operation: seccomp.Equal, Value: family})
	}
	if r.fewNodes {
		for i, name := range []string{"mknod", "mknodat"} {
			mode := uint32(i + 1) // the argument
			only(name, ofType(mode, unix.S_IFIFO)...)
			for _, major := range r.majors {
				only(name, characterDevice(mode, major)...)
			}
		}
	}
	unknown := seccomp.SyscallGroup{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)}
	return &seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{allowed, unknown}}, nil
}

// ofType are the conditions on a mode, which is the argument at, for a type of one bit.
func ofType(at, one uint32) []seccomp.Condition {
	return []seccomp.Condition{
		{Argument: at, Operation: seccomp.BitsSet, Value: uint64(one)},
		{Argument: at, Operation: seccomp.BitsNotSet, Value: uint64(unix.S_IFMT &^ one)},
	}
}

// characterDevice are the conditions on mknod's mode, which is the argument at, and on the number after it: a character device of a major.
// The kernel takes 32 bits of the number, of which the major has twelve (new_decode_dev).
func characterDevice(at, major uint32) []seccomp.Condition {
	const majorAt, majorBits = 8, 0xfff
	out := append(ofType(at, unix.S_IFCHR),
		seccomp.Condition{Argument: at + 1, Operation: seccomp.BitsNotSet, Value: uint64(^major&majorBits) << majorAt})
	for bits := major & majorBits; bits != 0; bits &= bits - 1 {
		out = append(out, seccomp.Condition{Argument: at + 1, Operation: seccomp.BitsSet, Value: uint64(bits&-bits) << majorAt})
	}
	return out
}

// load filters the system calls of the calling thread, and of what it starts, in addition to filters that are there.
func load(r rules) error {
	p, err := policy(r)
	if err != nil {
		return err
	}
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Policy: *p}); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// pretend has some system calls do nothing and say that they did. It is loaded after the filter that allows them.
func pretend(names []string) error {
	machine, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("make a filter of system calls: %w", err)
	}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // seccomp_data.nr
	for _, name := range names {
		if number, ok := machine.SyscallNames[name]; ok {
			program = append(program,
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(number)},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO}) // with errno 0
		}
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	loaded := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	//nolint:gosec // G103: the package has no call for it
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&loaded)))
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}

// OnlyServe takes from all threads of the process what a server on an open socket does not need: to make sockets and connections, to start
// programs, and to change files.
func OnlyServe() error {
	p := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{{Action: seccomp.ActionErrno}}}
	machine, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("make a filter of system calls: %w", err)
	}
	for _, name := range []string{
		"bind", "chmod", "connect", "creat", "execve", "execveat", "fchmodat", "fchmodat2", "fork", "ftruncate", "ioctl", "kill", "link",
		"linkat", "listen", "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2", "sendmmsg", "sendmsg", "sendto",
		"socket", "socketpair", "symlink", "symlinkat", "truncate", "vfork",
	} {
		if _, ok := machine.SyscallNames[name]; ok {
			p.Syscalls[0].Names = append(p.Syscalls[0].Names, name)
		}
	}
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: p}); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}
