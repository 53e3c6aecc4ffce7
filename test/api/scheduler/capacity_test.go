// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// capacityScenarios are about devices that several claims share. Kubernetes 1.34 knows no shares: the first claim has the device.
func capacityScenarios() []scenario {
	amount := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	byDefault := &resourceapi.CapacityRequestPolicy{
		Default: amount("4Gi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: amount("1Gi")},
	}
	steps := &resourceapi.CapacityRequestPolicy{
		Default: amount("4Gi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: amount("4Gi"), Max: amount("12Gi"), Step: amount("4Gi")},
	}
	values := &resourceapi.CapacityRequestPolicy{
		Default: amount("4Gi"), ValidValues: []resource.Quantity{*amount("4Gi"), *amount("8Gi")},
	}
	onlyP := "p a gpu=g0\nq waits no-devices: held, the only GPU that would do is on node a, and is held"
	return []scenario{
		{
			name: "two shares of a device",
			objects: cat(on("a", shared(gpu("g0"), "20Gi", nil)), class("gpu"), asks("p", needing("memory", "8Gi", exactly("r", 1))),
				asks("q", needing("memory", "8Gi", exactly("r", 1)))),
			want:  "p a gpu=g0\nq a gpu=g0",
			older: onlyP,
		},
		{
			name: "too little is left of a device",
			objects: cat(on("a", shared(gpu("g0"), "20Gi", nil)), class("gpu"), asks("p", needing("memory", "12Gi", exactly("r", 1))),
				asks("q", needing("memory", "12Gi", exactly("r", 1)))),
			want: onlyP,
		},
		{
			name: "a share of the next device",
			objects: cat(on("a", shared(gpu("g0"), "20Gi", nil), shared(gpu("g1"), "20Gi", nil)), class("gpu"),
				asks("p", needing("memory", "12Gi", exactly("r", 1))), asks("q", needing("memory", "12Gi", exactly("r", 1)))),
			want: "p a gpu=g0\nq a gpu=g1",
		},
		{
			name: "no amount takes all",
			objects: cat(on("a", shared(gpu("g0"), "20Gi", nil)), class("gpu"), asks("p", exactly("r", 1)),
				asks("q", needing("memory", "1Gi", exactly("r", 1)))),
			want: onlyP,
		},
		{
			name: "no amount takes the default",
			objects: cat(on("a", shared(gpu("g0"), "8Gi", byDefault)), class("gpu"), asks("p", exactly("r", 1)),
				asks("q", exactly("r", 1)), asks("z", exactly("r", 1))),
			want:  "p a gpu=g0\nq a gpu=g0\nz waits no-devices: held, the only GPU that would do is on node a, and is held",
			older: onlyP + "\nz waits no-devices: held, the only GPU that would do is on node a, and is held",
		},
		{
			name: "an amount is rounded up to a step",
			objects: cat(on("a", shared(gpu("g0"), "12Gi", steps)), class("gpu"), asks("p", needing("memory", "5Gi", exactly("r", 1))),
				asks("q", needing("memory", "5Gi", exactly("r", 1)))),
			want: onlyP,
		},
		{
			name: "an amount is rounded up to a value",
			objects: cat(on("a", shared(gpu("g0"), "12Gi", values)), class("gpu"), asks("p", needing("memory", "5Gi", exactly("r", 1))),
				asks("q", needing("memory", "5Gi", exactly("r", 1))), asks("z", needing("memory", "4Gi", exactly("r", 1)))),
			want:  onlyP + "\nz a gpu=g0",
			older: onlyP + "\nz waits no-devices: held, the only GPU that would do is on node a, and is held",
		},
		{
			name:    "more than the policy gives",
			objects: cat(on("a", shared(gpu("g0"), "16Gi", steps)), class("gpu"), asks("p", needing("memory", "14Gi", exactly("r", 1)))),
			want:    "p waits no-devices: too-few, request r needs 1 GPU and can have 0 of 1: 1 without enough capacity",
			older:   "p a gpu=g0",
		},
		{
			name:    "a capacity that the device does not have",
			objects: cat(on("a", shared(gpu("g0"), "16Gi", nil)), class("gpu"), asks("p", needing("bandwidth", "1", exactly("r", 1)))),
			want:    "p waits no-devices: too-few, request r needs 1 GPU and can have 0 of 1: 1 without enough capacity",
			older:   "p a gpu=g0",
		},
		{
			name: "an amount of a device that is not shared",
			objects: cat(on("a", memory(gpu("g0"), "16Gi"), memory(gpu("g1"), "40Gi")), class("gpu"),
				asks("p", needing("memory", "20Gi", exactly("r", 1)))),
			want:  "p a gpu=g1",
			older: "p a gpu=g0",
		},
		{
			name: "two requests share a device",
			objects: cat(on("a", shared(gpu("g0"), "16Gi", nil)), class("gpu"),
				asks("p", needing("memory", "4Gi", exactly("r", 1)), needing("memory", "4Gi", exactly("s", 1)))),
			want:  "p a gpu=g0,g0",
			older: "p waits no-devices: too-few, requests r, s need 2 devices together",
		},
		{
			name:    "count two gives no two shares of a device",
			objects: cat(on("a", shared(gpu("g0"), "16Gi", nil)), class("gpu"), asks("p", needing("memory", "4Gi", exactly("r", 2)))),
			want:    "p waits no-devices: too-few, wants 2 GPUs on one node, and a, which comes closest, has 1",
		},
	}
}
