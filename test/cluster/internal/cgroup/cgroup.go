// SPDX-License-Identifier: Apache-2.0

// Package cgroup makes, fills, kills and removes the control groups of a cluster in every hierarchy of the host, v1 or
// v2. A cluster's processes never leave its groups, so the groups are how all of them are found again, containers
// included, also after the program that started them was killed.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Hierarchy is one mounted cgroup tree.
type Hierarchy struct {
	Root        string
	Controllers []string // v1: the mount's controllers, or name=...; v2: unused
	V2          bool
}

// Hierarchies are all of a host.
type Hierarchies []Hierarchy

// Host reads the hierarchies of this machine.
func Host() (Hierarchies, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer f.Close()
	return Parse(f)
}

// Parse reads the hierarchies of a /proc/PID/mountinfo, each once.
func Parse(mountinfo io.Reader) (Hierarchies, error) {
	var hs Hierarchies
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		mount, super, ok := strings.Cut(lines.Text(), " - ")
		m, s := strings.Fields(mount), strings.Fields(super)
		if !ok || len(m) < 5 || len(s) < 3 || !strings.HasPrefix(s[0], "cgroup") {
			continue
		}
		h := Hierarchy{Root: m[4], V2: s[0] == "cgroup2"}
		if !h.V2 {
			h.Controllers = controllers(s[2])
		}
		hs = append(hs, h)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	return hs, nil
}

// controllers drops the mount options from a v1 superblock's option list.
func controllers(options string) []string {
	var cs []string
	for o := range strings.SplitSeq(options, ",") {
		if o != "rw" && o != "ro" && o != "xattr" && !strings.HasPrefix(o, "release_agent=") {
			cs = append(cs, o)
		}
	}
	return cs
}

// Tracking is the hierarchy that answers which processes a group has: v1's pids, else v2.
func (hs Hierarchies) Tracking() (Hierarchy, error) {
	for _, h := range hs {
		if slices.Contains(h.Controllers, "pids") {
			return h, nil
		}
	}
	for _, h := range hs {
		if h.V2 {
			return h, nil
		}
	}
	return Hierarchy{}, errors.New("no cgroup hierarchy with the pids controller is mounted")
}

// Create makes group and its parents in every hierarchy, usable by a kubelet as its root or by processes.
func (hs Hierarchies) Create(group string) error {
	for _, h := range hs {
		dir := h.Root
		for _, elem := range strings.Split(strings.Trim(group, "/"), "/") {
			if err := h.prepareParent(dir); err != nil {
				return err
			}
			parent := dir
			dir = filepath.Join(dir, elem)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			if err := h.inheritCPUSet(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepareParent lets the children of a v2 group use all of its controllers.
func (h Hierarchy) prepareParent(dir string) error {
	if !h.V2 {
		return nil
	}
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	for _, c := range strings.Fields(string(have)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("enable cgroup controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCPUSet copies the parent's values: v1 creates cpuset groups empty, and an empty one takes no process.
func (h Hierarchy) inheritCPUSet(parent, dir string) error {
	if !slices.Contains(h.Controllers, "cpuset") {
		return nil
	}
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		v, err := os.ReadFile(filepath.Join(parent, f))
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), v, 0o644); err != nil {
			return fmt.Errorf("set cpuset: %w", err)
		}
	}
	return nil
}
