// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// The reasons of the conditions that this package writes. They are stable.
const (
	// ReasonNotACache is of Resolved: the image is not one of a kernel cache.
	ReasonNotACache = "NotACache"

	// ReasonFits, ReasonFitsNoGPU and ReasonNoNodeTold are of Compatible.
	ReasonFits       = "Fits"
	ReasonFitsNoGPU  = "FitsNoGPU"
	ReasonNoNodeTold = "NoNodeTold"

	// ReasonDistributed, ReasonDistributing, ReasonIncomplete and ReasonOnDemand are of Distributed: every node that is to have the cache has
	// it, some still fetch it, some failed, or no node fetches it before a claim asks for it. ReasonNoNodeTold is of Distributed, too.
	ReasonDistributed  = "Distributed"
	ReasonDistributing = "Distributing"
	ReasonIncomplete   = "Incomplete"
	ReasonOnDemand     = "OnDemand"

	// ReasonReady is of Ready. If a cache is not ready, the reason is that of the condition that fails.
	ReasonReady = "Ready"

	// ReasonNodesFailed, ReasonVolumesFailed and ReasonNoFailure are of Degraded.
	ReasonNodesFailed   = "NodesFailed"
	ReasonVolumesFailed = "VolumesFailed"
	ReasonNoFailure     = "NoFailure"

	// ReasonNamespacesMissing and ReasonNamespacesThere are of NamespaceMissing.
	ReasonNamespacesMissing = "NamespacesMissing"
	ReasonNamespacesThere   = "NamespacesThere"
)

func compatible(n nodeCounts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionCompatible, Status: metav1.ConditionUnknown, Reason: ReasonNoNodeTold}
	switch {
	case n.Fits:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonFits, "a GPU of the cluster fits"
	case n.Unfit > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonFitsNoGPU, list(n.Misfits)
	default:
		c.Message = "no node has compared the cache with its GPUs yet"
	}
	return c
}

// distributed returns the condition Distributed. With prewarm Matching only a node itself knows whether the cache fits its GPUs, so nodes
// that report nothing are not waited for.
func distributed(o object, n nodeCounts, v volumeCounts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDistributed, Status: metav1.ConditionFalse}
	waiting, failed := n.Downloading+v.Open, len(n.Failures)+len(v.Failures)
	all := o.Prewarm() == v1alpha1.CachePrewarmAll
	if all {
		waiting += n.Missing
	}
	c.Message = fmt.Sprintf("%d nodes and %d volumes have it, %d wait for it, %d failed to get it", n.Ready, v.Filled, waiting, failed)
	if why := slices.Concat(v.Failures, v.Waits); len(why) > 0 {
		c.Message += ": " + list(why)
	}
	switch {
	case o.Status.ResolvedDigest == "":
		c.Reason, c.Message = artifacts.ReasonNotResolved, "there is no digest to distribute"
	case failed > 0:
		c.Reason = ReasonIncomplete
	case waiting > 0 || o.wantsVolumes() && v.Filled == 0:
		c.Reason = ReasonDistributing
	case n.Ready+v.Filled+n.Unfit > 0 || all:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonDistributed
	case o.Prewarm() == v1alpha1.CachePrewarmNone:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonOnDemand, "nodes fetch it when a claim asks for it"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonNoNodeTold, "no node has reported that it fetches the cache"
	}
	return c
}

// ready returns the condition Ready: new claims may have the cache if its image is resolved and no policy refuses it.
func ready(o object) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	verdict := o.Status.Verification
	switch {
	case o.Status.ResolvedDigest == "":
		because(&c, o, v1alpha1.ConditionResolved)
	case verdict == nil || verdict.Digest != o.Status.ResolvedDigest || verdict.Result == v1alpha1.VerdictRefused:
		because(&c, o, v1alpha1.ConditionVerified)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonReady, "claims may have "+o.Status.ResolvedDigest
	}
	return c
}

// because copies reason and message of another condition.
func because(c *metav1.Condition, o object, kind string) {
	c.Reason, c.Message = artifacts.ReasonNotResolved, "the image was not resolved yet"
	if of := meta.FindStatusCondition(o.Status.Conditions, kind); of != nil {
		c.Reason, c.Message = of.Reason, of.Message
	}
}

