// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Status is how a check ended.
type Status string

// The ways in which a check can end.
const (
	Passed  Status = "PASS"
	Failed  Status = "FAIL"
	Skipped Status = "SKIP"
)

// Result is what one check found.
type Result struct {
	Check  Check
	Status Status
	// Message says why a check failed or was skipped. It may have several lines.
	Message string
	// Causes are what the failure has in common with those of other checks, where that is known.
	Causes   []Cause
	Duration time.Duration
}

// Run runs the checks in their order and hands each result to report when it is known. It returns an error where it could not
// begin, where it was interrupted, and where it could not clean up after itself; a check that fails is no error.
func Run(ctx context.Context, config Config, checks []Check, report func(Result)) (err error) {
	if err := config.validate(); err != nil {
		return err
	}
	if config.CallTimeout == 0 {
		config.CallTimeout = kubeletTimeout
	}
	s, err := newSession(ctx, &config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	for _, c := range checks {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted before %s: %w", c.Name, context.Cause(ctx))
		}
		report(s.run(ctx, c))
	}
	return nil
}

// run runs one check and cleans up after it. What it leaves behind would make others fail, so a failed clean-up fails it.
func (s *session) run(ctx context.Context, c Check) Result {
	begin := time.Now()
	result := func(status Status, message string) Result {
		return Result{Check: c, Status: status, Message: message, Duration: time.Since(begin)}
	}
	failed := func(err error) Result {
		r := result(Failed, err.Error())
		r.Causes = causesOf(err)
		return r
	}
	if reason := c.needs.lacks(s.config); reason != "" {
		return result(Skipped, reason)
	}
	scene := &scene{session: s, check: c}
	err := scene.perform(ctx)
	if cleanup := scene.end(context.WithoutCancel(ctx)); cleanup != nil {
		return failed(errors.Join(err, fmt.Errorf("clean up after the check: %w", cleanup)))
	}
	var skipped skipError
	switch {
	case errors.As(err, &skipped):
		return result(Skipped, skipped.reason)
	case err != nil:
		return failed(err)
	}
	return result(Passed, "")
}

// perform finds the devices that the check needs and runs it.
func (s *scene) perform(ctx context.Context) error {
	if want := s.check.needs.devices; want > 0 {
		exclusive, shared, err := s.freeDevices(ctx)
		if err != nil {
			return err
		}
		kind := ""
		switch {
		case s.check.needs.shared:
			s.devices, kind = shared, " that allow several allocations"
		case s.check.needs.exclusive:
			s.devices, kind = exclusive, " that allow one allocation"
		default:
			s.devices = slices.Concat(exclusive, shared)
		}
		if have := len(s.devices); have < want {
			return skip("needs %d free devices%s of driver %s on node %q, there are %d", want, kind, s.config.Driver, s.node, have)
		}
	}
	return s.check.run(ctx, s)
}
