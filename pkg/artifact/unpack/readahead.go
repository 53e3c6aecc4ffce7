// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"hash"
	"io"
	"sync"
)

// ahead reads in a goroutine of its own, as decompressing takes as long as all else together, and hashing as long as the network. A sum of
// what was read is made in another.
type ahead struct {
	// read are chunks that were read, and full those that may be had: where nothing is summed they are one.
	read, full chan chunk
	free       chan []byte
	stopped    chan struct{}
	once       sync.Once
	ended      sync.WaitGroup
	now        chunk
	rest       []byte
}

type chunk struct {
	data []byte
	err  error
}

const chunks = 4

// readAhead reads in pieces of a size. What was read is added to the sum before it can be had, unless that is nil. end is called where
// nothing is read any more, unless it is nil.
func readAhead(r io.Reader, size int, sum hash.Hash, end func()) *ahead {
	a := &ahead{full: make(chan chunk, chunks), free: make(chan []byte, chunks), stopped: make(chan struct{})}
	for range chunks {
		a.free <- make([]byte, size)
	}
	a.read = a.full
	if sum != nil {
		a.read = make(chan chunk, chunks)
		a.ended.Go(func() { a.add(sum) })
	}
	a.ended.Go(func() { a.run(r, end) })
	return a
}

func (a *ahead) run(r io.Reader, end func()) {
	if end != nil {
		defer end()
	}
	for {
		var buffer []byte
		select {
		case buffer = <-a.free:
		case <-a.stopped:
			return
		}
		n, err := fill(r, buffer)
		if !a.give(a.read, chunk{data: buffer[:n], err: err}) || err != nil {
			return
		}
	}
}

// add adds each chunk to the sum.
func (a *ahead) add(sum hash.Hash) {
	for {
		select {
		case c := <-a.read:
			_, _ = sum.Write(c.data)
			if !a.give(a.full, c) || c.err != nil {
				return
			}
		case <-a.stopped:
			return
		}
	}
}

// give says whether somebody wants it.
func (a *ahead) give(to chan<- chunk, c chunk) bool {
	select {
	case to <- c:
		return true
	case <-a.stopped:
		return false
	}
}

// fill is io.ReadFull with the error that there was, and with one of a panic: a decompressor that hostile bytes overwhelm must not end
// the process.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = broke(RuleStream, "the decompressor gave up: %s", quote(fmt.Sprint(v)))
		}
	}()
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

func (a *ahead) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.data != nil {
			a.free <- a.now.data[:cap(a.now.data)]
		}
		a.now = <-a.full
		a.rest = a.now.data
		if len(a.rest) == 0 && a.now.err != nil {
			return 0, a.now.err
		}
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// stop returns when nothing reads any more.
func (a *ahead) stop() {
	a.once.Do(func() { close(a.stopped) })
	a.ended.Wait()
}
