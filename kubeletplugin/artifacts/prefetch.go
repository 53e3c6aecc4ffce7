// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"cmp"
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

const (
	// prefetchSpread is the time over which the nodes that need a file begin to fetch it.
	prefetchSpread = 30 * time.Second
	// prefetchTries limits the tries for a file. After that, the first claim that needs the file fetches it.
	prefetchTries = 6
	// prefetchRetry is how long after the first try the second is at least; each later one waits twice as long, and each up to half longer, so
	// that nodes which failed at the same moment do not try again at the same moment.
	prefetchRetry = 30 * time.Second
	// prefetchQuick limits the first try of a file, since other files wait for it, and each later try has twice as long, up to
	// prefetchTimeout. So a slow registry holds up each other file once for a short time. What came in a try is there in the next.
	prefetchQuick   = time.Minute
	prefetchTimeout = 10 * time.Minute
	// idleWait is how long a prefetcher without tasks waits.
	idleWait = time.Hour
)

// Source lists the files of one kind to prefetch.
type Source struct {
	// What names the kind in logs, in the singular.
	What string
	// Needed reports whether a node can use files of this kind.
	Needed func(s *inventory.Snapshot) bool
	// Watch watches the objects until ctx ends, and calls wake after one changed. stopped waits for its end.
	Watch func(ctx context.Context, wake func()) (stopped func(), err error)
	// Jobs returns the jobs of a node with these devices.
	Jobs func(s *inventory.Snapshot) []Job
}

// Job is one file that a node should have.
type Job struct {
	// Key identifies the job: what it fetches, and how.
	Key, Reference, Digest string
	Fetch                  func(ctx context.Context) error
}

// PrefetchConfig has the settings and dependencies of a Prefetcher.
type PrefetchConfig struct {
	// Node is the name of the Node object.
	Node       string
	Holder     *inventory.Holder
	Retirement *retirement.State
	Clock      clock.Clock
	// Fetched is called after a file was fetched. It must not block.
	Fetched func()
}

// Prefetcher fetches the files that fit the node's devices before a claim asks for them. That saves time and gives no claim any right: a
// claim is checked as if the file were not in the store. Prefetching evicts nothing and prevents no eviction.
type Prefetcher struct {
	PrefetchConfig
	source Source
	// changed signals that an object changed.
	changed notify.Signal
	// tasks are keyed by the job's key. Only Run uses them.
	tasks map[string]*task
}

// task is a job and its progress.
type task struct {
	Job
	due   time.Time
	tries int
	// done: the file was fetched once, or tried often enough.
	done bool
}

// NewPrefetcher makes a prefetcher for one kind of file.
func NewPrefetcher(c PrefetchConfig, source Source) *Prefetcher {
	return &Prefetcher{PrefetchConfig: c, source: source, changed: notify.New()}
}

// Run prefetches until ctx ends. It watches no objects before the node has a device that needs them.
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
		klog.FromContext(ctx).Error(err, "Cannot prefetch: files are fetched when claims ask for them", "what", p.source.What)
		cancel()
		return
	}
	defer stopped()
	defer cancel()
	for {
		_, scanned := p.Holder.Get()
		retired := p.Retirement.Changed()
		wait, ok := p.next(ctx)
		if !ok {
			wait = idleWait
		}
		timer := p.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-scanned:
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

// next runs the task that is due first, and returns how long to wait before the next one. Not ok: until something changes.
func (p *Prefetcher) next(ctx context.Context) (wait time.Duration, ok bool) {
	if p.Retirement.On() {
		p.tasks = nil // the files are removed; tasks begin again if the node comes back
		return 0, false
	}
	v, _ := p.Holder.Get()
	p.updateTasks(p.source.Jobs(v))
	e := p.nextTask()
	if e == nil {
		return 0, false
	}
	if wait := e.due.Sub(p.Clock.Now()); wait > 0 {
		return wait, true
	}
	err := p.fetch(ctx, e)
	if ctx.Err() == nil && !p.Retirement.On() {
		p.recordAttempt(ctx, e, err)
	}
	return 0, true
}

// updateTasks adds tasks for new jobs and drops those whose job is gone.
func (p *Prefetcher) updateTasks(jobs []Job) {
	tasks := map[string]*task{}
	for _, j := range jobs {
		if old := p.tasks[j.Key]; old != nil {
			tasks[j.Key] = old
		} else if tasks[j.Key] == nil {
			tasks[j.Key] = &task{Job: j, due: p.Clock.Now().Add(prefetchDelay(p.Node, j.Digest))}
		}
	}
	p.tasks = tasks
}

// prefetchDelay returns when, within the spread, a node fetches a file. It differs between nodes and between files.
func prefetchDelay(node, digest string) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "/" + digest))
	return time.Duration(h.Sum64() % uint64(prefetchSpread))
}

// nextTask returns the task that is due first, nil if none is left.
func (p *Prefetcher) nextTask() *task {
	var first *task
	for _, e := range p.tasks {
		if e.done || first != nil && cmp.Or(first.due.Compare(e.due), cmp.Compare(first.Reference, e.Reference)) <= 0 {
			continue
		}
		first = e
	}
	return first
}

// fetch runs one try. It ends when the node retires, which waits for it.
func (p *Prefetcher) fetch(ctx context.Context, e *task) error {
	ctx, cancel := context.WithTimeout(ctx, min(prefetchQuick<<e.tries, prefetchTimeout))
	defer cancel()
	ctx, stop := p.Retirement.Until(ctx)
	defer stop()
	return e.Fetch(ctx)
}

// recordAttempt records the result of a try.
func (p *Prefetcher) recordAttempt(ctx context.Context, e *task, err error) {
	logger := klog.FromContext(ctx).WithValues("what", p.source.What, "reference", e.Reference, "digest", e.Digest)
	if err == nil {
		e.done = true
		logger.V(2).Info("Fetched ahead of claims")
		p.Fetched()
		return
	}
	e.tries++
	e.done = e.tries >= prefetchTries
	wait := max(prefetchRetry<<(e.tries-1), registry.RetryAfter(err))
	e.due = p.Clock.Now().Add(wait + time.Duration(rand.Int64N(int64(wait)/2+1))) //nolint:gosec // only spreads the load
	if e.done {
		logger.Info("Not fetched before a claim asks for it", "tries", e.tries, "reason", err)
		return
	}
	logger.V(2).Info("Cannot be prefetched now", "reason", err)
}
