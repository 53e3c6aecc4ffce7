// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	callers = 32
	// enough violations make more of them useless; the first are printed with what happened before.
	enough, explained = 40, 8
)

// run is one run of the test.
type run struct {
	// dir holds everything; root is the host's tree in it, and cdi the CDI directory.
	dir, root, cdi string
	trace          *trace
	api            *api
	fleet          *fleet
	ledger         *ledger
	scheduler      *scheduler
	kubelet        *kubeletState
	// slow are the disks that hang, mounted all that must be unmounted.
	slow, mounted []*slowDisk

	plan plan
	// offset is the number of operations before this round.
	offset int64
	// keys says which of the machine's devices a published one is. vacant is how directories are that nobody has.
	keys   map[deviceID]string
	vacant map[string]directory
	before world

	// gate is held for reading during whatever a pod's worker does, and for writing when the world must stand still.
	gate sync.RWMutex
	// These change only while the world stands still: the machine at this boot.
	nodes    map[string]hostNode
	devices  []hardware
	hardware map[string]hardware
	boots    int

	specsMu sync.Mutex
	specs   specReader

	pickMu sync.Mutex
	// picks chooses among the plugins that serve.
	picks *rand.Rand

	// operations counts claims that were prepared and unprepared. horizon is how far the pods may go before the faults follow.
	operations, horizon                      atomic.Int64
	prepares, unprepares, failures, vanished atomic.Int64
	generation                               atomic.Int64
	window                                   atomic.Pointer[hangWindow]
	lasting                                  sync.WaitGroup
	visits                                   int
	served                                   int64
	done                                     map[faultKind]int
	resultMu                                 sync.Mutex
	latencies                                []time.Duration
	violations                               []string
	counts                                   map[class]int
	errs                                     []error
	cancel                                   context.CancelFunc
}

// start writes what the plugin is configured with, starts the first, and takes note of the world without claims.
func (r *run) start(ctx context.Context, binary string) error {
	config := filepath.Join(r.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(configuration()), 0o600); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(r.dir, name) }
	r.fleet = newFleet(ctx, binary, r.dir, []string{
		"--kubeconfig=" + r.api.kubeconfig, "--config=" + config, "--node-name=" + nodeName, "--namespace=fettle-system",
		"--host-root=" + r.root, "--kubelet-plugins-dir=" + at("p"), "--kubelet-registry-dir=" + at("r"), "--cdi-root=" + r.cdi,
		"--state-dir=" + at(stateDisk+"/state"), "--kubelet-state=" + r.kubelet.path,
		"--nvml-command=", "-v=2",
	}, r.trace, r.report)
	host, err := readHost(r.root)
	if err != nil {
		return err
	}
	r.vacant = host.dirs
	r.fleet.add(ctx)
	err = r.eventually(ctx, retryLimit, "all devices are published", func() bool {
		devices, err := r.api.published(ctx)
		return err == nil && len(devices) == gpuCount+dirCount
	})
	if err != nil {
		return err
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	r.before, err = r.world(ctx)
	return err
}

// identify finds out which of the machine's devices each published one is.
func (r *run) identify(ctx context.Context) error {
	devices, err := r.api.published(ctx)
	if err != nil {
		return err
	}
	r.keys = map[deviceID]string{}
	var gpus, dirs []deviceID
	for id, d := range devices {
		key := keyOf(d)
		hw, ok := r.hardware[key]
		if !ok {
			return fmt.Errorf("published device %s says that it is %q, which the machine does not have", id, key)
		}
		r.keys[id] = key
		if hw.dir == "" {
			gpus = append(gpus, id)
		} else {
			dirs = append(dirs, id)
		}
	}
	r.scheduler = newScheduler(gpus, dirs)
	return nil
}

// slowID is the device that a directory is published as.
func (r *run) slowID(key string) deviceID {
	for id, k := range r.keys {
		if k == key {
			return id
		}
	}
	return deviceID{}
}

// begin prepares for a round.
func (r *run) begin(p plan, cancel context.CancelFunc) {
	r.plan, r.cancel, r.offset, r.picks = p, cancel, r.operations.Load(), rand.New(rand.NewPCG(p.seed, 3))
	r.horizon.Store(r.offset + slack)
	r.prepares.Store(0)
	r.unprepares.Store(0)
	r.failures.Store(0)
	r.vanished.Store(0)
	r.served, r.latencies, r.done = 0, nil, map[faultKind]int{}
}

// play runs all pods and all faults of the plan.
func (r *run) play(ctx context.Context, number int) error {
	const perRound = 1_000_000
	var next atomic.Int64
	var workers sync.WaitGroup
	for range callers {
		r.scheduler.live(1)
		workers.Go(func() {
			defer r.scheduler.live(-1)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(r.plan.pods) || !r.follow(ctx) {
					return
				}
				if err := r.live(ctx, number*perRound+i, r.plan.pods[i]); err != nil {
					r.fail(err)
					return
				}
			}
		})
	}
	wrecked := make(chan struct{})
	go func() {
		defer close(wrecked)
		if err := r.wreck(ctx); err != nil {
			r.fail(err)
		}
	}()
	workers.Wait()
	<-wrecked
	r.calm()
	return ctx.Err()
}

// follow waits until the faults are not too far behind.
func (r *run) follow(ctx context.Context) bool {
	for r.operations.Load() >= r.horizon.Load() {
		if !wait(ctx, time.Millisecond) {
			return false
		}
	}
	return ctx.Err() == nil
}

