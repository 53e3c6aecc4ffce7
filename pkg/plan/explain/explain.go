// SPDX-License-Identifier: Apache-2.0

// Package explain says why a pod or a claim has no devices: first the one change that would help most, then what speaks against each node,
// and at last every check of every device.
package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// Options are about the reader of an explanation.
type Options struct {
	// Sees says whether objects of a namespace may be named to the reader. Others are counted. Nil means all.
	Sees func(namespace string) bool
	// Events are about the pod.
	Events []*corev1.Event
	// Unread are resources of which not all objects could be read, like resourceclaims.
	Unread []string
	// Devices adds the verdict of every device.
	Devices bool
	// MaxNodes bounds how many nodes are judged. Zero means all.
	MaxNodes int
	// MoreNodes says to the reader how more nodes are judged than MaxNodes.
	MoreNodes string
	// Parallel is how many nodes are tried and judged at once. Zero means one.
	Parallel int
	// Judged is called before each node with how many were begun before it, of how many, if it is set. Several calls may come at once.
	Judged func(done, of int)
	// NodeTimeout bounds the allocator's search on one node. Zero means a second.
	NodeTimeout time.Duration
	// Now is the time at which ages end.
	Now time.Time
	// Alone explains a pod of a gang as if it were of none, for who plans the gang.
	Alone bool
	// Expressions keeps compiled selectors from one explanation to the next.
	Expressions *judge.Expressions
}

// Explanation is why a pod or a claim has no devices, or what it has.
type Explanation struct {
	// Object is KIND NAMESPACE/NAME.
	Object string `json:"object"`
	Reason Reason `json:"reason"`
	// First names the one change that would help most.
	First string `json:"first"`
	// Said are the messages of Kubernetes, and what they mean.
	Said  []Saying `json:"said,omitempty"`
	Nodes []Node   `json:"nodes,omitempty"`
	// Notes say what the explanation does not know.
	Notes []string `json:"notes,omitempty"`
}

// Node is what speaks against one node.
type Node struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	// Lines say what is missing, one thing a line.
	Lines   []string       `json:"lines,omitempty"`
	Verdict *judge.Verdict `json:"verdict,omitempty"`
}

// Reason is the class of an explanation, for counting.
type Reason string

// The reasons.
const (
	Fits           Reason = "fits"
	Placed         Reason = "placed"
	NoDevicesAsked Reason = "asks-for-no-devices"
	ClaimMissing   Reason = "claim"
	ClassMissing   Reason = "class"
	NoDevices      Reason = "no-devices"
	Held           Reason = "held"
	Tainted        Reason = "taint"
	Constraint     Reason = "constraint"
	Selector       Reason = "selector"
	TooFew         Reason = "too-few"
	PoolBroken     Reason = "pool"
	NodeRefuses    Reason = "node"
	Gated          Reason = "gated"
	Invalid        Reason = "invalid"
	Slow           Reason = "timeout"
	Unjudged       Reason = "unjudged"
	Other          Reason = "other"
)

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{
		Fits, Placed, NoDevicesAsked, ClaimMissing, ClassMissing, NoDevices, Held, Tainted, Constraint, Selector, TooFew, PoolBroken, NodeRefuses,
		Gated, Invalid, Slow, Unjudged, Other,
	}
}

// planTimeout bounds the search on a node when the plan is made that is explained. The judge finds most reasons without a search.
const planTimeout = 2 * time.Second

// Pod explains a pod of the cluster. The cluster is changed as by plan.Run.
func Pod(ctx context.Context, c *plan.Cluster, pod *corev1.Pod, o Options) (e Explanation) {
	e = Explanation{Object: "Pod " + pod.Namespace + "/" + pod.Name, Said: said(pod, o)}
	defer e.note(o)
	if placed(&e, c, pod) {
		return e
	}
	if asksForNothing(c, pod) {
		e.Reason, e.First = NoDevicesAsked, "the pod asks for no devices: "+otherReason(e.Said)
		return e
	}
	if resource := lacking(o.Unread); resource != "" {
		e.unexplained(resource)
		return e
	}
	var attempt *plan.Attempt
	noted := func(a plan.Attempt) string {
		attempt = &a
		return ""
	}
	report, err := plan.Run(ctx, c, []*corev1.Pod{pod}, plan.Options{
		Timeout: planTimeout, Alone: o.Alone, Explain: noted, Parallel: o.Parallel,
	})
	if err != nil {
		e.Reason, e.First = Other, err.Error()
		return e
	}
	result := report.Pods[pod.Namespace+"/"+pod.Name]
	for _, field := range result.Unjudged {
		e.Notes = append(e.Notes, plan.NotLookedAt(field))
	}
	switch {
	case result.BeyondScheduler:
		e.Reason, e.First = Other, "PodGroup "+result.PodGroup+": "+plan.BeyondScheduler
		return e
	case result.PodGroup != "" && result.Node == nil:
		e.Reason, e.First = Other, result.Reason
		return e
	case attempt == nil && result.Node != nil:
		e.fits(result, pod, o)
		return e
	case attempt == nil:
		e.Reason, e.First = Other, result.Reason
		return e
	}
	if meaning := meaningOf(result.Reason, attempt.Words); meaning != "" && !result.Stopped {
		e.Reason, e.First = refusalReason(attempt.Words), meaning
		if len(attempt.Refused) == 0 {
			return e
		}
	}
	w := newWork(ctx, c, o)
	w.judgeNodes(pod, attempt)
	w.explain(&e)
	return e
}

