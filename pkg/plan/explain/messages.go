// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Saying is a message of Kubernetes about the pod.
type Saying struct {
	// From is "PodScheduled" for the pod's condition, else the reason of an Event.
	From  string `json:"from"`
	Words string `json:"words"`
	// Meanings say what parts of the message mean.
	Meanings []string `json:"meanings,omitempty"`
}

const fromCondition = "PodScheduled"

// meaning is what a message of the scheduler, of the controller of claims or of kubelet means.
type meaning struct{ pattern, text string }

// meanings are in the order in which they are shown.
func meanings() []meaning {
	return []meaning{
		{`ResourceClaim not created yet`, "the claim of the pod's template is not made: an Event FailedResourceClaimCreation says why (quota, " +
			"admission, or admin access in a namespace without the label)"},
		{`could not find v1\.Pod`, "the scheduler has not seen the pod's claim yet"},
		{`resourceclaim.* not found|could not find ResourceClaim`, "a ResourceClaim that the pod names does not exist"},
		{`device class (\S+) does not exist`, "the pod waits until the DeviceClass is created: a class that is missing in any alternative " +
			"of firstAvailable counts too"},
		{`resourceclaim \S+ is being deleted`, "a claim that the pod names is being deleted: the pod waits until it was made again"},
		{`resourceclaim in use|status\.reservedFor: Too many`, "256 pods use the claim, the most that a claim can have"},
		{
			`status\.reservedFor\[\d+\]: Duplicate value|got allocated elsewhere in the meantime`,
			"the pod names one ResourceClaim twice: name it once",
		},
		{`non-empty scheduling gates`, "the scheduler leaves the pod alone until its spec.schedulingGates are removed"},
		{`in the process of being allocated`, "another pod that uses the claim is being scheduled: this ends by itself"},
		{`cannot allocate all claims`, "so many nodes do not have the devices: the lines on nodes below say what is missing on each"},
		{`cannot fit resource|cannot schedule extended resource claim`, "the devices for an extended resource of the pod are not there"},
		{
			`resourceclaim not available on the node`,
			"a claim of the pod has devices of another node already, or its devices failed to be bound, or they need a kubelet that declares " +
				"DRAOptionalNodeOperations",
		},
		{`timed out trying to allocate devices`, "the scheduler searched for 10 seconds on one node. It tries the devices of several " +
			"requests in every order: use one request with a count instead of several that are alike"},
		{`asked by caller to stop allocating devices`, "the scheduler found enough other nodes, and stopped on this one"},
		{`CEL runtime error`, "a selector fails on a device, which keeps the pod from all nodes. Ask for an attribute with has(), or read it " +
			"with .? and orValue()"},
		{`CEL compile error`, "a selector is no valid CEL in this version of Kubernetes"},
		{`invalid resource pools were encountered`, "the slices of a driver contradict each other: two devices of one name, or counters that " +
			"no slice has. Its driver has to mend them"},
		{`exceeds the claim limit`, "a claim can have 32 devices: split it into several claims"},
		{`asks for all devices, but resource pool (\S+) is currently being updated`, "allocationMode All waits until the driver has published " +
			"all slices of the pool"},
		{`asks for all devices, but resource pool (\S+) is currently invalid`, "allocationMode All needs valid pools: the driver has to " +
			"mend the pool"},
		{`cannot add device .* because a claim constraint would not be satisfied`, "allocationMode All takes every device that matches, and " +
			"they differ in an attribute that a constraint wants to be equal"},
		{`the DRA\w+ feature is disabled|the feature is disabled`, "the cluster does not have a feature gate on that the claim needs"},
		{`unknown request type|unsupported count mode|unsupported constraint type`, "the claim has a field that this scheduler does not know"},
		{`field cannot be modified once set`, "the claim was allocated by hand without allocationTimestamp: make the claim again and leave its " +
			"status to the scheduler"},
		{`device binding (timeout|failed)|DeviceBinding`, "the driver did not get the devices ready for the pod in time"},
		{`untolerated taint`, "so many nodes have taints that the pod does not tolerate"},
		{`didn't match Pod's node affinity/selector`, "so many nodes are not among those that the pod selects"},
		{`node\(s\) were unschedulable`, "so many nodes are cordoned"},
		{`Insufficient (\S+)`, "so many nodes have too little CPU, memory or another resource left"},
		{`exceeded quota`, "a ResourceQuota of the namespace does not allow the claim"},
		{`preemption: 0/\d+ nodes are available|No preemption victims`, "the scheduler ends no pods for devices, whatever their priority"},
	}
}

// decode says what a message means.
func decode(words string) []string {
	var out []string
	for _, m := range meanings() {
		if regexp.MustCompile(m.pattern).MatchString(words) {
			out = append(out, m.text)
		}
	}
	return out
}

// said collects what Kubernetes said of a pod: its condition, and the last Event of each reason.
func said(pod *corev1.Pod, o Options) []Saying {
	var out []Saying
	words := ""
	if c := condition(pod); c != nil && c.Message != "" {
		words = c.Message
		out = append(out, Saying{From: fromCondition, Words: words, Meanings: decode(words)})
	}
	last := map[string]*corev1.Event{}
	for _, event := range o.Events {
		if event.Type != corev1.EventTypeWarning || event.Message == words || !isAbout(event, pod) {
			continue
		}
		if before := last[event.Reason]; before == nil || when(before).Before(when(event)) {
			last[event.Reason] = event
		}
	}
	for _, event := range sortedEvents(last) {
		out = append(out, Saying{From: event.Reason, Words: event.Message, Meanings: decode(event.Message)})
	}
	return out
}

// isAbout is false for an Event of an earlier pod of the same name.
func isAbout(event *corev1.Event, pod *corev1.Pod) bool {
	return event.InvolvedObject.UID == "" || pod.UID == "" || event.InvolvedObject.UID == pod.UID
}

func when(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return slices.MaxFunc([]time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time}, time.Time.Compare)
}

// sortedEvents has the newest first.
func sortedEvents(events map[string]*corev1.Event) []*corev1.Event {
	var out []*corev1.Event
	for _, e := range events {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *corev1.Event) int { return cmp.Or(when(b).Compare(when(a)), cmp.Compare(a.Reason, b.Reason)) })
	return out
}
