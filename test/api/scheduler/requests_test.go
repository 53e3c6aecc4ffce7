// SPDX-License-Identifier: Apache-2.0

package scheduler

// scenarios are all, by what they are about.
func scenarios() []scenario {
	return requestScenarios()
}

// requestScenarios are about how many devices a claim asks for, and which.
func requestScenarios() []scenario {
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
			want:    "p waits no-devices",
		},
		{
			name:    "pods fill a node",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("r", 1)), asks("q", exactly("r", 1)), asks("z", exactly("r", 1))),
			want:    "p a gpu=g0\nq a gpu=g1\nz waits no-devices",
		},
		{
			name: "a selector chooses",
			objects: cat(on("a", gpu("g0", "model", "small"), gpu("g1", "model", "large")), class("gpu"),
				asks("p", exactly("r", 1, `device.attributes["gpu.example.com"].model == "large"`))),
			want: "p a gpu=g1",
		},
	}
}
