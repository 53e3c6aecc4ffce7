// SPDX-License-Identifier: Apache-2.0

package deviceuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/deviceuse"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// host makes a tree: content by name, and a link for content that begins with an arrow.
func host(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		check.Must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if to, link := strings.CutPrefix(content, "-> "); link {
			check.Must(t, os.Symlink(to, at))
			continue
		}
		check.Must(t, os.WriteFile(at, []byte(content+"\n"), 0o644))
	}
	return dir
}

func node(t testing.TB, at string, mode uint32, major, minor uint32) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	check.Must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	check.Must(t, unix.Mknod(at, mode|0o600, int(unix.Mkdev(major, minor))))
}

const (
	disk  = "sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/"
	plain = "sys/bus/pci/devices/0000:02:00.0/"
)

func users(t testing.TB, dir string, functions ...deviceuse.Function) []string {
	t.Helper()
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	found, err := deviceuse.Find(tree, functions)
	check.Must(t, err)
	var out []string
	for _, u := range found {
		out = append(out, u.String())
	}
	return out
}

func function(bus uint8, nodes ...sysfs.Number) deviceuse.Function {
	return deviceuse.Function{Address: pci.Address{Bus: bus}, Nodes: nodes}
}

// TestFind: every sort of use is found, of the functions that were asked for only.
func TestFind(t *testing.T) {
	dir := host(t, map[string]string{
		disk + "dev": "239:0", disk + "subsystem": "-> ../../../../../../class/nvme",
		disk + "nvme0c0n1/hidden": "1",
		disk + "ng0n1/dev":        "238:0", disk + "ng0n1/subsystem": "-> ../../../../../../../class/nvme-generic",
		"sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/dev":                 "259:0",
		"sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/subsystem":           "-> ../../../../../class/block",
		"sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1/dev":       "259:1",
		"sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1/subsystem": "-> ../../../../../../class/block",
		"sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/holders/dm-0":        "-> ../../../../../dm-0",
		"sys/class/block/nvme0n1": "-> ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
		plain + "net/eno1/flags":  "0x1003", plain + "net/eno2/flags": "0x1002",
		plain + "0000:03:00.0/dev": "10:1", // another function below a bridge
		"proc/1/ns/mnt":            "-> mnt:[4026531841]",
		"proc/1/mountinfo":         "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 259:1 / /data rw - xfs /dev/nvme0n1p1 rw\nshort",
		"proc/1/fd/0":              "-> ../../../dev/null",
		"proc/2/ns/mnt":            "-> mnt:[4026531841]", // the same namespace
		"proc/2/mountinfo":         "22 21 259:1 / /again rw - xfs x rw",
		"proc/2/comm":              "nvme-cli", "proc/2/fd/9": "-> ../../../dev/nvme0", "proc/2/fd/8": "-> gone",
		"proc/3/ns/mnt":    "-> mnt:[4026532000]",
		"proc/3/mountinfo": "90 89 259:1 / /in/a/container rw - xfs x rw",
		"proc/3/fd/0":      "-> ../../../dev/null",
		"proc/swaps":       "Filename\tType\tSize\tUsed\tPriority\n/dev/nvme0n1 partition 1 0 -2",
		"proc/sys/none":    "",
	})
	node(t, filepath.Join(dir, "dev/null"), unix.S_IFCHR, 1, 3)
	node(t, filepath.Join(dir, "dev/nvme0"), unix.S_IFCHR, 239, 0)
	node(t, filepath.Join(dir, "dev/nvme0n1"), unix.S_IFBLK, 259, 0)
	want := []string{
		"0000:01:00.0 is in use: mount /data", "0000:01:00.0 is in use: mount /in/a/container", "0000:01:00.0 is in use: nvme0n1 is part of dm-0",
		"0000:01:00.0 is in use: swap on /dev/nvme0n1", "0000:01:00.0 is in use by process 2 (nvme-cli), which has the node c 239:0 open",
		"0000:02:00.0 is in use: interface eno1 is up",
	}
	if diff := cmp.Diff(want, users(t, dir, function(2), function(1))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := users(t, dir, function(3)); got != nil {
		t.Errorf("a function that is not there: %v", got)
	}
	named := users(t, dir, function(3, sysfs.Number{Major: 1, Minor: 3}))
	if len(named) != 2 || !strings.Contains(named[1], "process 3 ()") {
		t.Errorf("by a node that is named: %v", named)
	}
}

// TestCannotTell: a process that cannot be looked at may be a user.
func TestCannotTell(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no proc":            {plain + "dev": "10:1"},
		"fd is no directory": {plain + "dev": "10:1", "proc/7/fd": "x"},
		"garbage":            {plain + "dev": "10"},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := sysfs.Open(host(t, files))
			check.Must(t, err)
			defer tree.Close()
			if users, err := deviceuse.Find(tree, []deviceuse.Function{function(2)}); err == nil {
				t.Errorf("found %v, want an error", users)
			}
		})
	}
}

// TestRealProcess: a device that this process has open is found in the real proc.
func TestRealProcess(t *testing.T) {
	f, err := os.Open("/dev/zero")
	check.Must(t, err)
	defer f.Close()
	tree, err := sysfs.Open("/")
	check.Must(t, err)
	defer tree.Close()
	nodes, err := tree.OpenNodes(fmt.Sprint(os.Getpid()))
	check.Must(t, err)
	zero, err := tree.Number("dev/zero")
	check.Must(t, err)
	found := false
	for _, n := range nodes {
		found = found || n == zero
	}
	if !found {
		t.Errorf("open are %v, want %s", nodes, zero)
	}
}
