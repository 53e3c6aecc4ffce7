// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"context"
	"hash/fnv"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

const (
	// aheadSpread is the time over which the nodes that want a file begin to fetch it.
	aheadSpread = 30 * time.Second
	// aheadTries is how often a file is asked for. Who needs it then fetches it itself.
	aheadTries = 6
	// aheadRetry is how long after the first try the second is; each later one waits twice as long.
	aheadRetry = 30 * time.Second
	// aheadTimeout bounds one try, since the others wait for it.
	aheadTimeout = 10 * time.Minute
	// idle is how long nothing is done where nothing is to be done.
	idle = time.Hour
)

// forerunner brings to the node what fits its devices before a claim asks for it. That saves time and gives nobody anything: a claim is
// judged as if it were not here. It evicts nothing and keeps nothing from being evicted.
type forerunner struct {
	// what is fetched, for logs, in the singular.
	what string
	node string
	// needed says whether a node has a use for any of it. watch follows the objects until ctx ends; wanted are those that a node should have.
	needed func(v *view) bool
	watch  func(ctx context.Context, wake func()) (stopped func(), err error)
	wanted func(v *view) []job

	latest  *latest
	retired *retirement
	clock   clock.Clock
	// fetched is called after something came.
	fetched func()
	// changed carries a value after an object changed.
	changed chan struct{}
	// errands are by the job's key. Only run uses them.
	errands map[string]*errand
}

// job is what a node should have.
type job struct {
	// key tells jobs apart: by what there is to bring, and the way to it.
	key, reference, digest string
	bring                  func(ctx context.Context) error
}

// errand is a job that is being done.
type errand struct {
	job
	due   time.Time
	tries int
	// over: it was here once, or it was tried often enough.
	over bool
}

// newForerunner completes a forerunner with what is the plugin's.
func (p *Plugin) newForerunner(f forerunner) *forerunner {
	f.node, f.latest, f.retired, f.clock, f.changed = p.config.Node, p.latest, p.retired, clock.RealClock{}, make(chan struct{}, 1)
	f.fetched = func() { signal(p.claims) }
	return &f
}

// run ends with ctx. A node without devices that need any of it watches nothing.
func (f *forerunner) run(ctx context.Context) {
	for {
		v, changed := f.latest.get()
		if v != nil && f.needed(v) {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped, err := f.watch(ctx, func() { signal(f.changed) })
	if err != nil {
		klog.FromContext(ctx).Error(err, "Nothing is fetched before claims ask for it", "what", f.what)
		cancel()
		return
	}
	defer stopped()
	defer cancel()
	for {
		_, looked := f.latest.get()
		retired := f.retired.wait()
		wait, ok := f.step(ctx)
		if !ok {
			wait = idle
		}
		timer := f.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-looked:
		case <-retired:
		case <-f.changed:
		case <-timer.C():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// step fetches what is due first, and says how long to wait before the next step. Not ok: until something changes.
func (f *forerunner) step(ctx context.Context) (wait time.Duration, ok bool) {
	if f.retired.is() {
		f.errands = nil // its files are removed; should it come back it begins anew
		return 0, false
	}
	v, _ := f.latest.get()
	f.plan(f.wanted(v))
	e := f.next()
	if e == nil {
		return 0, false
	}
	if wait := e.due.Sub(f.clock.Now()); wait > 0 {
		return wait, true
	}
	err := f.fetch(ctx, e.bring)
	if ctx.Err() == nil && !f.retired.is() {
		f.settle(ctx, e, err)
	}
	return 0, true
}

// plan begins errands for what is new and forgets those that nothing asks for any more.
func (f *forerunner) plan(wanted []job) {
	errands := map[string]*errand{}
	for _, j := range wanted {
		if old := f.errands[j.key]; old != nil {
			errands[j.key] = old
		} else if errands[j.key] == nil {
			errands[j.key] = &errand{job: j, due: f.clock.Now().Add(aheadDelay(f.node, j.digest))}
		}
	}
	f.errands = errands
}

// aheadDelay is when within the spread a node fetches a file: not when all others do, nor when it fetches its other files.
func aheadDelay(node, digest string) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "/" + digest))
	return time.Duration(h.Sum64() % uint64(aheadSpread))
}

// next is the errand that is due first, nil where none is left.
func (f *forerunner) next() *errand {
	var first *errand
	for _, e := range f.errands {
		if e.over || first != nil && cmp.Or(first.due.Compare(e.due), cmp.Compare(first.reference, e.reference)) <= 0 {
			continue
		}
		first = e
	}
	return first
}

// fetch brings one thing. It ends when the node is asked to retire, which waits for it.
func (f *forerunner) fetch(ctx context.Context, bring func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	ctx, stop := f.retired.until(ctx)
	defer stop()
	return bring(ctx)
}

// settle notes what became of a try.
func (f *forerunner) settle(ctx context.Context, e *errand, err error) {
	logger := klog.FromContext(ctx).WithValues("what", f.what, "reference", e.reference, "digest", e.digest)
	if err == nil {
		e.over = true
		logger.V(2).Info("Fetched ahead of claims")
		f.fetched()
		return
	}
	e.tries++
	e.over = e.tries >= aheadTries
	e.due = f.clock.Now().Add(max(aheadRetry<<(e.tries-1), registry.RetryAfter(err)))
	if e.over {
		logger.Info("Not fetched before a claim asks for it", "tries", e.tries, "reason", err)
		return
	}
	logger.V(2).Info("Cannot be fetched ahead now", "reason", err)
}
