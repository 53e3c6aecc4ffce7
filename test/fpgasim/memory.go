// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"context"
	"encoding/binary"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// MemorySize is the size of a card's memory. The logic in each port of the card reaches all of it.
const MemorySize = 64 << 10

// clearsMagic follows the header of an image whose logic writes zeros to all memory of the card once it is loaded. The nanoseconds that
// this takes come next.
const clearsMagic = "CLEARMEM"

// clearsHeader is the length of the header with what the logic does to the memory.
const clearsHeader = imageHeader + len(clearsMagic) + 8

// ClearingImage makes an image whose logic writes zeros to all memory of the card once it is loaded, which takes a while.
func ClearingImage(interfaceID, afu string, size int, takes time.Duration) []byte {
	image := Image(interfaceID, afu, max(size, clearsHeader))
	copy(image[imageHeader:], clearsMagic)
	binary.LittleEndian.PutUint64(image[imageHeader+len(clearsMagic):], uint64(takes))
	return image
}

// clears reads how long the logic of an image takes to clear the card's memory.
func clears(image []byte) (takes time.Duration, ok bool) {
	if len(image) < clearsHeader || string(image[imageHeader:imageHeader+len(clearsMagic)]) != clearsMagic {
		return 0, false
	}
	return time.Duration(binary.LittleEndian.Uint64(image[imageHeader+len(clearsMagic):])), true
}

// memory is a card's memory. It outlives logic, resets and users: only logic changes it.
type memory struct {
	content [MemorySize]byte
	// clearer is the port whose logic writes zeros, from the lowest address to the highest; nil: none does.
	clearer *port
	began   time.Time
	takes   time.Duration
}

// clear has the logic of a port begin to write zeros.
func (m *memory) clear(p *port, takes time.Duration, now time.Time) {
	m.clearer, m.began, m.takes = p, now, takes
}

// settle writes as many zeros as the logic has written by now.
func (m *memory) settle(now time.Time) {
	if m.clearer == nil {
		return
	}
	past := now.Sub(m.began)
	if past >= m.takes {
		m.content, m.clearer = [MemorySize]byte{}, nil
		return
	}
	clear(m.content[:MemorySize*past/m.takes])
}

// stop ends the logic of a port, which leaves the rest of the memory as it is.
func (m *memory) stop(p *port, now time.Time) {
	m.settle(now)
	if m.clearer == p {
		m.clearer = nil
	}
}

// reach lets the logic of a port, which its user commands, at the card's memory. A port that is disabled has no logic.
func (s *model) reach(p *port, at int64, act func(content []byte) int) (int, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == nil {
		return 0, unix.EINVAL
	}
	if p.disables > 0 {
		return 0, unix.EIO
	}
	m := &p.card.memory
	m.settle(time.Now())
	if at < 0 || at >= MemorySize {
		return 0, 0
	}
	return act(m.content[at:]), 0
}

// Read of a port's node reads the card's memory through the port's logic. Real ports are mapped and have a protocol of their own for that.
func (n *node) Read(_ context.Context, _ fs.FileHandle, into []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	length, errno := n.model.reach(n.port, at, func(content []byte) int { return copy(into, content) })
	return fuse.ReadResultData(into[:length]), errno
}

// Write writes it.
func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	length, errno := n.model.reach(n.port, at, func(content []byte) int { return copy(content, data) })
	if errno == 0 && length < len(data) {
		errno = unix.ENOSPC
	}
	return uint32(length), errno
}

// ClearingGBS packs an image that clears the card's memory as GBS does.
func ClearingGBS(interfaceID, afu, clock string, size int, takes time.Duration) []byte {
	return pack(interfaceID, afu, clock, ClearingImage(interfaceID, afu, size, takes))
}
