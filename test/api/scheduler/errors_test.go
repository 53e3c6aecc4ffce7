// SPDX-License-Identifier: Apache-2.0

package scheduler

import "fmt"

// errorScenarios are about claims and classes that are wrong, and what is wrong only sometimes.
func errorScenarios() []scenario {
	missing := sub("x", 1)
	missing.DeviceClassName = "none"
	eight := func() []request {
		var out []request
		for i := range 8 {
			out = append(out, exactly(fmt.Sprintf("r%d", i), 1))
		}
		return out
	}
	long := pod("p", named("gpu", "c"))
	long.Spec.SchedulerName = impatient
	return []scenario{
		{
			name:    "a class that is missing",
			objects: cat(on("a", gpus(1)...), asks("p", exactly("r", 1))),
			want:    "p waits class-missing: class, the pod waits until DeviceClass gpu is created",
		},
		{
			name:    "the class of an alternative is missing",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", first("r", sub("one", 1), missing))),
			want:    "p waits class-missing: class, the pod waits until DeviceClass none is created",
		},
		{
			name:    "the class of a second request is missing",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1), of("none", exactly("s", 1)))),
			want:    "p waits class-missing: class, the pod waits until DeviceClass none is created",
		},
		{
			name:    "an expression that does not compile",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", exactly("r", 1, `device.driver ==`))),
			want:    "ResourceClaim/p refused compilation failed\n" + unmade,
		},
		{
			name:    "an expression that is no truth",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", exactly("r", 1, `device.driver`))),
			want:    "ResourceClaim/p refused must evaluate to bool\n" + unmade,
		},
		{
			name:    "an attribute that no device has",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", exactly("r", 1, model("large")))),
			want:    "p waits cel-runtime: invalid, CEL runtime error: no such key: model",
		},
		{
			name:    "an attribute that no device has, in a class",
			objects: cat(on("a", gpus(1)...), class("gpu", model("large")), asks("p", exactly("r", 1))),
			want:    "p waits cel-runtime: invalid, CEL runtime error: no such key: model",
		},
		{
			name: "an attribute that is asked for first",
			objects: cat(on("a", gpu("g0"), gpu("g1", "model", "large")), class("gpu"),
				asks("p", exactly("r", 1, `"model" in device.attributes["gpu.example.com"] && `+model("large")))),
			want: "p a gpu=g1",
		},
		{
			name:    "a device without the attribute that is not reached",
			objects: cat(on("a", gpu("g0", "model", "large"), gpu("g1")), class("gpu"), asks("p", exactly("r", 1, model("large")))),
			want:    "p a gpu=g0",
		},
		{
			name: "a claim breaks once the search reaches that device",
			objects: cat(on("a", gpu("g0", "model", "large"), gpu("g1")), class("gpu"), asks("p", exactly("r", 1, model("large"))),
				asks("q", exactly("r", 1, model("large")))),
			want: "p a gpu=g0\nq waits cel-runtime: invalid, CEL runtime error: no such key: model",
		},
		{
			name: "a device without the attribute holds up a node that fits",
			objects: cat(on("a", gpu("g0")), on("b", gpu("g0", "model", "large")), class("gpu"),
				asks("p", exactly("r", 1, model("large")))),
			want: "p waits cel-runtime: invalid, CEL runtime error: no such key: model",
		},
		{
			name: "an attribute of another driver",
			objects: cat(on("a", gpus(1)...), class("gpu"),
				asks("p", exactly("r", 1, `device.attributes["other.example.com"].model == "x"`))),
			want: "p waits cel-runtime: invalid, CEL runtime error: no such key: model",
		},
		{
			name:    "an attribute of another type",
			objects: cat(on("a", gpu("g0", "model", 4)), class("gpu"), asks("p", exactly("r", 1, model("x")))),
			want:    "p waits no-devices: selector, 1 GPU on a is free, but a selector of request r wants model == \"x\"",
		},
		{
			name: "eight requests, one device short",
			objects: cat(on("a", gpus(12, "model", "x")...), class("gpu"),
				claim("c", append(eight(), exactly("last", 1, model("y")))...), long),
			want: "p waits timeout: selector, 12 GPUs on a are free, but a selector of request last wants model == \"y\"",
		},
	}
}

// quotaScenarios are about what the API server refuses because of a quota.
func quotaScenarios() []scenario {
	return []scenario{
		{
			name:    "a claim within the quota",
			objects: cat(quota("gpu", "2"), on("a", gpus(3)...), class("gpu"), asks("p", exactly("r", 2))),
			want:    "p a gpu=g0,g1",
		},
		{
			name:    "a claim beyond the quota",
			objects: cat(quota("gpu", "2"), on("a", gpus(3)...), class("gpu"), asks("p", exactly("r", 3))),
			want:    "ResourceClaim/p refused exceeded quota\n" + unmade,
		},
		{
			name: "a template beyond the quota",
			objects: cat(quota("gpu", "1"), on("a", gpus(3)...), class("gpu"), template(claim("t", exactly("r", 1))),
				pod("p", templated("gpu", "t")), pod("q", templated("gpu", "t"))),
			want:   "p a gpu=g0\nq waits claim-missing: claim, exceeded quota: devices",
			events: map[string]string{"q": "exceeded quota"},
		},
		{
			name:    "all devices count as 32",
			objects: cat(quota("gpu", "8"), on("a", gpus(3)...), class("gpu"), asks("p", all("r"))),
			want:    "ResourceClaim/p refused exceeded quota\n" + unmade,
		},
		{
			name:    "a quota of another class",
			objects: cat(quota("other", "0"), on("a", gpus(3)...), class("gpu"), asks("p", exactly("r", 2))),
			want:    "p a gpu=g0,g1",
		},
		{
			name:    "alternatives count as the largest",
			objects: cat(quota("gpu", "2"), on("a", gpus(3)...), class("gpu"), asks("p", first("r", sub("four", 4), sub("one", 1)))),
			want:    "ResourceClaim/p refused exceeded quota\n" + unmade,
		},
	}
}
