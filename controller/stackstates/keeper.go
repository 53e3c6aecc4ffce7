// SPDX-License-Identifier: Apache-2.0

// Package stackstates makes the objects of the extra states of AcceleratorStacks and looks whether nodes have passed them. What may be made
// is decided by package extra, whether a node has passed by package stack.
package stackstates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

const (
	// readPause is how often ConfigMaps are read, which are not watched. waitPause is how often Jobs and conditions are looked at while
	// they are not as they have to be.
	readPause, waitPause = time.Minute, 10 * time.Second
	statesOff            = "the controller may not make objects of extra states: set drivers.enabled in the chart's values"
)

// Keeper makes the objects of extra states in one namespace. It is used by one goroutine at a time.
type Keeper struct {
	client    client.Client
	live      client.Reader
	namespace string
	// written are the objects as this process last wrote them.
	written map[key]written
	// parsed are the manifests of ConfigMaps as they were last read.
	parsed map[v1alpha1.StateManifests]parsed
	// clean has the stacks that have neither extra states nor objects of such.
	clean map[string]bool
}

// parsed are the manifests of one version of a ConfigMap.
type parsed struct {
	version   string
	manifests []extra.Manifest
	fault     error
}

// New returns a keeper that has done nothing yet. namespace is where it makes objects; empty: it makes none.
func New(s reconciler.Services, namespace string) *Keeper {
	return &Keeper{
		client: s.Client, live: s.Live, namespace: namespace, written: map[key]written{},
		parsed: map[v1alpha1.StateManifests]parsed{}, clean: map[string]bool{},
	}
}

// Result is how far the nodes of a stack are with its extra states.
type Result struct {
	// Extras are the states of each node in their order, by its name.
	Extras map[string][]stack.Extra
	// Again is when they have to be looked at again although nothing changed that is watched; 0: not before.
	Again time.Duration
	// Fault is why not all objects could be written. The states of nodes are known all the same.
	Fault error
}

// round is one look at a stack.
type round struct {
	*Keeper
	stack *v1alpha1.AcceleratorStack
	nodes []stack.Node
	// there are the objects of all stacks, pods those of this stack's DaemonSets by their nodes.
	there map[key]object
	pods  map[string][]*corev1.Pod
	// wanted are the objects that the stack has, digests what they are, and kept the states whose manifests are not known.
	wanted  map[key]v1alpha1.StackState
	digests map[string]string
	kept    map[v1alpha1.StackState]bool
	// unplaced are the states for which the platform of a node is not known.
	unplaced map[v1alpha1.StackState]bool
	again    time.Duration
	// faults are what could not be written, unread what could not be read: then nothing is known.
	faults, unread []error
}

// Keep makes the objects of a stack's extra states, as far as nodes have come, and removes those that are not wanted any more. nodes are
// those of the stack with everything that is known but extra states. After an error nothing is known of these.
func (k *Keeper) Keep(ctx context.Context, s *v1alpha1.AcceleratorStack, nodes []stack.Node) (Result, error) {
	states := s.Spec.OrderedStates()
	if len(states) == 0 && (k.namespace == "" || k.clean[s.Name]) {
		return Result{}, nil
	}
	r := &round{
		Keeper: k, stack: s, nodes: slices.Clone(nodes), wanted: map[key]v1alpha1.StackState{}, digests: map[string]string{},
		kept: map[v1alpha1.StackState]bool{}, unplaced: map[v1alpha1.StackState]bool{},
	}
	if k.namespace == "" {
		for i := range states {
			r.add(&states[i], func(*stack.Node) stack.Verdict { return stack.StatesOff(statesOff) })
		}
		return r.result(), nil
	}
	if err := r.observe(ctx); err != nil {
		return Result{}, err
	}
	for i := range states {
		r.add(&states[i], r.keep(ctx, &states[i]))
		r.again = cmp.Or(r.again, readPause)
	}
	if err := errors.Join(r.unread...); err != nil {
		return Result{}, err
	}
	r.prune(ctx)
	k.clean[s.Name] = len(states) == 0 && len(r.faults) == 0
	return r.result(), nil
}

// Forget drops what is remembered of a stack that is gone.
func (k *Keeper) Forget(name string) {
	delete(k.clean, name)
	for of := range k.written {
		if k.written[of].stack == name {
			delete(k.written, of)
		}
	}
}

// add notes what is known of a state on each node.
func (r *round) add(e *v1alpha1.ExtraState, judge func(*stack.Node) stack.Verdict) {
	for i := range r.nodes {
		n := &r.nodes[i]
		v := judge(n)
		if v.Reason == stack.ReasonStateNotMet {
			r.again = waitPause
		}
		n.Extras = append(slices.Clip(n.Extras), stack.Extra{Name: e.Name, After: e.Follows(), Verdict: v})
	}
}

