// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	resourceapi "k8s.io/api/resource/v1"
)

// poolScenarios are about slices and the pools that they make.
func poolScenarios() []scenario {
	early := slice("a", gpu("e0"))
	early.Name, early.Spec.Driver = "early", "early.example.com"
	everything := class("gpu", `device.driver.endsWith(".example.com")`)
	bound := gpu("g0")
	bound.BindingConditions, bound.BindingFailureConditions = []string{"example.com/attached"}, []string{"example.com/failed"}
	newer := part("a-new", "a", 1, gpu("g1"))
	newer.Spec.Pool.Generation = 2
	return []scenario{
		{
			name:    "an incomplete pool is left out",
			objects: cat(node("a"), part("a-0", "a", 2, gpus(2)...), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: pool, their pool gpu.example.com/a is incomplete",
		},
		{
			name: "a pool of two slices, in the order of their names",
			objects: cat(node("a"), part("a-1", "a", 2, gpu("g0")), part("a-0", "a", 2, gpu("g1")), class("gpu"),
				asks("p", exactly("r", 1))),
			want: "p a gpu=g1",

			older: "p any gpu=1", olderLoose: true,
		},
		{
			name:    "an old generation is left out",
			objects: cat(node("a"), part("a-old", "a", 1, gpu("g0")), newer, class("gpu"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g1",
		},
		{
			name: "two devices of one name",
			objects: cat(node("a"), part("a-0", "a", 2, gpu("g0")), part("a-1", "a", 2, gpu("g0"), gpu("g1")), class("gpu"),
				asks("p", exactly("r", 1))),
			want: "p waits invalid-pool: pool, pool gpu.example.com/a is invalid: two devices have the name g0",
		},
		{
			name: "an invalid pool beside a good one",
			objects: cat(node("a"), part("a-0", "a", 2, gpu("g0")), part("a-1", "a", 2, gpu("g0")), anywhere("net", gpu("n0")), class("gpu"),
				asks("p", exactly("r", 1))),
			want: "p a gpu=n0",
		},
		{
			name: "an invalid pool on one node and nothing on the other",
			objects: cat(node("a"), part("a-0", "a", 2, gpu("g0")), part("a-1", "a", 2, gpu("g0")), node("b"), class("gpu"),
				asks("p", exactly("r", 1))),
			want: "p waits invalid-pool+no-devices: pool, pool gpu.example.com/a is invalid: two devices have the name g0",
		},
		{
			name:    "drivers in the order of their names",
			objects: cat(on("a", gpu("g0")), early, everything, asks("p", exactly("r", 1))),
			want:    "p a gpu=e0",

			older: "p any gpu=1", olderLoose: true,
		},
		{
			name:    "devices with binding conditions come last",
			objects: cat(node("a"), slice("a", bound), anywhere("net", gpu("n0")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p a gpu=n0",

			older: "p any gpu=1", olderLoose: true,
		},
		{
			name:    "no slice at all",
			objects: cat(node("a"), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: no-devices, no ResourceSlice is for any of 1 nodes",
		},
		{
			name:    "a slice without devices",
			objects: cat(on("a"), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: no-devices, no ResourceSlice is for any of 1 nodes",
		},
		{
			name:    "a slice of a node that is not there",
			objects: cat(node("a"), slice("b", gpu("g0")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: no-devices, no ResourceSlice is for any of 1 nodes",
		},
	}
}

// counterScenarios are about parts of devices, which have counters in common. Kubernetes 1.34 drops the counters and keeps the devices.
func counterScenarios() []scenario {
	half := func(name string) resourceapi.Device { return consuming(gpu(name, "model", "half"), "card", "40Gi") }
	whole := consuming(gpu("whole", "model", "whole"), "card", "80Gi")
	card := func(devices ...resourceapi.Device) []any {
		return []any{node("a"), counters("a-counters", "a", 2, "card", "80Gi"), part("a-devices", "a", 2, devices...), class("gpu")}
	}
	mixed := slice("a", half("h0"), half("h1"), half("h2"))
	mixed.Spec.SharedCounters = counters("", "a", 1, "card", "80Gi").Spec.SharedCounters
	unknownCounter := gpu("g0")
	unknownCounter.ConsumesCounters = consuming(gpu(""), "card", "1Gi").ConsumesCounters
	unknownCounter.ConsumesCounters[0].Counters["slices"] = unknownCounter.ConsumesCounters[0].Counters["memory"]
	return []scenario{
		{
			name:    "two halves of a card",
			objects: cat(append(card(half("h0"), half("h1"), half("h2")), asks("p", exactly("r", 2)))...),
			want:    "p a gpu=h0,h1",
		},
		{
			name:    "three halves of a card",
			objects: cat(append(card(half("h0"), half("h1"), half("h2")), asks("p", exactly("r", 3)))...),
			want:    "p waits no-devices: too-few, has 3 that it can have, but not all at once",
			older:   "p a gpu=h0,h1,h2",
		},
		{
			name: "a half keeps the whole",
			objects: cat(append(card(half("h0"), whole), asks("p", exactly("r", 1, model("half"))),
				asks("q", exactly("r", 1, model("whole"))))...),
			want:  "p a gpu=h0\nq waits no-devices: held, the only GPU that would do is on node a, and is held",
			older: "p a gpu=h0\nq a gpu=whole",
		},
		{
			name: "the whole keeps the halves",
			objects: cat(append(card(half("h0"), half("h1"), whole), held(claim("c", exactly("r", 1)), "a", "a", "whole"),
				asks("p", exactly("r", 1)))...),
			want:  "p waits no-devices: held, all 3 GPUs that would do on node a are held: by claim",
			older: "p a gpu=h0",
		},
		{
			name:    "all parts take more than there is",
			objects: cat(append(card(half("h0"), half("h1"), half("h2")), asks("p", all("r")))...),
			want:    "p waits no-devices: too-few, needs 120Gi, 80Gi of 80Gi is free",
			older:   "p a gpu=h0,h1,h2",
		},
		{
			name: "pods share a card",
			objects: cat(append(card(half("h0"), half("h1"), half("h2")), asks("p", exactly("r", 1)), asks("q", exactly("r", 1)),
				asks("z", exactly("r", 1)))...),
			want:  "p a gpu=h0\nq a gpu=h1\nz waits no-devices: held, all 3 GPUs that would do on node a are held: by claim",
			older: "p a gpu=h0\nq a gpu=h1\nz a gpu=h2",
		},
		{
			name:    "an unknown set of counters",
			objects: cat(append(card(consuming(gpu("g0"), "other", "1Gi")), asks("p", exactly("r", 1)))...),
			want:    "p waits invalid-pool: pool, device g0 consumes counter set other, which no slice of the pool has",
			older:   "p a gpu=g0",
		},
		{
			name:    "an unknown counter",
			objects: cat(append(card(unknownCounter), asks("p", exactly("r", 1)))...),
			want:    "p waits invalid-pool: pool, device g0 consumes counter slices, which set card does not have",
			older:   "p a gpu=g0",
		},
		{
			name: "two sets of the same name",
			objects: cat(node("a"), counters("a-0", "a", 3, "card", "80Gi"), counters("a-1", "a", 3, "card", "80Gi"),
				part("a-2", "a", 3, half("h0")), class("gpu"), asks("p", exactly("r", 1))),
			want:  "p waits invalid-pool: pool, pool gpu.example.com/a is invalid: two counter sets have the name card",
			older: "p a gpu=h0",
		},
		{
			name:    "counters that are not published yet",
			objects: cat(node("a"), part("a-devices", "a", 2, half("h0")), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: pool, pool gpu.example.com/a is incomplete",
		},
		{
			name:    "counters and devices in one slice",
			objects: cat(node("a"), mixed, class("gpu"), asks("p", exactly("r", 3))),
			want: "ResourceSlice/a refused only one of `sharedCounters` or `devices` is allowed\n" +
				"p waits no-devices: no-devices, no ResourceSlice is for any of 1 nodes",
			older: "p a gpu=h0,h1,h2",
		},
	}
}
