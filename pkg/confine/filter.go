// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"slices"

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

// policy allows the system calls of every program, some more, and sockets of some families. All others fail with EPERM, those of the 32-bit
// ABI among them. clone3 fails as on a kernel without it, since its flags are out of the filter's reach; programs then call clone.
func policy(more []string, sockets []uint64) (*seccomp.Policy, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("make a filter of system calls: %w", err)
	}
	names := slices.Concat(everyProgram(), more)
	slices.Sort(names)
	allowed := seccomp.SyscallGroup{Action: seccomp.ActionAllow}
	for _, name := range slices.Compact(names) {
		if _, ok := machine.SyscallNames[name]; ok { // arm64 lacks the older ones
			allowed.Names = append(allowed.Names, name)
		}
	}
	only := func(name string, c seccomp.Condition) {
		allowed.NamesWithCondtions = append(allowed.NamesWithCondtions,
			seccomp.NameWithConditions{Name: name, Conditions: seccomp.ArgumentConditions{c}})
	}
	only("clone", seccomp.Condition{Operation: seccomp.BitsNotSet, Value: newNamespaces})
	for _, family := range sockets {
		only("socket", seccomp.Condition{Operation: seccomp.Equal, Value: family})
	}
	unknown := seccomp.SyscallGroup{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)}
	return &seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{allowed, unknown}}, nil
}

// load filters the system calls of the calling thread, and of what it starts, in addition to filters that are there.
func load(more []string, sockets []uint64) error {
	p, err := policy(more, sockets)
	if err != nil {
		return err
	}
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Policy: *p}); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
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
