// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/mps"
)

// daemon is one control daemon, over all its processes.
type daemon struct {
	mps.Daemon
	config *Config
	// base is the directory that its own is in: mps.ClaimsDir, or mps.MemoryDir.
	base   string
	cancel context.CancelFunc
	// ended is closed when no process of the daemon is started any more.
	ended chan struct{}

	mu     sync.Mutex
	status mps.Status
	// stuck is a process that was killed and has not ended.
	stuck *process

	// removing is held while the directory is removed, which may take long. removed says that it was.
	removing sync.Mutex
	removed  bool
}

// remove removes the directory of a daemon that has ended, once: after that it may be another's.
func (d *daemon) remove(ctx context.Context) error {
	d.removing.Lock()
	defer d.removing.Unlock()
	if d.removed {
		return nil
	}
	err := d.config.remove(ctx, d.ID)
	d.removed = err == nil
	return err
}

func (d *daemon) look() mps.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func (d *daemon) set(state mps.State, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status.State != mps.Stopping {
		d.status.State, d.status.Reason = state, reason
	}
}

func (d *daemon) stop() {
	d.set(mps.Stopping, "")
	d.cancel()
}

// left fails while a process that was killed is still there.
func (d *daemon) left() error {
	d.mu.Lock()
	stuck := d.stuck
	d.mu.Unlock()
	if stuck == nil {
		return nil
	}
	select {
	case <-stuck.gone:
		return nil
	default:
		return fmt.Errorf("MPS daemon %s (process %d) was killed and still hangs in the driver: retried", d.ID, stuck.pid())
	}
}

// run starts the daemon, again whenever it dies, until ctx ends.
func (d *daemon) run(ctx context.Context) {
	defer close(d.ended)
	log := klog.FromContext(ctx)
	for pause := d.config.Pause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		err := d.once(ctx)
		if ctx.Err() != nil {
			log.Info("MPS daemon was ended")
			return
		}
		if time.Since(began) > maxPause {
			pause = d.config.Pause
		}
		d.set(mps.Dead, reasonOf(err))
		log.Error(err, "MPS daemon died, it is started again", "after", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		d.mu.Lock()
		d.status.Restarts++
		d.mu.Unlock()
	}
}

// maxReason limits what of an error goes to the plugin.
const maxReason = 512

func reasonOf(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}

// once runs one process of the daemon until it ends, or ends it with ctx. It returns why it ended.
func (d *daemon) once(ctx context.Context) error {
	if err := d.left(); err != nil {
		return err
	}
	d.set(mps.Starting, "")
	if err := d.makeDirs(ctx); err != nil {
		return err
	}
	p, err := d.startProcess(ctx)
	if err != nil {
		return err
	}
	err = d.ready(ctx, p)
	if err == nil {
		d.set(mps.Ready, "")
		klog.FromContext(ctx).Info("MPS daemon is ready", "pid", p.pid())
		d.watch(ctx, p)
	}
	ended := p.isGone()
	if !ended {
		d.end(ctx, p)
	}
	if ended || err == nil {
		return p.reason()
	}
	return fmt.Errorf("%w: %w", err, p.reason())
}

var errUnready = errors.New("it did not answer")

// ready waits until the process answers, and gives it its limits.
func (d *daemon) ready(ctx context.Context, p *process) error {
	const pause = 100 * time.Millisecond
	living, stop := p.while(ctx)
	defer stop()
	until, cancel := context.WithTimeout(living, d.config.ReadyIn)
	defer cancel()
	for {
		_, err := d.control(until, "get_default_active_thread_percentage")
		if err == nil {
			return d.setLimits(until)
		}
		select {
		case <-until.Done():
			return fmt.Errorf("%w within %s: %w", errUnready, d.config.ReadyIn, err)
		case <-time.After(pause):
		}
	}
}

// setLimits sends the limits as commands. They hold for servers that start later, so for all clients: those come after the daemon is ready.
// Containers that are there before a daemon was started again may be faster, and have no limit then.
func (d *daemon) setLimits(ctx context.Context) error {
	if n := d.ActiveThreadPercentage; n > 0 {
		if _, err := d.control(ctx, fmt.Sprintf("set_default_active_thread_percentage %d", n)); err != nil {
			return err
		}
		text, err := d.control(ctx, "get_default_active_thread_percentage")
		if err != nil {
			return err
		}
		if got, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil || got != float64(n) {
			return fmt.Errorf("the daemon says that its active thread percentage is %q, want %d", strings.TrimSpace(text), n)
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(d.PinnedMemoryMiB)) {
		if _, err := d.control(ctx, fmt.Sprintf("set_default_device_pinned_mem_limit %s %dM", uuid, d.PinnedMemoryMiB[uuid])); err != nil {
			return err
		}
	}
	return nil
}

// maxSilence is how many questions in a row a daemon may leave without an answer.
const maxSilence = 3

// watch looks at a process that is ready until it ends, or ctx does.
func (d *daemon) watch(ctx context.Context, p *process) {
	tick := time.NewTicker(d.config.Check)
	defer tick.Stop()
	for silent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-p.gone:
			return
		case <-tick.C:
		}
		d.trimLogs(ctx)
		err := d.answers(ctx, p)
		switch {
		case err == nil:
			silent = 0
			d.set(mps.Ready, "")
		case p.isGone() || ctx.Err() != nil:
		default:
			if silent++; silent >= maxSilence {
				d.set(mps.Stalled, reasonOf(err))
			}
		}
	}
}

// answers asks a process that is ready anything.
func (d *daemon) answers(ctx context.Context, p *process) error {
	living, stop := p.while(ctx)
	defer stop()
	asking, cancel := context.WithTimeout(living, d.config.Check)
	defer cancel()
	_, err := d.control(asking, "get_default_active_thread_percentage")
	return err
}

// end asks a process to end, and kills it if it does not.
func (d *daemon) end(ctx context.Context, p *process) {
	living, stop := p.while(context.WithoutCancel(ctx))
	defer stop()
	asking, cancel := context.WithTimeout(living, d.config.Grace)
	defer cancel()
	_, err := d.control(asking, "quit")
	if err == nil {
		<-asking.Done()
	}
	p.kill()
	select {
	case <-p.gone:
	case <-time.After(d.config.Grace):
		d.mu.Lock()
		d.stuck = p
		d.mu.Unlock()
	}
}

// dir returns the daemon's directory, or one in it, as the daemon sees it.
func (d *daemon) dir(parts ...string) string {
	return filepath.Join(append([]string{d.base, d.ID}, parts...)...)
}
