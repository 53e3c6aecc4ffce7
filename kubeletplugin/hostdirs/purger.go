// SPDX-License-Identifier: Apache-2.0

package hostdirs

import (
	"context"
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/hostdir"
)

// purger deletes what claims left in host directories, one goroutine a directory. What it does not finish is found again by the
// next look, in this process or another.
type purger struct {
	errors *prometheus.CounterVec
	// emptied is sent after a directory was emptied, and not after a failure: the next look is soon enough to try again.
	emptied notify.Signal

	mu      sync.Mutex
	running map[string]bool
	wg      sync.WaitGroup
}

// start begins to delete, unless the directory is being emptied already.
func (p *purger) start(ctx context.Context, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running = map[string]bool{}
	}
	if p.running[path] {
		return
	}
	p.running[path] = true
	p.wg.Go(func() {
		err := purge(ctx, path)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The directory stays unpublished until it is empty", "path", path)
			p.errors.WithLabelValues("purge").Inc()
		}
		p.mu.Lock()
		delete(p.running, path)
		p.mu.Unlock()
		if err == nil {
			p.emptied.Send()
		}
	})
}

// wait returns when no deleter runs; their context must have ended.
func (p *purger) wait() { p.wg.Wait() }

func purge(ctx context.Context, path string) (err error) {
	d, err := hostdir.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Purge(ctx)
}
