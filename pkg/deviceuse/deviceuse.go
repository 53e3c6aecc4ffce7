// SPDX-License-Identifier: Apache-2.0

// Package deviceuse finds who uses a PCI function, before its driver is taken away: processes that have one of its device nodes open,
// mounts and volumes on its disks, network interfaces that are up. It reads the host tree and opens no device.
package deviceuse

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// User is one use of a function.
type User struct {
	Function pci.Address
	// PID and Name identify a process. PID is 0 for a use that is no process's.
	PID  int
	Name string
	// What is used: "c 195:0", "mount /data", "interface eth0".
	What string
}

// String says who uses what.
func (u User) String() string {
	if u.PID == 0 {
		return fmt.Sprintf("%s is in use: %s", u.Function, u.What)
	}
	return fmt.Sprintf("%s is in use by process %d (%s), which has the node %s open", u.Function, u.PID, u.Name, u.What)
}

// Function is a function to look for, with the nodes that its own directory does not tell, such as NVIDIA's.
type Function struct {
	Address pci.Address
	Nodes   []sysfs.Number
}

// Find returns the users of functions, sorted. It fails where it cannot tell: a process whose open files cannot be listed may be one.
func Find(tree *sysfs.Tree, functions []Function) ([]User, error) {
	owners := map[sysfs.Number]pci.Address{}
	var users []User
	for _, f := range functions {
		below, err := nodesBelow(tree, f.Address)
		if err != nil {
			return nil, err
		}
		for _, n := range append(below.numbers, f.Nodes...) {
			owners[n] = f.Address
		}
		for _, what := range below.uses {
			users = append(users, User{Function: f.Address, What: what})
		}
	}
	open, err := openers(tree, owners)
	if err != nil {
		return nil, err
	}
	swapped, err := swaps(tree, owners)
	if err != nil {
		return nil, err
	}
	users = slices.Concat(users, open, swapped)
	slices.SortFunc(users, compare)
	return slices.Compact(users), nil
}

func compare(a, b User) int {
	return cmp.Or(a.Function.Compare(b.Function), cmp.Compare(a.PID, b.PID), cmp.Compare(a.What, b.What))
}

// openers looks at every process and at every mount namespace once.
func openers(tree *sysfs.Tree, owners map[sysfs.Number]pci.Address) ([]User, error) {
	if len(owners) == 0 {
		return nil, nil
	}
	names, err := tree.ReadDir(sysfs.Proc)
	if err != nil {
		return nil, fmt.Errorf("find the users of a device: %w", err)
	}
	var users []User
	namespaces := map[string]bool{}
	for _, pid := range names {
		number, err := strconv.Atoi(pid)
		if err != nil {
			continue
		}
		nodes, err := tree.OpenNodes(pid)
		if err != nil {
			return nil, fmt.Errorf("find the users of a device (CAP_SYS_PTRACE is needed): %w", err)
		}
		for _, n := range nodes {
			if owner, ok := owners[n]; ok {
				users = append(users, User{Function: owner, PID: number, Name: nameOf(tree, pid), What: n.String()})
			}
		}
		mounted, err := mounts(tree, pid, namespaces, owners)
		if err != nil {
			return nil, err
		}
		users = append(users, mounted...)
	}
	return users, nil
}

// nameOf is the name of a process, empty for one that ended.
func nameOf(tree *sysfs.Tree, pid string) string {
	name, err := tree.ReadString(path.Join(sysfs.Proc, pid, "comm"))
	if err != nil {
		return ""
	}
	return name
}

