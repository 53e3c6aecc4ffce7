// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/hostmount"
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

// base returns the directory that a daemon's own is in. What the plugin mounted for its claim tells, so a daemon has the same directories
// after the supervisor was replaced.
func (c *Config) base(id string) string {
	if there, err := hostmount.In(filepath.Join(c.Root, mps.MemoryDir), "").Has(path.Join(id, mps.PipeName)); err == nil && there {
		return mps.MemoryDir
	}
	return mps.ClaimsDir
}

// makeDirs makes the daemon's directories, and empties those that an earlier process of it used. The pipe directory itself stays, since
// containers have it mounted. No link below the claims' directory is followed.
func (d *daemon) makeDirs(ctx context.Context) error {
	base := filepath.Join(d.config.Root, d.base)
	var err error
	if d.base == mps.ClaimsDir {
		err = makeWay(base, d.ID)
	}
	for _, name := range mps.Directories() { // mounts are there, and a container may have changed the mode of one
		if err == nil {
			err = makeDir(base, filepath.Join(d.ID, name), modeOpen)
		}
	}
	if err != nil {
		return fmt.Errorf("make the daemon's directories: %w", err)
	}
	if pipes := filepath.Join(d.config.Root, d.dir(mps.PipeName)); d.Context != "" {
		if err := d.config.Relabel(pipes, d.Context); err != nil {
			return fmt.Errorf("let containers use the daemon's pipes by the SELinux context %s of %s: %w: the supervisor must run as a type that "+
				"may relabel files, such as spc_t (kubeletPlugin.seLinuxOptions)", d.Context, pipes, err)
		}
	}
	if err := d.config.empty(ctx, d.base, d.ID); err != nil {
		return fmt.Errorf("empty the daemon's directories: %w", err)
	}
	return nil
}

// makeWay makes the way to plain directories of a daemon.
func makeWay(claims, id string) error {
	if err := os.MkdirAll(claims, modeWay); err != nil {
		return err
	}
	if err := makeDir(claims, ".", modeWay); err != nil {
		return err
	}
	return makeDir(claims, id, modeWay)
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

// openDir opens one of a daemon's directories, to which no link leads.
func (c *Config) openDir(base, id, name string) (*os.Root, error) {
	dir, err := rootfs.Beneath(filepath.Join(c.Root, base), filepath.Join(id, name))
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

// empty removes what is in the directories of a daemon, without following links: containers may have made some.
func (c *Config) empty(ctx context.Context, base, id string) error {
	for _, name := range mps.Directories() {
		dir, err := c.openDir(base, id, name)
		if err != nil {
			return err
		}
		if err := errors.Join(hostdir.Empty(ctx, hostdir.OS{Root: dir}), dir.Close()); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the directory of a daemon. Mounts are emptied: only the plugin can take them away.
func (c *Config) remove(ctx context.Context, id string) error {
	if c.base(id) == mps.MemoryDir {
		if err := c.empty(ctx, mps.MemoryDir, id); err != nil {
			return fmt.Errorf("empty the directories of MPS daemon %s: %w", id, err)
		}
	}
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
	dir, err := d.config.openDir(d.base, d.ID, mps.LogName)
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
