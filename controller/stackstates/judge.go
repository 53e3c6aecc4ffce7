// SPDX-License-Identifier: Apache-2.0

package stackstates

import (
	"context"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/apicall"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

// foreignError is for an object that is not the state's to write.
type foreignError struct {
	of key
	by string
}

func (e foreignError) Error() string {
	return fmt.Sprintf("%s %s is there, of %s: give the object of the manifests another name", e.of.kind.Kind, e.of.name, e.by)
}

func isForeign(err error) bool { return errors.As(err, &foreignError{}) }

// judge returns how the nodes of a state are judged. Jobs and conditions are read once for all nodes that share them.
func (r *round) judge(
	ctx context.Context, e *v1alpha1.ExtraState, manifests []extra.Manifest, all *groups,
) func(*stack.Node) stack.Verdict {
	shared := map[string]stack.Verdict{}
	return func(n *stack.Node) stack.Verdict {
		if why, has := all.whys[n.Name]; has {
			return why
		}
		everyone, own := all.all[0], all.of[n.Name]
		for _, g := range []*group{own, everyone} {
			if g != nil && g.refusal != "" {
				return stack.StateRefused(g.refusal)
			}
		}
		if e.Check.Pods != nil {
			pods := r.podsOn(e, n.Name)
			if len(pods) == 0 && !all.reached[n.Name] {
				return stack.StateWaits()
			}
			return stack.ByPods(n, pods)
		}
		name, g := checkedName(e, manifests, own)
		if g == nil {
			g = everyone
		}
		if !g.open {
			return stack.StateWaits()
		}
		if v, has := shared[name]; has {
			return v
		}
		if e.Check.Job != "" {
			shared[name] = r.job(ctx, name)
		} else {
			shared[name] = r.condition(ctx, e.Check.Condition, name)
		}
		return shared[name]
	}
}

// checkedName returns the name that the object of a check has for a node, and the group of the node that shares it, if that is one of a
// platform.
func checkedName(e *v1alpha1.ExtraState, manifests []extra.Manifest, own *group) (string, *group) {
	kind, name := batchv1.SchemeGroupVersion.WithKind("Job"), e.Check.Job
	if c := e.Check.Condition; c != nil {
		kind, name = schema.FromAPIVersionAndKind(c.APIVersion, c.Kind), c.Name
	}
	at := slices.IndexFunc(manifests, func(m extra.Manifest) bool { return m.Kind == kind && m.Name == name })
	if at < 0 || own == nil || !manifests[at].PerPlatform {
		return name, nil
	}
	return manifests[at].NameFor(own.suffix), own
}

// podsOn returns the pods of the state's DaemonSets on a node that the check selects.
func (r *round) podsOn(e *v1alpha1.ExtraState, node string) []stack.StatePod {
	selector, err := metav1.LabelSelectorAsSelector(e.Check.Pods)
	if err != nil {
		return nil
	}
	var out []stack.StatePod
	for _, p := range r.pods[node] {
		if p.Labels[stateLabel] == string(e.Name) && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, r.podOf(p))
		}
	}
	return out
}

func (r *round) podOf(p *corev1.Pod) stack.StatePod {
	out := stack.StatePod{
		Name: p.Name, Leaving: p.DeletionTimestamp != nil, Current: p.Annotations[digestAnnotation] == r.digests[p.Labels[objectLabel]],
		Ready: stack.PodOf(p).Ready,
	}
	runs := len(p.Status.ContainerStatuses) > 0
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.State.Running == nil {
			runs = false
			out.Waits, out.Message = stack.WhyNotRunning(c)
			continue
		}
		if at := c.State.Running.StartedAt.Time; out.Started.IsZero() || at.Before(out.Started) {
			out.Started = at
		}
	}
	out.Ready = out.Ready && runs
	return out
}

func (r *round) job(ctx context.Context, name string) stack.Verdict {
	var job batchv1.Job
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &job)
	switch {
	case apierrors.IsNotFound(err):
		return stack.ByJob(name, nil)
	case err != nil:
		r.unread = append(r.unread, fmt.Errorf("read Job %s/%s: %w", r.namespace, name, err))
		return stack.ByJob(name, nil)
	}
	if r.digests[job.Labels[objectLabel]] != job.Annotations[digestAnnotation] {
		return stack.ByJob(name, nil) // of other manifests
	}
	return stack.ByJob(name, &job)
}

// condition reads an object of any kind. For kinds that a stack does not make somebody has to give the controller the right.
func (r *round) condition(ctx context.Context, want *v1alpha1.StateCondition, name string) stack.Verdict {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(want.APIVersion, want.Kind))
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return stack.ByCondition(want, nil)
	case apierrors.IsForbidden(err):
		return stack.StateNotReadable(fmt.Sprintf("the controller may not read %s %s: bind a Role with the verb get to its service account: %v",
			want.Kind, name, err))
	case apicall.Unanswered(err): // of this kind: what converts or serves it does not answer
		r.faults = append(r.faults, fmt.Errorf("read %s %s: %w", want.Kind, name, err))
		return stack.StateNoAnswer(fmt.Sprintf("%s %s cannot be read: %v", want.Kind, name, err))
	case err != nil:
		r.unread = append(r.unread, fmt.Errorf("read %s %s: %w", want.Kind, name, err))
		return stack.ByCondition(want, nil)
	}
	return stack.ByCondition(want, object.Object)
}
