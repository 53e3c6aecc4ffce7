// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/mps"
)

const (
	// modeWay lets users go through a directory and not list it: the server of a client that is not root must reach its pipes.
	modeWay = 0o711
	// modeOpen lets the servers and clients of all users use the pipes and write logs. Only the claim's containers have the pipes.
	modeOpen = 0o777
	// maxLog is the size beyond which a log is cut to nothing.
	maxLog = 4 << 20
)

// makeDirs makes the daemon's directories, and empties those that an earlier process of it used. The pipe directory itself stays, since
// containers have it mounted.
func (d *daemon) makeDirs() error {
	for _, dir := range []struct {
		path string
		mode fs.FileMode
	}{
		{filepath.Dir(mps.ClaimsDir), modeWay},
		{mps.ClaimsDir, modeWay},
		{d.dir(), modeWay},
		{d.dir(mps.PipeName), modeOpen},
		{d.dir(mps.LogName), modeOpen},
	} {
		path := filepath.Join(d.config.Root, dir.path)
		if err := os.MkdirAll(path, dir.mode); err != nil {
			return fmt.Errorf("make the daemon's directories: %w", err)
		}
		if dir.path == filepath.Dir(mps.ClaimsDir) {
			continue // it has others' directories too
		}
		if err := os.Chmod(path, dir.mode); err != nil {
			return fmt.Errorf("make the daemon's directories: %w", err)
		}
	}
	if pipes := filepath.Join(d.config.Root, d.dir(mps.PipeName)); d.Context != "" {
		if err := d.config.Relabel(pipes, d.Context); err != nil {
			return fmt.Errorf("let containers use the daemon's pipes by the SELinux context %s of %s: %w: the supervisor must run as a type that "+
				"may relabel files, such as spc_t (kubeletPlugin.seLinuxOptions)", d.Context, pipes, err)
		}
	}
	for _, name := range []string{mps.PipeName, mps.LogName} {
		if err := empty(filepath.Join(d.config.Root, d.dir(name))); err != nil {
			return fmt.Errorf("empty the daemon's directories: %w", err)
		}
	}
	return nil
}

// relabel is Relabel's default. Sockets that are made in the directory get its context.
func relabel(path, context string) error {
	return unix.Lsetxattr(path, "security.selinux", []byte(context), 0)
}

// empty removes what is in a directory, without following links: containers may have made some.
func empty(path string) error {
	dir, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	var faults []error
	for _, e := range entries {
		faults = append(faults, dir.RemoveAll(e.Name()))
	}
	return errors.Join(faults...)
}

// trimLogs cuts logs that grew too large. Containers do not have them, but servers that run as their users write to them.
func (d *daemon) trimLogs(ctx context.Context) {
	dir, err := os.OpenRoot(filepath.Join(d.config.Root, d.dir(mps.LogName)))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Logs of MPS daemon are not looked at")
		return
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	for _, e := range entries {
		info, failed := e.Info()
		if failed != nil || !info.Mode().IsRegular() || info.Size() <= maxLog {
			continue
		}
		f, failed := dir.OpenFile(e.Name(), os.O_WRONLY, 0)
		if failed == nil {
			failed = errors.Join(f.Truncate(0), f.Close())
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Logs of MPS daemon are not cut")
	}
}
