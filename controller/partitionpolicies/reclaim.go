// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// recordReclaim writes to the status whether reclaim: Evict can evict any pod. It does so only for pods in the reclaimNamespaces of a
// class, and a policy that names none looks as if it worked.
func recordReclaim(p *v1alpha1.PartitionPolicy, faults field.ErrorList, now time.Time) {
	if p.Spec.Nodes == nil || p.Spec.Nodes.Reclaim != v1alpha1.ReclaimEvict {
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionReclaiming)
		return
	}
	c := metav1.Condition{Type: v1alpha1.ConditionReclaiming, Status: metav1.ConditionFalse}
	var classes []string
	for _, class := range p.Spec.Nodes.PriorityClasses {
		if len(class.ReclaimNamespaces) > 0 {
			classes = append(classes, class.Name)
		}
	}
	switch {
	case len(faults) > 0:
		c.Reason, c.Message = ReasonNotValid, "no pod is evicted until the policy is corrected: the condition Valid says what is wrong"
	case len(classes) == 0:
		c.Reason = ReasonNoReclaimNamespaces
		c.Message = "reclaim is Evict, and no pod is evicted: no class in spec.nodes.priorityClasses has reclaimNamespaces; " +
			"name there the namespaces whose pods may have others evicted, or \"*\" for all"
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonReclaims
		c.Message = fmt.Sprintf("pods in the reclaimNamespaces of %s may have others evicted", strings.Join(classes, ", "))
	}
	set(p, now, c)
}
