// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

func concurrencyChecks() []Check {
	return []Check{
		{
			Name:    "concurrency/different-claims",
			Summary: "claims on different devices are prepared and unprepared by calls side by side, each with its own devices",
			needs:   needs{devices: 2}, run: checkParallelClaims,
		},
		{
			Name:    "concurrency/same-claim",
			Summary: "calls side by side for one claim all give the same answer",
			needs:   needs{devices: 1}, run: checkParallelSame,
		},
		{
			Name:    "concurrency/one-device",
			Summary: "of several claims that are prepared for one device side by side, exactly one gets it",
			needs:   needs{devices: 1, exclusive: true}, run: checkParallelDevice,
		},
		{
			Name:    "concurrency/prepare-unprepare",
			Summary: "prepares and unprepares of one claim side by side leave it wholly prepared or not at all, and nothing lost",
			needs:   needs{devices: 1, exclusive: true}, run: checkPrepareUnprepare,
		},
		{
			Name:    "concurrency/abandoned-prepare",
			Summary: "a prepare on which kubelet gave up does not take the device after the claim was unprepared",
			needs:   needs{devices: 1}, run: checkAbandoned,
		},
	}
}

// atOnce starts n calls, lets them go together and joins their errors.
func atOnce(n int, call func(i int) error) error {
	start := make(chan struct{})
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	group.Wait()
	return errors.Join(errs...)
}

func checkParallelClaims(ctx context.Context, s *scene) error {
	n := min(len(s.devices), s.config.Parallel)
	claims := make([]*resourceapi.ResourceClaim, n)
	for i := range claims {
		c, err := s.claim(ctx, s.devices[i])
		if err != nil {
			return err
		}
		claims[i] = c
	}
	for range 2 {
		err := atOnce(n, func(i int) error {
			a, err := s.prepare(ctx, claims[i])
			if err == nil {
				_, err = s.meanings(a)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := atOnce(n, func(i int) error { return s.unprepare(ctx, claims[i]) }); err != nil {
			return err
		}
	}
	for i, c := range claims {
		if _, err := s.prepareSoon(ctx, c); err != nil {
			return caused(CauseNotFreed, fmt.Errorf("device %s is not free after calls side by side: %w", s.devices[i], err))
		}
	}
	return nil
}

func checkParallelSame(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	answers := make([]answer, s.config.Parallel)
	err = atOnce(len(answers), func(i int) (err error) {
		answers[i], err = s.prepare(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		if err := same(c, answers[0], a); err != nil {
			return err
		}
	}
	_, err = s.meanings(answers[0])
	return err
}

func checkParallelDevice(ctx context.Context, s *scene) error {
	claims := make([]*resourceapi.ResourceClaim, s.config.Parallel)
	for i := range claims {
		c, err := s.claim(ctx, s.devices[0])
		if err != nil {
			return err
		}
		claims[i] = c
	}
	refusals := make([]error, len(claims))
	lost := atOnce(len(claims), func(i int) error {
		answers, err := s.callPrepare(ctx, claims[i])
		if errors.Is(err, errIncomplete) || silent(err) {
			return err
		}
		if err == nil {
			err = s.accepted(claims[i], answers[claims[i].UID])
		}
		refusals[i] = err
		return nil
	})
	if lost != nil {
		return lost
	}
	var winners []string
	for i, refusal := range refusals {
		if refusal == nil {
			winners = append(winners, claims[i].Name)
		}
	}
	if len(winners) == 1 {
		return nil
	}
	given := fmt.Errorf("device %s was given to %d of %d claims (%s), want exactly one", s.devices[0], len(winners), len(claims),
		list(winners))
	if len(winners) > 1 {
		given = caused(CauseHeldGiven, given)
	}
	return errors.Join(given, refusals[0])
}

// rounds is how often a race is run. One round hits a bad moment rarely.
const rounds = 10

func checkPrepareUnprepare(ctx context.Context, s *scene) error {
	c, other, err := s.twoClaims(ctx, s.devices[0])
	if err != nil {
		return err
	}
	for range rounds {
		// A plugin may refuse a call that comes in the middle of another. It may not be gone.
		err := atOnce(s.config.Parallel, func(i int) error {
			if i%2 == 1 {
				return ifSilent(s.unprepare(ctx, c))
			}
			_, err := s.prepare(ctx, c)
			return ifSilent(err)
		})
		if err != nil {
			return err
		}
		a, err := s.prepareSoon(ctx, c)
		if err != nil {
			return fmt.Errorf("after prepares and unprepares side by side: %w", err)
		}
		if _, err := s.meanings(a); err != nil {
			return fmt.Errorf("after prepares and unprepares side by side: %w", err)
		}
		if err := s.refusedAsHeld(ctx, other, heldByOther); err != nil {
			return err
		}
		if err := s.handedOver(ctx, c, other); err != nil {
			return fmt.Errorf("after prepares and unprepares side by side: %w", err)
		}
	}
	return nil
}

func ifSilent(err error) error {
	if silent(err) {
		return err
	}
	return nil
}

func (s *scene) twoClaims(ctx context.Context, d device) (first, second *resourceapi.ResourceClaim, err error) {
	if first, err = s.claim(ctx, d); err != nil {
		return nil, nil, err
	}
	second, err = s.claim(ctx, d)
	return first, second, err
}

// handedOver unprepares the first claim and wants its device to go to the second and back.
func (s *scene) handedOver(ctx context.Context, first, second *resourceapi.ResourceClaim) error {
	if err := s.unprepare(ctx, first); err != nil {
		return err
	}
	if _, err := s.prepareSoon(ctx, second); err != nil {
		return caused(CauseNotFreed, fmt.Errorf("claim %s was unprepared, its device is not free: %w", first.Name, err))
	}
	return s.unprepare(ctx, second)
}

// checkAbandoned gives up on prepares at moments from their beginning to their end. Kubelet unprepares then, and what the abandoned
// call still does must not outlast that: nobody would ever unprepare it again. Each round has a claim of its own, so that none
// hides what another left.
func checkAbandoned(ctx context.Context, s *scene) error {
	other, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := s.prepare(ctx, other); err != nil {
		return err
	}
	took := time.Since(begin)
	if err := s.unprepare(ctx, other); err != nil {
		return err
	}
	const moments = 3 * rounds
	for moment := range moments {
		c, err := s.claim(ctx, s.devices[0])
		if err != nil {
			return err
		}
		limit := took * time.Duration(moment) / moments
		short, cancel := context.WithTimeout(ctx, limit)
		_, _ = s.callPrepare(short, c)
		cancel()
		if err := s.handedOver(ctx, c, other); err != nil {
			return fmt.Errorf("kubelet gave up on a prepare after %s: %w", limit, err)
		}
	}
	// Whatever was still under way has had time by now.
	if !sleep(ctx, settle) {
		return context.Cause(ctx)
	}
	if _, err := s.prepare(ctx, other); err != nil {
		return fmt.Errorf("after prepares on which kubelet gave up: %w", err)
	}
	return nil
}

// settle is how long a call may still do something after kubelet gave up on it and before the last look.
const settle = 500 * time.Millisecond
