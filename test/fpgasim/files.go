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

	"github.com/fettle-dev/fettle/test/fusetree"
)

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
	h := &handle{node: n, exclusive: exclusive(pid)}
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

// tree is what is served.
type tree struct {
	*fusetree.Tree
	dev string // a directory of real character devices, empty for none
}

// grow makes the whole machine.
func (t *tree) grow(ctx context.Context, m Machine, s *model) {
	for i, c := range s.cards {
		fme := path.Dir(path.Dir(path.Dir(c.manager)))
		number := either(c.Dev, fmt.Sprintf("244:%d", i))
		t.Add(ctx, c.node, &node{model: s, path: c.node, card: c}, syscall.S_IFREG)
		t.Fixed(ctx, fme+"/dev", number+"\n")
		t.Fixed(ctx, fme+"/ports_num", fmt.Sprintf("%d\n", len(c.ports)))
		t.Fixed(ctx, fme+"/bitstream_id", "0x202000200000237\n")
		t.Fixed(ctx, fme+"/bitstream_metadata", "0x1910174\n")
		t.Fixed(ctx, fme+"/errors/fme_errors", "0x0\n")
		t.Fixed(ctx, "dev/char/"+number, "-> ../"+path.Base(c.node))
		t.Fixed(ctx, c.manager+"/name", "DFL FME FPGA Manager\n")
		t.Text(ctx, c.manager+"/state", s.locked(func() string { return c.state }))
		t.Text(ctx, c.manager+"/status", s.locked(func() string { return c.status }))
		if c.Function != "" {
			t.Fixed(ctx, c.Function+"/sriov_totalvfs", fmt.Sprintf("%d\n", len(c.ports)))
			t.Add(ctx, c.Function+"/sriov_numvfs", &fusetree.Attribute{
				OnRead: func() (string, syscall.Errno) {
					return s.locked(func() string { return fmt.Sprintf("%d\n", c.numVFs) })(), 0
				},
				//nolint:contextcheck // What it makes outlives the request.
				OnWrite: func(value string) syscall.Errno { return s.setNumVFs(c, value) },
			}, syscall.S_IFREG)
		}
		for _, p := range c.ports {
			t.region(ctx, s, p)
			t.port(ctx, s, p)
		}
	}
	for name, content := range m.Files {
		t.Fixed(ctx, name, content)
	}
}

// region is what is there of a port whether it is released or not.
func (t *tree) region(ctx context.Context, s *model, p *port) {
	compatible := s.locked(func() string { return p.Interface })
	t.Add(ctx, p.place.Region+"/compat_id", &fusetree.Attribute{OnRead: func() (string, syscall.Errno) {
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
	t.Add(ctx, p.place.Node, &node{model: s, path: p.place.Node, card: p.card, port: p}, syscall.S_IFREG)
	t.Fixed(ctx, at+"/dev", number+"\n")
	t.Fixed(ctx, "dev/char/"+number, "-> ../"+p.place.Name)
	t.Fixed(ctx, at+"/id", fmt.Sprintf("%d\n", p.number))
	t.Add(ctx, at+"/afu_id", &fusetree.Attribute{OnRead: func() (string, syscall.Errno) { return s.afuID(p) }}, syscall.S_IFREG)
	t.Text(ctx, at+"/power_state", s.locked(func() string { return fmt.Sprintf("%#x", p.power) }))
	t.Text(ctx, at+"/errors/first_error", s.locked(func() string { return fmt.Sprintf("%#x", p.errors) }))
	t.Fixed(ctx, at+"/errors/first_malformed_req", strings.Repeat("0", 32)+"\n")
	t.Both(ctx, at+"/errors/errors", s.locked(func() string { return fmt.Sprintf("%#x\n", p.errors) }),
		func(value string) syscall.Errno { return s.clear(p, value) })
	t.params(ctx, s, p)
}

// params are the driver's parameters.
func (t *tree) params(ctx context.Context, s *model, p *port) {
	at := p.place.Attributes
	t.Both(ctx, at+"/ltr", s.locked(func() string {
		if p.LTR {
			return "1\n"
		}
		return "0\n"
	}), func(value string) syscall.Errno { return s.setLTR(p, value) })
	if p.Debug != nil {
		t.Both(ctx, at+"/debug", s.locked(func() string { return fmt.Sprintf("%d\n", p.debug) }),
			func(value string) syscall.Errno { return s.setDebug(p, value) })
	}
	if p.Revision > 0 {
		return
	}
	t.Both(ctx, at+"/userclk_freqcmd", nil, func(value string) syscall.Errno { return s.orderClock(p, value) })
	t.Both(ctx, at+"/userclk_freqcntrcmd", nil, func(value string) syscall.Errno { return s.countClock(p, value) })
	t.Both(ctx, at+"/userclk_freqsts", s.locked(p.clock.statusText), nil)
	t.Both(ctx, at+"/userclk_freqcntrsts", s.locked(p.clock.counterText), nil)
}

// locked reads the state while nothing changes it.
func (s *model) locked(read func() string) func() string {
	return func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return read()
	}
}
