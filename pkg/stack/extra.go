// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The reasons of extra states, beside OSUnknown.
const (
	// ReasonStatesOff: the controller may not make objects of extra states.
	ReasonStatesOff = "StatesOff"
	// ReasonStatePending: the objects of the state are not made for the node yet, or its pod is not ready yet.
	ReasonStatePending = "StatePending"
	// ReasonManifestsMissing: the ConfigMap with the manifests is not there.
	ReasonManifestsMissing = "ManifestsMissing"
	// ReasonManifestsRefused: an object of the manifests is none that a stack makes.
	ReasonManifestsRefused = "ManifestsRefused"
	// ReasonStateRefused: the API server refuses an object, or somebody else has one of that name.
	ReasonStateRefused = "StateRefused"
	// ReasonStateOutdated: the node's pod is of other manifests than are wanted.
	ReasonStateOutdated = "StateOutdated"
	// ReasonStateOtherBoot: kubelet has not started a container of the pod since the node started.
	ReasonStateOtherBoot = "StateOtherBoot"
	// ReasonStateFailed: the pod or the Job of the check has failed.
	ReasonStateFailed = "StateFailed"
	// ReasonStateNotMet: the Job has not completed, or the condition is not what it has to be.
	ReasonStateNotMet = "StateNotMet"
	// ReasonStateNotReadable: the controller may not read the object whose condition is asked for.
	ReasonStateNotReadable = "StateNotReadable"
)

// Extra is what is known of an extra state on a node.
type Extra struct {
	// Name is the state's, After that of the state of Fettle's that it follows.
	Name, After v1alpha1.StackState
	Verdict     Verdict
}

// rules are the states of the node's stack in their order.
func (n *Node) rules() []rule {
	out := make([]rule, 0, len(n.Extras)+len(rules()))
	for _, r := range rules() {
		out = append(out, r)
		for i := range n.Extras {
			if e := &n.Extras[i]; e.After == r.state {
				out = append(out, rule{e.Name, func(*Node) Verdict { return e.Verdict }, r.beforeChecks})
			}
		}
	}
	return out
}

// Reached says that a node with a device has passed every state before the extra state that comes next and follows after, but for checks of
// claims where there are none. The extra states before it are in the node.
func Reached(n *Node, after v1alpha1.StackState) bool {
	if isEmpty(n) {
		return false
	}
	follows := false
	for _, r := range n.rules() {
		own := slices.Contains(v1alpha1.StackStates(), r.state)
		if own && follows {
			return true
		}
		if v := r.judge(n); v.Status != Passed && v.Reason != ReasonChecksOff { // nobody checks claims, so nobody waits for that
			return false
		}
		follows = follows || r.state == after
	}
	return follows
}

// StatesOff is for a controller that may not make objects of extra states.
func StatesOff(why string) Verdict { return unknown(ReasonStatesOff, "%s", why) }

// StateWaits is for a node for which the objects of a state are not made yet.
func StateWaits() Verdict {
	return unknown(ReasonStatePending, "begins on the node once it has passed the states before")
}

// StateUnread is for a state whose manifests cannot be had for now.
func StateUnread(why string) Verdict { return unknown(ReasonManifestsMissing, "%s", why) }

// StateManifestsRefused is for manifests that a stack does not make objects of.
func StateManifestsRefused(why string) Verdict { return failed(ReasonManifestsRefused, "%s", why) }

// StateRefused is for an object that cannot be written.
func StateRefused(why string) Verdict { return failed(ReasonStateRefused, "%s", why) }

// StateNotReadable is for a condition that the controller may not read.
func StateNotReadable(why string) Verdict { return failed(ReasonStateNotReadable, "%s", why) }

// StateNoAnswer is for a condition of an object that the API server cannot show for now.
func StateNoAnswer(why string) Verdict { return unknown(ReasonStateNotMet, "%s", why) }

// StateOSUnknown is for a node whose system has no name that manifests could be written for.
func StateOSUnknown(n *Node) Verdict {
	return failed(ReasonOSUnknown, "the name of the operating system %q for ${OS} is not known: give these nodes a stack of their own, "+
		"and write it into the manifests", n.OSImage)
}

// StatePod is a pod of an extra state on a node.
type StatePod struct {
	Name string
	// Current is whether it is of the manifests that are wanted.
	Current bool
	// Ready is whether all its containers are. Leaving: it is being deleted.
	Ready, Leaving bool
	// Started is when kubelet started the container that runs longest; zero: one does not run.
	Started time.Time
	// Waits is why a container does not run, as kubelet has it, or how it last ended.
	Waits, Message string
}

