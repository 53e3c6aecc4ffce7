// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/evict"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const (
	// upgradePause is how often nodes are looked at whose driver is being changed.
	upgradePause = 10 * time.Second
	// maxEvictions is how many pods of a node a round evicts.
	maxEvictions = 16
	// reasonEvictedForUpgrade is that of the Event on a pod that is evicted.
	reasonEvictedForUpgrade = "EvictedForUpgrade"
)

// upgrader changes the drivers of nodes step by step.
type upgrader struct {
	reconciler.Services

	// evicted are the pods of which an Event says that they are evicted and that are still there, by the stack that evicts them.
	evicted map[string]map[types.UID]bool
	// own are the namespaces of Fettle's plugin and of drivers.
	own []string
	// turns are those of the pods of nodes that have more than a round evicts.
	turns turns
}

// forget ends the upgrades of a stack that is gone.
func (u *upgrader) forget(ctx context.Context, name string, seen *stack.Observed) error {
	delete(u.evicted, name)
	return u.release(ctx, seen, func(_, by string) bool { return by == name })
}

// upgrade takes the nodes whose driver is to be changed one step on, and puts into their outcomes how far they are. It says whether any
// is under way. A fault with one node keeps it from no other.
func (u *upgrader) upgrade(
	ctx context.Context, r *round, nodes []stack.UpgradeNode, outcomes []stack.Outcome,
) (runs bool, err error) {
	if r.driver.away {
		return false, nil
	}
	if r.driver.change == nil {
		return false, u.release(ctx, r.seen, func(node, _ string) bool {
			return slices.ContainsFunc(nodes, func(n stack.UpgradeNode) bool { return n.Name == node })
		})
	}
	if err := u.addHolders(ctx, r.stack.Name, nodes); err != nil {
		return true, err
	}
	u.evicted[r.stack.Name] = stillThere(u.evicted[r.stack.Name], nodes)
	maps.DeleteFunc(u.turns, func(node string, _ int) bool { return r.seen.Accelerators[node] == nil })
	rules := stack.RulesOf(r.stack, nodes)
	rules.Blocked = r.driver.blocked
	steps := stack.Upgrade(rules, nodes, u.Clock.Now())
	var errs []error
	for i := range steps {
		step := &steps[i]
		u.nameOthers(ctx, step, &nodes[i])
		if err := u.act(ctx, r, nodes[i].Node, step); apierrors.IsConflict(err) {
			// Somebody wrote meanwhile, as the plugin does: the next round decides by what is there then.
			step.Unwritten()
		} else if err != nil {
			errs = append(errs, fmt.Errorf("change the driver of node %s: %w", step.Node, err))
			step.Unwritten()
		}
		outcomes[i].Upgrading(step)
		runs = runs || step.Phase != stack.PhaseCurrent
	}
	return runs, errors.Join(errs...)
}

// stillThere returns the pods of a set that still hold devices of a node.
func stillThere(evicted map[types.UID]bool, nodes []stack.UpgradeNode) map[types.UID]bool {
	out := map[types.UID]bool{}
	for i := range nodes {
		for _, h := range nodes[i].Holders {
			if uid := types.UID(h.UID); evicted[uid] {
				out[uid] = true
			}
		}
	}
	return out
}

// act does what a step says.
func (u *upgrader) act(ctx context.Context, r *round, n *stack.Node, step *stack.Step) error {
	if step.Annotations != nil {
		if err := u.annotate(ctx, r.seen.Accelerators[n.Name], step.Annotations); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Changing the driver of a node", "stack", r.stack.Name, "node", n.Name, "phase", step.Phase,
			"reason", step.Message)
	}
	refused := u.evict(ctx, r.stack, step)
	if refused != "" {
		step.Message += ": " + refused
	}
	if step.Change {
		return r.driver.change(ctx, n)
	}
	return nil
}

// annotate writes annotations of an AcceleratorNode, unless somebody has changed it since it was read.
func (u *upgrader) annotate(ctx context.Context, node *v1alpha1.AcceleratorNode, annotations map[string]string) error {
	if node == nil {
		return nil
	}
	values := reconciler.Named{}
	for key, value := range annotations {
		values.Set(key, value)
	}
	patch, err := reconciler.MetadataPatch(node.ResourceVersion, nil, values)
	if err != nil {
		return err
	}
	object := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	err = u.Client.Patch(ctx, object, patch)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate AcceleratorNode %s: %w", node.Name, err)
	}
	return nil
}

// release takes the notes of upgrades from nodes.
func (u *upgrader) release(ctx context.Context, seen *stack.Observed, of func(node, by string) bool) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(seen.Accelerators)) {
		node := seen.Accelerators[name]
		if by := stack.UpgradedBy(node.Annotations); by != "" && of(name, by) {
			errs = append(errs, u.annotate(ctx, node, stack.Released(node.Annotations)))
		}
	}
	return errors.Join(errs...)
}

