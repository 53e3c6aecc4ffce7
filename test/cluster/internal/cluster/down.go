// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/cluster/internal/cgroup"
	"github.com/fettle-dev/fettle/test/cluster/internal/network"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// Down removes all there is of a cluster. It needs no state file: name and state directory suffice to find processes,
// groups, link and mounts, so it works after a kill at any point and after a reboot of the machine.
func Down(state, name string) error {
	ids, err := identities(state, name)
	if err != nil {
		return err
	}
	groups, err := cgroup.Host()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := groups.Kill("/"+id, killLimit); err != nil {
			return err
		}
	}
	if err := unmountBelow(state); err != nil {
		return err
	}
	for _, id := range ids {
		if err := network.RemoveLink(id); err != nil {
			return err
		}
		if err := groups.Remove("/"+id, killLimit); err != nil {
			return err
		}
		if err := hostRecord(groups).Leave(id); err != nil {
			return err
		}
	}
	return removeState(state)
}

// identities are the clusters a state directory may hold: the one of this name and the one that its file names.
func identities(state, name string) ([]string, error) {
	ids := []string{plan.ID(name, state)}
	p, err := plan.Load(state)
	if errors.Is(err, plan.ErrNoCluster) {
		return ids, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(ids, p.ID) {
		ids = append(ids, p.ID)
	}
	return ids, nil
}

// removeState deletes a state directory that is marked as ours or empty, and refuses any other.
func removeState(state string) error {
	entries, err := os.ReadDir(state)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read state directory: %w", err)
	}
	if _, err := plan.Load(state); len(entries) > 0 && errors.Is(err, plan.ErrNoCluster) {
		return fmt.Errorf("%s is not empty and holds no cluster: choose another --state or empty it", state)
	}
	left, err := mountsBelow("/proc/self/mountinfo", state)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("still mounted: %s; unmount before the state is deleted", strings.Join(left, ", "))
	}
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("remove state directory: %w", err)
	}
	return nil
}

// unmountBelow detaches every mount of the host below a directory, innermost first.
func unmountBelow(dir string) error {
	mounts, err := mountsBelow("/proc/self/mountinfo", dir)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return nil
}

// mountsBelow lists mount points under dir, in order of mounting.
func mountsBelow(mountinfo, dir string) ([]string, error) {
	data, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
	var found []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found, nil
}

// Left lists everything a cluster should have taken with it.
func Left(state, name string) ([]string, error) {
	ids, err := identities(state, name)
	if err != nil {
		return nil, err
	}
	groups, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, id := range ids {
		pids, err := groups.Procs("/" + id)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
		for _, dir := range groups.Left("/" + id) {
			left = append(left, "cgroup "+dir)
		}
		if network.HasLink(id) {
			left = append(left, "link "+id)
		}
		if hostRecord(groups).Has(id) {
			left = append(left, "record of host changes")
		}
		left = append(left, marked(id)...)
	}
	left = append(left, mountedAnywhere(state)...)
	if _, err := os.Stat(state); err == nil {
		left = append(left, "directory "+state)
	}
	return left, nil
}

// marked finds processes by the environment that every daemon has, wherever they are.
func marked(id string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if env, err := os.ReadFile(f); err == nil && slices.Contains(strings.Split(string(env), "\x00"), "FETTLE_CLUSTER="+id) {
			found = append(found, "marked process "+filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}

// mountedAnywhere finds mounts of the state directory in the namespaces of all processes.
func mountedAnywhere(state string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, f := range files {
		mounts, err := mountsBelow(f, state)
		if err == nil && len(mounts) > 0 {
			found = append(found, fmt.Sprintf("%d mounts seen by process %s", len(mounts), filepath.Base(filepath.Dir(f))))
		}
	}
	return found
}
