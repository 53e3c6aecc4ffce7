// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mount is one call of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// early are the mounts that the first process needs.
func early() []mount {
	return []mount{
		{source: "dev", target: "/dev", kind: "devtmpfs"},
		{source: "proc", target: "/proc", kind: "proc"},
		{source: "sys", target: "/sys", kind: "sysfs"},
	}
}

// newRoot is where the root is made before it becomes the root.
const newRoot = "/root"

// rootMounts make the root: the host's files below, and in memory above them what the machine changes.
//
// Without cache=loose the guest asks the host for every page anew, and a modprobe takes seconds.
func rootMounts() []mount {
	const options = "trans=virtio,version=9p2000.L,msize=512000"
	return []mount{
		{source: "memory", target: "/memory", kind: "tmpfs", data: "mode=755"},
		{source: RootTag, target: "/host", kind: "9p", flags: unix.MS_RDONLY, data: options + ",cache=loose"},
		{
			source: "overlay", target: newRoot, kind: "overlay",
			data: "lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work",
		},
		{source: "dev", target: newRoot + "/dev", kind: "devtmpfs"},
		{source: "devpts", target: newRoot + "/dev/pts", kind: "devpts", data: "ptmxmode=666"},
		{source: "shm", target: newRoot + "/dev/shm", kind: "tmpfs"},
		{source: "proc", target: newRoot + "/proc", kind: "proc"},
		{source: "sys", target: newRoot + "/sys", kind: "sysfs"},
		{source: "cgroup2", target: newRoot + "/sys/fs/cgroup", kind: "cgroup2"},
		{source: "run", target: newRoot + "/run", kind: "tmpfs", data: "mode=755"},
		{source: "temporary", target: newRoot + TempDir, kind: "tmpfs", data: "mode=1777"},
		{source: OutTag, target: newRoot + OutDir, kind: "9p", data: options},
	}
}

// mountAll mounts in order. A target that is missing is made where that is possible.
func mountAll(all []mount) error {
	for _, m := range all {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("make a mount point: %w", err)
		}
		if m.kind == "overlay" {
			for _, dir := range []string{"/memory/upper", "/memory/work"} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return fmt.Errorf("prepare the overlay: %w", err)
				}
			}
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.target, err)
		}
	}
	return nil
}

// enterRoot makes the root of the machine and enters it, as switch_root(8) does: the initramfs cannot be unmounted.
func enterRoot(job Job) error {
	if err := mountAll(rootMounts()); err != nil {
		return err
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	// As an init does; kubelet and the container runtime need it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts: %w", err)
	}
	if err := bind(job.Modules, "/lib/modules"); err != nil {
		return err
	}
	if job.Cache == "" {
		return nil
	}
	return ownCache(job.Cache)
}

// TempDir is for temporary files, and is in memory. /tmp shows the files of the host, of which the repository may be one. The nodes of a
// cluster have a /run and a /dev of their own, and share this.
const TempDir = "/var/tmp"

// ownCache puts an empty file system in memory over a directory, in which bin and tools stay what they are.
func ownCache(dir string) error {
	const aside = "/run/cache"
	kept := []string{"bin", "tools"}
	for _, name := range kept {
		if err := bind(filepath.Join(dir, name), filepath.Join(aside, name)); err != nil {
			return err
		}
	}
	if err := mountAll([]mount{{source: "cache", target: dir, kind: "tmpfs", data: "mode=755,size=75%"}}); err != nil {
		return err
	}
	for _, name := range kept {
		if err := bind(filepath.Join(aside, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// bind shows a directory at another place too.
func bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show %s at %s: %w", from, to, err)
	}
	return nil
}
