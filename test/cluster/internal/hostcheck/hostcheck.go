// SPDX-License-Identifier: Apache-2.0

// Package hostcheck tells whether this machine can run a test cluster, and if not, the first reason why.
package hostcheck

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/fettle-dev/fettle/test/cluster/internal/cgroup"
)

// capabilities a cluster cannot do without, by bit in CapEff (linux/capability.h).
func capabilities() []capability {
	return []capability{{"CAP_NET_ADMIN", 12}, {"CAP_SYS_ADMIN", 21}, {"CAP_MKNOD", 27}}
}

type capability struct {
	name string
	bit  uint
}

// Run returns the first thing missing, or nil.
func Run() error {
	for _, step := range []func() error{root, capable, tools, filesystems, cgroups, namespaces} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func root() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: run it with sudo")
	}
	return nil
}

func capable() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var effective uint64
	for line := range strings.SplitSeq(string(status), "\n") {
		if _, err := fmt.Sscanf(line, "CapEff: %x", &effective); err == nil {
			break
		}
	}
	for _, c := range capabilities() {
		if effective&(1<<c.bit) == 0 {
			return fmt.Errorf("capability %s is missing: run outside of an unprivileged container", c.name)
		}
	}
	return nil
}

func tools() error {
	for _, t := range []string{"ip", "nsenter", "mount"} {
		if _, err := exec.LookPath(t); err != nil {
			return fmt.Errorf("program %s is missing: install iproute2 and util-linux", t)
		}
	}
	return nil
}

func filesystems() error {
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("read filesystems: %w", err)
	}
	if !strings.Contains(string(data), "\toverlay\n") && exec.Command("modprobe", "overlay").Run() != nil {
		return errors.New("the kernel has no overlay filesystem: enable CONFIG_OVERLAY_FS")
	}
	return nil
}

func cgroups() error {
	hs, err := cgroup.Host()
	if err != nil {
		return err
	}
	t, err := hs.Tracking()
	if err != nil {
		return err
	}
	probe, err := os.MkdirTemp(t.Root, "ft-check-")
	if err != nil {
		return fmt.Errorf("cgroups are read-only: %w", err)
	}
	return os.Remove(probe)
}

// namespaces makes what a cluster makes, in namespaces that end with the probe.
func namespaces() error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader("link add name br0 type bridge\nlink add name probe0 type veth peer name probe1\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		reason, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("no network namespaces with bridge and veth here: %w %s", err, reason)
	}
	return nil
}
