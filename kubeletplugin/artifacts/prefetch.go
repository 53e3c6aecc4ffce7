// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"cmp"
	"context"
	"hash/fnv"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

const (
	// prefetchSpread is the time over which the nodes that want a file begin to fetch it.
	prefetchSpread = 30 * time.Second
	// prefetchTries is how often a file is asked for. Who needs it then fetches it itself.
	prefetchTries = 6
	// prefetchRetry is how long after the first try the second is; each later one waits twice as long.
	prefetchRetry = 30 * time.Second
	// prefetchTimeout bounds one try, since the others wait for it.
	prefetchTimeout = 10 * time.Minute
	// idle is how long nothing is done where nothing is to be done.
	idle = time.Hour
)

// Source is one kind of thing that is prefetched.
type Source struct {
	// What is fetched, for logs, in the singular.
	What string
	// Needed says whether a node has a use for any of it.
	Needed func(s *inventory.Snapshot) bool
	// Watch follows the objects until ctx ends, and calls wake after one changed; stopped waits for the end.
	Watch func(ctx context.Context, wake func()) (stopped func(), err error)
	// Wanted are the jobs of a node with these devices.
	Wanted func(s *inventory.Snapshot) []Job
}

// Job is one thing that a node should have.
type Job struct {
	// Key tells jobs apart: by what there is to fetch, and the way to it.
	Key, Reference, Digest string
	Fetch                  func(ctx context.Context) error
}

// PrefetchConfig is what a Prefetcher works with.
type PrefetchConfig struct {
	// Node is the name of the Node object.
	Node       string
	Holder     *inventory.Holder
	Retirement *retirement.State
	Clock      clock.Clock
	// Fetched is called after something came. It must not block.
	Fetched func()
}

// Prefetcher fetches what fits the node's devices before a claim asks for it. That saves time and gives no claim any right: a claim is
// judged as if the file were not here. Prefetching evicts nothing and keeps nothing from being evicted.
type Prefetcher struct {
	PrefetchConfig
	source Source
	// changed carries a value after an object changed.
	changed notify.Signal
	// tasks are by the job's key. Only Run uses them.
	tasks map[string]*task
}

// task is a job and how far it is.
type task struct {
	Job
	due   time.Time
	tries int
	// over: it was here once, or it was tried often enough.
	over bool
}

// NewPrefetcher makes a prefetcher for one kind of thing.
func NewPrefetcher(c PrefetchConfig, source Source) *Prefetcher {
	return &Prefetcher{PrefetchConfig: c, source: source, changed: notify.New()}
}

// Run ends with ctx. A node without devices that need any of it watches nothing.
func (p *Prefetcher) Run(ctx context.Context) {
	for {
		v, changed := p.Holder.Get()
		if v != nil && p.source.Needed(v) {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped, err := p.source.Watch(ctx, func() { p.changed.Send() })
	if err != nil {
		klog.FromContext(ctx).Error(err, "Nothing is fetched before claims ask for it", "what", p.source.What)
		cancel()
		return
	}
	defer stopped()
	defer cancel()
	for {
		_, looked := p.Holder.Get()
		retired := p.Retirement.Changed()
		wait, ok := p.next(ctx)
		if !ok {
			wait = idle
		}
		timer := p.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-looked:
		case <-retired:
		case <-p.changed:
		case <-timer.C():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// next fetches what is due first, and says how long to wait before the next step. Not ok: until something changes.
func (p *Prefetcher) next(ctx context.Context) (wait time.Duration, ok bool) {
	if p.Retirement.On() {
		p.tasks = nil // its files are removed; should it come back it begins anew
		return 0, false
	}
	v, _ := p.Holder.Get()
	p.plan(p.source.Wanted(v))
	e := p.first()
	if e == nil {
		return 0, false
	}
	if wait := e.due.Sub(p.Clock.Now()); wait > 0 {
		return wait, true
	}
	err := p.fetch(ctx, e.Fetch)
	if ctx.Err() == nil && !p.Retirement.On() {
		p.settle(ctx, e, err)
	}
	return 0, true
}

// plan begins tasks for what is new and forgets those that nothing asks for any more.
func (p *Prefetcher) plan(wanted []Job) {
	tasks := map[string]*task{}
	for _, j := range wanted {
		if old := p.tasks[j.Key]; old != nil {
			tasks[j.Key] = old
		} else if tasks[j.Key] == nil {
			tasks[j.Key] = &task{Job: j, due: p.Clock.Now().Add(prefetchDelay(p.Node, j.Digest))}
		}
	}
	p.tasks = tasks
}

// prefetchDelay is when within the spread a node fetches a file: not when all others do, nor when it fetches its other files.
func prefetchDelay(node, digest string) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "/" + digest))
	return time.Duration(h.Sum64() % uint64(prefetchSpread))
}

// first is the task that is due first, nil where none is left.
func (p *Prefetcher) first() *task {
	var first *task
	for _, e := range p.tasks {
		if e.over || first != nil && cmp.Or(first.due.Compare(e.due), cmp.Compare(first.Reference, e.Reference)) <= 0 {
			continue
		}
		first = e
	}
	return first
}

// fetch brings one thing. It ends when the node is asked to retire, which waits for it.
func (p *Prefetcher) fetch(ctx context.Context, fetch func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, prefetchTimeout)
	defer cancel()
	ctx, stop := p.Retirement.Until(ctx)
	defer stop()
	return fetch(ctx)
}

// settle notes what became of a try.
func (p *Prefetcher) settle(ctx context.Context, e *task, err error) {
	logger := klog.FromContext(ctx).WithValues("what", p.source.What, "reference", e.Reference, "digest", e.Digest)
	if err == nil {
		e.over = true
		logger.V(2).Info("Fetched ahead of claims")
		p.Fetched()
		return
	}
	e.tries++
	e.over = e.tries >= prefetchTries
	e.due = p.Clock.Now().Add(max(prefetchRetry<<(e.tries-1), registry.RetryAfter(err)))
	if e.over {
		logger.Info("Not fetched before a claim asks for it", "tries", e.tries, "reason", err)
		return
	}
	logger.V(2).Info("Cannot be fetched ahead now", "reason", err)
}