// meaningOf cuts the words off a reason.
func meaningOf(reason, words string) string {
	meaning := strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(reason, words)), ".")
	first, _, _ := strings.Cut(meaning, " ")
	if meaning == "" || strings.ToLower(first[1:]) != first[1:] {
		return meaning // the name of a kind stays as it is
	}
	return strings.ToLower(meaning[:1]) + meaning[1:]
}

// refusalReason sorts what keeps a pod from every node before its devices are looked at.
func refusalReason(words string) Reason {
	switch {
	case strings.Contains(words, "device class"):
		return ClassMissing
	case strings.Contains(words, "unknown request type"):
		return Invalid
	case strings.Contains(words, "scheduling gates"):
		return Gated
	}
	return ClaimMissing
}

// fits says that the scheduler will take the pod, or why it may not.
func (e *Explanation) fits(result plan.PodResult, pod *corev1.Pod, o Options) {
	e.Reason = Fits
	e.First = fmt.Sprintf("the pod fits %s: ", listed(result.Fits, 5))
	refused := condition(pod)
	switch {
	case slices.Contains(o.Unread, "resourceclaims") && refused != nil:
		e.Reason = Held
		e.First = fmt.Sprintf("devices that would do are on %s, but claims of other namespaces, which you may not read, seem to hold them: "+
			"wait, or ask an administrator", listed(result.Fits, 5))
	case refused != nil && len(result.Unjudged) > 0:
		e.Reason = Unjudged
		e.First = fmt.Sprintf("the devices are free on %s, and what may keep the pod from there is not looked at: %s. See what the scheduler "+
			"says", listed(result.Fits, 5), strings.Join(result.Unjudged, ", "))
	case refused != nil:
		e.First += "the scheduler refused it before that was so, and tries it again when a claim, slice or class changes, or after 5 minutes"
	default:
		e.First += "the scheduler has not come to it yet"
	}
	outcome := string(judge.Fits)
	if len(result.Unjudged) > 0 {
		outcome = "devices fit"
	}
	for _, name := range result.Fits {
		e.Nodes = append(e.Nodes, Node{Name: name, Outcome: outcome})
	}
}

// note adds what could not be read.
func (e *Explanation) note(o Options) {
	for _, resource := range o.Unread {
		switch resource {
		case "resourceclaims":
			e.Notes = append(e.Notes, "claims of other namespaces may not be read: devices that they hold look free here")
		case "pods":
			e.Notes = append(e.Notes, "pods of other namespaces may not be read: what they use of CPU and memory looks free here")
		case "nodes":
			e.Notes = append(e.Notes, "nodes may not be read: they are taken from ResourceSlices, and labels, taints, CPU and memory do not count")
		default:
			e.Notes = append(e.Notes, fmt.Sprintf("not all %s may be read", resource))
		}
	}
}

// Claim explains a claim of the cluster: who has it, or why the first pod that waits for it has no devices.
func Claim(ctx context.Context, c *plan.Cluster, claim *resourceapi.ResourceClaim, o Options) (e Explanation) {
	object := "ResourceClaim " + claim.Namespace + "/" + claim.Name
	if claim.Status.Allocation != nil {
		return Explanation{Object: object, Reason: Placed, First: allocatedText(claim)}
	}
	for _, pod := range c.Pending() {
		if pod.Namespace == claim.Namespace && uses(pod, claim) {
			e = Pod(ctx, c, pod, o)
			e.Object = object
			e.Notes = append([]string{fmt.Sprintf("it is explained for pod %s, which waits for the claim", pod.Name)}, e.Notes...)
			return e
		}
	}
	e = Explanation{Object: object}
	defer e.note(o)
	if resource := lacking(o.Unread); resource != "" {
		e.First, e.Reason = fmt.Sprintf("no pod waits for the claim, and devices cannot be explained, since you may not list %s", resource), Other
		return e
	}
	w := newWork(ctx, c, o)
	w.claims = []*resourceapi.ResourceClaim{claim}
	w.judgeFor(nil, nil)
	w.explain(&e)
	e.First = "no pod waits for the claim, and the scheduler gives devices only for a pod. For one that may be on any node: " + e.First
	return e
}

// unnamed takes the name of a claim away and gives it a number instead, by its name.
func unnamed(h judge.Holder, numbers map[string]int) judge.Holder {
	name := h.Namespace + "/" + h.Name
	if numbers[name] == 0 {
		numbers[name] = len(numbers) + 1
	}
	h.Namespace, h.Name, h.Unnamed = "", "", numbers[name]
	return h
}

// hide takes the names of claims away that the reader may not see.
func hide(in map[structured.DeviceID][]judge.Holder, sees func(string) bool) map[structured.DeviceID][]judge.Holder {
	if sees == nil {
		return in
	}
	out := make(map[structured.DeviceID][]judge.Holder, len(in))
	numbers := map[string]int{}
	for id, holders := range in {
		for _, h := range holders {
			if !sees(h.Namespace) {
				h = unnamed(h, numbers)
			}
			out[id] = append(out[id], h)
		}
	}
	return out
}