// addHolders adds to nodes that are under way the pods that hold claims with their devices. Claims are read from the API server: the cache
// does not keep what they are reserved for.
func (u *upgrader) addHolders(ctx context.Context, name string, nodes []stack.UpgradeNode) error {
	if !slices.ContainsFunc(nodes, func(n stack.UpgradeNode) bool { return stack.UpgradedBy(n.Annotations) == name }) {
		return nil
	}
	var holders stack.Holders
	begin := func() { holders = stack.Holders{} }
	claims := reconciler.Listing{Reader: u.Live, List: &resourceapi.ResourceClaimList{}}
	err := claims.Read(ctx, begin, func(o runtime.Object) error {
		if claim, ok := o.(*resourceapi.ResourceClaim); ok {
			holders.Add(claim)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the claims of nodes whose driver is changed: %w", err)
	}
	for i := range nodes {
		nodes[i].Holders = holders[nodes[i].Name]
	}
	return nil
}

// nameOthers adds to a node that is stuck which pods may hold its driver without a claim. The pods of one node are read then, and only
// then: most changes end without.
func (u *upgrader) nameOthers(ctx context.Context, step *stack.Step, n *stack.UpgradeNode) {
	if !step.Stuck && !step.Failed || step.Phase != stack.PhaseQuiescing && step.Phase != stack.PhaseChanging {
		return
	}
	var found []stack.PossibleHolder // the pods may have a megabyte and a half each
	begin := func() { found = nil }
	onNode := []client.ListOption{client.MatchingFields{"spec.nodeName": n.Name}}
	listing := reconciler.Listing{Reader: u.Live, List: &corev1.PodList{}, Options: onNode}
	err := listing.Read(ctx, begin, func(o runtime.Object) error {
		if pod, ok := o.(*corev1.Pod); ok {
			found = append(found, stack.PossibleHolders([]*corev1.Pod{pod}, n.Name, n.Holders, u.own...)...)
		}
		return nil
	})
	if err != nil {
		step.Message += "; which pods may hold the driver without a claim is not known: " + err.Error()
		return
	}
	step.MayHold(found)
}

// evict evicts pods and says what refuses that. The claims of those that went are released by and by.
func (u *upgrader) evict(ctx context.Context, s *v1alpha1.AcceleratorStack, step *stack.Step) (refused string) {
	asked := 0
	defer func() { u.turns.asked(step, asked) }()
	for _, h := range u.turns.next(step) {
		asked++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name, UID: types.UID(h.UID)}}
		err := u.evictOne(ctx, pod)
		switch {
		case evict.Gone(err):
		case errors.Is(err, context.DeadlineExceeded): // the next may take as long: the next round begins with it
			return fmt.Sprintf("pod %s is not evicted: there is no answer after %s", h, evict.Timeout)
		case err != nil:
			refused = fmt.Sprintf("pod %s is not evicted: %s", h, blocker(err))
		case !u.evicted[s.Name][pod.UID]:
			u.evicted[s.Name][pod.UID] = true
			klog.FromContext(ctx).Info("Evicted a pod, since the driver of its devices is changed", "pod", h.String(), "node", step.Node)
			u.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, reasonEvictedForUpgrade, "ChangeDriver", "%s", message.EventNote(
				fmt.Sprintf("evicted, since AcceleratorStack %s changes the driver of the devices of node %s", s.Name, step.Node)))
		}
	}
	return refused
}

// turns is which of a node's pods are the next to be evicted, by the node, where a round does not evict all.
type turns map[string]int

// next returns the pods that a round asks to go: of more than a round evicts the next, after those of the round before. So pods that cannot
// go keep no others from being asked.
func (t turns) next(step *stack.Step) []stack.Holder {
	if len(step.Evict) == 0 {
		return nil
	}
	at := t[step.Node] % len(step.Evict)
	return slices.Concat(step.Evict[at:], step.Evict[:at])[:min(len(step.Evict), maxEvictions)]
}

// asked notes how many of them were asked.
func (t turns) asked(step *stack.Step, count int) {
	if count >= len(step.Evict) {
		delete(t, step.Node)
		return
	}
	t[step.Node] = (t[step.Node] + count) % len(step.Evict)
}

func (u *upgrader) evictOne(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evict.Timeout)
	defer cancel()
	return evict.Pod(ctx, u.Client, pod)
}

// blocker returns what the API server says of a refusal: with a PodDisruptionBudget the causes name it.
func blocker(err error) string {
	var refused apierrors.APIStatus
	if errors.As(err, &refused) && refused.Status().Details != nil {
		for _, c := range refused.Status().Details.Causes {
			if c.Message != "" {
				return c.Message
			}
		}
	}
	return err.Error()
}
