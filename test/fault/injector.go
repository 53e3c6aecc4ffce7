// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Injector counts, logs and disturbs the operations of all that is made from it. It is safe for concurrent use: what touches the
// disk happens one at a time, so that the log has the order in which it took effect.
type Injector struct {
	// Before, where set, is called before each operation, reads included. It may block, which hangs that operation only, and return
	// one of the errors of this package or any other, with which the operation then fails undone. Set it before the first operation.
	Before func(Op) error
	// After, where set, is called after each operation that was tried. An error of it is returned though the operation was done.
	After func(Op) error
	// Quick leaves the syncs out, though they count and are logged as done. Only a real power loss would tell, and tests are faster.
	Quick bool

	mu     sync.Mutex
	faults []Fault
	counts struct{ changes, reads, syncs, handles int }
	log    Log
	file   *os.File
}

// New disturbs nothing without faults, and counts and logs.
func New(faults ...Fault) *Injector { return &Injector{faults: faults} }

// Set replaces the faults; with none of them, all is well again. The numbers go on.
func (i *Injector) Set(faults ...Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = faults
}

// LogTo also appends each operation to a file, as a line of JSON, before its caller goes on.
func (i *Injector) LogTo(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.file = f
	return nil
}

// Log is what happened so far.
func (i *Injector) Log() Log {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.log)
}

// Do disturbs anything else, such as a device: act is not called where the fault says so. The name stands in the log.
func (i *Injector) Do(name string, act func() error) error {
	return i.do(context.Background(), Op{Kind: Effect, Path: name}, func(*Op) error { return act() })
}

// do is the way of every operation. A delay ends with ctx. Act may say in the operation what became of it.
func (i *Injector) do(ctx context.Context, op Op, act func(*Op) error) error {
	i.number(&op)
	if verdict := i.before(ctx, op); verdict != nil {
		return i.disturb(op, verdict, act)
	}
	err := i.perform(&op, act)
	if after := i.after(op); after != nil && err == nil {
		return op.wrap(after)
	}
	return err
}

func (i *Injector) number(op *Op) {
	if !op.Kind.Read() {
		op.Site = site()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if op.Kind.Read() {
		i.counts.reads++
		op.N = i.counts.reads
		return
	}
	i.counts.changes++
	op.N = i.counts.changes
	if op.Kind.Sync() {
		i.counts.syncs++
		op.Sync = i.counts.syncs
	}
}

// before is the verdict on an operation: nil lets it go ahead.
func (i *Injector) before(ctx context.Context, op Op) error {
	if i.Before != nil {
		if err := i.Before(op); err != nil {
			return err
		}
	}
	i.mu.Lock()
	faults, changes := i.faults, i.counts.changes
	i.mu.Unlock()
	for _, f := range faults {
		err := f.before(op, changes)
		if f.Do == ActDelay && f.at(op) {
			err = wait(ctx, f.For)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (i *Injector) after(op Op) error {
	if i.After != nil {
		if err := i.After(op); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, f := range i.faults {
		if f.Do == ActLose && f.at(op) {
			return f.Errno
		}
	}
	return nil
}

// perform does and logs an operation. On the disk it holds the lock meanwhile, so that the log has the order on the disk; calls and
// effects may take long, and go through here themselves.
func (i *Injector) perform(op *Op, act func(*Op) error) error {
	if !op.onDisk() {
		op.end(act(op))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if op.onDisk() {
		op.end(act(op))
	}
	i.record(*op)
	return op.err
}

// disturb is what happens instead of the operation.
func (i *Injector) disturb(op Op, verdict error, act func(*Op) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	tear, short := errors.Is(verdict, ErrTear), errors.Is(verdict, ErrShort)
	switch {
	case op.Kind == Write && (tear || short):
		op.Data = op.Data[:len(op.Data)/2]
		op.end(act(&op))
		op.Fault = string(ActShort)
		if tear {
			i.die(op, ActTear)
		}
	case tear, errors.Is(verdict, ErrKill):
		i.die(op, ActKill)
	case op.Kind.Sync() && errors.Is(verdict, ErrLie):
		op.Fault = string(ActLie)
		i.record(op)
		return nil
	default:
		op.Fault = string(ActFail)
	}
	err := op.wrap(verdict)
	op.Error = err.Error()
	i.record(op)
	return err
}

// die logs how far the operation came and ends the process. It keeps the lock, so nothing else happens on the disk or in the log.
func (i *Injector) die(op Op, how Action) {
	op.Fault = string(how)
	i.record(op)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// record panics where the log cannot be written: no test may go on without it.
func (i *Injector) record(op Op) {
	i.log = append(i.log, op)
	if i.file == nil {
		return
	}
	line, err := json.Marshal(op)
	if err == nil {
		_, err = i.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the log of operations: %v", err))
	}
}

// handle numbers an open file. It is called within an operation.
func (i *Injector) handle() int {
	i.counts.handles++
	return i.counts.handles
}

func (o *Op) end(err error) {
	o.err = err
	if err != nil {
		o.Error = err.Error()
	}
	o.Done = err == nil || o.Kind == Write && len(o.Data) > 0
}

// wrap makes an injected error look as one of package os.
func (o *Op) wrap(err error) error {
	switch o.Kind {
	case Call, Effect:
		return fmt.Errorf("%s: %w", o.Path, err)
	case Rename:
		return &os.LinkError{Op: string(o.Kind), Old: o.Path, New: o.To, Err: err}
	case Symlink:
		return &os.LinkError{Op: string(o.Kind), Old: o.To, New: o.Path, Err: err}
	default:
		return &fs.PathError{Op: string(o.Kind), Path: o.Path, Err: err}
	}
}