// finish wants the world to be as it was, and every device to be had at once.
func (r *run) finish(ctx context.Context, number int) error {
	if err := r.asBefore(ctx); err != nil {
		return err
	}
	if err := r.fresh(ctx, number); err != nil || r.found() {
		return err
	}
	return r.asBefore(ctx)
}

// found says whether something is wrong already.
func (r *run) found() bool {
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	return len(r.violations) > 0
}

// asBefore checks everything, and that nothing is left of any claim.
func (r *run) asBefore(ctx context.Context) error {
	if err := r.look(ctx); err != nil {
		return err
	}
	const deadline = 3 * soon // the API may lag behind, and the plugin behind the API
	var found []violation
	err := r.eventually(ctx, deadline, "the world is as before", func() bool {
		now, err := r.world(ctx)
		found = checkEnd(r.before, now)
		return err == nil && len(found) == 0
	})
	if err != nil && len(found) > 0 {
		r.report(found...)
		return nil
	}
	return err
}

// world is all that must be the same when no claim is there.
func (r *run) world(ctx context.Context) (world, error) {
	var w world
	specs, err := r.readSpecs()
	if err != nil {
		return w, err
	}
	w.specs = map[string]string{}
	for name, file := range specs {
		w.specs[name] = file.digest
	}
	if w.tree, err = readTree(r.root); err != nil {
		return w, err
	}
	devices, err := r.api.published(ctx)
	if err != nil {
		return w, err
	}
	w.devices, err = texts(devices)
	return w, err
}

// fresh prepares each device for a claim of its own, with one call for which there is no second.
func (r *run) fresh(ctx context.Context, number int) error {
	if err := r.eventually(ctx, retryLimit, "the plugin serves", func() bool { return len(r.fleet.serving()) > 0 }); err != nil {
		return err
	}
	var workers sync.WaitGroup
	for i, id := range slices.SortedFunc(maps.Keys(r.keys), byName) {
		workers.Go(func() { r.fail(r.freshOne(ctx, fmt.Sprintf("fresh-%d-%d", number, i), id)) })
	}
	workers.Wait()
	return ctx.Err()
}

func (r *run) freshOne(ctx context.Context, name string, id deviceID) error {
	w := want{dirs: 1}
	if strings.HasSuffix(id.pool, "/gpu") {
		w = want{gpus: 1}
	}
	if !r.scheduler.reserve(id) {
		r.report(violation{leaked, id.String(), "is allocated although no pod is left"})
		return nil
	}
	t := newTenancy(name, 0, w, []deviceID{id})
	claims := []*tenancy{t}
	if _, err := r.admit(ctx, claims, nil); err != nil {
		return err
	}
	if !r.ask(ctx, soon, claims) {
		r.report(violation{leaked, id.String(), fmt.Sprintf("nobody has it, and claim %s cannot have it: %s", t.name, t.lastError)})
	}
	r.unprepare(ctx, claims)
	r.ledger.end(t)
	return r.free(ctx, claims, false)
}

// eventually polls until done.
func (r *run) eventually(ctx context.Context, within time.Duration, what string, done func() bool) error {
	for deadline := time.Now().Add(within); !done(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %s", within, what)
		}
		if !wait(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// readSpecs reads the CDI directory.
func (r *run) readSpecs() (specDir, error) {
	r.specsMu.Lock()
	defer r.specsMu.Unlock()
	return r.specs.read()
}

// report takes note of violations, each once.
func (r *run) report(found ...violation) {
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	for _, v := range found {
		r.trace.note("VIOLATION %s", v)
		r.counts[v.class]++
		text := v.String()
		if len(r.violations) < explained {
			text += "\n" + r.trace.about(v.subject)
		}
		r.violations = append(r.violations, text)
		if len(r.violations) == enough {
			r.cancel()
		}
	}
}

// why adds to an error what led to it: a violation, or a process that ended, cancels everything.
func (r *run) why(err error) error {
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	return fmt.Errorf("%w; errors: %w; violations: %q", err, errors.Join(r.errs...), r.violations)
}

// fail takes note of what keeps the test itself from going on.
func (r *run) fail(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	r.errs = append(r.errs, err)
	r.cancel()
}

func (r *run) latency(d time.Duration) {
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	r.latencies = append(r.latencies, d)
}

// summary is for people.
func (r *run) summary(took time.Duration) string {
	r.resultMu.Lock()
	defer r.resultMu.Unlock()
	slices.Sort(r.latencies)
	quantile := func(q float64) time.Duration {
		if len(r.latencies) == 0 {
			return 0
		}
		return r.latencies[int(q*float64(len(r.latencies)-1))].Round(10 * time.Microsecond)
	}
	var faults []string
	for _, kind := range slices.Sorted(maps.Keys(r.done)) {
		faults = append(faults, fmt.Sprintf("%d x %s", r.done[kind], kind))
	}
	return fmt.Sprintf(`chaos: %d prepares and %d unprepares by %d callers over %d devices in %s
%s
%d calls failed and were repeated; %d were served while a disk did not answer; %d pods vanished
Prepare p50 %s, p99 %s, max %s
lost %d, leaked %d, doubly used %d, held up %d`,
		r.prepares.Load(), r.unprepares.Load(), callers, gpuCount+dirCount, took.Round(time.Second), strings.Join(faults, ", "),
		r.failures.Load(), r.served, r.vanished.Load(), quantile(0.5), quantile(0.99), quantile(1),
		r.counts[lost], r.counts[leaked], r.counts[doublyUsed], r.counts[heldUp])
}
