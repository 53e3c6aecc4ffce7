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
	// reading is what the work read of the claim's record.
	reading record.Reading
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

// operations are the work on claims that goes on in this process: at most one operation for each claim, and the calls that wait for it.
type operations struct {
	*Config
	// base ends when the engine is stopped. That cancels background work, which the next process finds in the records.
	base context.Context //nolint:containedctx // it is the life of the background work, not of one call
	stop context.CancelFunc
	wg   sync.WaitGroup
	// runFollowUp runs the rest of an operation that was answered. Tests delay it.
	runFollowUp func(followUp func())

	mu      sync.Mutex
	running map[string]*operation
	// calls are the calls of do that were not answered yet, by claim and in the order in which they came.
	calls map[string][]*call
	// attended are the claims for which a pass does something, see attend.
	attended sync.Map
}

func newOperations(c *Config) *operations {
	base, stop := context.WithCancel(context.Background())
	return &operations{
		Config: c, base: base, stop: stop, runFollowUp: func(followUp func()) { followUp() },
		running: map[string]*operation{}, calls: map[string][]*call{},
	}
}

// end cancels background work and waits up to 5 s for it. A step that hangs in a device ends with the process.
func (o *operations) end() {
	const patience = 5 * time.Second
	o.mu.Lock() // no operation starts from now on
	o.stop()
	o.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
	}
}

// stopped reports whether background work was cancelled.
func (o *operations) stopped() bool { return o.base.Err() != nil }

// spawn runs f in the background. end waits for it.
func (o *operations) spawn(f func()) { o.wg.Go(f) }

// isBusy reports whether an operation works on a claim.
func (o *operations) isBusy(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running[uid] != nil
}

// pending builds the answer to a call that waited its full time. If most of that was spent on undoing one step, the step may never end, and
// the devices go into quarantine.
func (o *operations) pending(op *operation, cause error) *PendingError {
	op.mu.Lock()
	defer op.mu.Unlock() // hold it until Quarantine returns: Clear, after the undoing, must come later
	pending := &PendingError{UID: op.uid, Activity: string(op.verb) + ": " + op.activity, For: o.Uptime() - op.started, Cause: cause}
	if op.undoing != nil && errors.Is(cause, errBudget) && time.Since(op.undoingSince) > o.Budget/2 {
		o.Health.Quarantine(op.undoing, &hungError{activity: pending.Activity, limit: o.Budget})
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
func (o *operations) do(ctx context.Context, uid string, v verb, accept func(*operation) bool, w work) (*record.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Budget, errBudget)
	defer cancel()
	c, leave := o.enter(uid, v)
	defer leave()
	for {
		op, isNew, earlier, err := o.begin(ctx, uid, c, w)
		if err != nil {
			return nil, err
		}
		if op != nil && !isNew && v == unpreparing && op.verb != v {
			op.cancel(ErrOvertaken)
		}
		if earlier != nil {
			if err := o.awaitTurn(ctx, uid, op, earlier); err != nil {
				return nil, err
			}
			continue
		}
		if err := o.awaitWork(ctx, op, isNew); err != nil {
			return nil, err
		}
		if isNew || op.verb == v && op.err == nil && accept(op) {
			return op.record, op.err
		}
	}
}

// enter puts a call at the end of its claim's line. The second result takes it out.
func (o *operations) enter(uid string, v verb) (c *call, leave func()) {
	c = &call{verb: v, done: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[uid] = append(o.calls[uid], c)
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		line := slices.DeleteFunc(o.calls[uid], func(other *call) bool { return other == c })
		if o.calls[uid] = line; len(line) == 0 {
			delete(o.calls, uid)
		}
		close(c.done)
	}
}

// awaitWork waits until the work has ended, or until the call has and the work goes on without it.
func (o *operations) awaitWork(ctx context.Context, op *operation, isNew bool) error {
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
	return o.pending(op, context.Cause(ctx))
}

// awaitTurn waits until the work that runs, or an earlier call, has ended. There may be no work.
func (o *operations) awaitTurn(ctx context.Context, uid string, op *operation, earlier *call) error {
	var ended chan struct{}
	if op != nil {
		ended = op.done
	}
	select {
	case <-ended:
	case <-earlier.done:
	case <-ctx.Done():
		if op != nil {
			return o.pending(op, context.Cause(ctx))
		}
		return &PendingError{UID: uid, Activity: string(earlier.verb), For: 0, Cause: context.Cause(ctx)}
	}
	return nil
}

// begin starts work on a claim for a call, or returns the operation that is already running. It starts nothing while an earlier call wants
// the opposite, and returns that call, too. It fails when the engine is stopping.
func (o *operations) begin(ctx context.Context, uid string, c *call, w work) (op *operation, isNew bool, earlier *call, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := o.calls[uid]
	before := line[:slices.Index(line, c)]
	if i := slices.IndexFunc(before, func(other *call) bool { return other.verb != c.verb }); i >= 0 {
		earlier = before[i]
	}
	if op := o.running[uid]; op != nil || earlier != nil {
		return op, false, earlier, nil
	}
	op, err = o.start(ctx, uid, c.verb, w)
	return op, err == nil, nil, err
}

// start begins work on a claim. The caller has locked mu.
func (o *operations) start(ctx context.Context, uid string, v verb, w work) (*operation, error) {
	if o.base.Err() != nil {
		return nil, errStopped
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	op := &operation{
		verb: v, uid: uid, started: o.Uptime(), ctx: detached, cancel: cancel, detached: make(chan struct{}), done: make(chan struct{}),
	}
	op.unlink = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	unstop := context.AfterFunc(o.base, func() { //nolint:contextcheck // it ends with the plugin, not with the call
		cancel(context.Cause(o.base))
	})
	o.running[uid] = op
	o.spawn(func() {
		defer unstop()
		op.record, op.err = w(op)
		if op.err != nil && errors.Is(context.Cause(detached), ErrOvertaken) && !Overtaken(op.err) { // whatever the features make of it
			op.err = fmt.Errorf("%w: %w", ErrOvertaken, op.err)
		}
		op.unlink()
		o.mu.Lock()
		delete(o.running, uid)
		o.mu.Unlock()
		cancel(nil)
		close(op.done)
		if op.followUp != nil {
			runtime.Gosched() // let the caller answer first on this processor: waking another one takes about as long as the rest
			o.runFollowUp(op.followUp)
		}
		if took := o.Uptime() - op.started; took > o.Budget {
			klog.FromContext(detached).Info("Work on a claim took longer than a call",
				"claimUID", uid, "verb", v, "seconds", took.Seconds(), "err", op.err)
		}
	})
	return op, nil
}

// attend runs what a pass does for a claim, and waits for it until waiting ends. What takes longer goes on in the background, so that a
// device that hangs delays no other claim; until it ends nothing else is done for this claim. It reports whether f has ended.
func (o *operations) attend(waiting context.Context, uid string, f func()) bool {
	if _, attended := o.attended.LoadOrStore(uid, true); attended {
		return false
	}
	ended := make(chan struct{})
	o.spawn(func() {
		defer close(ended)
		defer o.attended.Delete(uid)
		f()
	})
	select {
	case <-ended:
		return true
	case <-waiting.Done():
		return false
	}
}

// background returns a context that outlives the operation's call and ends when the engine stops.
func (o *operations) background(op *operation) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(op.ctx))
	unstop := context.AfterFunc(o.base, func() { cancel(context.Cause(o.base)) })
	return ctx, func() {
		unstop()
		cancel(nil)
	}
}
