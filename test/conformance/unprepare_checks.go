// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

func unprepareChecks() []Check {
	return []Check{
		{
			Name:    "unprepare/unknown",
			Summary: "a claim that was never prepared and does not exist is unprepared without an error",
			run:     checkUnprepareUnknown,
		},
		{
			Name:    "unprepare/twice",
			Summary: "a claim is unprepared twice without an error, and its device is free after the first time",
			needs:   needs{devices: 1}, run: checkUnprepareTwice,
		},
		{
			Name:    "unprepare/every-claim",
			Summary: "a call with prepared, unprepared and unknown claims answers each",
			needs:   needs{devices: 2}, run: checkUnprepareEvery,
		},
		{
			Name:    "unprepare/deleted-claim",
			Summary: "a prepared claim that was deleted from the API server is unprepared, and its device is free",
			needs:   needs{devices: 1}, run: checkUnprepareDeleted,
		},
	}
}

// unknown is a claim that no API server has.
func (s *scene) unknown() *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "no-such-claim", UID: uuid.NewUUID()}}
}

func checkUnprepareUnknown(ctx context.Context, s *scene) error {
	return s.unprepare(ctx, s.unknown())
}

// freed wants a device to be given to a new claim.
func (s *scene) freed(ctx context.Context, d device, since string) error {
	next, err := s.claim(ctx, d)
	if err != nil {
		return err
	}
	if _, err := s.prepareSoon(ctx, next); err != nil {
		return caused(CauseNotFreed, fmt.Errorf("device %s is not free %s: %w", d, since, err))
	}
	return nil
}

func checkUnprepareTwice(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, c); err != nil {
		return err
	}
	if err := s.unprepare(ctx, c); err != nil {
		return err
	}
	if err := s.freed(ctx, s.devices[0], "after its claim was unprepared"); err != nil {
		return err
	}
	if err := s.unprepare(ctx, c); err != nil {
		return fmt.Errorf("the second time: %w", err)
	}
	return nil
}

func checkUnprepareEvery(ctx context.Context, s *scene) error {
	first, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	never, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, first); err != nil {
		return err
	}
	if err := s.unprepare(ctx, s.unknown(), first, never); err != nil {
		return err
	}
	return s.freed(ctx, s.devices[0], "after its claim was unprepared among others")
}

func checkUnprepareDeleted(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, c); err != nil {
		return err
	}
	return errors.Join(s.remove(ctx, c), s.unprepare(ctx, c), s.freed(ctx, s.devices[0], "after its claim was deleted and unprepared"))
}
