// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/lone"
	"github.com/fettle-dev/fettle/test/objects"
)

// claim is a claim that was allocated as its shape says.
type claim struct {
	*drapb.Claim
	// devices is how many it was given.
	devices int
	// directories are those on the node that are emptied when it is released.
	directories []string
}

// shape is what a scheduler would write into a claim.
type shape struct {
	name, node, pool string
	devices          []string
	// share makes the claim one of those that share its devices.
	share string
	// what is the case.
	what string
	// configs are those of an FPGA's claim.
	configs []resourceapi.DeviceAllocationConfiguration
	// pod is the UID of the pod of the same name. Empty: there is no pod. owned says that the claim was made for it.
	pod   types.UID
	owned bool
	// together says that all devices are of one request.
	together bool
}

func (s shape) request(i int) string {
	if s.together {
		i = 0
	}
	return fmt.Sprintf("device-%d", i)
}

// spec is what a user would have written: a request for each device.
func (s shape) spec() (*resourceapi.ResourceClaim, error) {
	configs, err := s.configurations()
	if err != nil {
		return nil, err
	}
	class := s.class(configs)
	c := objects.Claim(namespace, s.name)
	if s.owned {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.name, UID: s.pod, Controller: new(true)}}
	}
	requests, count := len(s.devices), int64(1)
	if s.together {
		requests, count = 1, int64(requests)
	}
	for i := range requests {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: s.request(i), Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			},
		})
	}
	for _, config := range configs {
		if config.Source == resourceapi.AllocationConfigSourceClaim {
			c.Spec.Devices.Config = append(c.Spec.Devices.Config, resourceapi.DeviceClaimConfiguration{
				Requests: config.Requests, DeviceConfiguration: config.DeviceConfiguration,
			})
		}
	}
	return c, nil
}

// class is the DeviceClass of the configurations that an administrator has given. Its name says what is in it.
func (s shape) class(configs []resourceapi.DeviceAllocationConfiguration) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{}
	sum := sha256.New()
	for _, config := range configs {
		if config.Source == resourceapi.AllocationConfigSourceClass {
			class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: config.DeviceConfiguration})
			sum.Write(config.Opaque.Parameters.Raw)
		}
	}
	class.Name = fmt.Sprintf("bench-%x", sum.Sum(nil)[:8])
	return class
}

// status is what the scheduler writes: the devices, the configurations of class and claim, the node, and the pod.
func (s shape) status() (resourceapi.ResourceClaimStatus, error) {
	allocation := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{s.node},
		}},
	}}}}
	for i, name := range s.devices {
		result := resourceapi.DeviceRequestAllocationResult{
			Request: s.request(i), Driver: v1alpha1.DriverName, Pool: s.node + "/" + s.pool, Device: name,
		}
		if s.share != "" {
			result.ShareID = new(types.UID(s.share))
		}
		allocation.Devices.Results = append(allocation.Devices.Results, result)
	}
	configs, err := s.configurations()
	if err != nil {
		return resourceapi.ResourceClaimStatus{}, err
	}
	allocation.Devices.Config = configs
	return resourceapi.ResourceClaimStatus{
		Allocation: allocation,
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: s.name, UID: cmp.Or(s.pod, types.UID(s.name))},
		},
	}, nil
}

func (s shape) configurations() ([]resourceapi.DeviceAllocationConfiguration, error) {
	if s.what != caseOwn && s.what != caseEffect {
		return s.configs, nil
	}
	kind := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HostConfig"}
	release := v1alpha1.OnReleaseEmpty
	if s.what == caseOwn {
		release = v1alpha1.OnReleaseKeep
	}
	class, err := opaque(resourceapi.AllocationConfigSourceClass, nil, v1alpha1.HostConfig{
		TypeMeta: kind, Policy: &v1alpha1.HostPolicy{OnRelease: release},
	})
	if err != nil {
		return nil, err
	}
	all := []resourceapi.DeviceAllocationConfiguration{class}
	for i := range s.devices {
		if s.what != caseOwn {
			break
		}
		own, err := opaque(resourceapi.AllocationConfigSourceClaim, []string{s.request(i)}, v1alpha1.HostConfig{
			TypeMeta: kind, MountPath: fmt.Sprintf("/data/%s/%d", s.name, i),
		})
		if err != nil {
			return nil, err
		}
		all = append(all, own)
	}
	return all, nil
}

func opaque(
	source resourceapi.AllocationConfigSource, requests []string, config any,
) (resourceapi.DeviceAllocationConfiguration, error) {
	parameters, err := json.Marshal(config)
	if err != nil {
		return resourceapi.DeviceAllocationConfiguration{}, fmt.Errorf("encode a configuration: %w", err)
	}
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: parameters},
			},
		},
	}, nil
}

// writers is how many claims are written at once.
const writers = 16

// controlPlane is the API server of a run, with the objects that the run makes.
type controlPlane struct {
	*lone.Cluster
	// classes are the names of the DeviceClasses that exist.
	classes sync.Map
}

// createClaims makes the claims and allocates them.
func (api *controlPlane) createClaims(ctx context.Context, shapes []shape) ([]claim, error) {
	claims := make([]claim, len(shapes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i, s := range shapes {
		group.Go(func() (err error) {
			claims[i], err = api.createClaim(ctx, s)
			return err
		})
	}
	return claims, group.Wait()
}

// createClass makes the class of a shape once.
func (api *controlPlane) createClass(ctx context.Context, s shape) error {
	configs, err := s.configurations()
	if err != nil {
		return err
	}
	class := s.class(configs)
	if _, known := api.classes.Load(class.Name); known {
		return nil
	}
	_, err = api.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create class %s: %w", class.Name, err)
	}
	api.classes.Store(class.Name, true)
	return nil
}

func (api *controlPlane) createClaim(ctx context.Context, s shape) (claim, error) {
	client := api.Kube.ResourceV1().ResourceClaims(namespace)
	object, err := s.spec()
	if err != nil {
		return claim{}, err
	}
	if err := api.createClass(ctx, s); err != nil {
		return claim{}, err
	}
	if object, err = client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return claim{}, fmt.Errorf("create claim %s: %w", s.name, err)
	}
	if object.Status, err = s.status(); err != nil {
		return claim{}, err
	}
	if _, err := client.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return claim{}, fmt.Errorf("allocate claim %s: %w", s.name, err)
	}
	wire := &drapb.Claim{Namespace: namespace, Name: s.name, Uid: string(object.UID)}
	return claim{Claim: wire, devices: len(s.devices)}, nil
}
