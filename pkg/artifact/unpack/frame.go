// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"encoding/binary"
	"io"
)

// frame passes the bytes of one zstd frame through (RFC 8878, 3.1.1), and refuses what follows it or is none. A decoder would read on
// through further frames, and past skippable ones without a word.
type frame struct {
	r io.Reader
	// need is how many bytes the part that is being read has still to come, and part what there is of it.
	need  int64
	part  []byte
	state frameState
	check bool // a checksum ends the frame
	last  bool // the block is the last
}

type frameState int

const (
	inMagic frameState = iota
	inDescriptor
	inHeader
	inBlockHeader
	inBlock
	inChecksum
	afterFrame
)

const zstdMagic = 0xFD2FB528

func newFrame(r io.Reader) *frame { return &frame{r: r, need: 4} }

func (f *frame) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if broken := f.feed(p[:n]); broken != nil {
		return 0, broken
	}
	return n, err
}

func (f *frame) feed(p []byte) error {
	for len(p) > 0 {
		if f.state == afterFrame {
			return broke(RuleTrailing, "more follows after the zstd frame: expected one frame")
		}
		n := min(f.need, int64(len(p)))
		if f.state < inBlock {
			f.part = append(f.part, p[:n]...)
		}
		p, f.need = p[n:], f.need-n
		for f.need == 0 && f.state != afterFrame {
			if err := f.next(); err != nil {
				return err
			}
		}
	}
	return nil
}

// next looks at the part that is complete.
func (f *frame) next() error {
	part := f.part
	f.part = f.part[:0]
	switch f.state {
	case inMagic:
		if binary.LittleEndian.Uint32(part) != zstdMagic {
			return broke(RuleStream, "it does not begin with a zstd frame")
		}
		f.state, f.need = inDescriptor, 1
	case inDescriptor:
		f.check = part[0]&4 != 0
		f.state, f.need = inHeader, headerSize(part[0])
	case inHeader:
		f.state, f.need = inBlockHeader, 3
	case inBlockHeader:
		f.block(uint32(part[0]) | uint32(part[1])<<8 | uint32(part[2])<<16)
	case inBlock:
		f.state, f.need = inBlockHeader, 3
		if f.last {
			f.state, f.need = inChecksum, 0
			if f.check {
				f.need = 4
			}
		}
	case inChecksum, afterFrame:
		f.state = afterFrame
	}
	return nil
}

func (f *frame) block(header uint32) {
	const rle = 1
	f.last = header&1 != 0
	f.state, f.need = inBlock, int64(header>>3)
	if header>>1&3 == rle {
		f.need = 1
	}
}

// headerSize is what follows the descriptor: window, dictionary and size of the content.
func headerSize(descriptor byte) int64 {
	size := []int64{0, 1, 2, 4}[descriptor&3] + []int64{0, 2, 4, 8}[descriptor>>6]
	if single := descriptor&0x20 != 0; !single {
		size++
	} else if descriptor>>6 == 0 {
		size++
	}
	return size
}
