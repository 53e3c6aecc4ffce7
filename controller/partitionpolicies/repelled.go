// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

const (
	// programsInterval is how often DaemonSets and Modules are read while neither the policy nor its nodes change.
	programsInterval = 10 * time.Minute
	// programsPause is how long after a reading a change of nodes has them read again, so that a cluster that grows does not read them for
	// each node.
	programsPause = 30 * time.Second
)

// reading is what a policy and its nodes were when DaemonSets and Modules were read for it.
type reading struct {
	uid        types.UID
	generation int64
	nodes      uint64
	at         time.Time
}

// remaining returns how long the reading still serves, 0 or less if it does not.
func (r reading) remaining(p *v1alpha1.PartitionPolicy, nodes uint64, now time.Time) time.Duration {
	switch {
	case r.uid != p.UID || r.generation != p.Generation:
		return 0
	case r.nodes != nodes:
		return r.at.Add(programsPause).Sub(now)
	}
	return r.at.Add(programsInterval).Sub(now)
}

// checkRepelled writes to the status which programs the taints of a policy keep away from its nodes, and says when to look again. The
// condition stays as it is between two readings, and if nothing can be read while it is of the present generation.
func (j *judge) checkRepelled(ctx context.Context, p *v1alpha1.PartitionPolicy, nodes []*corev1.Node) (again time.Duration, err error) {
	if len(nodes) == 0 {
		delete(j.readings, p.Name)
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionRepelling)
		return 0, nil
	}
	now, of := j.Clock.Now(), nodepolicy.Fingerprint(nodes)
	if left := j.readings[p.Name].remaining(p, of, now); left > 0 {
		return left, nil
	}
	found, err := repelledFrom(ctx, j.Live, nodepolicy.NewGate(p.Spec.Nodes.Taints, nodes, j.noExecute))
	if err != nil {
		if status.Condition(p.Status.Conditions, v1alpha1.ConditionRepelling).ObservedGeneration != p.Generation {
			set(p, now, metav1.Condition{
				Type: v1alpha1.ConditionRepelling, Status: metav1.ConditionUnknown, Reason: ReasonNotRead,
				Message: "DaemonSets and Modules of KMM could not be read: look at the log of Fettle's controller if this lasts",
			})
		}
		return 0, err
	}
	set(p, now, found.condition())
	j.readings[p.Name] = reading{uid: p.UID, generation: p.Generation, nodes: of, at: now}
	return wait.Jitter(programsInterval, reconciler.Jitter), nil
}

// repelled are the programs that the taints of a policy keep away.
type repelled struct {
	daemonSets, modules named
	// large are those that are too large to be looked at.
	largeSets, largeModules int
}

// repelledFrom reads all programs of the cluster and keeps the first names of those that a gate repels.
func repelledFrom(ctx context.Context, live client.Reader, gate nodepolicy.Gate) (repelled, error) {
	var found repelled
	begin := func(modules bool) {
		if modules {
			found.modules, found.largeModules = named{}, 0
		} else {
			found.daemonSets, found.largeSets = named{}, 0
		}
	}
	err := eachProgram(ctx, live, begin, func(p *nodepolicy.Program) { found.add(gate, p) })
	return found, err
}

// add counts a program.
func (f *repelled) add(gate nodepolicy.Gate, p *nodepolicy.Program) {
	names, large := &f.daemonSets, &f.largeSets
	if p.Module {
		names, large = &f.modules, &f.largeModules
	}
	switch {
	case p.TooLarge:
		*large++
	case gate.Repels(p):
		names.add(p.Name)
	}
}

// condition says what is repelled.
func (f *repelled) condition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionRepelling, Status: metav1.ConditionTrue, Reason: ReasonDaemonSetsRepelled}
	var parts []string
	if n := f.modules.count; n > 0 {
		c.Reason = ReasonModulesRepelled
		parts = append(parts, fmt.Sprintf("KMM unloads the driver on the policy's nodes for %s without a toleration of the taints: %s; "+
			"add one to spec.tolerations", counted(int64(n), "Module"), &f.modules))
	}
	if n := f.daemonSets.count; n > 0 {
		parts = append(parts, fmt.Sprintf("no new pods run on the policy's nodes for %s without a toleration of the taints: %s; "+
			"if they belong there, add one to spec.template.spec.tolerations, or to the values of their charts",
			counted(int64(n), "DaemonSet"), &f.daemonSets))
	}
	if len(parts) == 0 {
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNoneRepelled
		parts = []string{"all DaemonSets and Modules of KMM that run on the policy's nodes tolerate the taints"}
	}
	if n := f.largeSets + f.largeModules; n > 0 {
		parts = append(parts, counted(int64(n), "program")+" not looked at, since their tolerations and selectors of nodes are too large")
	}
	c.Message = strings.Join(parts, ". ")
	return c
}

// named counts names, and keeps the first of them.
type named struct {
	count int
	first []string
}

// add counts a name.
func (n *named) add(name string) {
	at, _ := slices.BinarySearch(n.first, name)
	n.count++
	n.first = slices.Insert(n.first, at, name)
	n.first = n.first[:min(len(n.first), maxNamed)]
}

// String names the first, and counts the rest.
func (n *named) String() string { return firstOf(n.first, n.count) }

// firstOf names the first of so many things, and counts the rest.
func firstOf(names []string, count int) string {
	text := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := count - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
