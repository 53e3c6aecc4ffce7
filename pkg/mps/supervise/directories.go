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

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/rootfs"
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
// containers have it mounted. No link below the claims' directory is followed.
func (d *daemon) makeDirs(ctx context.Context) error {
	claims := filepath.Join(d.config.Root, mps.ClaimsDir)
	if err := os.MkdirAll(claims, modeWay); err != nil {
		return fmt.Errorf("make the daemon's directories: %w", err)
	}
	for _, dir := range []struct {
		name string
		mode fs.FileMode
	}{
		{".", modeWay},
		{d.ID, modeWay},
		{filepath.Join(d.ID, mps.PipeName), modeOpen},
		{filepath.Join(d.ID, mps.LogName), modeOpen},
	} {
		if err := makeDir(claims, dir.name, dir.mode); err != nil {
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
		if err := d.empty(ctx, name); err != nil {
			return fmt.Errorf("empty the daemon's directories: %w", err)
		}
	}
	return nil
}

// makeDir makes a directory below another, and gives it a mode.
func makeDir(below, name string, mode fs.FileMode) error {
	if name != "." {
		parent, err := rootfs.Beneath(below, filepath.Dir(name))
		if err != nil {
			return err
		}
		defer parent.Close()
		if err := unix.Mkdirat(int(parent.Fd()), filepath.Base(name), uint32(mode)); err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: filepath.Join(below, name), Err: err}
		}
	}
	dir, err := rootfs.Beneath(below, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "mkdir", Path: dir.Name(), Err: unix.ENOTDIR}
	}
	if err != nil {
		return err
	}
	return os.Chmod(descriptor(dir), mode)
}

// descriptor is a path to what a descriptor is open for, which nobody else can change.
func descriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openDir opens one of the daemon's directories, to which no link leads.
func (d *daemon) openDir(name string) (*os.Root, error) {
	dir, err := rootfs.Beneath(filepath.Join(d.config.Root, mps.ClaimsDir), filepath.Join(d.ID, name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return os.OpenRoot(descriptor(dir))
}

// relabel is Relabel's default. Sockets that are made in the directory get its context.
func relabel(path, context string) error {
	return unix.Lsetxattr(path, "security.selinux", []byte(context), 0)
}

// empty removes what is in a directory, without following links: containers may have made some.
func (d *daemon) empty(ctx context.Context, name string) error {
	dir, err := d.openDir(name)
	if err != nil {
		return err
	}
	return errors.Join(hostdir.Empty(ctx, hostdir.OS{Root: dir}), dir.Close())
}

// remove removes the directory of a daemon.
func (c *Config) remove(ctx context.Context, id string) error {
	claims, err := hostdir.OpenRoot(filepath.Join(c.Root, mps.ClaimsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(hostdir.Remove(ctx, claims, id), claims.Close())
	}
	if err != nil {
		return fmt.Errorf("remove the directory of MPS daemon %s: %w", id, err)
	}
	return nil
}

// trimLogs cuts logs that grew too large. Containers do not have them, but servers that run as their users write to them.
func (d *daemon) trimLogs(ctx context.Context) {
	dir, err := d.openDir(mps.LogName)
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
		f, failed := dir.OpenFile(e.Name(), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if failed == nil {
			failed = errors.Join(f.Truncate(0), f.Close())
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Logs of MPS daemon are not cut")
	}
}
