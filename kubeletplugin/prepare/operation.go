// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
)

// operation is the work of one call on one claim. It has its own goroutine, so that a call is answered before kubelet gives it up, and the
// next call for the same claim can join it.
type operation struct {
	verb    verb
	uid     string
	started time.Duration
	ctx     context.Context //nolint:containedctx // it outlives the call that started it
	cancel  context.CancelCauseFunc
	// unlink stops the end of the call from cancelling the operation, and returns false if the call has ended already. detach closes detached,
	// and outlives says that it did.
	unlink   func() bool
	detached chan struct{}
	outlives bool
	done     chan struct{}

	// arrived is the arrival of an Unprepare. Like record and err, it is set by the work and may be read when done is closed.
	arrived time.Duration
	record  *record.Record
	err     error
	// inDoubt says that the claim's record is lost and the claim is neither prepared again nor released yet. The work sets it.
	inDoubt bool
	// followUp is the rest of the work, which runs after done is closed.
	followUp func()

	mu       sync.Mutex
	activity string
	// undoing is the record of the step that is being undone since undoingSince, nil if there is none.
	undoing      *record.Record
	undoingSince time.Time
}

type verb string

const (
	preparing   verb = "is being prepared"
	unpreparing verb = "is being unprepared"
	recovering  verb = "is being recovered"
)

// PendingError is the answer while the work on a claim continues. The next call waits for it or gets its result.
type PendingError struct {
	UID string
	// Activity is for example "is being prepared: applies step fpga.program (…)".
	Activity string
	For      time.Duration
	// Cause is the reason for which the call stopped waiting.
	Cause error
}

// Error describes the current activity.
func (e *PendingError) Error() string {
	return fmt.Sprintf("claim %s %s, for %s so far; it goes on in the background and kubelet's next try picks the result up (%v)",
		e.UID, e.Activity, e.For.Round(time.Millisecond), e.Cause)
}

// hungError reports a step that may never end. Its text does not change while the step hangs.
type hungError struct {
	activity string
	limit    time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("it %s, for longer than a call may take (%s)", e.activity, e.limit)
}

// Unwrap returns the cause.
func (e *PendingError) Unwrap() error { return e.Cause }

// ErrOvertaken cancels a Prepare when an Unprepare of the claim arrives.
var ErrOvertaken = errors.New("the claim is being unprepared")

var (
	errBudget  = errors.New("the call's time is used up")
	errStopped = errors.New("the plugin is stopping: kubelet asks the next one")
)

// setActivity sets the activity that PendingError shows.
func (o *operation) setActivity(activity string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.activity = activity
}

// setUndoing notes that a step of a record is being undone. Nil ends that.
func (o *operation) setUndoing(r *record.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.undoing, o.undoingSince = r, time.Now()
}

// detach lets the operation outlive its call. The work calls it before the first change. It fails if the call has ended.
func (o *operation) detach() error {
	if o.outlives {
		return nil
	}
	if o.unlink() {
		o.outlives = true
		close(o.detached)
		return nil
	}
	<-o.ctx.Done()
	return context.Cause(o.ctx)
}

// pending builds the answer to a call that waited its full time. If most of that was spent on undoing one step, the step may never end, and
// the devices go into quarantine.
func (e *Engine) pending(op *operation, cause error) *PendingError {
	op.mu.Lock()
	defer op.mu.Unlock() // hold it until Quarantine returns: Clear, after the undoing, must come later
	pending := &PendingError{UID: op.uid, Activity: string(op.verb) + ": " + op.activity, For: e.Uptime() - op.started, Cause: cause}
	if op.undoing != nil && errors.Is(cause, errBudget) && time.Since(op.undoingSince) > e.Budget/2 {
		e.Health.Quarantine(op.undoing, &hungError{activity: pending.Activity, limit: e.Budget})
	}
	return pending
}

// work is one kind of work on a claim.
type work func(op *operation) (*record.Record, error)

// call is a call of do that has not been answered.
type call struct {
	verb verb
	done chan struct{}
}

