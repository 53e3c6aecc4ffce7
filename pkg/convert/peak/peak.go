// SPDX-License-Identifier: Apache-2.0

// Package peak gives the containers of a pod the devices of a claim, so that the pod has as many as its resources had at their most.
package peak

import "slices"

// Phase is when a container of a pod runs.
type Phase int

const (
	// Main is with all others that do not end before.
	Main Phase = iota
	// Init ends before the next container of the pod begins.
	Init
	// Sidecar begins among the init containers and stays.
	Sidecar
)

// Container is one of a pod, with how many devices it has.
type Container struct {
	Phase Phase
	Count int64
}

// Request is one of a claim: the containers that have its devices, by their places, in order, and how many devices these are.
type Request struct {
	Containers []int
	Count      int64
}

// Requests returns what a claim has to ask for: as many devices as the scheduler counts for resources (KEP-753), the larger of what all
// containers that stay have together, and what any init container has with the sidecars before it. The containers are in the order in which
// they start. The requests are in the order of their containers, and no two have the same ones.
func Requests(containers []Container) []Request {
	var out []Request
	for _, holders := range assign(containers) {
		at := slices.IndexFunc(out, func(r Request) bool { return slices.Equal(r.Containers, holders) })
		if at < 0 {
			out = append(out, Request{Containers: holders})
			at = len(out) - 1
		}
		out[at].Count++
	}
	slices.SortFunc(out, func(a, b Request) int { return slices.Compare(a.Containers, b.Containers) })
	return out
}

// assign returns who has each device. Containers that stay have devices of their own. An init container has those of containers that start
// after it, or that an earlier one left, and new ones if these do not suffice.
func assign(containers []Container) [][]int {
	var devices [][]int
	for _, phase := range []Phase{Main, Sidecar} { // in this order an init container leaves those of sidecars alone as long as it can
		for i, c := range containers {
			if c.Phase == phase {
				devices = append(devices, slices.Repeat([][]int{{i}}, int(c.Count))...)
			}
		}
	}
	for i, c := range containers {
		if c.Phase != Init {
			continue
		}
		missing := c.Count
		for at, holders := range devices {
			taken := slices.ContainsFunc(holders, func(j int) bool { return containers[j].Phase == Sidecar && j < i })
			if missing > 0 && !taken {
				devices[at] = append(slices.Clone(holders), i)
				missing--
			}
		}
		devices = append(devices, slices.Repeat([][]int{{i}}, int(missing))...)
	}
	for _, holders := range devices {
		slices.Sort(holders)
	}
	return devices
}
