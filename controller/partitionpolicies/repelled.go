// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

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
	programs, err := programsOf(ctx, j.Live)
	if err != nil {
		if status.Condition(p.Status.Conditions, v1alpha1.ConditionRepelling).ObservedGeneration != p.Generation {
			set(p, now, metav1.Condition{
				Type: v1alpha1.ConditionRepelling, Status: metav1.ConditionUnknown, Reason: ReasonNotRead,
				Message: "DaemonSets and Modules of KMM could not be read: look at the log of Fettle's controller if this lasts",
			})
		}
		return 0, err
	}
	set(p, now, repelling(nodepolicy.Repelled(p.Spec.Nodes.Taints, nodes, programs, j.noExecute)))
	j.readings[p.Name] = reading{uid: p.UID, generation: p.Generation, nodes: of, at: now}
	return wait.Jitter(programsInterval, reconciler.Jitter), nil
}

// repelling returns the condition for the programs that the taints of a policy keep away.
func repelling(programs []nodepolicy.Program) metav1.Condition {
	var daemonSets, modules []string
	for i := range programs {
		if programs[i].Module {
			modules = append(modules, programs[i].Name)
		} else {
			daemonSets = append(daemonSets, programs[i].Name)
		}
	}
	c := metav1.Condition{Type: v1alpha1.ConditionRepelling, Status: metav1.ConditionTrue, Reason: ReasonDaemonSetsRepelled}
	var parts []string
	if n := len(modules); n > 0 {
		c.Reason = ReasonModulesRepelled
		parts = append(parts, fmt.Sprintf("KMM unloads the driver on the policy's nodes for %s without a toleration of the taints: %s; "+
			"add one to spec.tolerations", counted(int64(n), "Module"), firstOf(modules)))
	}
	if n := len(daemonSets); n > 0 {
		parts = append(parts, fmt.Sprintf("no new pods run on the policy's nodes for %s without a toleration of the taints: %s; "+
			"if they belong there, add one to spec.template.spec.tolerations, or to the values of their charts",
			counted(int64(n), "DaemonSet"), firstOf(daemonSets)))
	}
	if len(parts) == 0 {
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNoneRepelled
		parts = []string{"all DaemonSets and Modules of KMM that run on the policy's nodes tolerate the taints"}
	}
	c.Message = strings.Join(parts, ". ")
	return c
}

// firstOf names the first of some things, and counts the rest.
func firstOf(names []string) string {
	text := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