func degraded(n nodeCounts, v volumeCounts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionTrue}
	c.Message = list(slices.Concat(n.Failures, v.Failures))
	switch {
	case len(n.Failures) > 0:
		c.Reason = ReasonNodesFailed
	case len(v.Failures) > 0:
		c.Reason = ReasonVolumesFailed
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonNoFailure, "no node and no volume failed to get it"
	}
	return c
}

func missing(o object, namespaces []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionNamespaceMissing, Status: metav1.ConditionFalse, Reason: ReasonNamespacesThere}
	switch {
	case len(namespaces) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonNamespacesMissing, "there is no namespace "+strings.Join(namespaces, ", ")
	case len(o.NamedNamespaces()) > 0:
		c.Message = "all namespaces that it names exist"
	default:
		c.Message = "it names no namespace"
	}
	return c
}

// phase sums up the status in one word. What can never work comes before what is in progress, and pods come before nodes that fetch.
func phase(o object, n nodeCounts, v volumeCounts, missing int) v1alpha1.CachePhase {
	if o.GetDeletionTimestamp() != nil {
		return v1alpha1.CacheDeleting
	}
	if o.forNoNamespace(missing) {
		return v1alpha1.CacheNoNamespace
	}
	if p := unusable(o); p != "" {
		return p
	}
	newest := n.Counts.PodsRunning - n.Counts.PodsOutdated
	switch {
	case newest > 0:
		return v1alpha1.CacheRunning
	case n.Counts.PodsOutdated > 0:
		return v1alpha1.CacheOutdated
	case n.Ready+v.Filled > 0:
		return v1alpha1.CacheExtracted
	case n.Downloading+v.Open > 0:
		return v1alpha1.CacheDownloading
	case n.Unfit > 0 && o.mountsAnyway():
		return v1alpha1.CacheExtracted
	case n.Unfit > 0 || len(n.Failures)+len(v.Failures) > 0:
		return v1alpha1.CacheError
	}
	return v1alpha1.CachePending
}

// forNoNamespace says whether all namespaces that the object is for are missing.
func (o object) forNoNamespace(missing int) bool {
	return missing > 0 && missing == len(o.WorkloadNamespaces)
}

// unusable returns the phase of a cache that claims may not have, and "" if they may.
func unusable(o object) v1alpha1.CachePhase {
	if meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) {
		return ""
	}
	waits := []string{artifacts.ReasonRegistryUnavailable, artifacts.ReasonNotResolved}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil && slices.Contains(waits, c.Reason) {
		return v1alpha1.CachePending
	}
	return v1alpha1.CacheError
}

// surroundings are the objects of the cluster that a cache's status depends on.
type surroundings struct {
	Nodes []v1alpha1.AcceleratorNode
	// MissingNamespaces are listed by the object and do not exist.
	MissingNamespaces []string
	// Volumes is the plan for the cache's volumes: their state, and what blocks them.
	Volumes volumes.Plan
}

// maxVolumes is how many volumes a status lists.
const maxVolumes = 256

// observe writes the state of nodes, volumes and namespaces to the status of a cache, and the conditions that follow.
func observe(o object, around surroundings, now time.Time) {
	nodes, volumes := countNodes(around.Nodes, o, around.Volumes), countVolumes(o.Status, around.Volumes)
	o.Status.Counts = nodes.Counts
	o.Status.Volumes = around.Volumes.Volumes[:min(len(around.Volumes.Volumes), maxVolumes)]
	artifacts.SetConditions(
		o.Head(), now, compatible(nodes), distributed(o, nodes, volumes), ready(o), degraded(nodes, volumes),
		missing(o, around.MissingNamespaces),
	)
	o.Status.Phase = phase(o, nodes, volumes, len(around.MissingNamespaces))
}

// list joins the first few texts and says how many more there are.
func list(texts []string) string {
	const few = 5
	if len(texts) <= few {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:few], "; "), len(texts)-few)
}
