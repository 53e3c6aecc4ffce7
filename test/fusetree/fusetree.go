// SPDX-License-Identifier: Apache-2.0

// Package fusetree builds a file tree of attributes that react: each read and write calls a function. It is served through FUSE, so that
// the system calls of the programs under test reach it.
package fusetree

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Attribute is a file of sysfs.
type Attribute struct {
	fs.Inode
	// OnRead and OnWrite are called for each read and write. One that is nil is not possible.
	OnRead  func() (string, syscall.Errno)
	OnWrite func(string) syscall.Errno
}

// Getattr implements the file system.
func (a *Attribute) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size = 4096
	if a.OnRead != nil {
		out.Mode |= 0o444
	}
	if a.OnWrite != nil {
		out.Mode |= 0o200
	}
	return 0
}

// Setattr implements the file system.
func (a *Attribute) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return a.Getattr(ctx, f, out)
}

// opened is an open file. It keeps what its first read got, as sysfs does, for the reads of the rest.
type opened struct{ text string }

// Open implements the file system.
func (a *Attribute) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return &opened{}, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH, 0
}

// Read implements the file system.
func (a *Attribute) Read(_ context.Context, f fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	o, ok := f.(*opened)
	if !ok || a.OnRead == nil {
		return nil, unix.EIO
	}
	if off == 0 {
		text, errno := a.OnRead()
		if errno != 0 {
			return nil, errno
		}
		o.text = text
	}
	rest := o.text[min(int(off), len(o.text)):]
	return fuse.ReadResultData([]byte(rest)[:min(len(rest), len(dest))]), 0
}

// Write implements the file system.
func (a *Attribute) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	if a.OnWrite == nil {
		return 0, unix.EIO
	}
	return uint32(len(data)), a.OnWrite(string(data))
}

// Tree adds files to an inode by name.
type Tree struct {
	root *fs.Inode
	base string
}

// Mount serves at a directory the tree that grow makes. base is the directory of the machine that is served, empty for the whole of it.
// The kernel keeps names, links and modes for as long as it likes: programs look far more often than anything changes, and every element of
// a path would be a question to this process. So only Add and Remove may change the tree.
func Mount(dir, program, base string, grow func(context.Context, *Tree)) error {
	t := &Tree{root: &fs.Inode{}, base: base}
	long := time.Hour
	_, err := fs.Mount(dir, t.root, &fs.Options{
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: true, FsName: program, Name: program, EnableSymlinkCaching: true,
		},
		EntryTimeout: &long, AttrTimeout: &long,
		OnAdd: func(ctx context.Context) { grow(ctx, t) },
	})
	if err != nil {
		return fmt.Errorf("mount the simulated machine at %s: %w", dir, err)
	}
	return nil
}

// Unmount takes the tree away, and detaches it with an error where a file of it is still open. Mount namespaces that others made meanwhile
// keep it until the process that serves it ends, so nothing may wait for them, as fuse.Server does.
func Unmount(dir string) error {
	const tries = 100
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for i := 1; ; i++ { // the kernel closes some files a moment after their programs did
		err := unix.Unmount(dir, 0)
		if err == nil {
			return nil
		}
		if i == tries || !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmount the simulated machine at %s: %w", dir, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)))
		}
		<-pause.C
	}
}

// below is a name relative to what is served.
func (t *Tree) below(name string) (string, bool) {
	if t.base == "" {
		return name, true
	}
	return strings.CutPrefix(name, t.base+"/")
}

// Add makes the directories above name. What is not below the tree's base is nowhere.
func (t *Tree) Add(ctx context.Context, name string, ops fs.InodeEmbedder, mode uint32) {
	name, served := t.below(name)
	if !served {
		return
	}
	dir := t.root
	if parent := path.Dir(name); parent != "." {
		for element := range strings.SplitSeq(parent, "/") {
			child := dir.GetChild(element)
			if child == nil {
				child = dir.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
				dir.AddChild(element, child, false)
			}
			dir = child
		}
	}
	enter(dir, path.Base(name), t.root.NewPersistentInode(ctx, ops, fs.StableAttr{Mode: mode}))
}

// Remove takes away a file, or a directory with all that is in it.
func (t *Tree) Remove(name string) {
	name, served := t.below(name)
	if !served {
		return
	}
	dir := t.root
	if parent := path.Dir(name); parent != "." {
		for element := range strings.SplitSeq(parent, "/") {
			if dir = dir.GetChild(element); dir == nil {
				return
			}
		}
	}
	enter(dir, path.Base(name), nil)
}

// enter gives a name of a directory to another file, or to none where child is nil, and has the kernel ask for the name again. The kernel
// answers ENOENT if nobody asked for it yet; go-fuse answers ENOSYS before the tree is mounted.
//
// A lookup that is under way may put the old file back: go-fuse enters into the tree whatever a lookup has found. The kernel waits for such
// lookups before it forgets the name. So the loop ends when the name still is the new file's after that.
//
// The kernel's wait must not be for the caller: a lookup may not need a lock that the caller has.
func enter(dir *fs.Inode, name string, child *fs.Inode) {
	for {
		if child == nil {
			dir.RmChild(name)
		} else {
			dir.AddChild(name, child, true)
		}
		if errno := dir.NotifyEntry(name); errno != 0 && errno != syscall.ENOENT && errno != syscall.ENOSYS {
			panic(fmt.Sprintf("fusetree: the kernel does not forget %q: %v", name, errno))
		}
		if dir.GetChild(name) == child {
			return
		}
	}
}

// Text is a file of one line that is made when it is read.
func (t *Tree) Text(ctx context.Context, name string, read func() string) {
	get := func() (string, syscall.Errno) { return read() + "\n", 0 }
	t.Add(ctx, name, &Attribute{OnRead: get}, syscall.S_IFREG)
}

// Fixed is a file that never changes, a link, or an empty directory where the name ends in a slash.
func (t *Tree) Fixed(ctx context.Context, name, content string) {
	if directory, ok := strings.CutSuffix(name, "/"); ok {
		t.Add(ctx, directory, &fs.Inode{}, syscall.S_IFDIR)
		return
	}
	if target, link := strings.CutPrefix(content, "-> "); link {
		t.Add(ctx, name, &fs.MemSymlink{Data: []byte(target)}, syscall.S_IFLNK)
		return
	}
	t.Add(ctx, name, &Attribute{OnRead: func() (string, syscall.Errno) { return content, 0 }}, syscall.S_IFREG)
}

// Both is a file of sysfs that can be read, written or both.
func (t *Tree) Both(ctx context.Context, name string, read func() string, write func(string) syscall.Errno) {
	a := &Attribute{OnWrite: write}
	if read != nil {
		a.OnRead = func() (string, syscall.Errno) { return read(), 0 }
	}
	t.Add(ctx, name, a, syscall.S_IFREG)
}
