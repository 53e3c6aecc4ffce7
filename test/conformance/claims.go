// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
)

// scene is one check at work. Its claims are unprepared and deleted when it ends.
type scene struct {
	*session
	check Check
	// devices are free and at least as many as the check needs.
	devices []device
	claims  []*resourceapi.ResourceClaim
}

// request is one request of a claim together with what a scheduler would have chosen for it.
type request struct {
	// name is that of the request, or REQUEST/SUBREQUEST.
	name    string
	devices []device
	admin   bool
	// driver is another than the one under test, where it is set.
	driver string
}

// claim makes a claim for one device.
func (s *scene) claim(ctx context.Context, d device) (*resourceapi.ResourceClaim, error) {
	return s.claimFor(ctx, request{name: "main", devices: []device{d}})
}

// claimFor makes a claim with an allocation.
func (s *scene) claimFor(ctx context.Context, requests ...request) (*resourceapi.ResourceClaim, error) {
	return s.create(ctx, s.nextName(), requests...)
}

// nextName is free in the run's namespace, and tells the check to whoever finds the claim in a log.
func (s *scene) nextName() string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(s.check.Name, "/", "-"), len(s.claims)+1)
}

func (s *scene) create(ctx context.Context, name string, requests ...request) (*resourceapi.ResourceClaim, error) {
	claims := s.config.Kube.ResourceV1().ResourceClaims(s.namespace)
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}}
	for _, r := range requests {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, s.deviceRequest(r))
	}
	c, err := claims.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim %s: %w", name, err)
	}
	s.claims = append(s.claims, c)
	c.Status.Allocation = s.allocation(requests)
	updated, err := claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the allocation of ResourceClaim %s: %w", name, err)
	}
	return updated, nil
}

func (s *scene) deviceRequest(r request) resourceapi.DeviceRequest {
	main, sub, alternatives := strings.Cut(r.name, "/")
	if alternatives {
		return resourceapi.DeviceRequest{Name: main, FirstAvailable: []resourceapi.DeviceSubRequest{{
			Name: sub, DeviceClassName: s.config.Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
			Count: int64(len(r.devices)),
		}}}
	}
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: s.config.Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(r.devices)),
	}
	if r.admin {
		exactly.AdminAccess = ptr.To(true)
	}
	return resourceapi.DeviceRequest{Name: main, Exactly: exactly}
}

// allocation is what a scheduler would write: devices, configuration, and the node.
func (s *scene) allocation(requests []request) *resourceapi.AllocationResult {
	a := &resourceapi.AllocationResult{}
	for _, r := range requests {
		for _, d := range r.devices {
			result := resourceapi.DeviceRequestAllocationResult{Request: r.name, Driver: s.config.Driver, Pool: d.pool, Device: d.name}
			if r.driver != "" {
				result.Driver = r.driver
			}
			if r.admin {
				result.AdminAccess = ptr.To(true)
			} else if share, ok := s.shares[d]; ok && r.driver == "" {
				result.ShareID, result.ConsumedCapacity = ptr.To(uuid.NewUUID()), share
			}
			a.Devices.Results = append(a.Devices.Results, result)
		}
		if r.driver != "" {
			a.Devices.Config = append(a.Devices.Config, opaque(r, r.driver, []byte(`{"not":"for you"}`)))
		} else if len(s.config.Parameters) > 0 {
			a.Devices.Config = append(a.Devices.Config, opaque(r, s.config.Driver, s.config.Parameters))
		}
	}
	if s.node != "" {
		a.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{s.node},
		}}}}}
	}
	return a
}

func opaque(r request, driver string, parameters []byte) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClass, Requests: []string{r.name},
		DeviceConfiguration: parametersOf(driver, parameters),
	}
}

// remove deletes a claim from the API server and leaves it prepared.
func (s *scene) remove(ctx context.Context, c *resourceapi.ResourceClaim) error {
	err := s.config.Kube.ResourceV1().ResourceClaims(c.Namespace).Delete(ctx, c.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &c.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete ResourceClaim %s: %w", c.Name, err)
	}
	return nil
}

// end unprepares and deletes the check's claims. A claim that was never prepared may be unprepared too.
func (s *scene) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Patience+s.config.CallTimeout)
	defer cancel()
	var errs []error
	for _, c := range s.claims {
		unprepared := s.eventually(ctx, func(ctx context.Context) error { return s.unprepare(ctx, c) })
		errs = append(errs, unprepared, s.remove(ctx, c))
	}
	return errors.Join(errs...)
}

func parametersOf(driver string, parameters []byte) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: driver, Parameters: runtime.RawExtension{Raw: parameters},
	}}
}
