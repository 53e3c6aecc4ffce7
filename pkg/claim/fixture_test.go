// SPDX-License-Identifier: Apache-2.0

package claim

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/test/objects"
)

const (
	driver = "fettle.dev"
	node   = "node-1"

	exclusive = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"Exclusive"}}`
	onlyA     = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":["team-b","team-a"]}}`
	onlyB     = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":["team-b"]}}`
	sliced    = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"TimeSlicing"}}`
	interval  = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"timeSlicing":{"interval":"Long"}}}`
	mps       = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS"}}`
	atData    = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/data"}`
	atScratch = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/scratch"}`
	keep      = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/class","policy":{"onRelease":"Keep"}}`
	empty     = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"onRelease":"Empty"}}`
)

type (
	apiResult = resourceapi.DeviceRequestAllocationResult
	apiConfig = resourceapi.DeviceAllocationConfiguration
)

// allocated is a claim team-a/work with the given allocation, and a spec that asks for it.
func allocated(results []apiResult, configs ...apiConfig) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "work", UID: "uid-1"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
		}},
	}
	objects.Asked(c, "any")
	return c
}

func result(request, kind, device string) apiResult {
	return apiResult{Request: request, Driver: driver, Pool: node + "/" + kind, Device: device}
}

func look(r apiResult) apiResult {
	r.AdminAccess = new(true)
	return r
}

func share(r apiResult, id types.UID) apiResult {
	r.ShareID = &id
	return r
}

func class(parameters string, requests ...string) apiConfig {
	return config(resourceapi.AllocationConfigSourceClass, driver, parameters, requests)
}

func own(parameters string, requests ...string) apiConfig {
	return config(resourceapi.AllocationConfigSourceClaim, driver, parameters, requests)
}

func config(source resourceapi.AllocationConfigSource, driver, parameters string, requests []string) apiConfig {
	return apiConfig{Source: source, Requests: requests, DeviceConfiguration: objects.Opaque(driver, parameters)}
}
