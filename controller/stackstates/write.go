// SPDX-License-Identifier: Apache-2.0

package stackstates

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

// owner is the field manager of the objects of extra states.
const owner = "fettle-states"

// object is what is looked at of an object of a state.
type object struct {
	stack, state, platform, digest string
	uid                            types.UID
	// version changes whenever the object does, but for its status.
	version string
	leaving bool
}

// written is an object as it was last written: while its version is that, nobody has changed it since.
type written struct {
	stack, digest string
	uid           types.UID
	version       string
	// nodes are those of a DaemonSet.
	nodes []string
}

// is says that nobody has changed the object since.
func (w *written) is(there object) bool {
	return there.version != "" && w.uid == there.uid && w.version == there.version
}

func objectOf(o metav1.Object) object {
	annotations := o.GetAnnotations()
	out := object{
		stack: annotations[stackAnnotation], state: o.GetLabels()[stateLabel], platform: annotations[platformAnnotation],
		digest: annotations[digestAnnotation], uid: o.GetUID(), version: o.GetResourceVersion(), leaving: o.GetDeletionTimestamp() != nil,
	}
	if o.GetGeneration() > 0 { // others of its versions are those of its status
		out.version = strconv.FormatInt(o.GetGeneration(), 10)
	}
	return out
}

// unreadError is for what could not be read before an object is written.
type unreadError struct{ error }

func (e unreadError) Unwrap() error { return e.error }

// observe reads the objects that are there, and the pods.
func (r *round) observe(ctx context.Context) error {
	r.there, r.pods = map[key]object{}, map[string][]*corev1.Pod{}
	for _, kind := range extra.Kinds() {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := r.live.List(ctx, &list, client.InNamespace(r.namespace), client.HasLabels{stateLabel}); err != nil {
			return fmt.Errorf("list %ss of extra states: %w", kind.Kind, err)
		}
		for i := range list.Items {
			r.there[key{kind: kind, name: list.Items[i].Name}] = objectOf(&list.Items[i])
		}
	}
	var pods corev1.PodList
	err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(r.namespace), client.HasLabels{stateLabel})
	if err != nil {
		return fmt.Errorf("list the pods of extra states: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Annotations[stackAnnotation] == r.stack.Name && p.Annotations[digestAnnotation] != "" && p.Spec.NodeName != "" {
			r.pods[p.Spec.NodeName] = append(r.pods[p.Spec.NodeName], p)
		}
	}
	return nil
}

// write has an object of a manifest be as it should for a group. What the API server refuses is noted in the group; other faults are
// tried again.
func (r *round) write(ctx context.Context, e *v1alpha1.ExtraState, m *extra.Manifest, g *group) {
	of := key{kind: m.Kind, name: m.NameFor(g.suffix)}
	err := r.writeObject(ctx, e, m, g, of)
	var unread unreadError
	switch {
	case errors.As(err, &unread):
		r.unread = append(r.unread, err)
	case err == nil:
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || isForeign(err):
		g.refusal = err.Error()
	default:
		r.faults = append(r.faults, err)
	}
}

func (r *round) writeObject(ctx context.Context, e *v1alpha1.ExtraState, m *extra.Manifest, g *group, of key) error {
	there, exists, err := r.existing(ctx, e, of)
	if err != nil {
		return err
	}
	nodes, err := r.nodesFor(ctx, m, g, of, there)
	if err != nil {
		return unreadError{err}
	}
	wanted, sum, err := build(r.stack, e, m, g, nodes)
	if err != nil {
		return err
	}
	r.digests[objectID(of)] = sum
	wanted.SetNamespace(r.namespace)
	if !exists || m.Kind.Kind != "Job" {
		return r.apply(ctx, &update{key: of, state: e.Name, there: there, wanted: wanted, nodes: nodes})
	}
	if there.digest == sum || there.leaving {
		return nil
	}
	r.again = waitPause // the template of a Job cannot be changed: it is made again
	return r.remove(ctx, of, there)
}

// existing returns the object that is there, which is the state's to write.
func (r *round) existing(ctx context.Context, e *v1alpha1.ExtraState, of key) (there object, exists bool, err error) {
	if by, twice := r.wanted[of]; twice {
		return object{}, false, foreignError{of: of, by: "state " + string(by)}
	}
	r.wanted[of] = e.Name
	if there, exists = r.there[of]; !exists {
		if there, exists, err = r.look(ctx, of); err != nil {
			return object{}, false, unreadError{err}
		}
	}
	if exists && there.stack != r.stack.Name {
		return object{}, false, foreignError{of: of, by: cmp.Or(there.stack, "somebody else")}
	}
	return there, exists, nil
}

