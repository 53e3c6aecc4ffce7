// SPDX-License-Identifier: Apache-2.0

package scheduler

// unmade is how a pod waits whose claim the API server refused.
const unmade = "p waits claim-missing: claim, waits for a ResourceClaim that does not exist"

// constraintScenarios are about devices that have to agree or to differ.
func constraintScenarios() []scenario {
	other := slice("n", gpu("n0", "root", "y"))
	other.Spec.Driver, other.Spec.NodeName = "nic.example.com", slice("a").Spec.NodeName
	other.Spec.Devices[0].Attributes = nil
	for i := range other.Spec.Devices {
		other.Spec.Devices[i].Attributes = attributes("resource.kubernetes.io/pcieRoot", "pci0000:40")
	}
	shared := matching(claim("p", exactly("r", 1), of("nic", exactly("s", 1))), "root")
	*shared.Spec.Devices.Constraints[0].MatchAttribute = "resource.kubernetes.io/pcieRoot"
	return []scenario{
		{
			name: "two on the same root",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "y"), gpu("g2", "root", "y")), class("gpu"),
				with(matching(claim("p", exactly("r", 2)), "root"))),
			want: "p a gpu=g1,g2",
		},
		{
			name: "free, but on different roots",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "y")), class("gpu"),
				with(matching(claim("p", exactly("r", 2)), "root"))),
			want: "p waits no-devices: constraint, 2 GPUs are free on a, but with different values of gpu.example.com/root",
		},
		{
			name:    "no device has the attribute that has to match",
			objects: cat(on("a", gpus(2)...), class("gpu"), with(matching(claim("p", exactly("r", 2)), "root"))),
			want:    "p waits no-devices: constraint, 2 GPUs are free on a, but with different values of gpu.example.com/root",
		},
		{
			name: "a match for some requests",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "y"), gpu("g2", "root", "y")), class("gpu"),
				with(matching(claim("p", exactly("r", 1), exactly("s", 1), exactly("t", 1)), "root", "s", "t"))),
			want: "p a gpu=g0,g1,g2",
		},
		{
			name: "a match of types that differ",
			objects: cat(on("a", gpu("g0", "numa", 1), gpu("g1", "numa", "1")), class("gpu"),
				with(matching(claim("p", exactly("r", 2)), "numa"))),
			want: "p waits no-devices: constraint, 2 GPUs are free on a, but with different values of gpu.example.com/numa",
		},
		{
			name: "a match across drivers",
			objects: cat(on("a", gpu("g0", "resource.kubernetes.io/pcieRoot", "pci0000:00"),
				gpu("g1", "resource.kubernetes.io/pcieRoot", "pci0000:40")),
				other, class("gpu"), class("nic", `device.driver == "nic.example.com"`), with(shared)),
			want: "p a gpu=g1,n0",
		},
		{
			name: "a match takes what another pod left",
			objects: cat(on("a", gpu("g0", "root", "x"), gpu("g1", "root", "x"), gpu("g2", "root", "y"), gpu("g3", "root", "y")),
				class("gpu"),
				asks("p", exactly("r", 1)), with(matching(claim("q", exactly("r", 2)), "root"))),
			want: "p a gpu=g0\nq a gpu=g2,g3",
		},
		{
			name: "two on different cards",
			objects: cat(on("a", gpu("g0", "card", 1), gpu("g1", "card", 1), gpu("g2", "card", 2)), class("gpu"),
				with(distinct(claim("p", exactly("r", 2)), "card"))),
			want:  "p a gpu=g0,g2",
			older: "ResourceClaim/p refused spec.devices.constraints[0]\n" + unmade,
		},
		{
			name: "free, but on one card",
			objects: cat(on("a", gpus(2, "card", 1)...), class("gpu"),
				with(distinct(claim("p", exactly("r", 2)), "card"))),
			want:  "p waits no-devices: constraint, 2 GPUs are free on a, but with the same gpu.example.com/card",
			older: "ResourceClaim/p refused spec.devices.constraints[0]\n" + unmade,
		},
		{
			name: "a match and a difference",
			objects: cat(on("a", gpu("g0", "root", "x", "card", 1), gpu("g1", "root", "y", "card", 2),
				gpu("g2", "root", "y", "card", 2), gpu("g3", "root", "y", "card", 3)), class("gpu"),
				with(distinct(matching(claim("p", exactly("r", 2)), "root"), "card"))),
			want:  "p a gpu=g1,g3",
			older: "ResourceClaim/p refused spec.devices.constraints[1]\n" + unmade,
		},
	}
}
