// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The sizes that the floor writes: a record of one device, and one line that is appended to it.
const (
	recordSize = 2 << 10
	lineSize   = 200
)

// floor makes the cheapest durable writes, in a directory of its own on the disk of the plugin's records.
type floor struct {
	dir  string
	log  *os.File
	data []byte
	next atomic.Int64
}

func newFloor(dir string) (*floor, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the floor's directory: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("make the floor's log: %w", err)
	}
	return &floor{dir: dir, log: log, data: bytes.Repeat([]byte("x"), recordSize)}, nil
}

func (f *floor) close() error { return f.log.Close() }

// create times what makes a new file of 2 KiB durable: temporary file, sync, rename, sync of the directory.
func (f *floor) create() (name string, took time.Duration, err error) {
	name = filepath.Join(f.dir, strconv.FormatInt(f.next.Add(1), 10))
	begin := time.Now()
	file, err := os.Create(name + ".tmp")
	if err != nil {
		return "", 0, fmt.Errorf("floor: %w", err)
	}
	_, err = file.Write(f.data)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(name+".tmp", name)
	}
	if err = errors.Join(err, syncDirectory(f.dir)); err != nil {
		return "", 0, fmt.Errorf("floor: %w", err)
	}
	return name, time.Since(begin), nil
}

// add times what makes a line durable at the end of an open file.
func (f *floor) add() (time.Duration, error) {
	begin := time.Now()
	_, err := f.log.Write(f.data[:lineSize])
	if err = errors.Join(err, unix.Fdatasync(int(f.log.Fd()))); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	return time.Since(begin), nil
}

// remove times what makes the end of a file durable.
func (f *floor) remove(name string) (time.Duration, error) {
	begin := time.Now()
	if err := errors.Join(os.Remove(name), syncDirectory(f.dir)); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	return time.Since(begin), nil
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// checkDisk refuses a directory whose syncs cost nothing: every ratio to the floor would be of noise.
func checkDisk(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("%s is in memory, where a sync costs nothing: name a directory on a disk with -state-dir", dir)
	}
	return nil
}

// memoryDir is where everything goes that must not disturb the disk: etcd's data, and the CDI directory, which is on a tmpfs on
// nodes too.
func memoryDir() string {
	const shared = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(shared, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return os.TempDir()
	}
	return shared
}