// update is an object of a state as it is there, and as it should be.
type update struct {
	key
	state  v1alpha1.StackState
	there  object
	wanted *unstructured.Unstructured
	// nodes are those on which the object's pods run.
	nodes []string
}

// apply writes an object, unless it is there as it was last written.
func (r *round) apply(ctx context.Context, u *update) error {
	text, err := json.Marshal(u.wanted)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", u.kind.Kind, u.name, err)
	}
	full := stack.Digest(string(text))
	if last, known := r.written[u.key]; known && last.is(u.there) && last.digest == full {
		return nil
	}
	configuration := client.ApplyConfigurationFromUnstructured(u.wanted)
	if err := r.client.Apply(ctx, configuration, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("write %s %s/%s of state %s: %w", u.kind.Kind, r.namespace, u.name, u.state, err)
	}
	now := objectOf(u.wanted)
	r.written[u.key] = written{stack: r.stack.Name, digest: full, uid: now.uid, version: now.version, nodes: u.nodes}
	klog.FromContext(ctx).V(1).Info("Wrote an object of an extra state", "stack", r.stack.Name, "state", u.state, "kind", u.kind.Kind,
		"object", u.name, "nodes", len(u.nodes))
	return nil
}

// look reads an object that is not marked as one of an extra state.
func (r *round) look(ctx context.Context, of key) (o object, exists bool, err error) {
	var metadata metav1.PartialObjectMetadata
	metadata.SetGroupVersionKind(of.kind)
	err = r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: of.name}, &metadata)
	switch {
	case apierrors.IsNotFound(err):
		return object{}, false, nil
	case err != nil:
		return object{}, false, fmt.Errorf("read %s %s/%s: %w", of.kind.Kind, r.namespace, of.name, err)
	}
	return objectOf(&metadata), true, nil
}

// nodesFor returns the nodes on which an object's pods run: those that have reached the state, and those that have its pods already.
func (r *round) nodesFor(ctx context.Context, m *extra.Manifest, g *group, of key, there object) ([]string, error) {
	if !m.Placed() {
		return nil, nil
	}
	nodes := slices.Clone(g.reached)
	if m.Kind.Kind == "DaemonSet" && there.stack != "" {
		before, err := r.nodesBefore(ctx, of, there)
		if err != nil {
			return nil, err
		}
		for _, name := range before {
			if slices.Contains(g.nodes, name) || slices.Contains(g.unknown, name) {
				nodes = append(nodes, name)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// nodesBefore returns the nodes that a DaemonSet is for at present.
func (r *round) nodesBefore(ctx context.Context, of key, there object) ([]string, error) {
	if last, known := r.written[of]; known && last.is(there) {
		return last.nodes, nil
	}
	var set appsv1.DaemonSet
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: of.name}, &set); err != nil {
		return nil, fmt.Errorf("read DaemonSet %s/%s: %w", r.namespace, of.name, err)
	}
	return placement.Of(set.Spec.Template.Spec.Affinity), nil
}

// prune deletes the stack's objects that are not wanted any more. Those of a state whose manifests are not known stay, and those of a
// platform while it is not known of which platform every node is.
func (r *round) prune(ctx context.Context) {
	for of, o := range r.there {
		state := v1alpha1.StackState(o.state)
		kept := r.kept[state] || o.platform != "" && r.unplaced[state]
		if o.stack == r.stack.Name && r.wanted[of] == "" && !o.leaving && !kept {
			if err := r.remove(ctx, of, o); err != nil {
				r.faults = append(r.faults, err)
			}
		}
	}
}

func (r *round) remove(ctx context.Context, of key, o object) error {
	delete(r.written, of)
	gone := &unstructured.Unstructured{}
	gone.SetGroupVersionKind(of.kind)
	gone.SetNamespace(r.namespace)
	gone.SetName(of.name)
	err := r.client.Delete(ctx, gone, client.Preconditions{UID: ptr.To(o.uid)}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s %s/%s: %w", of.kind.Kind, r.namespace, of.name, err)
	}
	klog.FromContext(ctx).V(1).Info("Deleted an object of an extra state", "stack", r.stack.Name, "state", o.state, "kind", of.kind.Kind,
		"object", of.name)
	return nil
}
