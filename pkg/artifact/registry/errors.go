// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/message"
)

// RetryAfter returns the pause that the registry asked for, or 0.
func RetryAfter(err error) time.Duration {
	var status *statusError
	if errors.As(err, &status) {
		return status.after
	}
	return 0
}

// statusError is an answer that asks for another try, such as 503 or 429.
type statusError struct {
	text  string
	after time.Duration
}

func (e *statusError) Error() string { return e.text }

func (e *statusError) Unwrap() error { return artifact.ErrUnavailable }

// joinErrors combines the errors of several endpoints on one line.
func joinErrors(errs []error) (all error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

const longestQuote = 200

// clip makes the first line of foreign text fit for an error message.
func clip(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return message.Line(s, longestQuote)
}

func quote(s string) string { return `"` + clip(s) + `"` }
