// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	// schedulerTimeout is how long the scheduler searches on one node.
	schedulerTimeout = 10 * time.Second
	// provenTimeout is how long the allocator may search if the judge knows that there is nothing to find. It is asked for its error.
	provenTimeout = 200 * time.Millisecond
)

var errTimeout = errors.New("timed out trying to allocate devices")

// allocate asks the scheduler's allocator.
func (j *judgement) allocate(ctx context.Context, v *Verdict) {
	if slices.ContainsFunc(j.in.Claims, incompleteRequests) {
		v.Outcome = Fatal // the allocator would read through a missing pointer
		return
	}
	timeout := j.in.Timeout
	if timeout == 0 {
		timeout = schedulerTimeout
	}
	if v.Impossible() {
		timeout = min(timeout, provenTimeout)
	}
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	allocator, err := structured.NewAllocator(limited, j.Features, j.in.State, classes(j.in.Classes), j.in.Slices, j.attributes.cache)
	if err == nil {
		v.Allocations, err = allocator.Allocate(limited, j.in.Node, j.in.Claims)
	}
	stopped := errors.Is(err, errTimeout) || err != nil && ctx.Err() != nil // by the limit, or by the caller
	switch {
	case stopped && v.Impossible():
		v.Outcome = DoesNotFit
	case stopped:
		v.Outcome, v.Error = TimedOut, err.Error()
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		v.Outcome, v.Error = Refused, err.Error()
	case err != nil:
		v.Outcome, v.Error = Fatal, err.Error()
	case v.Allocations == nil && len(j.in.Claims) > 0:
		v.Outcome = DoesNotFit
	default:
		v.Outcome = Fits
	}
}

// incompleteRequests says whether a request is of a kind that is not known here.
func incompleteRequests(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly == nil && len(r.FirstAvailable) == 0
	})
}

// classes lists DeviceClasses for the allocator.
type classes map[string]*resourceapi.DeviceClass

// List returns all classes by name.
func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var out []*resourceapi.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(c)) {
		out = append(out, c[name])
	}
	return out, nil
}

// Get returns the class of a name, or the error that an API server gives.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclasses"), name)
}
