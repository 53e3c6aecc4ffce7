// SPDX-License-Identifier: Apache-2.0

// Package dryrun finds out what the API server keeps of a ResourceSlice. A server with a feature gate off drops the gate's fields without a
// word, and no version tells. So each function asks for a slice that is not stored.
package dryrun

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// probe is the name of everything that is asked for.
const probe = "probe"

// KeepsTaints reports whether the API server keeps the taints of devices (KEP-5055).
func KeepsTaints(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	taint := resourceapi.DeviceTaint{Key: inventory.TaintUnhealthy, Value: "Probe", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	made, err := create(ctx, client, node, resourceapi.ResourceSliceSpec{
		Devices: []resourceapi.Device{{Name: probe, Taints: []resourceapi.DeviceTaint{taint}}},
	})
	if err != nil {
		return false, fmt.Errorf("try a ResourceSlice with a taint: %w", err)
	}
	return len(made.Spec.Devices) == 1 && len(made.Spec.Devices[0].Taints) == 1, nil
}

// CounterForm returns the form of slices in which the API server keeps counters (KEP-4815), empty if it keeps them in none. Devices whose
// counters were dropped could be allocated together although they are one. The form of Kubernetes 1.35 is tried first, then that of 1.34:
// a server that serves an older version's API may take either.
func CounterForm(ctx context.Context, client kubernetes.Interface, node string) (partition.Form, error) {
	for _, form := range []partition.Form{partition.FormSeparate, partition.FormCombined} {
		made, err := create(ctx, client, node, counters(form))
		if apierrors.IsInvalid(err) {
			continue // it wants another form, or dropped the counters and misses devices
		}
		if err != nil {
			return "", fmt.Errorf("try a ResourceSlice with counters: %w", err)
		}
		if keptCounters(&made.Spec, form) {
			return form, nil
		}
	}
	return "", nil
}

// KeepsShares reports whether the API server keeps devices that several claims may have, with what each takes of their capacity (KEP-5075).
// One whose fields were dropped would be one claim's alone.
func KeepsShares(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	made, err := create(ctx, client, node, resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		Name: probe, AllowMultipleAllocations: new(true), Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{probe: {
			Value: one, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one, ValidValues: []resource.Quantity{one}},
		}},
	}}})
	if err != nil {
		return false, fmt.Errorf("try a ResourceSlice with shares: %w", err)
	}
	if len(made.Spec.Devices) != 1 {
		return false, nil
	}
	kept := made.Spec.Devices[0]
	return kept.AllowMultipleAllocations != nil && *kept.AllowMultipleAllocations && kept.Capacity[probe].RequestPolicy != nil, nil
}

func counters(form partition.Form) resourceapi.ResourceSliceSpec {
	one := map[string]resourceapi.Counter{probe: {Value: *resource.NewQuantity(1, resource.DecimalSI)}}
	spec := resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: probe, Counters: one}}}
	if form == partition.FormCombined {
		spec.Devices = []resourceapi.Device{{
			Name: probe, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: probe, Counters: one}},
		}}
	}
	return spec
}

func keptCounters(spec *resourceapi.ResourceSliceSpec, form partition.Form) bool {
	if len(spec.SharedCounters) != 1 {
		return false
	}
	return form == partition.FormSeparate || len(spec.Devices) == 1 && len(spec.Devices[0].ConsumesCounters) == 1
}

// create asks the API server to create a slice of the node, and to store nothing.
func create(
	ctx context.Context, client kubernetes.Interface, node string, spec resourceapi.ResourceSliceSpec,
) (*resourceapi.ResourceSlice, error) {
	spec.Driver, spec.NodeName = v1alpha1.DriverName, &node
	spec.Pool = resourceapi.ResourcePool{Name: device.PoolName(node, device.KindHost), ResourceSliceCount: 1}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "fettle-probe-"}, Spec: spec}
	return client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}
