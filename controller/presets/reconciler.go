// SPDX-License-Identifier: Apache-2.0

// Package presets checks DevicePresets and ClusterDevicePresets: it writes to their status which fields are wrong and which presets
// conflict, and warns of classes that lack a preset. What claims get of presets is decided on their nodes, by package preset.
package presets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/preset"
)

const (
	// grantInterval is how often an unchanged Role is checked. grantRetry is how soon a Role that could not be made is tried again: an
	// administrator may have allowed it meanwhile.
	grantInterval = 10 * time.Minute
	grantRetry    = time.Minute
)

// requested asks for a preset to be reconciled.
type requested = event.TypedGenericEvent[*metav1.PartialObjectMetadata]

// judge writes the status of DevicePresets and ClusterDevicePresets, and the Roles for their ConfigMaps. One call runs at a time.
type judge struct {
	reconciler.Services

	status status.Writer
	grants grant.Writer
	// allowed are the paths of the nodes that a DevicePreset may name.
	allowed []preset.AllowedHostPath
	// shares are of the DevicePresets in the cache. over has the namespaces that have too many or too large ones.
	shares  *preset.Shares
	over    map[string]bool
	begin   sync.Once
	index   Index
	granted reconciler.Schedule
	// again queues presets whose conflicts changed since another preset changed.
	again chan requested
}

// New returns the reconciler of both kinds. It follows changes of specs, and the counts of claims that nodes report. Allowed are the
// paths of the nodes that a DevicePreset may name. Shares are those of [Transform].
func New(s reconciler.Services, allowed []preset.AllowedHostPath, shares *preset.Shares) reconciler.Row {
	j := newJudge(s, allowed, shares)
	changed := reconciler.GenerationChanged()
	return reconciler.Row{
		Name: "presets",
		Queues: []reconciler.Queue{{
			Name: "devicepreset", Reconciler: j,
			Watches: []reconciler.Watch{
				{Object: &v1alpha1.DevicePreset{}, Predicates: append(changed, j.forgets())},
				{Object: &v1alpha1.ClusterDevicePreset{}, Predicates: changed},
				{Object: &v1alpha1.AcceleratorNode{}, Handler: onCounts(s.Client)},
			},
			Sources: []source.Source{
				source.Channel(j.again, reconciler.Gathered[*metav1.PartialObjectMetadata](client.ObjectKeyFromObject)),
			},
		}},
	}
}

func newJudge(s reconciler.Services, allowed []preset.AllowedHostPath, shares *preset.Shares) *judge {
	if shares == nil {
		shares = &preset.Shares{} // of a table that is only looked at
	}
	return &judge{
		Services: s, allowed: allowed, shares: shares, over: map[string]bool{}, status: s.Status(),
		grants: grant.NewWriter(s.Live, s.Client, s.Namespace), again: make(chan requested, 1024),
	}
}

// Reconcile checks one preset. Only a ClusterDevicePreset has no namespace.
func (j *judge) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := j.sync(ctx, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	p, err := j.whole(ctx, req.NamespacedName)
	if err != nil || p.GetDeletionTimestamp() != nil {
		j.granted.Forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	o := Of(p, j.Namespace)
	again, refused, err := j.grant(ctx, o)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s: %w", o, err)
	}
	early, err := j.report(ctx, o, refused)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("write the status of %s: %w", o, err)
	}
	return reconcile.Result{RequeueAfter: reconciler.Sooner(again, early)}, nil
}

