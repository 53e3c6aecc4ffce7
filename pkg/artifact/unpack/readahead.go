// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"hash"
	"io"
	"sync"
)

// readAhead reads from another reader in a goroutine of its own. Decompressing takes as long as all the rest together, and hashing as long
// as the network, so each gets its own goroutine. If there is a hash, a further goroutine adds each chunk to it.
type readAhead struct {
	// filled holds chunks that were read, and ready those that Read may return. Without a hash they are one channel.
	filled, ready chan chunk
	free          chan []byte
	stopped       chan struct{}
	once          sync.Once
	running       sync.WaitGroup
	current       chunk
	rest          []byte
}

type chunk struct {
	data []byte
	err  error
}

const chunks = 4

// startReadAhead reads r in chunks of a size. Each chunk is added to the hash before Read returns it. done is called when nothing more
// will be read from r. Both hash and done may be nil.
func startReadAhead(r io.Reader, size int, sum hash.Hash, done func()) *readAhead {
	a := &readAhead{ready: make(chan chunk, chunks), free: make(chan []byte, chunks), stopped: make(chan struct{})}
	for range chunks {
		a.free <- make([]byte, size)
	}
	a.filled = a.ready
	if sum != nil {
		a.filled = make(chan chunk, chunks)
		a.running.Go(func() { a.addTo(sum) })
	}
	a.running.Go(func() { a.fillFrom(r, done) })
	return a
}

func (a *readAhead) fillFrom(r io.Reader, done func()) {
	if done != nil {
		defer done()
	}
	for {
		var buffer []byte
		select {
		case buffer = <-a.free:
		case <-a.stopped:
			return
		}
		n, err := fill(r, buffer)
		if !a.pass(a.filled, chunk{data: buffer[:n], err: err}) || err != nil {
			return
		}
	}
}

// addTo adds each chunk to the hash and passes it on.
func (a *readAhead) addTo(sum hash.Hash) {
	for {
		select {
		case c := <-a.filled:
			_, _ = sum.Write(c.data)
			if !a.pass(a.ready, c) || c.err != nil {
				return
			}
		case <-a.stopped:
			return
		}
	}
}

// pass sends a chunk. It returns false if stop was called instead.
func (a *readAhead) pass(to chan<- chunk, c chunk) bool {
	select {
	case to <- c:
		return true
	case <-a.stopped:
		return false
	}
}

// fill reads until the buffer is full, and returns the reader's own error. A panic becomes an error too: a decompressor that fails on
// hostile bytes must not end the process.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = violation(RuleStream, "the decompressor gave up: %s", quote(fmt.Sprint(v)))
		}
	}()
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

// Read implements io.Reader.
func (a *readAhead) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.current.err != nil {
			return 0, a.current.err
		}
		if a.current.data != nil {
			a.free <- a.current.data[:cap(a.current.data)]
		}
		a.current = <-a.ready
		a.rest = a.current.data
		if len(a.rest) == 0 && a.current.err != nil {
			return 0, a.current.err
		}
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// stop ends the goroutines and returns when they have ended.
func (a *readAhead) stop() {
	a.once.Do(func() { close(a.stopped) })
	a.running.Wait()
}
