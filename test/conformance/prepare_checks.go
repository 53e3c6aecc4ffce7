// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

func prepareChecks() []Check {
	return []Check{
		{
			Name:    "prepare/empty-call",
			Summary: "calls without a claim succeed",
			run:     checkEmptyCall,
		},
		{
			Name:    "prepare/every-claim",
			Summary: "a call with several claims answers each with the devices, requests and pool of its allocation",
			needs:   needs{devices: 2}, run: checkEveryClaim,
		},
		{
			Name:    "prepare/several-requests",
			Summary: "a claim with two devices for one request and one for another gets each for its own",
			needs:   needs{devices: 3}, run: checkSeveralRequests,
		},
		{
			Name:    "prepare/sub-request",
			Summary: "a device allocated to a sub-request is answered for the request, the only name that a container knows",
			needs:   needs{devices: 1}, run: checkSubRequest,
		},
		{
			Name:    "prepare/other-driver",
			Summary: "results and configuration of another driver in the same allocation are passed over",
			needs:   needs{devices: 1}, run: checkOtherDriver,
		},
		{
			Name:    "prepare/idempotent",
			Summary: "a claim that is prepared gets the same answer again, alone and beside another claim",
			needs:   needs{devices: 2}, run: checkIdempotent,
		},
		{
			Name:    "prepare/partial-failure",
			Summary: "a claim on an unknown device gets an error of its own, the other claims of the call are prepared",
			needs:   needs{devices: 2}, run: checkPartialFailure,
		},
		{
			Name:    "prepare/unready-claim",
			Summary: "a claim that is not allocated, not there, or has another UID is refused, and the next call works",
			needs:   needs{devices: 1}, run: checkUnreadyClaim,
		},
	}
}

func checkEmptyCall(ctx context.Context, s *scene) error {
	_, err := s.callPrepare(ctx)
	return errors.Join(err, s.unprepare(ctx))
}

func checkEveryClaim(ctx context.Context, s *scene) error {
	var claims []*resourceapi.ResourceClaim
	for _, d := range s.devices[:min(len(s.devices), 4)] {
		c, err := s.claim(ctx, d)
		if err != nil {
			return err
		}
		claims = append(claims, c)
	}
	answers, err := s.callPrepare(ctx, claims...)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range claims {
		errs = append(errs, s.accepted(c, answers[c.UID]))
	}
	return errors.Join(append(errs, s.unprepare(ctx, claims...))...)
}

// accepted wants an answer that is no error and has what is allocated.
func (s *session) accepted(c *resourceapi.ResourceClaim, a answer) error {
	if text := a.GetError(); text != "" {
		return fmt.Errorf("prepare %s: %s", c.Name, text)
	}
	return s.asAllocated(c, a)
}

func checkSeveralRequests(ctx context.Context, s *scene) error {
	c, err := s.claimFor(ctx, request{name: "pair", devices: s.devices[:2]}, request{name: "single", devices: s.devices[2:3]})
	if err != nil {
		return err
	}
	a, err := s.prepare(ctx, c)
	if err != nil {
		return err
	}
	_, err = s.meanings(a)
	return err
}

func checkSubRequest(ctx context.Context, s *scene) error {
	c, err := s.claimFor(ctx, request{name: "main/sub", devices: s.devices[:1]})
	if apierrors.IsInvalid(err) {
		return skip("the API server does not take firstAvailable: %v", err)
	}
	if err != nil {
		return err
	}
	_, err = s.prepare(ctx, c)
	return err
}

func checkOtherDriver(ctx context.Context, s *scene) error {
	other := request{name: "other", devices: []device{{"other-pool", "other-device"}}, driver: "other.conformance.example"}
	c, err := s.claimFor(ctx, request{name: "main", devices: s.devices[:1]}, other)
	if err != nil {
		return err
	}
	_, err = s.prepare(ctx, c)
	return err
}

func checkIdempotent(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	first, err := s.prepare(ctx, c)
	if err != nil {
		return err
	}
	second, err := s.prepare(ctx, c)
	if err != nil {
		return fmt.Errorf("the second time: %w", err)
	}
	other, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	answers, err := s.callPrepare(ctx, other, c)
	if err != nil {
		return fmt.Errorf("the third time, beside another claim: %w", err)
	}
	return errors.Join(same(c, first, second), s.accepted(other, answers[other.UID]), s.accepted(c, answers[c.UID]),
		same(c, first, answers[c.UID]))
}

func checkPartialFailure(ctx context.Context, s *scene) error {
	good, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	bad, err := s.claim(ctx, device{s.devices[0].pool, "no-such-device"})
	if err != nil {
		return err
	}
	late, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	for _, order := range [][]*resourceapi.ResourceClaim{{good, bad, late}, {bad, late, good}} {
		answers, err := s.callPrepare(ctx, order...)
		if err != nil {
			return fmt.Errorf("one claim names an unknown device, which is that claim's error and not the call's: %w", err)
		}
		if answers[bad.UID].GetError() == "" {
			return fmt.Errorf("claim %s for device %s was prepared, want an error: there is no such device", bad.Name,
				device{s.devices[0].pool, "no-such-device"})
		}
		if err := errors.Join(s.accepted(good, answers[good.UID]), s.accepted(late, answers[late.UID])); err != nil {
			return fmt.Errorf("beside a claim that failed: %w", err)
		}
	}
	return s.unprepare(ctx, bad, good, late)
}

func checkUnreadyClaim(ctx context.Context, s *scene) error {
	claims := s.config.Kube.ResourceV1().ResourceClaims(s.namespace)
	pending := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: s.nextName(), Namespace: s.namespace}}
	pending.Spec.Devices.Requests = append(pending.Spec.Devices.Requests, s.deviceRequest(request{name: "main", devices: s.devices[:1]}))
	pending, err := claims.Create(ctx, pending, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a ResourceClaim: %w", err)
	}
	s.claims = append(s.claims, pending)
	ready, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	replaced := ready.DeepCopy()
	replaced.UID = uuid.NewUUID()
	gone := replaced.DeepCopy()
	gone.Name = "no-such-claim"
	err = errors.Join(
		s.refused(ctx, pending, "it has no allocation"),
		s.refused(ctx, gone, "there is no such claim"),
		s.refused(ctx, replaced, "the claim of that name has another UID"),
	)
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, ready); err != nil {
		return fmt.Errorf("after refusals of others: %w", err)
	}
	return nil
}
