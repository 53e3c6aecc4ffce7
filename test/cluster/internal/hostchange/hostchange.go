// SPDX-License-Identifier: Apache-2.0

// Package hostchange records the few things clusters change on the host itself, so that the last cluster to leave puts
// them back: mount points that had to be created, and kernel settings that every kubelet overwrites.
//
// One record serves all clusters of the machine: removing a directory would silently take away the mount that another
// cluster's namespace has on it, and a setting saved by a second cluster would be the first one's.
package hostchange

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// A Record is kept in one file, locked while it is read and changed.
type Record struct {
	// File is where the record lives while any cluster runs.
	File string
	// Settings are the files of kernel settings to put back.
	Settings []string
	// Alive tells of a cluster ID whether the cluster still exists.
	Alive func(id string) bool
}

type content struct {
	Clusters []string          `json:"clusters"`
	Created  []string          `json:"created"` // parents first
	Settings map[string]string `json:"settings"`
}

// KubeletSettings are written by the kubelet (pkg/kubelet/cm setupKernelTunables); they are not per namespace, and
// covering them in the node's /proc would forbid the fresh /proc that pods with a user namespace need.
func KubeletSettings() []string {
	return []string{
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic",
		"/proc/sys/kernel/panic_on_oops", "/proc/sys/kernel/keys/root_maxkeys", "/proc/sys/kernel/keys/root_maxbytes",
	}
}

// Enter notes a cluster and makes the directories it mounts on.
func (r Record) Enter(id string, dirs []string) error {
	return r.change(func(c *content) error {
		if len(c.Clusters) == 0 {
			c.Settings = read(r.Settings)
		}
		if !slices.Contains(c.Clusters, id) {
			c.Clusters = append(c.Clusters, id)
		}
		for _, d := range dirs {
			created, err := makeDirs(d)
			c.Created = append(c.Created, created...)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Leave forgets a cluster; without any other the host gets back what it was.
func (r Record) Leave(id string) error {
	if _, err := os.Stat(r.File); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return r.change(func(c *content) error {
		c.Clusters = slices.DeleteFunc(c.Clusters, func(other string) bool { return other == id || !r.Alive(other) })
		if len(c.Clusters) > 0 {
			return nil
		}
		for _, d := range slices.Backward(c.Created) {
			_ = os.Remove(d) // somebody uses it now, then it stays
		}
		var errs []error
		for file, value := range c.Settings {
			errs = append(errs, os.WriteFile(file, []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
}

// Has tells whether a cluster is noted.
func (r Record) Has(id string) bool {
	data, err := os.ReadFile(r.File)
	if err != nil {
		return false
	}
	var c content
	return json.Unmarshal(data, &c) == nil && slices.Contains(c.Clusters, id)
}

func (r Record) change(edit func(*content) error) error {
	f, err := r.lock()
	if err != nil {
		return fmt.Errorf("open record of host changes: %w", err)
	}
	defer f.Close()
	var c content
	if err := json.NewDecoder(f).Decode(&c); err != nil {
		c = content{} // new, or torn by a crash
	}
	editErr := edit(&c)
	if len(c.Clusters) == 0 {
		return errors.Join(editErr, os.RemoveAll(filepath.Dir(r.File)))
	}
	data, err := json.Marshal(c)
	if err != nil {
		return errors.Join(editErr, err)
	}
	if err := f.Truncate(0); err != nil {
		return errors.Join(editErr, err)
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(editErr, err)
}

// lock opens and locks the file that has the name at the end: the one it opened first may be removed meanwhile.
func (r Record) lock() (*os.File, error) {
	for {
		if err := os.MkdirAll(filepath.Dir(r.File), 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(r.File, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			f.Close()
			return nil, err
		}
		mine, err1 := f.Stat()
		named, err2 := os.Stat(r.File)
		if err1 == nil && err2 == nil && os.SameFile(mine, named) {
			return f, nil
		}
		f.Close()
	}
}

func read(files []string) map[string]string {
	values := map[string]string{}
	for _, f := range files {
		if v, err := os.ReadFile(f); err == nil {
			values[f] = string(v)
		}
	}
	return values
}

// makeDirs is os.MkdirAll that tells what it made.
func makeDirs(dir string) ([]string, error) {
	if _, err := os.Stat(dir); err == nil {
		return nil, nil
	}
	created, err := makeDirs(filepath.Dir(dir))
	if err != nil {
		return created, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return created, fmt.Errorf("make mount point: %w", err)
	}
	return append(created, dir), nil
}
