// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// TestArrivalIsBeforeTheCall: a call is stamped when it comes in, not when its claims were read.
func TestArrivalIsBeforeTheCall(t *testing.T) {
	clock := time.Minute
	now := func() record.Moment { return record.Moment{BootID: "boot-1", Since: clock} }
	want := now()
	var got record.Moment
	_, err := stampArrivals(now)(t.Context(), nil, nil, func(ctx context.Context, _ any) (any, error) {
		clock += time.Minute // the claims are read
		got = arrival(ctx, now)
		return nil, nil //nolint:nilnil // a handler's answer, which nobody looks at
	})
	check.Must(t, err)
	if got != want {
		t.Errorf("arrived at %+v, want %+v", got, want)
	}
	if got := arrival(t.Context(), now); got != now() {
		t.Errorf("a call that was not stamped arrived at %+v, want now, %+v", got, now())
	}
}

// TestUptime is the kernel's, so that two processes mean the same by it.
func TestUptime(t *testing.T) {
	before := uptime()
	text, err := os.ReadFile("/proc/uptime")
	check.Must(t, err)
	seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	check.Must(t, err)
	kernel := time.Duration(seconds * float64(time.Second))
	const tick = 10 * time.Millisecond // of the file
	if after := uptime(); kernel < before-tick || kernel > after+tick {
		t.Errorf("uptime %s to %s, the kernel says %s", before, after, kernel)
	}
}
