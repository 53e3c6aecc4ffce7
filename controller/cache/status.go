// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/message"
)

// Key is that of an object. Only a ClusterGPUKernelCache has no namespace.
type Key = types.NamespacedName

// Record writes what a look at the registry found into the status. Where the registry could not be asked, what is known of the same image
// stays.
func Record(o Object, out *Outcome, now time.Time) {
	s := o.Status
	resolved := resolution(out)
	kept := known(o) && resolved.Reason == pull.ReasonRegistryUnavailable
	verdict := verdictOf(out)
	switch {
	case kept:
		resolved.Status = metav1.ConditionUnknown
		if verdict == nil && stands(o, out.Policies, s.ResolvedDigest) {
			verdict = s.Verification
		}
	case out.Err != nil:
		s.PreviousDigests = o.history("")
		s.ResolvedDigest, s.ResolvedImage, s.Image, verdict = "", "", nil, nil
	default:
		if verdict == nil && stands(o, out.Policies, out.Digest) {
			verdict = s.Verification
		}
		s.PreviousDigests = o.history(out.Digest)
		s.ResolvedDigest, s.ResolvedImage, s.Image = out.Digest, o.Spec.Image, out.Image
	}
	s.Verification, s.ObservedGeneration = verdict, o.GetGeneration()
	set(o, now, resolved, verified(verdict, out.Policies, unanswered(out, kept)))
}

// unanswered is why there is no verdict, nil where there is nothing to give one on.
func unanswered(out *Outcome, kept bool) error {
	switch {
	case out.Refusal != nil:
		return out.Refusal
	case kept:
		return out.Err
	}
	return nil
}

// resolution is the condition Resolved.
func resolution(out *Outcome) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: pull.ReasonResolved, Message: "the image is " + out.Digest,
	}
	if out.Err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOf(out.Err), out.Err.Error()
	}
	return c
}

func set(o Object, now time.Time, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = o.Status.ObservedGeneration, metav1.NewTime(now)
		c.Message = message.Clip(c.Message, message.ReadableCondition)
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
}

// Surroundings are what the rest of the cluster says.
type Surroundings struct {
	Nodes []v1alpha1.AcceleratorNode
	// MissingNamespaces are those of the object's that are not there.
	MissingNamespaces []string
	// Volumes are what there is of volumes, and what keeps them.
	Volumes volumes.Plan
}

// maxVolumes is how many volumes a status lists.
const maxVolumes = 256

// Count writes what the cluster says of an object into its status, and what follows from all of it. It asks nobody.
func Count(o Object, around Surroundings, now time.Time) {
	nodes, volumes := look(around.Nodes, o, around.Volumes), lookAtVolumes(o.Status, around.Volumes)
	o.Status.Counts = nodes.Counts
	o.Status.Volumes = around.Volumes.Volumes[:min(len(around.Volumes.Volumes), maxVolumes)]
	set(
		o, now, compatible(nodes), distributed(o, nodes, volumes), ready(o), degraded(nodes, volumes), missing(o, around.MissingNamespaces),
	)
	o.Status.Phase = phase(o, nodes, volumes, len(around.MissingNamespaces))
}

// list is the first few of many, and how many more there are.
func list(texts []string) string {
	const few = 5
	if len(texts) <= few {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:few], "; "), len(texts)-few)
}

// Next says when to look at an object again, and is 0 where nothing but a change of it or of a policy matters.
func Next(o Object, usual time.Duration, err error, now time.Time) time.Duration {
	interval := o.interval(usual)
	next := interval // a tag moves, and so may what lets the nodes read the secrets
	settled := pull.Pinned(o.Spec.Image) && len(o.Spec.ImagePullSecrets) == 0
	for _, kind := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionVerified} {
		c := meta.FindStatusCondition(o.Status.Conditions, kind)
		if c != nil && (c.Status == metav1.ConditionTrue || c.Reason == ReasonSkipped || c.Reason == ReasonNoTrustPolicy ||
			c.Reason == ReasonTrustPolicyInvalid) {
			continue // a policy that changes has it looked at
		}
		settled, next = false, min(next, pull.Retry(c, interval, err, now))
	}
	if settled {
		return 0
	}
	return next
}
