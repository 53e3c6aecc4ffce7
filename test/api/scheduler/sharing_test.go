// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	resourceapi "k8s.io/api/resource/v1"
)

// sharingScenarios are about claims that exist before their pods, and about those of others.
func sharingScenarios() []scenario {
	holder := func(device string) *resourceapi.ResourceClaim {
		return held(claim("holder-"+device, exactly("r", 1)), "a", "a", device)
	}
	inUse := reserved(held(claim("c", exactly("r", 1)), "a", "a", "g0"), 256)
	almost := reserved(held(claim("c", exactly("r", 1)), "a", "a", "g0"), 255)
	undated := held(claim("c", exactly("r", 1)), "a", "a", "g0")
	undated.Status.Allocation.AllocationTimestamp = nil
	return []scenario{
		{
			name: "two pods share a claim",
			objects: cat(on("a", gpus(2)...), class("gpu"), claim("c", exactly("r", 1)), pod("p", named("gpu", "c")),
				pod("q", named("gpu", "c")),
				asks("z", exactly("r", 1))),
			want: "p a gpu=g0\nq a gpu=g0\nz a gpu=g1",
		},
		{
			name: "a claim binds the next pod to its node",
			objects: cat(on("a", gpus(2)...), on("b", gpus(2)...), class("gpu"), claim("c", exactly("r", 1)),
				pinned("b", cat(pod("p", named("gpu", "c")))), pod("q", named("gpu", "c"))),
			want: "p b gpu=g0\nq b gpu=g0",
		},
		{
			name: "a claim that is allocated",
			objects: cat(on("a", gpus(2)...), on("b", gpus(2)...), class("gpu"), held(claim("c", exactly("r", 1)), "b", "b", "g1"),
				pod("p", named("gpu", "c"))),
			want: "p b gpu=g1",
		},
		{
			name: "a claim that is allocated elsewhere",
			objects: cat(on("a", gpus(2)...), on("b", gpus(2)...), class("gpu"), held(claim("c", exactly("r", 1)), "b", "b", "g1"),
				pinned("a", cat(pod("p", named("gpu", "c"))))),
			want: "p waits claim-elsewhere: claim, which ties the pod to node b",
		},
		{
			name: "a claim that is allocated elsewhere and one that is not",
			objects: cat(on("a", gpus(2)...), on("b", gpus(1)...), class("gpu"), held(claim("c", exactly("r", 1)), "b", "b", "g0"),
				claim("d", exactly("r", 1)), pod("p", named("x", "c"), named("y", "d"))),
			want: "p waits claim-elsewhere+no-devices: claim, which ties the pod to node b",
		},
		{
			name: "a claim of all nodes that is allocated",
			objects: cat(node("a"), anywhere("pool", gpus(2)...), class("gpu"), held(claim("c", exactly("r", 1)), "", "pool", "g1"),
				pod("p", named("gpu", "c"))),
			want: "p a gpu=g1",
		},
		{
			name:    "a claim with 256 consumers",
			objects: cat(on("a", gpus(1)...), class("gpu"), inUse, pod("p", named("gpu", "c"))),
			want:    "p waits claim-in-use: claim, is reserved for 256 pods",
		},
		{
			name:    "a claim with 255 consumers",
			objects: cat(on("a", gpus(1)...), class("gpu"), almost, pod("p", named("gpu", "c")), pod("q", named("gpu", "c"))),
			want:    "p a gpu=g0\nq waits claim-in-use: claim, is reserved for 256 pods",
		},
		{
			name:    "a device of another claim",
			objects: cat(on("a", gpus(2)...), class("gpu"), holder("g0"), asks("p", exactly("r", 1))),
			want:    "p a gpu=g1",
		},
		{
			name:    "all devices are those of other claims",
			objects: cat(on("a", gpus(2)...), class("gpu"), holder("g0"), holder("g1"), asks("p", exactly("r", 1))),
			want:    "p waits no-devices: held, all 2 GPUs that would do on node a are held: by claim",
		},
		{
			name:    "a claim that is missing",
			objects: cat(on("a", gpus(1)...), class("gpu"), pod("p", named("gpu", "c"))),
			want:    "p waits claim-missing: claim, waits for a ResourceClaim that does not exist",
		},
		{
			name:    "a template that is missing",
			objects: cat(on("a", gpus(1)...), class("gpu"), pod("p", templated("gpu", "t"))),
			want:    "p waits claim-missing: claim, does not exist: create it",
			events:  map[string]string{"p": "not found"},
		},
		{
			name:    "a claim that is being deleted",
			objects: cat(on("a", gpus(1)...), class("gpu"), deleted(claim("c", exactly("r", 1))), pod("p", named("gpu", "c"))),
			want:    "p waits claim-deleted: claim, was deleted and made again",
		},
		{
			name:    "a claim that is named twice",
			objects: cat(on("a", gpus(2)...), class("gpu"), claim("c", exactly("r", 1)), pod("p", named("x", "c"), named("y", "c"))),
			want:    "p waits claim-twice: claim, are both ResourceClaim c",
		},
		{
			name:    "a claim without a time of allocation",
			objects: cat(on("a", gpus(1)...), class("gpu"), undated, pod("p", named("gpu", "c"))),
			want:    "p waits claim-undated: claim, allocated without allocationTimestamp",
			older:   "p a gpu=g0",
		},
	}
}

