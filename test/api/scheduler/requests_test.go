// SPDX-License-Identifier: Apache-2.0

package scheduler

// requestScenarios are about how many devices a claim asks for, and which.
func requestScenarios() []scenario {
	large := gpu("g0", "model", "large")
	small := gpu("g1", "model", "small")
	return []scenario{
		{
			name:    "one device",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g0",
		},
		{
			name:    "two of three",
			objects: cat(on("a", gpus(3)...), class("gpu"), asks("p", exactly("r", 2))),
			want:    "p a gpu=g0,g1",
		},
		{
			name:    "three of two",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 3))),
			want:    "p waits no-devices: too-few, wants 3 GPUs on one node, and a, which comes closest, has 2",
		},
		{
			name: "pods fill a node",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1)), asks("q", exactly("r", 1)),
				asks("z", exactly("r", 1))),
			want: "p a gpu=g0\nq a gpu=g1\nz waits no-devices: held, all 2 GPUs that would do on node a are held: by claim",
		},
		{
			name: "pods fill two nodes",
			objects: cat(on("a", gpus(1)...), on("b", gpus(1)...), class("gpu"),
				asks("p", exactly("r", 1)), asks("q", exactly("r", 1)), asks("z", exactly("r", 1))),
			want:  "p any gpu=1\nq any gpu=1\nz waits no-devices: held, all 2 GPUs that would do on nodes a and b are held: by claim",
			loose: true,
		},
		{
			name:    "a selector chooses",
			objects: cat(on("a", small, large), class("gpu"), asks("p", exactly("r", 1, model("large")))),
			want:    "p a gpu=g0",
		},
		{
			name:    "a selector that nothing meets",
			objects: cat(on("a", small, large), class("gpu"), asks("p", exactly("r", 1, model("huge")))),
			want:    "p waits no-devices: selector, 2 GPUs on a are free, but a selector of request r wants model == \"huge\"",
		},
		{
			name: "a class chooses",
			objects: cat(on("a", large, small), class("gpu"), class("small", model("small")),
				asks("p", of("small", exactly("r", 1)))),
			want: "p a gpu=g1",
		},
		{
			name: "a selector on capacity",
			objects: cat(on("a", memory(gpu("g0"), "40Gi"), memory(gpu("g1"), "80Gi")), class("gpu"),
				asks("p", exactly("r", 1, `device.capacity["gpu.example.com"].memory.compareTo(quantity("64Gi")) >= 0`))),
			want: "p a gpu=g1",
		},
		{
			name: "a selector on a version",
			objects: cat(on("a", gpu("g0", "firmware", version("1.2.0")), gpu("g1", "firmware", version("1.10.0"))), class("gpu"),
				asks("p", exactly("r", 1, `device.attributes["gpu.example.com"].firmware.isGreaterThan(semver("1.9.0"))`))),
			want: "p a gpu=g1",
		},
		{
			name: "two selectors",
			objects: cat(on("a", gpu("g0", "model", "large", "ecc", false), gpu("g1", "model", "large", "ecc", true)), class("gpu"),
				asks("p", exactly("r", 1, model("large"), `device.attributes["gpu.example.com"].ecc`))),
			want: "p a gpu=g1",
		},
		{
			name:    "two requests",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1), exactly("s", 1))),
			want:    "p a gpu=g0,g1",
		},
		{
			name:    "a request gives way to a later one",
			objects: cat(on("a", large, small), class("gpu"), asks("p", exactly("r", 1), exactly("s", 1, model("large")))),
			want:    "p a gpu=g1,g0",
		},
		{
			name: "two claims",
			objects: cat(on("a", gpus(3)...), class("gpu"), claim("c", exactly("r", 1)), claim("d", exactly("r", 2)),
				pod("p", named("one", "c"), named("two", "d"))),
			want: "p a one=g0 two=g1,g2",
		},
		{
			name: "two claims on different nodes",
			objects: cat(on("a", large), on("b", small), class("gpu"), claim("c", exactly("r", 1, model("large"))),
				claim("d", exactly("r", 1, model("small"))), pod("p", named("one", "c"), named("two", "d"))),
			want: "p waits no-devices: too-few, request r needs 1 GPU and can have 0 of 1: 1 not as the selectors want",
		},
		{
			name: "a template",
			objects: cat(on("a", gpus(2)...), class("gpu"), template(claim("t", exactly("r", 1))), pod("p", templated("gpu", "t")),
				pod("q", templated("gpu", "t"))),
			want: "p a gpu=g0\nq a gpu=g1",
		},
		{
			name: "a template twice in a pod",
			objects: cat(on("a", gpus(2)...), class("gpu"), template(claim("t", exactly("r", 1))),
				pod("p", templated("x", "t"), templated("y", "t"))),
			want: "p a x=g0 y=g1",
		},
		{
			name: "a template and a claim",
			objects: cat(on("a", gpus(2)...), class("gpu"), template(claim("t", exactly("r", 1))), claim("c", exactly("r", 1)),
				pod("p", templated("own", "t"), named("given", "c"))),
			want: "p a given=g1 own=g0",
		},
		{
			name:    "32 devices",
			objects: cat(on("a", gpus(33)...), class("gpu"), asks("p", exactly("r", 32))),
			want:    "p any gpu=32",
			loose:   true,
		},
		{
			name:    "33 devices",
			objects: cat(on("a", gpus(40)...), class("gpu"), asks("p", exactly("r", 33))),
			want:    "p waits too-many: invalid, more than 32 devices, the most that a claim can have",
		},
		{
			name:    "33 devices in two requests",
			objects: cat(on("a", gpus(40)...), class("gpu"), asks("p", exactly("r", 20), exactly("s", 13))),
			want:    "p waits too-many: invalid, more than 32 devices, the most that a claim can have",
		},
		{
			name:    "all of 33 devices",
			objects: cat(on("a", gpus(33)...), class("gpu"), asks("p", all("r"))),
			want:    "p waits too-many: invalid, more than 32 devices, the most that a claim can have",
		},
	}
}

