// SPDX-License-Identifier: Apache-2.0

package plan

// Report is the result of a plan. Fields are only ever added.
type Report struct {
	// Pods are by NAMESPACE/NAME.
	Pods map[string]PodResult `json:"pods"`
	// Free are the devices that no claim holds at the end, as DRIVER/POOL/DEVICE, sorted.
	Free []string `json:"free,omitempty"`
	// Problems are objects that were left out or changed before the plan was made, and why, sorted.
	Problems []Problem `json:"problems,omitempty"`
}

// PodResult is what a pod gets.
type PodResult struct {
	// Node is nil if the pod has none.
	Node *string `json:"node"`
	// Fits are all nodes that would do, sorted.
	Fits []string `json:"fits"`
	// Devices are by the pod's own name of the claim, "extended-resources" for extended resources, in the order of allocation, as
	// DRIVER/POOL/DEVICE.
	Devices map[string][]string `json:"devices"`
	// Reason says why the pod has no node: the scheduler's words, then ours.
	Reason string `json:"reason"`
	// Stopped says that the search for devices was ended before it was done, by its time limit or by the caller. Without a node it is not
	// known then whether one fits.
	Stopped bool `json:"stopped,omitempty"`
	// Unjudged is what may keep the pod from the nodes in Fits, or from some of them, and is not looked at, sorted.
	Unjudged []string `json:"unjudged,omitempty"`
	// Incomplete are the pools, as DRIVER/POOL, of which slices are missing on nodes that lack nothing but devices. Their drivers are still
	// publishing, or gave up: without a node it is not known then whether one will fit in a moment.
	Incomplete []string `json:"incomplete,omitempty"`
	// PodGroup is the gang with which the pod gets a node or none, empty for a pod of none.
	PodGroup string `json:"podGroup,omitempty"`
	// BeyondScheduler is set for pods of a gang that get nodes together only if one of them does not get its first choice. The scheduler
	// does not go back to another one, so the pods wait there.
	BeyondScheduler bool `json:"beyondScheduler,omitempty"`
	// Scores are those of the nodes in Fits, as far as devices decide.
	Scores map[string]int64 `json:"scores,omitempty"`
}

// Problem is about an object.
type Problem struct {
	// Object is KIND NAMESPACE/NAME, or KIND NAME.
	Object  string `json:"object"`
	Message string `json:"message"`
}