// adminScenarios are about access to devices that others have. The API server wants the namespace to have a label.
func adminScenarios() []scenario {
	allowed := map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}
	const refused = "ResourceClaim/p refused resource.kubernetes.io/admin-access: true\n" + unmade
	holder := held(claim("c", exactly("r", 1)), "a", "a", "g0")
	bad := tainted(gpu("g0"), "example.com/broken", resourceapi.DeviceTaintEffectNoSchedule)
	return []scenario{
		{
			name:    "admin access without the label",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", admin(exactly("r", 1)))),
			want:    refused,
		},
		{
			name:    "admin access with another value of the label",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", admin(exactly("r", 1)))),
			labels:  map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "yes"},
			want:    refused,
		},
		{
			name: "a template with admin access without the label",
			objects: cat(on("a", gpus(1)...), class("gpu"), template(claim("t", admin(exactly("r", 1)))),
				pod("p", templated("gpu", "t"))),
			want: "ResourceClaimTemplate/t refused resource.kubernetes.io/admin-access: true\n" +
				"p waits claim-missing: claim, ResourceClaimTemplate a-template-with-admin-access-without-the-label/t does not exist",
		},
		{
			name:    "admin access to a device in use",
			objects: cat(on("a", gpus(1)...), class("gpu"), holder, asks("p", admin(exactly("r", 1)))),
			labels:  allowed,
			want:    "p a gpu=g0",
		},
		{
			name:    "admin access to all devices",
			objects: cat(on("a", gpus(3)...), class("gpu"), holder, asks("p", admin(all("r")))),
			labels:  allowed,
			want:    "p a gpu=g0,g1,g2",
		},
		{
			name:    "admin access takes nothing away",
			objects: cat(on("a", gpus(1)...), class("gpu"), asks("p", admin(exactly("r", 1))), asks("q", exactly("r", 1))),
			labels:  allowed,
			want:    "p a gpu=g0\nq a gpu=g0",
		},
		{
			name:    "admin access to a tainted device",
			objects: cat(on("a", bad), class("gpu"), asks("p", admin(exactly("r", 1)))),
			labels:  allowed,
			want:    "p waits no-devices: taint, 1 GPU on a is free but tainted example.com/broken:NoSchedule",
			older:   "p a gpu=g0",
		},
		{
			name:    "admin access to all, before a plain request",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", admin(all("look")), exactly("use", 1))),
			labels:  allowed,
			want:    "p waits no-devices: too-few, requests look, use need 3 devices together",
		},
		{
			name:    "admin access to all, after a plain request",
			objects: cat(on("a", gpus(2)...), class("gpu"), asks("p", exactly("use", 1), admin(all("look")))),
			labels:  allowed,
			want:    "p waits no-devices: too-few, requests use, look need 3 devices together",
		},
		{
			name: "admin access to all, in a claim of its own",
			objects: cat(on("a", gpus(2)...), class("gpu"), claim("c", exactly("use", 1)), claim("d", admin(all("look"))),
				pod("p", named("use", "c"), named("look", "d"))),
			labels: allowed,
			want:   "p a look=g0,g1 use=g0",
		},
		{
			name: "admin access to all, in a claim before the other",
			objects: cat(on("a", gpus(2)...), class("gpu"), claim("c", exactly("use", 1)), claim("d", admin(all("look"))),
				pod("p", named("look", "d"), named("use", "c"))),
			labels: allowed,
			want:   "p waits no-devices: too-few, no combination satisfies all of them",
		},
	}
}
