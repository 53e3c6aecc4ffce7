// SPDX-License-Identifier: Apache-2.0

// Package hostdir gives directories of the host to claims and empties them in between. It moves what one workload wrote aside at once and
// deletes it later. Until that is done the directory is dirty and must not be given to another claim.
//
// The state is in the directory itself, as a subdirectory with a name for this purpose, so that it survives whatever happens to the plugin.
package hostdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// trashPrefix begins the names of the subdirectories that hold what was moved aside. It sorts before most names and is hidden.
const trashPrefix = ".fettle-trash-"

// scratchMode lets every user of a pod write, and lets no user remove files of another, as in /tmp.
const scratchMode = 0o777 | os.ModeSticky

// Owner holds the owner and mode that a directory had before a claim got it.
type Owner struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Mode uint32 `json:"mode"`
}

// Root lists the operations below a directory: the methods of *os.Root, and SyncDir.
type Root interface {
	Open(name string) (*os.File, error)
	OpenRoot(name string) (Root, error)
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Chmod(name string, mode fs.FileMode) error
	Chown(name string, uid, gid int) error
	Mkdir(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	Close() error
}

// OS implements Root with the operating system's calls.
type OS struct{ *os.Root }

// OpenRoot calls os.Root.OpenRoot.
func (r OS) OpenRoot(name string) (Root, error) {
	root, err := r.Root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return OS{root}, nil
}

// SyncDir syncs the directory itself.
func (r OS) SyncDir(name string) error {
	d, err := r.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Dir is a directory for claims. It never touches anything outside it: it does not follow links that a workload made.
type Dir struct {
	root Root
	name string
}

// OpenRoot opens a directory with the operating system's calls.
func OpenRoot(path string) (Root, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return OS{root}, nil
}

// Open opens a directory. The last element of the path must be a directory itself, not a link to one.
func Open(path string) (*Dir, error) { return openWith(OpenRoot, path) }

func openWith(open func(path string) (Root, error), path string) (*Dir, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("open host directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open host directory %s: is a %s, expected a directory", path, info.Mode().Type())
	}
	root, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("open host directory: %w", err)
	}
	return &Dir{root: root, name: path}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Owner reads the owner and mode, for Restore.
func (d *Dir) Owner() (Owner, error) {
	info, err := d.root.Stat(".")
	if err != nil {
		return Owner{}, fmt.Errorf("read the owner of %s: %w", d.name, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Owner{}, fmt.Errorf("read the owner of %s: no owner on this platform", d.name)
	}
	return Owner{UID: int(stat.Uid), GID: int(stat.Gid), Mode: uint32(info.Mode())}, nil
}

// OpenUp makes the directory writable for every user of the pod that gets it.
func (d *Dir) OpenUp() error {
	if err := d.root.Chmod(".", scratchMode); err != nil {
		return fmt.Errorf("open %s for a claim's users: %w", d.name, err)
	}
	return nil
}

// Restore puts owner and mode back.
func (d *Dir) Restore(ctx context.Context, o Owner) error {
	err := errors.Join(
		withRoom(ctx, d.root, "", func() error { return d.root.Chown(".", o.UID, o.GID) }),
		withRoom(ctx, d.root, "", func() error { return d.root.Chmod(".", os.FileMode(o.Mode)) }),
	)
	if err != nil {
		return fmt.Errorf("restore the owner and mode of %s: %w", d.name, err)
	}
	return nil
}

// Dirty reports whether something that was moved aside is not deleted yet.
func (d *Dir) Dirty() (dirty bool, err error) {
	err = inBatches(d.root, ".", func(name string) bool {
		dirty = isTrash(name)
		return !dirty
	})
	if err != nil {
		return false, fmt.Errorf("list %s: %w", d.name, err)
	}
	return dirty, nil
}

func isTrash(name string) bool { return strings.HasPrefix(name, trashPrefix) }

// SetAside moves everything in the directory into a subdirectory for Purge. It takes one rename for each entry, whatever the entries hold,
// and may be called again after a failure. If there are few entries it deletes small files at once, which costs no more. On a full disk it
// deletes as much as it needs room, at worst everything. It moves all entries also after ctx ended.
func (d *Dir) SetAside(ctx context.Context, id string) error {
	listing := context.WithoutCancel(ctx)
	names, err := d.content(listing, few+1)
	if err != nil {
		return err
	}
	if len(names) <= few {
		names = d.removeSmall(names)
	}
	if len(names) == 0 {
		return nil
	}
	trash, err := d.makeTrash(ctx, id)
	if disk.NoRoom(err) { // others may have filled the disk
		if left, listErr := d.content(listing, 1); listErr == nil && len(left) == 0 {
			return nil
		}
	}
	if err != nil {
		return err
	}
	err = d.inPasses(listing, func(name string) bool { return !isTrash(name) }, func(name string) error { return d.move(ctx, name, trash) })
	if err != nil {
		return fmt.Errorf("set the content of %s aside: %w", d.name, err)
	}
	return nil
}

// content returns the first names of the directory, at most so many, but those of trash. Every entry with a name like trash is deleted as
// trash, whoever made it.
func (d *Dir) content(ctx context.Context, most int) (names []string, err error) {
	err = d.each(ctx, func(name string) bool {
		if !isTrash(name) {
			names = append(names, name)
		}
		return len(names) < most
	})
	return names, err
}

// move moves an entry into the trash. One that is gone needs no move.
func (d *Dir) move(ctx context.Context, name, trash string) error {
	err := rename(d.root, name, trash+"/"+name, func(rename func() error) error { return withRoom(ctx, d.root, trash, rename) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// inPasses does something with the entries of some names, by which each leaves the directory. A file system may pass over names in a
// directory that changes while it is listed, so there is another pass until one finds none. A pass tries all that it finds, and inPasses
// fails after one in which an entry stayed.
func (d *Dir) inPasses(ctx context.Context, wanted func(name string) bool, do func(name string) error) error {
	const most = 16
	for range most {
		done, failed := 0, 0
		var first error
		err := d.each(ctx, func(name string) bool {
			if !wanted(name) {
				return true
			}
			if err := do(name); err == nil {
				done++
			} else if failed++; first == nil {
				first = err
			}
			return true
		})
		switch {
		case err != nil:
			return errors.Join(err, first)
		case failed > 0:
			return fmt.Errorf("%d entries, the first: %w", failed, first)
		case done == 0:
			return nil
		}
	}
	return fmt.Errorf("entries appear as fast as they are taken away, after %d passes: end the program that writes there", most)
}

// few and small limit what is deleted while kubelet waits. Freeing some blocks takes no longer than renaming their file.
const (
	few   = 16
	small = 64 << 10
)

// removeSmall deletes small files and returns the other names. A file that it cannot delete is moved aside with the others.
func (d *Dir) removeSmall(names []string) (left []string) {
	for _, name := range names {
		info, err := d.root.Lstat(name)
		isSmall := err == nil && info.Mode().IsRegular() && info.Size() <= small
		if !isSmall || removeOne(d.root, name) != nil {
			left = append(left, name)
		}
	}
	return left
}

// Sync makes durable what SetAside and Restore did: even after a power loss, the next claim finds nothing. A rename is one change,
// whichever of its two directories is synced.
func (d *Dir) Sync() error {
	if err := d.root.SyncDir("."); err != nil {
		return fmt.Errorf("make it durable that %s is given back: %w", d.name, err)
	}
	return nil
}

// Purge deletes what was moved aside. It stops between entries when ctx ends.
func (d *Dir) Purge(ctx context.Context) error {
	if err := d.inPasses(ctx, isTrash, func(name string) error { return Remove(ctx, d.root, name) }); err != nil {
		return fmt.Errorf("delete what was set aside in %s: %w", d.name, err)
	}
	return nil
}

// makeTrash makes the subdirectory for one claim. The workload could write here, so makeTrash skips every name that exists: content must
// move into a directory that the plugin made, never behind a link. After some names that are taken it tries those that no workload knows.
func (d *Dir) makeTrash(ctx context.Context, id string) (string, error) {
	const attempts = 100
	for i := 0; ; i++ {
		name, last := fmt.Sprintf("%s%s-%d", trashPrefix, id, i), i == attempts
		if last {
			name = trashPrefix + id + "-" + rand.Text()
		}
		err := withRoom(ctx, d.root, "", func() error { return d.root.Mkdir(name, 0o700) })
		if err == nil {
			return name, nil
		}
		if last || !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("set the content of %s aside: %w", d.name, err)
		}
	}
}

// each calls do for the names in the directory, one batch at a time, until do returns false or ctx ends.
func (d *Dir) each(ctx context.Context, do func(name string) (more bool)) error {
	if err := eachName(ctx, d.root, ".", do); err != nil {
		return fmt.Errorf("list %s: %w", d.name, err)
	}
	return nil
}
