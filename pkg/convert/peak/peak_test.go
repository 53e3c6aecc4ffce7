// SPDX-License-Identifier: Apache-2.0

package peak_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/fettle-dev/fettle/pkg/convert/peak"
	"github.com/fettle-dev/fettle/test/seed"
)

func TestRequests(t *testing.T) {
	one := func(phase peak.Phase, count int64) peak.Container { return peak.Container{Phase: phase, Count: count} }
	of := func(count int64, containers ...int) peak.Request {
		return peak.Request{Containers: containers, Count: count}
	}
	for name, tc := range map[string]struct {
		containers []peak.Container
		want       []peak.Request
	}{
		"none":              {},
		"each its own":      {[]peak.Container{one(peak.Main, 2), one(peak.Main, 1)}, []peak.Request{of(2, 0), of(1, 1)}},
		"a check before":    {[]peak.Container{one(peak.Init, 1), one(peak.Main, 1)}, []peak.Request{of(1, 0, 1)}},
		"less before":       {[]peak.Container{one(peak.Init, 1), one(peak.Main, 3)}, []peak.Request{of(1, 0, 1), of(2, 1)}},
		"more before":       {[]peak.Container{one(peak.Init, 3), one(peak.Main, 1)}, []peak.Request{of(2, 0), of(1, 0, 1)}},
		"one after another": {[]peak.Container{one(peak.Init, 2), one(peak.Init, 2)}, []peak.Request{of(2, 0, 1)}},
		"a sidecar stays": {
			[]peak.Container{one(peak.Sidecar, 1), one(peak.Init, 1), one(peak.Main, 1)}, []peak.Request{of(1, 0), of(1, 1, 2)},
		},
		"a sidecar to come": {
			[]peak.Container{one(peak.Init, 2), one(peak.Sidecar, 1), one(peak.Main, 1)}, []peak.Request{of(1, 0, 1), of(1, 0, 2)},
		},
		"before and between": {
			[]peak.Container{one(peak.Init, 1), one(peak.Sidecar, 1), one(peak.Init, 2), one(peak.Main, 1)},
			[]peak.Request{of(1, 0, 2, 3), of(1, 1), of(1, 2)},
		},
	} {
		if diff := cmp.Diff(tc.want, peak.Requests(tc.containers)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAsTheSchedulerCounts: every container has as many devices as it asked for, never one that another has which runs with it, and the pod
// has as many as Kubernetes counts for resources.
func TestAsTheSchedulerCounts(t *testing.T) {
	random := seed.New(t)
	for range 2000 {
		containers := make([]peak.Container, 1+random.IntN(6))
		for i := range containers {
			containers[i] = peak.Container{Phase: []peak.Phase{peak.Init, peak.Init, peak.Sidecar}[random.IntN(3)], Count: random.Int64N(4)}
			if i >= len(containers)/2 {
				containers[i].Phase = peak.Main
			}
		}
		has, total := make([]int64, len(containers)), int64(0)
		requests := peak.Requests(containers)
		for _, r := range requests {
			total += r.Count
			for at, i := range r.Containers {
				has[i] += r.Count
				for _, j := range r.Containers[at+1:] {
					if together(containers, i, j) {
						t.Errorf("%v: containers %d and %d run at once and have the same devices: %v", containers, i, j, requests)
					}
				}
			}
		}
		if want := counted(containers); total != want {
			t.Errorf("%v: %d devices, want %d: %v", containers, total, want, requests)
		}
		for i, c := range containers {
			if has[i] != c.Count {
				t.Errorf("%v: container %d has %d: %v", containers, i, has[i], requests)
			}
		}
	}
}

// together says whether two containers run at the same time; i starts first.
func together(containers []peak.Container, i, j int) bool {
	return containers[i].Phase != peak.Init && (containers[j].Phase != peak.Init || containers[i].Phase == peak.Sidecar)
}

// counted is what Kubernetes counts.
func counted(containers []peak.Container) int64 {
	const name = "nvidia.com/gpu"
	pod := &corev1.Pod{}
	for i, c := range containers {
		one := corev1.Container{Name: fmt.Sprint(i)}
		one.Resources.Requests = corev1.ResourceList{name: *resource.NewQuantity(c.Count, resource.DecimalSI)}
		switch always := corev1.ContainerRestartPolicyAlways; c.Phase {
		case peak.Sidecar:
			one.RestartPolicy = &always
			fallthrough
		case peak.Init:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, one)
		}
	}
	quantity := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[name]
	return quantity.Value()
}
