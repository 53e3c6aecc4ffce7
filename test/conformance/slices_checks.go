// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func slicesChecks() []Check {
	return []Check{
		{
			Name:    "slices/present",
			Summary: "the driver publishes at least one complete pool for the node, an empty one where it has no devices",
			run:     checkSlicesPresent,
		},
		{
			Name:    "slices/valid",
			Summary: "slices keep the limits of resource.k8s.io/v1, name each device of a pool once, and pools have all their slices",
			run:     checkSlicesValid,
		},
		{
			Name:    "slices/stable",
			Summary: "no slice is written while nothing happens to the devices",
			run:     checkSlicesStable,
		},
	}
}

func checkSlicesPresent(ctx context.Context, s *scene) error {
	err := s.eventually(ctx, func(ctx context.Context) error {
		_, err := s.pools(ctx)
		return err
	})
	if errors.Is(err, errNotPublished) {
		return caused(CauseNotPublished, err)
	}
	return err
}

func checkSlicesValid(ctx context.Context, s *scene) error {
	local, err := s.nodeSlices(ctx)
	if err != nil {
		return err
	}
	if len(local) == 0 {
		return skip("the driver has no ResourceSlice for node %q", s.node)
	}
	var errs []error
	for _, p := range newestPools(local) {
		errs = append(errs, poolFaults(p))
	}
	return errors.Join(errs...)
}

func checkSlicesStable(ctx context.Context, s *scene) error {
	before, err := s.nodeSlices(ctx)
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return skip("the driver has no ResourceSlice for node %q", s.node)
	}
	if !sleep(ctx, s.config.StableFor) {
		return context.Cause(ctx)
	}
	after, err := s.nodeSlices(ctx)
	if err != nil {
		return err
	}
	if err := unchanged(before, after); err != nil {
		return fmt.Errorf("within %s: %w", s.config.StableFor, err)
	}
	return nil
}

// unchanged wants the same objects in the same versions.
func unchanged(before, after []resourceapi.ResourceSlice) error {
	now := map[string]*resourceapi.ResourceSlice{}
	for i := range after {
		now[after[i].Name] = &after[i]
	}
	var errs []error
	for i := range before {
		old, is := &before[i], now[before[i].Name]
		delete(now, old.Name)
		switch {
		case is == nil || is.UID != old.UID:
			errs = append(errs, fmt.Errorf("slice %s was deleted", old.Name))
		case is.ResourceVersion != old.ResourceVersion && equality.Semantic.DeepEqual(is.Spec, old.Spec):
			errs = append(errs, fmt.Errorf("slice %s was written with the content that it had", old.Name))
		case is.ResourceVersion != old.ResourceVersion:
			errs = append(errs, fmt.Errorf("slice %s was changed, from generation %d with %d devices to generation %d with %d devices", old.Name,
				old.Spec.Pool.Generation, len(old.Spec.Devices), is.Spec.Pool.Generation, len(is.Spec.Devices)))
		}
	}
	for name := range now {
		errs = append(errs, fmt.Errorf("slice %s appeared", name))
	}
	return errors.Join(errs...)
}
