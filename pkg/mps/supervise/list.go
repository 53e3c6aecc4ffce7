// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mps"
)

// list is what a supervisor shall run: a directory with a file for each daemon, named by its id.
type list struct {
	fs     disk.FS
	dir    string
	bootID string
}

const listVersion = 1

// entry is the content of a file.
type entry struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	// Daemon is read by mps.ParseDaemon.
	Daemon json.RawMessage `json:"daemon"`
}

func (l list) makeDir() error {
	err := disk.MkdirAll(l.fs, l.dir, 0o700)
	if err == nil {
		err = l.fs.SyncDir(filepath.Dir(l.dir))
	}
	if err != nil {
		return fmt.Errorf("make the list of MPS daemons: %w", err)
	}
	return nil
}

// add adds a daemon durably.
func (l list) add(d *mps.Daemon) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode MPS daemon %s: %w", d.ID, err)
	}
	data, err := json.Marshal(entry{Version: listVersion, BootID: l.bootID, Daemon: raw})
	if err == nil {
		err = disk.ReplaceDurably(l.fs, filepath.Join(l.dir, d.ID), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that MPS daemon %s shall run: %w", d.ID, err)
	}
	return nil
}

// remove removes a daemon durably.
func (l list) remove(id string) error {
	err := disk.RemoveIfThere(l.fs, filepath.Join(l.dir, id))
	if err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		return fmt.Errorf("note that MPS daemon %s shall not run: %w", id, err)
	}
	return nil
}

// load returns the daemons of this boot, and removes all else. A file that cannot be read is an error: which daemon it was is not known,
// and its claim may have containers.
func (l list) load() ([]mps.Daemon, error) {
	files, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return nil, fmt.Errorf("read the list of MPS daemons: %w", err)
	}
	var out []mps.Daemon
	for _, f := range files {
		path := filepath.Join(l.dir, f.Name())
		if strings.HasPrefix(f.Name(), disk.TemporaryPrefix) {
			if err := disk.RemoveIfThere(l.fs, path); err != nil {
				return nil, fmt.Errorf("remove what a write left: %w", err)
			}
			continue
		}
		data, err := l.fs.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the list of MPS daemons: %w", err)
		}
		d, boot, err := parse(data)
		if err != nil || d.ID != f.Name() {
			return nil, fmt.Errorf("%s cannot be used: delete the pods of that claim, then remove the file: %w", path, err)
		}
		if boot == l.bootID {
			out = append(out, *d)
		} else if err := l.remove(d.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func parse(data []byte) (*mps.Daemon, string, error) {
	var e entry
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, "", fmt.Errorf("parse it: %w", err)
	}
	if e.Version != listVersion {
		return nil, "", fmt.Errorf("it has version %d, want %d", e.Version, listVersion)
	}
	d, err := mps.ParseDaemon(e.Daemon)
	return d, e.BootID, err
}
