// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
)

// operation is work on one claim. It runs in a goroutine of its own, so that a call can be answered before kubelet gives it up; the
// next call for the same claim finds it here.
type operation struct {
	verb    verb
	uid     string
	started time.Duration
	ctx     context.Context //nolint:containedctx // it outlives the call that began it
	cancel  context.CancelCauseFunc
	// attached ends the operation with the call that began it, until detached is closed.
	attached func() bool
	detached chan struct{}
	done     chan struct{}

	// arrived is when an Unprepare arrived. It is set by its work and may be read once done is closed, as the result in record and err.
	arrived time.Duration
	record  *record.Record
	err     error
	// inDoubt: the claim's record is lost, and what becomes of the claim is not settled. The work sets it.
	inDoubt bool
	// later is what is left to do once done is closed: nobody waits for it.
	later func()

	mu   sync.Mutex
	what string
	// undoing is the record of which a step is being undone, since when.
	undoing      *record.Record
	undoingSince time.Time
}

type verb string

const (
	preparing   verb = "is being prepared"
	unpreparing verb = "is being unprepared"
	recovering  verb = "is being recovered"
)

// PendingError says that the work on a claim goes on. The same call made again waits for it or gets its result.
type PendingError struct {
	UID string
	// Doing is what it is about: "is being prepared: applies step fpga.program (…)".
	Doing string
	For   time.Duration
	// Cause is why the call did not wait longer.
	Cause error
}

// Error names what is under way.
func (e *PendingError) Error() string {
	return fmt.Sprintf("claim %s %s, for %s so far; it goes on in the background and kubelet's next try picks the result up (%v)",
		e.UID, e.Doing, e.For.Round(time.Millisecond), e.Cause)
}

// hungError is about a step that may never end. Its text stays the same for as long as that lasts.
type hungError struct {
	doing string
	limit time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("it %s, for longer than a call may take (%s)", e.doing, e.limit)
}

// Unwrap is the end of the call's time.
func (e *PendingError) Unwrap() error { return e.Cause }

// ErrOvertaken ends a Prepare whose claim is unprepared meanwhile.
var ErrOvertaken = errors.New("the claim is unprepared meanwhile")

var (
	errBudget  = errors.New("the call's time is used up")
	errStopped = errors.New("the plugin ends: kubelet asks the next one")
)

// is says what the operation does now.
func (o *operation) is(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.what = what
}

// undoes notes that a step of a record is being undone from now on, or none.
func (o *operation) undoes(r *record.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.undoing, o.undoingSince = r, time.Now()
}

// detach lets the operation outlive its call, once, before its first change. It fails where the call has ended already.
func (o *operation) detach() error {
	if o.attached() {
		close(o.detached)
		return nil
	}
	<-o.ctx.Done()
	return context.Cause(o.ctx)
}

// pending is the answer to a call that waited as long as it may. A step that takes most of that to be undone may never end.
func (e *Engine) pending(op *operation, cause error) *PendingError {
	op.mu.Lock()
	defer op.mu.Unlock() // until it is told: what follows the undoing, Clear above all, must come after
	pending := &PendingError{UID: op.uid, Doing: string(op.verb) + ": " + op.what, For: e.Uptime() - op.started, Cause: cause}
	if op.undoing != nil && errors.Is(cause, errBudget) && time.Since(op.undoingSince) > e.Budget/2 {
		e.Health.Quarantine(op.undoing, &hungError{doing: pending.Doing, limit: e.Budget})
	}
	return pending
}

// work does one thing to a claim.
type work func(op *operation) (*record.Record, error)

// do runs work on a claim, or joins the same work that goes on already where accept likes its result. Other work on the claim is
// waited for, and cancelled first where the claim is being unprepared.
func (e *Engine) do(ctx context.Context, uid string, v verb, accept func(*operation) bool, w work) (*record.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Budget, errBudget)
	defer cancel()
	for {
		op, mine, err := e.begin(ctx, uid, v, w)
		if err != nil {
			return nil, err
		}
		if !mine && v == unpreparing && op.verb != v {
			op.cancel(ErrOvertaken)
		}
		select {
		case <-op.done:
		case <-ctx.Done():
			if !mine {
				return nil, e.pending(op, context.Cause(ctx))
			}
			select {
			case <-op.done: // it ends with its call, having changed nothing
			case <-op.detached:
				return nil, e.pending(op, context.Cause(ctx))
			}
		}
		if mine || op.verb == v && op.err == nil && accept(op) {
			return op.record, op.err
		}
	}
}

// begin starts work on a claim unless there is some, or the process ends.
func (e *Engine) begin(ctx context.Context, uid string, v verb, w work) (op *operation, mine bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if op := e.operations[uid]; op != nil {
		return op, false, nil
	}
	if e.base.Err() != nil {
		return nil, false, errStopped
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	op = &operation{
		verb: v, uid: uid, started: e.Uptime(), ctx: detached, cancel: cancel, detached: make(chan struct{}), done: make(chan struct{}),
	}
	op.attached = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	unstop := context.AfterFunc(e.base, func() { //nolint:contextcheck // it ends with the engine, not with the call
		cancel(context.Cause(e.base))
	})
	e.operations[uid] = op
	e.wg.Go(func() {
		defer unstop()
		op.record, op.err = w(op)
		op.attached()
		e.mu.Lock()
		delete(e.operations, uid)
		e.mu.Unlock()
		cancel(nil)
		close(op.done)
		if op.later != nil {
			runtime.Gosched() // the answer first: it waits for this processor, and to wake another takes as long as much of what follows
			e.afterwards(op.later)
		}
		if took := e.Uptime() - op.started; took > e.Budget {
			klog.FromContext(detached).Info("Work on a claim took longer than a call",
				"claimUID", uid, "verb", v, "seconds", took.Seconds(), "err", op.err)
		}
	})
	return op, true, nil
}
