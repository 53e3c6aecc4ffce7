// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/fettle-dev/fettle/pkg/record"
)

// arrivalKey is the context's key of the moment when a call arrived.
type arrivalKey struct{}

// stampArrivals notes when each call arrived, which is before kubelet's helper reads the claims: that read may take long, and the
// claim may be unprepared meanwhile.
func stampArrivals(now func() record.Moment) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(context.WithValue(ctx, arrivalKey{}, now()), req)
	}
}

// arrival is when the call of a context arrived.
func (p *Plugin) arrival(ctx context.Context) record.Moment {
	if m, ok := ctx.Value(arrivalKey{}).(record.Moment); ok {
		return m
	}
	return p.engine.Now()
}

// uptime is CLOCK_BOOTTIME, which all processes share, which goes on while the machine sleeps, and which nobody sets.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // cannot happen on a kernel since 2.6.39
	}
	return time.Duration(t.Nano())
}
