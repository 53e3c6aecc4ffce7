// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"context"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// attribute is a file of sysfs.
type attribute struct {
	fs.Inode
	read  func() (string, syscall.Errno)
	write func(string) syscall.Errno
}

func (a *attribute) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size = 4096
	if a.read != nil {
		out.Mode |= 0o444
	}
	if a.write != nil {
		out.Mode |= 0o200
	}
	return 0
}

func (a *attribute) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return a.Getattr(ctx, f, out)
}

func (a *attribute) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (a *attribute) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if off > 0 {
		return fuse.ReadResultData(nil), 0
	}
	if a.read == nil {
		return nil, unix.EIO
	}
	text, errno := a.read()
	return fuse.ReadResultData([]byte(text)[:min(len(text), len(dest))]), errno
}

func (a *attribute) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	if a.write == nil {
		return 0, unix.EIO
	}
	return uint32(len(data)), a.write(string(data))
}

// node is a device node, of a port or, where port is nil, of an FME.
type node struct {
	fs.Inode
	model *model
	path  string
	card  *card
	port  *port
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o600
	return 0
}

func (n *node) Open(ctx context.Context, _ uint32) (fs.FileHandle, uint32, syscall.Errno) {
	pid := callerOf(ctx)
	h := &handle{port: n.port, path: n.path, exclusive: exclusive(pid)}
	if errno := n.model.open(h, pid); errno != 0 {
		return nil, 0, errno
	}
	return h, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Flush(_ context.Context, f fs.FileHandle) syscall.Errno {
	if h, ok := f.(*handle); ok {
		n.model.flush(h)
	}
	return 0
}

func (n *node) Release(_ context.Context, f fs.FileHandle) syscall.Errno {
	if h, ok := f.(*handle); ok {
		n.model.release(h)
	}
	return 0
}

func callerOf(ctx context.Context) int {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return 0
	}
	return int(caller.Pid)
}

// tree adds files to an inode by name.
type tree struct {
	root *fs.Inode
	base string // the directory that the root is, empty for the whole tree
	dev  string // a directory of real character devices, empty for none
}

// below is a name relative to what is served.
func (t *tree) below(name string) (string, bool) {
	if t.base == "" {
		return name, true
	}
	return strings.CutPrefix(name, t.base+"/")
}

// add makes the directories above name. What is not below the tree's base is nowhere.
func (t *tree) add(ctx context.Context, name string, ops fs.InodeEmbedder, mode uint32) {
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
	dir.AddChild(path.Base(name), t.root.NewPersistentInode(ctx, ops, fs.StableAttr{Mode: mode}), true)
}

// remove takes away a file, or a directory with all that is in it.
func (t *tree) remove(name string) {
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
	dir.RmChild(path.Base(name))
}

func (t *tree) text(ctx context.Context, name string, read func() string) {
	get := func() (string, syscall.Errno) { return read() + "\n", 0 }
	t.add(ctx, name, &attribute{read: get}, syscall.S_IFREG)
}

// fixed is a file that never changes, a link, or an empty directory where the name ends in a slash.
func (t *tree) fixed(ctx context.Context, name, content string) {
	if directory, ok := strings.CutSuffix(name, "/"); ok {
		t.add(ctx, directory, &fs.Inode{}, syscall.S_IFDIR)
		return
	}
	if target, link := strings.CutPrefix(content, "-> "); link {
		t.add(ctx, name, &fs.MemSymlink{Data: []byte(target)}, syscall.S_IFLNK)
		return
	}
	t.add(ctx, name, &attribute{read: func() (string, syscall.Errno) { return content, 0 }}, syscall.S_IFREG)
}

