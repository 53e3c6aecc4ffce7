// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

func healthChecks() []Check {
	return []Check{
		{
			Name:    "health/first-report",
			Summary: "the first report of a health stream, if health is offered, covers every device that the node's slices have",
			run:     checkFirstReport,
		},
		{
			Name:    "health/resent",
			Summary: "each device is reported again before kubelet forgets it, after its own timeout or 30 s",
			run:     checkResent,
		},
		{
			Name:    "health/reconnect",
			Summary: "a second stream, opened while the first is and after it ended, begins with all devices too",
			run:     checkReconnect,
		},
	}
}

// kubeletForgets is when a report without a timeout of its own grows stale.
const kubeletForgets = 30 * time.Second

// watch is one health stream. Reports arrive until the context ends; then the channel is closed, with err set.
type watch struct {
	reports chan *drahealth.NodeWatchResourcesResponse
	err     error
	end     context.CancelFunc
}

func (s *session) watch(ctx context.Context) (*watch, error) {
	if s.plugin.health == nil {
		return nil, skip("the plugin offers no health service")
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.plugin.health.NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		cancel()
		return nil, notOffered(err)
	}
	w := &watch{reports: make(chan *drahealth.NodeWatchResourcesResponse), end: cancel}
	go func() {
		defer close(w.reports)
		for {
			report, err := stream.Recv()
			if err != nil {
				w.err = notOffered(err)
				return
			}
			select {
			case w.reports <- report:
			case <-ctx.Done():
				w.err = context.Cause(ctx)
				return
			}
		}
	}()
	return w, nil
}

func notOffered(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return skip("the plugin does not report health: %v", err)
	}
	return fmt.Errorf("health stream: %w", err)
}

// next is the next report.
func (w *watch) next(ctx context.Context, limit time.Duration) (*drahealth.NodeWatchResourcesResponse, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case report, ok := <-w.reports:
		if !ok {
			return nil, w.err
		}
		return report, nil
	case <-timer.C:
		return nil, fmt.Errorf("no health report within %s", limit)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// first wants a report of all published devices.
func (w *watch) first(ctx context.Context, s *scene) error {
	published, err := s.published(ctx)
	if errors.Is(err, errNotPublished) {
		return skip("the driver has no ResourceSlice for node %q", s.node)
	}
	if err != nil {
		return err
	}
	report, err := w.next(ctx, s.config.Patience)
	if err != nil {
		return err
	}
	reported := map[device]bool{}
	for _, d := range report.GetDevices() {
		reported[device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}] = true
	}
	var errs []error
	for _, d := range published {
		if !reported[d] {
			errs = append(errs, fmt.Errorf("the first report has %d devices and lacks %s, which is published", len(reported), d))
		}
	}
	return errors.Join(errs...)
}

func checkFirstReport(ctx context.Context, s *scene) error {
	w, err := s.watch(ctx)
	if err != nil {
		return err
	}
	defer w.end()
	return w.first(ctx, s)
}

// checkResent ends once each device of the first report was reported again.
func checkResent(ctx context.Context, s *scene) error {
	w, err := s.watch(ctx)
	if err != nil {
		return err
	}
	defer w.end()
	report, err := w.next(ctx, s.config.Patience)
	if err != nil {
		return err
	}
	begin := time.Now()
	due := map[device]time.Duration{}
	for _, d := range report.GetDevices() {
		timeout := time.Duration(d.GetHealthCheckTimeoutSeconds()) * time.Second
		if timeout <= 0 {
			timeout = kubeletForgets
		}
		due[device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}] = timeout
	}
	if len(due) == 0 {
		return skip("the plugin reports the health of no device")
	}
	for len(due) > 0 {
		soonest := slices.Min(slices.Collect(maps.Values(due)))
		report, err := w.next(ctx, soonest-time.Since(begin))
		if err != nil {
			return fmt.Errorf("%d devices were not reported again within %s, after which kubelet takes their health as unknown: %w",
				len(due), soonest, err)
		}
		for _, d := range report.GetDevices() {
			delete(due, device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()})
		}
	}
	return nil
}

func checkReconnect(ctx context.Context, s *scene) error {
	for range 2 {
		first, err := s.watch(ctx)
		if err != nil {
			return err
		}
		defer first.end()
		if err := first.first(ctx, s); err != nil {
			return err
		}
		second, err := s.watch(ctx)
		if err != nil {
			return err
		}
		err = second.first(ctx, s)
		second.end()
		if err != nil {
			return fmt.Errorf("the second stream: %w", err)
		}
		first.end()
	}
	return nil
}
