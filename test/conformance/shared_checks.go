// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
)

func sharedChecks() []Check {
	return []Check{
		{
			Name:    "shared/together",
			Summary: "claims that have shares of one device are prepared, each answered with the id of its own share",
			needs:   needs{devices: 1, shared: true}, run: checkSharesTogether,
		},
		{
			Name:    "shared/apart",
			Summary: "the end of one share leaves another share of the device as it was, and the next claim gets a share",
			needs:   needs{devices: 1, shared: true}, run: checkSharesApart,
		},
		{
			Name:    "shared/one-claim",
			Summary: "a claim with two shares of one device gets each for the request that it was allocated for",
			needs:   needs{devices: 1, shared: true}, run: checkSharesOfOneClaim,
		},
	}
}

func checkSharesTogether(ctx context.Context, s *scene) error {
	first, second, err := s.twoClaims(ctx, s.devices[0])
	if err != nil {
		return err
	}
	answers, err := s.callPrepare(ctx, first, second)
	if err != nil {
		return err
	}
	a, b := answers[first.UID], answers[second.UID]
	if err := errors.Join(s.accepted(first, a), s.accepted(second, b)); err != nil {
		return err
	}
	_, firstErr := s.meanings(a)
	_, secondErr := s.meanings(b)
	return errors.Join(firstErr, secondErr, s.unprepare(ctx, first, second))
}

func checkSharesApart(ctx context.Context, s *scene) error {
	first, second, err := s.twoClaims(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, first); err != nil {
		return err
	}
	a, err := s.prepare(ctx, second)
	if err != nil {
		return fmt.Errorf("beside another share of the device: %w", err)
	}
	meant, err := s.meanings(a)
	if err != nil {
		return err
	}
	if err := s.unprepare(ctx, first); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, second, a, meant, "after another share of the device was unprepared"); err != nil {
		return err
	}
	if err := s.freed(ctx, s.devices[0], "for a share after another one was unprepared"); err != nil {
		return err
	}
	return s.stillHeld(ctx, second, a, meant, "after another share of the device was prepared")
}

func checkSharesOfOneClaim(ctx context.Context, s *scene) error {
	only := s.devices[:1]
	c, err := s.claimFor(ctx, request{name: "left", devices: only}, request{name: "right", devices: only})
	if err != nil {
		return err
	}
	a, err := s.prepare(ctx, c)
	if err != nil {
		return err
	}
	_, err = s.meanings(a)
	return errors.Join(err, s.unprepare(ctx, c))
}
