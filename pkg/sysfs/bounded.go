// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// AttrWriter writes attributes, as Writer does.
type AttrWriter interface {
	WriteAttr(name, value string) error
}

// ErrNoAnswer says that a driver has not answered a write yet, or a disk or a server a read. What it asked for may still happen.
var ErrNoAnswer = errors.New("the driver, disk or server behind it does not answer, see the kernel's log")

// Bounded writes attributes of which the driver may take long, or for ever: unbinding, making virtual functions. A process cannot take back
// such a write. So Write returns with ErrNoAnswer, and a later Write of the same value to the same attribute waits for the same answer.
// It is safe for concurrent use.
type Bounded struct {
	writer AttrWriter
	clock  clock.Clock
	limit  time.Duration

	mu      sync.Mutex
	pending map[string]*pendingWrite

	// Reads reads attributes that the kernel may show as late as it answers a write: it holds a lock for both.
	*Reads
}

type pendingWrite struct {
	done chan struct{}
	err  error
}

// NewBounded limits how long each write is waited for.
func NewBounded(w AttrWriter, c clock.Clock, limit time.Duration) *Bounded {
	return &Bounded{writer: w, clock: c, limit: limit, pending: map[string]*pendingWrite{}, Reads: NewReads(c, limit)}
}

// Write writes a value to an attribute.
func (b *Bounded) Write(ctx context.Context, name, value string) error {
	return b.await(ctx, name, b.begin(name, value))
}

// Settle waits until the driver has answered what an earlier Write of an attribute gave up, as long as Write waits. Until then its value
// may still change, and a driver may hold up who reads it.
func (b *Bounded) Settle(ctx context.Context, name string) error {
	for _, w := range b.underWay(name) {
		// What it answers is for those who wrote: it failed, or the value says so.
		if err := b.await(ctx, name, w); errors.Is(err, ErrNoAnswer) {
			return err
		}
	}
	return nil
}

// underWay are the writes of an attribute that have no answer yet.
func (b *Bounded) underWay(name string) []*pendingWrite {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*pendingWrite
	for key, w := range b.pending {
		if strings.HasPrefix(key, name+"\x00") {
			out = append(out, w)
		}
	}
	return out
}

// await waits for the answer to a write.
func (b *Bounded) await(ctx context.Context, name string, w *pendingWrite) error {
	timer := b.clock.NewTimer(b.limit)
	defer timer.Stop()
	if err := wait(ctx, "write "+HostPath(name), b.limit, w.done, timer.C()); err != nil {
		return err
	}
	return w.err
}

// Retry calls try again and again while its error is passes, such as that somebody uses the device. It does so no longer than Write waits,
// and returns the last error with why it was the last.
func (b *Bounded) Retry(ctx context.Context, passes error, pause time.Duration, try func() error) error {
	deadline := b.clock.Now().Add(b.limit)
	for {
		err := try()
		if !errors.Is(err, passes) {
			return err
		}
		if !b.clock.Now().Before(deadline) {
			return fmt.Errorf("after %s: %w", b.limit, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-b.clock.After(pause):
		}
	}
}

// begin starts a write, unless the same one is under way.
func (b *Bounded) begin(name, value string) *pendingWrite {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := name + "\x00" + value
	if w, ok := b.pending[key]; ok {
		return w
	}
	w := &pendingWrite{done: make(chan struct{})}
	b.pending[key] = w
	go func() {
		w.err = b.writer.WriteAttr(name, value)
		b.mu.Lock()
		delete(b.pending, key)
		b.mu.Unlock()
		close(w.done)
	}()
	return w
}
