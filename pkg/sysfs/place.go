// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/container"
)

// Places tells where directories of the tree are. It reads the table of mounts once: use one for each look at the machine.
type Places struct {
	tree  *Tree
	table string
}

// Places reads the table of mounts of this process, in which a mount of the host has an entry if the tree shows it.
func (t *Tree) Places() (Places, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Places{}, fmt.Errorf("read the table of mounts: %w", err)
	}
	return Places{tree: t, table: string(table)}, nil
}

// Of returns where a directory is. It is the zero value where the kernel does not say it: before 5.8, and for what was mounted since the
// table was read. Without a table, as Places returns it beside an error, it is not known where anything is.
func (p Places) Of(name string) (container.Place, error) {
	if p.tree == nil {
		return container.Place{}, fmt.Errorf("locate %s: the table of mounts was not read", HostPath(name))
	}
	f, err := p.tree.root.directory(name)
	if err != nil {
		return container.Place{}, failed("locate", name, err)
	}
	defer f.Close()
	var stat unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &stat); err != nil {
		return container.Place{}, failed("locate", name, err)
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || stat.Mask&unix.STATX_MNT_ID == 0 {
		return container.Place{}, err
	}
	for line := range strings.Lines(p.table) {
		fields := strings.Fields(line) // 36 35 98:0 /mnt1 /mnt2 rw,noatime ... (proc_pid_mountinfo(5))
		if len(fields) < 6 || fields[0] != fmt.Sprint(stat.Mnt_id) {
			continue
		}
		if below, ok := strings.CutPrefix(at, strings.TrimSuffix(unescape(fields[4]), "/")); ok {
			return container.Place{FileSystem: fields[2], Path: path.Join(unescape(fields[3]), below), Directory: numbers(f, &stat)}, nil
		}
	}
	return container.Place{}, nil
}

// numbers are those of a directory, unless its file system makes up an inode each time.
func numbers(f *os.File, stat *unix.Statx_t) string {
	var about unix.Statfs_t
	made := []int64{unix.OVERLAYFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC}
	if err := unix.Fstatfs(int(f.Fd()), &about); err != nil || slices.Contains(made, about.Type) {
		return ""
	}
	return fmt.Sprintf("%d:%d %d", stat.Dev_major, stat.Dev_minor, stat.Ino)
}

// unescape reads a path as the table of mounts writes it (fs/proc_namespace.c, mangle).
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