// ByPods says whether the pods of a state on a node are as they have to be. One that has failed counts more than one that is not ready.
func ByPods(n *Node, pods []StatePod) Verdict {
	out := unknown(ReasonStatePending, "no pod of the state is on the node yet: do its DaemonSets tolerate the node's taints?")
	seen := false
	for i := range pods {
		if pods[i].Leaving {
			continue
		}
		v := byPod(n, &pods[i])
		if !seen || v.Status == Failed || v.Status == Unknown && out.Status == Passed {
			out = v
		}
		if seen = true; out.Status == Failed {
			return out
		}
	}
	return out
}

func byPod(n *Node, p *StatePod) Verdict {
	switch {
	case noImage(p.Waits):
		return failed(ReasonStateFailed, "the node cannot pull an image of pod %s: %s", p.Name, p.Message)
	case crashed(p.Waits):
		return failed(ReasonStateFailed, "pod %s failed and is started again, see its log: %s", p.Name, p.Message)
	case !p.Current:
		return unknown(ReasonStateOutdated, "pod %s is of other manifests than are wanted: delete it once it may be replaced", p.Name)
	case !p.Ready || p.Started.IsZero():
		return unknown(ReasonStatePending, "pod %s is not ready: %s", p.Name, cmp.Or(p.Waits, "see its conditions"))
	case !current(n):
		return notCurrent()
	case n.Accelerator.Facts.BootTime == nil:
		return unknown(ReasonNotReported, "the node's plugin, version %q, does not report when the node started", n.Accelerator.PluginVersion)
	case p.Started.Before(n.Accelerator.Facts.BootTime.Time):
		return unknown(ReasonStateOtherBoot, "kubelet has not started pod %s since the node started: if it stays, delete the pod", p.Name)
	}
	return passed("pod %s is ready", p.Name)
}

// ByJob says whether a Job has completed. Nil: it is not there.
func ByJob(name string, job *batchv1.Job) Verdict {
	if job == nil || job.DeletionTimestamp != nil {
		return unknown(ReasonStateNotMet, "Job %s is not there yet", name)
	}
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			return passed("Job %s has completed", name)
		case batchv1.JobFailed:
			return failed(ReasonStateFailed, "Job %s has failed, delete it to have it run again: %s: %s", name, c.Reason, c.Message)
		case batchv1.JobSuspended, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet:
		}
	}
	return unknown(ReasonStateNotMet, "Job %s has not completed: %d pods run, %d have failed", name, job.Status.Active, job.Status.Failed)
}

// ByCondition says whether an object has a condition. One that speaks of an earlier generation of the object says nothing. Nil: the
// object is not there.
func ByCondition(want *v1alpha1.StateCondition, object map[string]any) Verdict {
	what := fmt.Sprintf("%s %s", want.Kind, want.Name)
	if object == nil {
		return unknown(ReasonStateNotMet, "%s is not there yet", what)
	}
	status := cmp.Or(want.Status, metav1.ConditionTrue)
	generation, _, _ := unstructured.NestedInt64(object, "metadata", "generation")
	observed, has, _ := unstructured.NestedInt64(object, "status", "observedGeneration")
	if has && observed < generation {
		return unknown(ReasonStateNotMet, "the status of %s is of an earlier generation", what)
	}
	conditions, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	for _, c := range conditions {
		of, _ := c.(map[string]any)
		if of["type"] != want.Type {
			continue
		}
		if observed, has := of["observedGeneration"].(int64); has && observed < generation {
			return unknown(ReasonStateNotMet, "condition %s of %s is of an earlier generation", want.Type, what)
		}
		if of["status"] == string(status) {
			return passed("%s has condition %s %s", what, want.Type, status)
		}
		return unknown(ReasonStateNotMet, "condition %s of %s is %v, expected %s: %v", want.Type, what, of["status"], status, of["message"])
	}
	return unknown(ReasonStateNotMet, "%s has no condition %s yet", what, want.Type)
}

// ForTags returns the platform with an underscore for each character that the tag of an image may not have.
func (p Platform) ForTags() Platform {
	return Platform{OS: tagText(p.OS), KernelVersion: tagText(p.KernelVersion), Architecture: tagText(p.Architecture)}
}
