// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Join moves a process into a group of the tracking hierarchy.
func (hs Hierarchies) Join(group string, pid int) error {
	t, err := hs.Tracking()
	if err != nil {
		return err
	}
	file := filepath.Join(t.Root, group, "cgroup.procs")
	if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("join cgroup %s: %w", group, err)
	}
	return nil
}

// Procs lists the processes of a group and of all groups below it; a group that does not exist has none.
func (hs Hierarchies) Procs(group string) ([]int, error) {
	t, err := hs.Tracking()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range below(filepath.Join(t.Root, group)) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup %s: %w", group, err)
		}
		for _, field := range strings.Fields(string(data)) {
			// 0 stands for a process of a PID namespace that we cannot see.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Kill sends SIGKILL to all processes of a group until none is left. It repeats, because a process may fork between
// the listing and the signal.
func (hs Hierarchies) Kill(group string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		pids, err := hs.Procs(group)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s still has processes %v after SIGKILL and %s", group, pids, limit)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Remove deletes a group with all below it from every hierarchy, waiting for the kernel to let go of dead processes.
func (hs Hierarchies) Remove(group string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for _, h := range hs {
		for {
			err := removeTree(filepath.Join(h.Root, group))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup %s: %w", group, err)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	return nil
}

func removeTree(dir string) error {
	dirs := below(dir)
	slices.Reverse(dirs)
	for _, d := range dirs {
		if err := syscall.Rmdir(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return nil
}

// below lists dir and its directories, parents first. What vanishes meanwhile is left out.
func below(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// Left lists the directories of a group that exist in any hierarchy.
func (hs Hierarchies) Left(group string) []string {
	var left []string
	for _, h := range hs {
		if _, err := os.Stat(filepath.Join(h.Root, group)); err == nil {
			left = append(left, filepath.Join(h.Root, group))
		}
	}
	return left
}
