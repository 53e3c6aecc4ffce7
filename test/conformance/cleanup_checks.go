// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

func cleanupChecks() []Check {
	return []Check{
		{
			Name:    "cleanup/devices",
			Summary: "after all other checks every free device can still be prepared, in one call and twice: none is lost",
			needs:   needs{devices: 1}, run: checkNothingLost,
		},
		{
			Name:    "cleanup/cdi",
			Summary: "after everything is unprepared the CDI directories have no file that was not there before the run",
			needs:   needs{cdi: true}, run: checkNothingLeft,
		},
	}
}

// mostClaims is how many claims one call has here at most. Kubelet's calls have a pod's.
const mostClaims = 64

func checkNothingLost(ctx context.Context, s *scene) error {
	var claims []*resourceapi.ResourceClaim
	for _, d := range s.devices[:min(len(s.devices), mostClaims)] {
		c, err := s.claim(ctx, d)
		if err != nil {
			return err
		}
		claims = append(claims, c)
	}
	for range 2 {
		err := s.eventually(ctx, func(ctx context.Context) error {
			answers, err := s.callPrepare(ctx, claims...)
			errs := []error{err}
			for i := 0; err == nil && i < len(claims); i++ {
				errs = append(errs, s.accepted(claims[i], answers[claims[i].UID]))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		if err := s.unprepare(ctx, claims...); err != nil {
			return err
		}
	}
	return nil
}

func checkNothingLeft(ctx context.Context, s *scene) error {
	return s.eventually(ctx, func(context.Context) error {
		now, err := listFiles(s.config.CDIDirs)
		if err != nil {
			return err
		}
		if left := now.without(s.before); len(left) > 0 {
			return fmt.Errorf("nothing is prepared any more, and these files are still there: %s", list(left))
		}
		return nil
	})
}
