// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/record"
)

// lookInterval is how often the supervisor is asked what became of the daemons. It starts one again after a second or more.
const lookInterval = time.Second

// lookLimit is how long it has to answer.
const lookLimit = 5 * time.Second

// Run reports daemons that end, until ctx does: to their claims by Events, and as the health of their GPUs.
func (f *Feature) Run(ctx context.Context) {
	if f.Supervisor == "" {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	w := watcher{Feature: f}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look(ctx)
		}
	}
}

// watcher knows what the supervisor said last.
type watcher struct {
	*Feature
	// known are the daemons by their ids.
	known map[string]mps.Status
	// met are the devices that were listed since the process began.
	met map[string]bool
	// ill are the devices of daemons with a problem, by the daemons' ids.
	ill map[string][]string
}

// look asks once, and reports what has changed.
func (w *watcher) look(ctx context.Context) {
	daemons, err := w.running(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask what MPS daemons run", "reason", err)
		return
	}
	w.meet(ctx)
	next := map[string]mps.Status{}
	for _, now := range daemons {
		next[now.ID] = now
		was, seen := w.known[now.ID]
		if !seen {
			was = now
		}
		if problem(was, now) != "" || len(w.ill[now.ID]) > 0 {
			w.report(ctx, was, now)
		}
	}
	for id, devices := range w.ill {
		if _, runs := next[id]; !runs {
			delete(w.ill, id)
			w.levels(ctx, devices, "")
		}
	}
	w.known = next
}

// meet takes back what an earlier process reported of devices that are listed for the first time: it may have ended since.
func (w *watcher) meet(ctx context.Context) {
	if w.met == nil {
		w.met, w.ill = map[string]bool{}, map[string][]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Devices())) {
		if !w.met[name] {
			w.met[name] = true
			w.levels(ctx, []string{name}, "")
		}
	}
}

// levels sets the health of devices. A device of which another daemon has a problem keeps it.
func (w *watcher) levels(ctx context.Context, devices []string, what string) {
	for _, name := range devices {
		blamed := func(others []string) bool { return slices.Contains(others, name) }
		if what == "" && slices.ContainsFunc(slices.Collect(maps.Values(w.ill)), blamed) {
			continue
		}
		w.Level(ctx, name, what)
	}
}

// served are the GPUs that a claim holds and its daemon serves. Devices with admin access are not among them.
func (w *watcher) served(r *record.Record, daemon mps.Status) []string {
	uuids := w.Devices()
	var names []string
	for i := range r.Devices {
		d := &r.Devices[i]
		if uuid, gpu := uuids[d.Name]; gpu && !d.AdminAccess && slices.Contains(daemon.Devices, uuid) {
			names = append(names, d.Name)
		}
	}
	return names
}

// report tells a claim and the health of its GPUs what became of its daemon.
func (w *watcher) report(ctx context.Context, was, now mps.Status) {
	r, err := w.Load(now.ID)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("An MPS daemon has no claim", "id", now.ID, "reason", err)
		return
	}
	what := problem(was, now)
	devices := w.served(r, now)
	for _, name := range w.ill[now.ID] { // what the machine does not list now, or without its UUID, is the daemon's as before
		if !slices.Contains(devices, name) {
			devices = append(devices, name)
		}
	}
	delete(w.ill, now.ID)
	if what != "" {
		w.ill[now.ID] = devices
	}
	w.levels(ctx, devices, what)
	switch {
	case now.Restarts > was.Restarts || now.State == mps.Dead && was.State != mps.Dead:
		w.ClaimEvent(r, corev1.EventTypeWarning, "MPSDaemonEnded", what)
	case now.State == mps.Stalled && was.State != mps.Stalled:
		w.ClaimEvent(r, corev1.EventTypeWarning, "MPSDaemonStalled", what)
	}
}

// problem says what is wrong with a daemon now, or was since the last look. Empty: nothing. To start for the first time is not wrong.
func problem(was, now mps.Status) string {
	why := ""
	if now.Reason != "" {
		why = ": " + now.Reason
	}
	switch {
	case now.State == mps.Stalled:
		return "the claim's MPS daemon does not answer, and its programs may hang" + why
	case now.State == mps.Dead:
		return "the claim's MPS daemon ended, and with it the work of its programs; it is started again" + why
	case now.Restarts > was.Restarts || now.State == mps.Starting && now.Restarts > 0:
		return fmt.Sprintf("the claim's MPS daemon ended, and with it the work of its programs; it was started again, %d times by now%s",
			now.Restarts, why)
	}
	return ""
}