// model is a selector.
func model(name string) string { return `device.attributes["gpu.example.com"].model == "` + name + `"` }

// allScenarios are about requests for all devices.
func allScenarios() []scenario {
	return []scenario{
		{
			name:    "all devices",
			objects: cat(on("a", gpus(3)...), class("gpu"), asks("p", all("r"))),
			want:    "p a gpu=g0,g1,g2",
		},
		{
			name: "all that match",
			objects: cat(on("a", gpu("g0", "model", "x"), gpu("g1", "model", "y"), gpu("g2", "model", "x")), class("gpu"),
				asks("p", all("r", model("x")))),
			want: "p a gpu=g0,g2",
		},
		{
			name:    "all of none",
			objects: cat(on("a", gpus(2, "model", "x")...), class("gpu"), asks("p", all("r", model("y")))),
			want:    "p waits no-devices: selector, 2 GPUs on a are free, but a selector of request r wants model == \"y\"",
		},
		{
			name: "all while one is in use",
			objects: cat(on("a", gpus(3)...), class("gpu"), held(claim("c", exactly("r", 1)), "a", "a", "g1"),
				asks("p", all("r"))),
			want: "p waits no-devices: held, request r wants all GPUs of a node that match, and some are held",
		},
		{
			name: "all goes where all are free",
			objects: cat(on("a", gpus(2)...), on("b", gpus(3)...), class("gpu"), held(claim("c", exactly("r", 1)), "a", "a", "g1"),
				asks("p", all("r"))),
			want: "p b gpu=g0,g1,g2",
		},
		{
			name:    "all of an incomplete pool",
			objects: cat(node("a"), part("a-0", "a", 2, gpus(2)...), class("gpu"), asks("p", all("r"))),
			want:    "p waits incomplete-pool: pool, it wants all devices, and pool gpu.example.com/a is incomplete",
		},
		{
			name: "all of an invalid pool",
			objects: cat(node("a"), part("a-0", "a", 2, gpu("g0")), part("a-1", "a", 2, gpu("g0")), class("gpu"),
				asks("p", all("r"))),
			want: "p waits invalid-pool: pool, it wants all devices, and pool gpu.example.com/a is invalid",
		},
		{
			name: "an incomplete pool of one node holds the other up",
			objects: cat(node("a"), part("a-0", "a", 2, gpus(2)...), on("b", gpus(2)...), class("gpu"),
				asks("p", all("r"))),
			want: "p waits incomplete-pool: pool, it wants all devices, and pool gpu.example.com/a is incomplete",
		},
		{
			name: "all with the same attribute",
			objects: cat(on("a", gpus(2, "root", "x")...), class("gpu"),
				with(matching(claim("p", all("r")), "root"))),
			want: "p a gpu=g0,g1",
		},
		{
			name: "all that differ in an attribute that has to match",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "y")), class("gpu"),
				with(matching(claim("p", all("r")), "root"))),
			want: "p waits all-constraint: constraint, because a claim constraint would not be satisfied",
		},
	}
}

// alternativeScenarios are about firstAvailable.
func alternativeScenarios() []scenario {
	return []scenario{
		{
			name: "the first alternative",
			objects: cat(on("a", gpu("g0", "model", "small"), gpu("g1", "model", "large")), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 1, model("small"))))),
			want: "p a gpu=g1",
		},
		{
			name: "the second alternative",
			objects: cat(on("a", gpus(2, "model", "small")...), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 2, model("small"))))),
			want: "p a gpu=g0,g1",
		},
		{
			name: "no alternative",
			objects: cat(on("a", gpus(1, "model", "small")...), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 2, model("small"))))),
			want: "p waits no-devices: too-few, request r/large needs 1 GPU and can have 0 of 1: 1 not as the selectors want",
		},
		{
			name: "the node with the better alternative",
			objects: cat(on("a", gpus(4, "model", "small")...), on("b", gpus(1, "model", "large")...), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 4, model("small"))))),
			want: "p b gpu=g0",
		},
		{
			name: "pods take alternatives in turn",
			objects: cat(on("a", gpu("g0", "model", "large"), gpu("g1", "model", "small")), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 1, model("small")))),
				asks("q", first("r", sub("large", 1, model("large")), sub("small", 1, model("small"))))),
			want: "p a gpu=g0\nq a gpu=g1",
		},
		{
			name: "alternatives and another request",
			objects: cat(on("a", gpu("g0", "model", "large"), gpu("g1", "model", "small")), class("gpu"),
				asks("p", first("r", sub("large", 1, model("large")), sub("small", 1, model("small"))), exactly("s", 1, model("large")))),
			want: "p a gpu=g1,g0",
		},
		{
			name: "an alternative with too many devices",
			objects: cat(on("a", gpus(2)...), class("gpu"),
				asks("p", first("r", sub("many", 33), sub("one", 1)))),
			want: "p a gpu=g0",
		},
		{
			name: "constraints on an alternative",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "y"), gpu("g2", "root", "y")), class("gpu"),
				with(matching(claim("p", first("r", sub("four", 4), sub("two", 2))), "root", "r/four", "r/two"))),
			want: "p a gpu=g1,g2",
		},
	}
}