// do runs work on a claim. If the same work is already running and accept agrees to its result, do shares that. It waits for other work on
// the claim; Unprepare cancels that first. Calls that want opposite things have their turns in the order in which they came: a Prepare that
// came after an Unprepare neither shares the Prepare that is being undone nor begins before the Unprepare did.
func (e *Engine) do(ctx context.Context, uid string, v verb, accept func(*operation) bool, w work) (*record.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Budget, errBudget)
	defer cancel()
	c, leave := e.enter(uid, v)
	defer leave()
	for {
		op, isNew, earlier, err := e.begin(ctx, uid, c, w)
		if err != nil {
			return nil, err
		}
		if op != nil && !isNew && v == unpreparing && op.verb != v {
			op.cancel(ErrOvertaken)
		}
		if earlier != nil {
			if err := e.awaitTurn(ctx, uid, op, earlier); err != nil {
				return nil, err
			}
			continue
		}
		if err := e.awaitWork(ctx, op, isNew); err != nil {
			return nil, err
		}
		if isNew || op.verb == v && op.err == nil && accept(op) {
			return op.record, op.err
		}
	}
}

// enter puts a call at the end of its claim's line. The second result takes it out.
func (e *Engine) enter(uid string, v verb) (c *call, leave func()) {
	c = &call{verb: v, done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[uid] = append(e.calls[uid], c)
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		line := slices.DeleteFunc(e.calls[uid], func(other *call) bool { return other == c })
		if e.calls[uid] = line; len(line) == 0 {
			delete(e.calls, uid)
		}
		close(c.done)
	}
}

// awaitWork waits until the work has ended, or until the call has and the work goes on without it.
func (e *Engine) awaitWork(ctx context.Context, op *operation, isNew bool) error {
	select {
	case <-op.done:
		return nil
	case <-ctx.Done():
	}
	if isNew {
		select {
		case <-op.done: // it ended with its call and changed nothing
			return nil
		case <-op.detached:
		}
	}
	return e.pending(op, context.Cause(ctx))
}

// awaitTurn waits until the work that runs, or an earlier call, has ended. There may be no work.
func (e *Engine) awaitTurn(ctx context.Context, uid string, op *operation, earlier *call) error {
	var ended chan struct{}
	if op != nil {
		ended = op.done
	}
	select {
	case <-ended:
	case <-earlier.done:
	case <-ctx.Done():
		if op != nil {
			return e.pending(op, context.Cause(ctx))
		}
		return &PendingError{UID: uid, Activity: string(earlier.verb), For: 0, Cause: context.Cause(ctx)}
	}
	return nil
}

// begin starts work on a claim for a call, or returns the operation that is already running. It starts nothing while an earlier call wants
// the opposite, and returns that call, too. It fails when the engine is stopping.
func (e *Engine) begin(ctx context.Context, uid string, c *call, w work) (op *operation, isNew bool, earlier *call, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	line := e.calls[uid]
	before := line[:slices.Index(line, c)]
	if i := slices.IndexFunc(before, func(other *call) bool { return other.verb != c.verb }); i >= 0 {
		earlier = before[i]
	}
	if op := e.operations[uid]; op != nil || earlier != nil {
		return op, false, earlier, nil
	}
	op, err = e.startOperation(ctx, uid, c.verb, w)
	return op, err == nil, nil, err
}

// startOperation starts work on a claim. The caller has the engine's lock.
func (e *Engine) startOperation(ctx context.Context, uid string, v verb, w work) (*operation, error) {
	if e.base.Err() != nil {
		return nil, errStopped
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	op := &operation{
		verb: v, uid: uid, started: e.Uptime(), ctx: detached, cancel: cancel, detached: make(chan struct{}), done: make(chan struct{}),
	}
	op.unlink = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	unstop := context.AfterFunc(e.base, func() { //nolint:contextcheck // it ends with the engine, not with the call
		cancel(context.Cause(e.base))
	})
	e.operations[uid] = op
	e.wg.Go(func() {
		defer unstop()
		op.record, op.err = w(op)
		if op.err != nil && errors.Is(context.Cause(detached), ErrOvertaken) && !Overtaken(op.err) { // whatever the features make of it
			op.err = fmt.Errorf("%w: %w", ErrOvertaken, op.err)
		}
		op.unlink()
		e.mu.Lock()
		delete(e.operations, uid)
		e.mu.Unlock()
		cancel(nil)
		close(op.done)
		if op.followUp != nil {
			runtime.Gosched() // let the caller answer first on this processor: waking another one takes about as long as the rest
			e.runFollowUp(op.followUp)
		}
		if took := e.Uptime() - op.started; took > e.Budget {
			klog.FromContext(detached).Info("Work on a claim took longer than a call",
				"claimUID", uid, "verb", v, "seconds", took.Seconds(), "err", op.err)
		}
	})
	return op, nil
}