// grow makes the whole machine.
func (t *tree) grow(ctx context.Context, m Machine, s *model) {
	for i, c := range s.cards {
		fme := path.Dir(path.Dir(path.Dir(c.manager)))
		number := either(c.Dev, fmt.Sprintf("244:%d", i))
		t.add(ctx, c.node, &node{model: s, path: c.node, card: c}, syscall.S_IFREG)
		t.fixed(ctx, fme+"/dev", number+"\n")
		t.fixed(ctx, fme+"/ports_num", fmt.Sprintf("%d\n", len(c.ports)))
		t.fixed(ctx, fme+"/bitstream_id", "0x202000200000237\n")
		t.fixed(ctx, fme+"/bitstream_metadata", "0x1910174\n")
		t.fixed(ctx, fme+"/errors/fme_errors", "0x0\n")
		t.fixed(ctx, "dev/char/"+number, "-> ../"+path.Base(c.node))
		t.fixed(ctx, c.manager+"/name", "DFL FME FPGA Manager\n")
		t.text(ctx, c.manager+"/state", s.locked(func() string { return c.state }))
		t.text(ctx, c.manager+"/status", s.locked(func() string { return c.status }))
		if c.Function != "" {
			t.fixed(ctx, c.Function+"/sriov_totalvfs", fmt.Sprintf("%d\n", len(c.ports)))
			t.add(ctx, c.Function+"/sriov_numvfs", &attribute{
				read: func() (string, syscall.Errno) {
					return s.locked(func() string { return fmt.Sprintf("%d\n", c.numVFs) })(), 0
				},
				//nolint:contextcheck // What it makes outlives the request.
				write: func(value string) syscall.Errno { return s.setNumVFs(c, value) },
			}, syscall.S_IFREG)
		}
		for _, p := range c.ports {
			t.region(ctx, s, p)
			t.port(ctx, s, p)
		}
	}
	for name, content := range m.Files {
		t.fixed(ctx, name, content)
	}
}

// region is what is there of a port whether it is released or not.
func (t *tree) region(ctx context.Context, s *model, p *port) {
	compatible := s.locked(func() string { return p.Interface })
	t.add(ctx, p.place.Region+"/compat_id", &attribute{read: func() (string, syscall.Errno) {
		if id := compatible(); id != "" {
			return id + "\n", 0
		}
		return "", unix.ENOENT
	}}, syscall.S_IFREG)
}

// port makes a port where it is now.
func (t *tree) port(ctx context.Context, s *model, p *port) {
	at := p.place.Attributes
	number := p.deviceNumber()
	t.add(ctx, p.place.Node, &node{model: s, path: p.place.Node, card: p.card, port: p}, syscall.S_IFREG)
	t.fixed(ctx, at+"/dev", number+"\n")
	t.fixed(ctx, "dev/char/"+number, "-> ../"+p.place.Name)
	t.fixed(ctx, at+"/id", fmt.Sprintf("%d\n", p.number))
	t.add(ctx, at+"/afu_id", &attribute{read: func() (string, syscall.Errno) { return s.afuID(p) }}, syscall.S_IFREG)
	t.text(ctx, at+"/power_state", s.locked(func() string { return fmt.Sprintf("%#x", p.power) }))
	t.text(ctx, at+"/errors/first_error", s.locked(func() string { return fmt.Sprintf("%#x", p.errors) }))
	t.fixed(ctx, at+"/errors/first_malformed_req", strings.Repeat("0", 32)+"\n")
	t.both(ctx, at+"/errors/errors", s.locked(func() string { return fmt.Sprintf("%#x\n", p.errors) }),
		func(value string) syscall.Errno { return s.clear(p, value) })
	t.params(ctx, s, p)
}

// params are the driver's parameters.
func (t *tree) params(ctx context.Context, s *model, p *port) {
	at := p.place.Attributes
	t.both(ctx, at+"/ltr", s.locked(func() string {
		if p.LTR {
			return "1\n"
		}
		return "0\n"
	}), func(value string) syscall.Errno { return s.setLTR(p, value) })
	if p.Debug != nil {
		t.both(ctx, at+"/debug", s.locked(func() string { return fmt.Sprintf("%d\n", p.debug) }),
			func(value string) syscall.Errno { return s.setDebug(p, value) })
	}
	if p.Revision > 0 {
		return
	}
	t.both(ctx, at+"/userclk_freqcmd", nil, func(value string) syscall.Errno { return s.orderClock(p, value) })
	t.both(ctx, at+"/userclk_freqcntrcmd", nil, func(value string) syscall.Errno { return s.countClock(p, value) })
	t.both(ctx, at+"/userclk_freqsts", s.locked(p.clock.statusText), nil)
	t.both(ctx, at+"/userclk_freqcntrsts", s.locked(p.clock.counterText), nil)
}

// both is a file of sysfs that can be read, written or both.
func (t *tree) both(ctx context.Context, name string, read func() string, write func(string) syscall.Errno) {
	a := &attribute{write: write}
	if read != nil {
		a.read = func() (string, syscall.Errno) { return read(), 0 }
	}
	t.add(ctx, name, a, syscall.S_IFREG)
}

// locked reads the state while nothing changes it.
func (s *model) locked(read func() string) func() string {
	return func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return read()
	}
}