func (r *round) result() Result {
	out := Result{Extras: map[string][]stack.Extra{}, Again: r.again, Fault: errors.Join(r.faults...)}
	for i := range r.nodes {
		out.Extras[r.nodes[i].Name] = r.nodes[i].Extras
	}
	return out
}

// keep makes the objects of a state and returns how nodes are judged.
func (r *round) keep(ctx context.Context, e *v1alpha1.ExtraState) func(*stack.Node) stack.Verdict {
	manifests, why := r.manifests(ctx, e)
	if why.Reason == "" {
		why = refused(r.stack, e, manifests)
	}
	if why.Reason != "" {
		r.kept[e.Name] = true
		return func(*stack.Node) stack.Verdict { return why }
	}
	groups := r.groups(e, manifests)
	for _, g := range groups.all {
		for i := range manifests {
			if m := &manifests[i]; g.open && m.PerPlatform == (g.suffix != "") {
				r.write(ctx, e, m, g)
			}
		}
	}
	return r.judge(ctx, e, manifests, groups)
}

// manifests reads those of a state. A verdict with a reason: there are none.
func (r *round) manifests(ctx context.Context, e *v1alpha1.ExtraState) ([]extra.Manifest, stack.Verdict) {
	from := e.Manifests
	var files corev1.ConfigMap
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: from.ConfigMap}, &files)
	switch {
	case apierrors.IsNotFound(err):
		return nil, stack.StateUnread(fmt.Sprintf("ConfigMap %s/%s is not there: make it", r.namespace, from.ConfigMap))
	case err != nil:
		err = fmt.Errorf("read ConfigMap %s/%s: %w", r.namespace, from.ConfigMap, err)
		r.unread = append(r.unread, err)
		return nil, stack.StateUnread(err.Error())
	}
	texts := files.Data
	if from.Key != "" {
		text, has := files.Data[from.Key]
		if !has {
			return nil, stack.StateUnread(fmt.Sprintf("ConfigMap %s/%s has no key %s", r.namespace, from.ConfigMap, from.Key))
		}
		texts = map[string]string{from.Key: text}
	}
	version := string(files.UID) + " " + files.ResourceVersion
	p, has := r.parsed[from]
	if !has || p.version != version {
		p.version = version
		p.manifests, p.fault = extra.Parse(texts, r.namespace)
		r.parsed[from] = p
	}
	if p.fault != nil {
		return nil, stack.StateManifestsRefused(fmt.Sprintf("ConfigMap %s: %v", from.ConfigMap, p.fault))
	}
	return p.manifests, stack.Verdict{}
}

// refused says why a state's manifests do not go with its stack or its check. A verdict without a reason: they do.
func refused(s *v1alpha1.AcceleratorStack, e *v1alpha1.ExtraState, manifests []extra.Manifest) stack.Verdict {
	has := func(kind, name string) bool {
		return slices.ContainsFunc(manifests, func(m extra.Manifest) bool { return m.Kind.Kind == kind && (name == "" || m.Name == name) })
	}
	switch {
	case driverVersion(s) == "" && slices.ContainsFunc(manifests, func(m extra.Manifest) bool { return m.NeedsVersion }):
		return stack.StateManifestsRefused(fmt.Sprintf("the stack's engine %s has no version for ${DRIVER_VERSION}: write it into the manifests",
			s.Spec.Driver.Engine))
	case e.Check.Pods != nil && !has("DaemonSet", ""):
		return stack.StateManifestsRefused("check.pods needs a DaemonSet, and the manifests have none: check a Job or a condition")
	case e.Check.Job != "" && !has("Job", e.Check.Job):
		return stack.StateManifestsRefused(fmt.Sprintf("check.job is %s, and the manifests have no Job of that name", e.Check.Job))
	}
	return stack.Verdict{}
}

// driverVersion returns the version of the driver that a stack brings. Empty: it brings none.
func driverVersion(s *v1alpha1.AcceleratorStack) string {
	switch d := &s.Spec.Driver; {
	case d.Engine == v1alpha1.EngineDaemonSet && d.DaemonSet != nil:
		return d.DaemonSet.Version
	case d.Engine == v1alpha1.EngineKMM && d.KMM != nil:
		return d.KMM.Version
	}
	return ""
}

// key names an object in the namespace.
type key struct {
	kind schema.GroupVersionKind
	name string
}
