// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	resourceapi "k8s.io/api/resource/v1"
)

// taintScenarios are about tainted devices. Kubernetes 1.34 drops taints, and knows no DeviceTaintRule.
func taintScenarios() []scenario {
	const noRule = "DeviceTaintRule/repair refused no matches for kind\n"
	bad := tainted(gpu("g0"), "example.com/broken", resourceapi.DeviceTaintEffectNoSchedule)
	evicting := tainted(gpu("g0"), "example.com/broken", resourceapi.DeviceTaintEffectNoExecute)
	noted := tainted(gpu("g0"), "example.com/broken", resourceapi.DeviceTaintEffectNone)
	byValue := tolerating("example.com/broken", exactly("r", 1))
	byValue.Exactly.Tolerations[0].Operator, byValue.Exactly.Tolerations[0].Value = resourceapi.DeviceTolerationOpEqual, "other"
	alternative := sub("x", 1)
	alternative.Tolerations = tolerating("example.com/broken", exactly("r", 1)).Exactly.Tolerations
	return []scenario{
		{
			name:    "a tainted device is left out",
			objects: cat(on("a", bad, gpu("g1")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g1",
			older:   "p a gpu=g0",
		},
		{
			name:    "the only device is tainted",
			objects: cat(on("a", bad), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoSchedule",
			older:   "p a gpu=g0",
		},
		{
			name:    "the only device evicts pods",
			objects: cat(on("a", evicting), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoExecute",
			older:   "p a gpu=g0",
		},
		{
			name:    "a taint without effect",
			objects: cat(on("a", noted), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g0",
		},
		{
			name:    "a taint that is tolerated",
			objects: cat(on("a", bad), class("gpu"), asks("p", tolerating("example.com/broken", exactly("r", 1)))),
			want:    "p a gpu=g0",
		},
		{
			name:    "another taint is tolerated",
			objects: cat(on("a", bad), class("gpu"), asks("p", tolerating("example.com/hot", exactly("r", 1)))),
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoSchedule",
			older:   "p a gpu=g0",
		},
		{
			name:    "another value is tolerated",
			objects: cat(on("a", bad), class("gpu"), asks("p", byValue)),
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoSchedule",
			older:   "p a gpu=g0",
		},
		{
			name:    "an alternative tolerates",
			objects: cat(on("a", bad), class("gpu"), asks("p", first("r", sub("strict", 1), alternative))),
			want:    "p a gpu=g0",
		},
		{
			name:    "all devices, one of them tainted",
			objects: cat(on("a", bad, gpu("g1")), class("gpu"), asks("p", all("r"))),
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoSchedule",
			older:   "p a gpu=g0,g1",
		},
		{
			name:    "a rule taints a pool",
			objects: cat(on("a", gpus(2)...), class("gpu"), rule("repair", "a", ""), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: taint, 2 GPUs on a are free but tainted example.com/repair:NoSchedule",
			older:   noRule + "p a gpu=g0",
		},
		{
			name:    "a rule taints a device",
			objects: cat(on("a", gpus(2)...), class("gpu"), rule("repair", "a", "g0"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g1",
			older:   noRule + "p a gpu=g0",
		},
		{
			name: "a rule's taint is tolerated",
			objects: cat(on("a", gpus(2)...), class("gpu"), rule("repair", "a", "g0"),
				asks("p", tolerating("example.com/repair", exactly("r", 1)))),
			want:  "p a gpu=g0",
			older: noRule + "p a gpu=g0",
		},
		{
			name:    "a rule for another pool",
			objects: cat(on("a", gpus(2)...), class("gpu"), rule("repair", "elsewhere", ""), asks("p", exactly("r", 1))),
			want:    "p a gpu=g0",
			older:   noRule + "p a gpu=g0",
		},
	}
}
