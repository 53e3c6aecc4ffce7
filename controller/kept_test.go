// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

// TestCachesOfTenants: of every kind that reconcilers watch and tenants can make, the cache drops what a tenant may fill with as much as it
// likes, whatever the field. A new kind is in the table of docs/design/threats.md, or is the administrator's.
func TestCachesOfTenants(t *testing.T) {
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	services := reconciler.Services{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clock.RealClock{}, Namespace: "fettle"}
	rows := Table(Parts{
		Services: services, Options: Options{ExplainWaitingPods: true, NodePartitions: true},
		Policies: trustpolicies.NewReader(services.Client, nil, nil),
		Volumes:  volumes.NewPlanner(services, volumes.Options{Enabled: true}),
	})
	options, err := cacheOptions(Options{Namespace: "fettle"}, &preset.Shares{})
	check.Must(t, err)
	byKind := map[reflect.Type]cache.ByObject{}
	for object, o := range options.ByObject {
		byKind[reflect.TypeOf(object)] = o
		if strings.HasPrefix(fmt.Sprintf("%T", object), "*v1alpha1.") {
			t.Errorf("%T has options of its own: the cache asks for its definition when it is made, before the controller applied it", object)
		}
	}
	tenants := map[string]bool{
		"DevicePreset": true, "FPGABitstream": true, "GPUKernelCache": true, "ResourceClaim": true, "PersistentVolumeClaim": true, "Job": true,
	}
	found := map[string]bool{}
	for _, row := range rows {
		for _, queue := range row.Queues {
			for _, watch := range queue.Watches {
				kind := reflect.TypeOf(watch.Object).Elem().Name()
				if !tenants[kind] {
					if strings.HasPrefix(fmt.Sprintf("%T", watch.Object), "*v1alpha1.") && namespaced(kind) {
						t.Errorf("%s: is it bounded? Then add it here", kind)
					}
					continue
				}
				if found[kind] {
					continue
				}
				found[kind] = true
				transform := options.DefaultTransform
				if of := byKind[reflect.TypeOf(watch.Object)]; of.Transform != nil {
					transform = of.Transform
				}
				large.KeepsLittle(t, watch.Object, transform)
			}
		}
	}
	if len(found) != len(tenants) {
		t.Errorf("watched are %v, want %v", found, tenants)
	}
	if pods := byKind[reflect.TypeFor[*corev1.Pod]()]; len(pods.Namespaces) == 0 {
		t.Error("pods of all namespaces are kept")
	}
}

// namespaced says whether a kind of Fettle's is a tenant's: those of the cluster are known here.
func namespaced(kind string) bool {
	switch kind {
	case v1alpha1.KindClusterDevicePreset, v1alpha1.KindClusterFPGABitstream, v1alpha1.KindClusterGPUKernelCache,
		"AcceleratorNode", "AcceleratorStack", "PartitionPolicy", "TrustPolicy":
		return false
	}
	return true
}
