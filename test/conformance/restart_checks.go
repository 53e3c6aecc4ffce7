// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

func restartChecks() []Check {
	return []Check{
		{
			Name:    "restart/registration",
			Summary: "after a restart of the plugin its registration socket tells the same driver and versions, and an endpoint that listens",
			needs:   needs{registration: true, restart: true}, run: checkRestartRegistration,
		},
		{
			Name:    "restart/slices",
			Summary: "after a restart of the plugin the same devices are published, with no slice deleted",
			needs:   needs{restart: true}, run: checkRestartSlices,
		},
		{
			Name:    "restart/prepare",
			Summary: "after a restart of the plugin a prepared claim's ids still mean the same, it gets its answer again and holds its device",
			needs:   needs{devices: 1, exclusive: true, restart: true}, run: checkRestartPrepare,
		},
		{
			Name:    "restart/unprepare",
			Summary: "after a restart of the plugin a claim that was prepared before is unprepared, deleted or not, and its device is free",
			needs:   needs{devices: 2, restart: true}, run: checkRestartUnprepare,
		},
		{
			Name:    "reboot/prepare",
			Summary: "after a reboot of the node a prepared claim is prepared again with ids that resolve, and holds its device",
			needs:   needs{devices: 1, exclusive: true, reboot: true}, run: checkRebootPrepare,
		},
		{
			Name:    "reboot/unprepare",
			Summary: "after a reboot of the node a claim whose pod is gone is unprepared without having been prepared, and its device is free",
			needs:   needs{devices: 1, reboot: true}, run: checkRebootUnprepare,
		},
	}
}

func checkRestartRegistration(ctx context.Context, s *scene) error {
	before, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Restart); err != nil {
		return err
	}
	after, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	if before.GetName() != after.GetName() || before.GetType() != after.GetType() ||
		!slices.Equal(before.GetSupportedVersions(), after.GetSupportedVersions()) {
		return fmt.Errorf("GetInfo was %s and is %s after the restart", describe(before), describe(after))
	}
	return errors.Join(listens(ctx, after.GetEndpoint()), s.notify(ctx))
}

func checkRestartSlices(ctx context.Context, s *scene) error {
	before, err := s.published(ctx)
	if errors.Is(err, errNotPublished) {
		return skip("the driver has no ResourceSlice for node %q", s.node)
	}
	if err != nil {
		return err
	}
	was, err := s.nodeSlices(ctx)
	if err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Restart); err != nil {
		return err
	}
	if !sleep(ctx, s.config.StableFor) {
		return context.Cause(ctx)
	}
	after, err := s.published(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(before, compareDevices)
	slices.SortFunc(after, compareDevices)
	if !slices.Equal(before, after) {
		return fmt.Errorf("published were %v and are %v %s after the restart", before, after, s.config.StableFor)
	}
	is, err := s.nodeSlices(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range was {
		if !slices.ContainsFunc(is, func(now resourceapi.ResourceSlice) bool { return now.UID == was[i].UID }) {
			errs = append(errs, fmt.Errorf("slice %s was deleted by a restart that took less than kubelet waits, 30 s", was[i].Name))
		}
	}
	return errors.Join(errs...)
}

func checkRestartPrepare(ctx context.Context, s *scene) error {
	holder, other, a, err := s.pair(ctx, s.devices[0])
	if err != nil {
		return err
	}
	meant, err := s.meanings(a)
	if err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Restart); err != nil {
		return err
	}
	// The index of who holds what must be there before anybody is prepared again.
	if err := s.refusedAsHeld(ctx, other, heldByOther+", since before the plugin was restarted"); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, holder, a, meant, "after the plugin was restarted"); err != nil {
		return err
	}
	return s.handedOver(ctx, holder, other)
}

func checkRestartUnprepare(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	deleted, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	answers, err := s.callPrepare(ctx, c, deleted)
	if err != nil {
		return err
	}
	if err := errors.Join(s.accepted(c, answers[c.UID]), s.accepted(deleted, answers[deleted.UID]), s.remove(ctx, deleted)); err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Restart); err != nil {
		return err
	}
	since := "after the plugin was restarted and its claim unprepared"
	return errors.Join(s.unprepare(ctx, c, deleted), s.freed(ctx, s.devices[0], since), s.freed(ctx, s.devices[1], since))
}

// checkRebootPrepare does not compare ids: numbers of device nodes may change at a reboot, so what they mean may too.
func checkRebootPrepare(ctx context.Context, s *scene) error {
	holder, other, _, err := s.pair(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Reboot); err != nil {
		return err
	}
	a, err := s.prepareSoon(ctx, holder)
	if err != nil {
		return fmt.Errorf("after a reboot: %w", err)
	}
	meant, err := s.meanings(a)
	if err != nil {
		return fmt.Errorf("after a reboot: %w", err)
	}
	if err := s.refusedAsHeld(ctx, other, heldByOther+", since before the reboot"); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, holder, a, meant, "since it was prepared after the reboot"); err != nil {
		return err
	}
	return s.handedOver(ctx, holder, other)
}

func checkRebootUnprepare(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, c); err != nil {
		return err
	}
	if err := s.hook(ctx, s.config.Reboot); err != nil {
		return err
	}
	return errors.Join(s.unprepare(ctx, c), s.freed(ctx, s.devices[0], "after a reboot and the end of its claim"))
}
