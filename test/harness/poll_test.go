// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/test/harness"
)

// TestPollSaysWhatIsMissing: the last look has time for its answer, so that the error tells what was waited for and not that time was up.
func TestPollSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(harness.Config{}, io.Discard)
		missing := errors.New("the pod is Pending")
		err := h.Poll(t.Context(), "the pod", time.Minute, func(ctx context.Context) error {
			if end, bounded := ctx.Deadline(); !bounded || time.Until(end) < time.Second {
				return context.DeadlineExceeded // as a client that expects no answer in time
			}
			return missing
		})
		if !errors.Is(err, missing) {
			t.Errorf("%v, want %v", err, missing)
		}
	})
}