// sync updates the index from the cache, and queues the other presets that conflicted with a changed one, or do now.
func (j *judge) sync(ctx context.Context, self types.NamespacedName) error {
	all, err := pairs.Presets(ctx, j.Client, pairs.Both, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	now, byKey := map[types.NamespacedName]Version{}, map[types.NamespacedName]v1alpha1.CommonDevicePreset{}
	j.begin.Do(func() { j.retain(all) })
	var touched []types.NamespacedName
	for _, p := range all {
		namespace := p.GetNamespace()
		over := j.shares.Check(namespace) != nil
		if over != j.over[namespace] {
			touched = append(touched, p.Key())
		}
		if over && p.Spec.LeftOut > 0 {
			continue // it is judged by what is too much
		}
		now[p.Key()], byKey[p.Key()] = Version{UID: p.GetUID(), Generation: p.GetGeneration()}, p
	}
	j.over = j.shares.Over()
	unread := map[types.NamespacedName]error{}
	parse := func(key types.NamespacedName) preset.Preset {
		if wasLeftOut(byKey[key]) {
			p, err := pairs.Preset(ctx, j.Live, key)
			if err == nil {
				return preset.Of(p)
			}
			unread[key] = client.IgnoreNotFound(err)
		}
		return preset.Of(byKey[key].DeepCopy())
	}
	touched = append(touched, j.index.Sync(ctx, now, parse)...)
	for key := range unread { // what the cache has of it is no preset to judge: it is read again
		j.index.remove(j.index.entries[key])
	}
	if err := j.judgeAgain(ctx, touched, self); err != nil {
		return err
	}
	if err := errors.Join(slices.Collect(maps.Values(unread))...); err != nil {
		return fmt.Errorf("read presets that are not kept: %w", err)
	}
	return nil
}

// judgeAgain queues presets, but for the one that is being judged.
func (j *judge) judgeAgain(ctx context.Context, touched []types.NamespacedName, self types.NamespacedName) error {
	for _, key := range touched {
		if key == self {
			continue
		}
		select {
		case j.again <- requested{Object: &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		}}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// retain forgets the presets that were deleted before this replica led. Later ones are forgotten when they are deleted.
func (j *judge) retain(all []v1alpha1.CommonDevicePreset) {
	there := map[types.UID]bool{}
	for _, p := range all {
		there[p.GetUID()] = true
	}
	j.shares.Retain(there)
}

// forgets gives the shares of deleted presets back. It keeps no event away.
func (j *judge) forgets() predicate.Predicate {
	return predicate.Funcs{DeleteFunc: func(e event.DeleteEvent) bool {
		j.shares.Forget(e.Object.GetNamespace(), e.Object.GetUID())
		return true
	}}
}

// whole reads a preset, from the API server if it was left out of the cache although its namespace has no more than its share.
func (j *judge) whole(ctx context.Context, key types.NamespacedName) (v1alpha1.CommonDevicePreset, error) {
	p, err := pairs.Preset(ctx, j.Client, key)
	if err != nil || !wasLeftOut(p) || j.shares.Check(key.Namespace) != nil {
		return p, err
	}
	return pairs.Preset(ctx, j.Live, key)
}

// faults are those of the preset, and what its namespace has too much of.
func (j *judge) faults(key types.NamespacedName) field.ErrorList {
	faults := j.index.Faults(key)
	if err := j.shares.Check(key.Namespace); err != nil {
		faults = append(slices.Clone(faults), field.Forbidden(field.NewPath("metadata", "namespace"), err.Error()))
	}
	return faults
}

// grant creates, updates or deletes the Role for the ConfigMaps that the preset names. An invalid preset has none. Refused says why the
// Role cannot be made.
func (j *judge) grant(ctx context.Context, o Object) (again time.Duration, refused, err error) {
	request := o.Grant()
	faulty := len(j.faults(o.Key())) > 0
	if len(request.Names) == 0 || faulty {
		j.granted.Forget(o.Key())
		if o.Status.ObservedGeneration != o.GetGeneration() || faulty && !toldInvalid(o.Status) { // it may have named some until now
			err = j.grants.Revoke(ctx, request)
		}
		return 0, nil, err
	}
	now := j.Clock.Now()
	if again, done := j.granted.Remaining(o.Key(), o, now); done {
		return again, nil, nil
	}
	err = Explain(o, j.grants.Ensure(ctx, request))
	switch {
	case NotGranted(err):
		j.granted.Forget(o.Key())
		return wait.Jitter(grantRetry, reconciler.Jitter), err, nil
	case err != nil:
		return 0, nil, err
	}
	again = wait.Jitter(grantInterval, reconciler.Jitter)
	j.granted.Done(o.Key(), o, again, now)
	return again, nil, nil
}

// toldInvalid reports whether the last judgement was that the preset is invalid. It may be without a change of the preset, as when its
// namespace has too many.
func toldInvalid(s *v1alpha1.DevicePresetStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionValid)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == ReasonInvalid
}

// report writes the status, and makes Events of its conditions. Counts alone are written within the budget: early is how long these wait.
func (j *judge) report(ctx context.Context, o Object, refused error) (early time.Duration, err error) {
	var nodes v1alpha1.AcceleratorNodeList
	if err := j.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("count the claims that have something from it: %w", err)
	}
	found := Findings{
		Faults: j.faults(o.Key()), NotGranted: refused, Conflicts: j.index.Conflicts(o.Key()), Summary: summarize(&o.Spec.PresetRules),
	}
	if !o.OfCluster() && o.Spec.LeftOut == 0 {
		p := preset.Of(o.CommonDevicePreset)
		found.Outside = p.NotAllowed(j.allowed)
	}
	found.Claims, found.Nodes = Count(nodes.Items, o.GetNamespace(), o.GetName())
	before, was := status.Copy(o.Object), o.Status.DeepCopy()
	Record(o.Status, o.GetGeneration(), found, j.Clock.Now())
	judged := was.DeepCopy()
	judged.Claims, judged.Nodes = o.Status.Claims, o.Status.Nodes
	weight := status.Counts
	if !equality.Semantic.DeepEqual(judged, o.Status) {
		weight = status.News
	}
	written, early, err := j.status.PatchReports(ctx, before, o.Object, weight)
	if written {
		change := status.Change{Object: o.Object, Kind: o.Kind, Action: "JudgePreset", Before: was.Conditions, Now: o.Status.Conditions}
		j.status.Announce(ctx, change,
			status.Rule{Type: v1alpha1.ConditionValid, Well: metav1.ConditionTrue},
			status.Rule{Type: v1alpha1.ConditionConflicting, Well: metav1.ConditionFalse, Silent: []string{ReasonNotValid}},
		)
	}
	return early, err
}

// Object is a preset of either kind.
type Object struct {
	v1alpha1.CommonDevicePreset

	// ConfigMapNamespace is the namespace of the ConfigMaps that it names.
	ConfigMapNamespace string
}

// Of returns a preset. The ConfigMaps of a cluster preset are in the driver's namespace.
func Of(p v1alpha1.CommonDevicePreset, driver string) Object {
	return Object{CommonDevicePreset: p, ConfigMapNamespace: p.ReferenceNamespace(driver)}
}

// Grant returns the request for the Role by which the nodes read its ConfigMaps.
func (o Object) Grant() grant.Request {
	return grant.Request{
		Owner: o.Object, Kind: o.Kind, Resource: "configmaps", Namespace: o.ConfigMapNamespace, Names: configMaps(&o.Spec.PresetRules),
	}
}

// configMaps returns the names of the ConfigMaps that give variables, sorted.
func configMaps(r *v1alpha1.PresetRules) []string {
	var names []string
	for i := range r.Env {
		if from := r.Env[i].ValueFrom; from != nil {
			names = append(names, from.ConfigMapKeyRef.Name)
		}
	}
	for i := range r.EnvFrom {
		names = append(names, r.EnvFrom[i].ConfigMapRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// onCounts queues the presets whose counts on a node changed, some time later, since claims come and go together.
func onCounts(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		was, is := reconciler.NodeStatus(before), reconciler.NodeStatus(now)
		keys := map[types.NamespacedName]bool{}
		for _, p := range reconciler.Difference(was.Presets, is.Presets) {
			keys[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = true
		}
		if rest(was.Rest) != rest(is.Rest) {
			all, err := pairs.Presets(ctx, c, pairs.Both, client.UnsafeDisableDeepCopy)
			if err != nil {
				klog.FromContext(ctx).Error(err, "List the presets whose counts changed")
			}
			for _, p := range all {
				before, _ := was.PresetClaims(p.GetNamespace(), p.GetName())
				if now, _ := is.PresetClaims(p.GetNamespace(), p.GetName()); before != now {
					keys[p.Key()] = true
				}
			}
		}
		for key := range keys {
			q.AddAfter(reconcile.Request{NamespacedName: key}, reconciler.Gathering)
		}
	})
}

// rest returns the presets that a node reports in short.
func rest(r *v1alpha1.NodeRest) string {
	if r == nil {
		return ""
	}
	return r.Presets
}