// mounts looks for file systems on the functions' disks in a process's mount namespace, unless it was looked at before.
func mounts(tree *sysfs.Tree, pid string, seen map[string]bool, owners map[sysfs.Number]pci.Address) ([]User, error) {
	dir := path.Join(sysfs.Proc, pid)
	namespace, err := tree.ReadLink(path.Join(dir, "ns/mnt"))
	if err != nil || seen[namespace] { // A process that ended has none.
		return nil, unlessGone(err)
	}
	seen[namespace] = true
	var users []User
	err = tree.Lines(path.Join(dir, "mountinfo"), func(line string) bool {
		fields := strings.Fields(line) // 36 35 98:0 /mnt1 /mnt2 rw,noatime ... (proc_pid_mountinfo(5))
		if len(fields) < 5 {
			return true
		}
		major, minor, ok := numbers(fields[2])
		if owner, ours := owners[sysfs.Number{Block: true, Major: major, Minor: minor}]; ok && ours {
			users = append(users, User{Function: owner, What: "mount " + fields[4]})
		}
		return true
	})
	return users, unlessGone(err)
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// swaps looks for swap space on the functions' disks.
func swaps(tree *sysfs.Tree, owners map[sysfs.Number]pci.Address) ([]User, error) {
	var users []User
	err := tree.Lines(sysfs.ProcSwaps, func(line string) bool {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := tree.Number(strings.TrimPrefix(name, "/"))
		if owner, ours := owners[number]; err == nil && ours {
			users = append(users, User{Function: owner, What: "swap on " + name})
		}
		return true
	})
	return users, unlessGone(err)
}

// below is what the directory of a function holds.
type below struct {
	numbers []sysfs.Number
	uses    []string
}

// deepest bounds the walk below a function. The deepest node is that of an input device of a sound card.
const deepest = 8

func nodesBelow(tree *sysfs.Tree, address pci.Address) (below, error) {
	var found below
	err := found.walk(tree, path.Join(sysfs.PCIDevice(address.String())), deepest)
	if errors.Is(err, fs.ErrNotExist) {
		return below{}, nil
	}
	return found, err
}

// walk collects the dev attributes below a directory. It follows no link, and does not enter other PCI functions.
func (b *below) walk(tree *sysfs.Tree, dir string, depth int) error {
	names, err := tree.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.Contains(names, "dev") {
		major, minor, err := tree.ReadDev(path.Join(dir, "dev"))
		if err != nil {
			return unlessGone(err)
		}
		kind, err := tree.LinkBase(path.Join(dir, "subsystem"))
		if err := unlessGone(err); err != nil {
			return err
		}
		b.numbers = append(b.numbers, sysfs.Number{Block: kind == "block", Major: major, Minor: minor})
	}
	for _, name := range names {
		at := path.Join(dir, name)
		if _, err := pci.Parse(name); err == nil || depth == 0 {
			continue
		}
		info, err := tree.Lstat(at)
		if err != nil || !info.IsDir() {
			continue // What went away meanwhile is used no longer.
		}
		if err := b.used(tree, dir, name); err != nil {
			return err
		}
		if err := b.walk(tree, at, depth-1); unlessGone(err) != nil {
			return err
		}
		if head := multipathDisk(name); head != "" {
			if err := b.walk(tree, path.Join(sysfs.ClassBlock, head), depth-1); unlessGone(err) != nil {
				return err
			}
		}
	}
	return nil
}

// multipathDisk is the disk that users see of a path to an NVMe namespace: nvme0n1 of nvme0c1n1 (drivers/nvme/host/multipath.c). It is
// below the subsystem, not below the function. The result is empty for any other name.
func multipathDisk(name string) string {
	match := multipathName.FindStringSubmatch(name)
	if match == nil {
		return ""
	}
	return match[1] + match[2]
}

//nolint:gochecknoglobals // a constant that Go cannot express as one
var multipathName = regexp.MustCompile(`^(nvme[0-9]+)c[0-9]+(n[0-9]+)$`)

// used notes volumes above a disk and network interfaces that are up. They have no node that a process opens.
func (b *below) used(tree *sysfs.Tree, dir, name string) error {
	const up = 1 // IFF_UP of include/uapi/linux/if.h
	switch {
	case name == "holders":
		holders, err := tree.ReadDir(path.Join(dir, name))
		for _, holder := range holders {
			b.uses = append(b.uses, fmt.Sprintf("%s is part of %s", path.Base(dir), holder))
		}
		return unlessGone(err)
	case path.Base(dir) == "net":
		flags, err := tree.ReadHex(path.Join(dir, name, "flags"))
		if err == nil && flags&up != 0 {
			b.uses = append(b.uses, fmt.Sprintf("interface %s is up", name))
		}
		return unlessGone(err)
	}
	return nil
}

// numbers reads MAJOR:MINOR.
func numbers(text string) (major, minor int64, ok bool) {
	left, right, found := strings.Cut(text, ":")
	major, errMajor := strconv.ParseInt(left, 10, 32)
	minor, errMinor := strconv.ParseInt(right, 10, 32)
	return major, minor, found && errMajor == nil && errMinor == nil
}
