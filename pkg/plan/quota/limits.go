// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// limit is a limit while objects are asked about.
type limit struct {
	Limit
	// now is what is in use: the status's figure, which is the one that the API server compares, or ours if there is none.
	now int64
}

// quota adds the resources of a ResourceQuota that are about claims and devices.
func (c *counter) quota(q *corev1.ResourceQuota) {
	hard := q.Status.Hard
	if len(hard) == 0 {
		hard = q.Spec.Hard
	}
	object := "ResourceQuota " + q.Namespace + "/" + q.Name
	for _, name := range slices.Sorted(maps.Keys(hard)) {
		if !c.rules.concerns(name) {
			continue
		}
		c.namespace(q.Namespace)
		l := &limit{Limit: Limit{Quota: q.Name, Resource: name, Hard: hard[name], Ignored: ignored(q, name)}}
		if l.Ignored == "" {
			l.now = c.charged[q.Namespace][name]
		}
		l.Counted = *quantity(l.now)
		if used, ok := q.Status.Used[name]; ok {
			l.Used, l.now = &used, used.Value()
		}
		c.limits[q.Namespace] = append(c.limits[q.Namespace], l)
		if l.Used != nil && l.Ignored == "" && l.Used.Cmp(l.Counted) != 0 {
			c.problems = append(c.problems, plan.Problem{Object: object, Message: fmt.Sprintf(
				"status.used says %d of %s, the snapshot has %d: the status is behind, or the snapshot lacks claims", l.now, name, l.Counted.Value())})
		}
	}
	if len(q.Status.Hard) == 0 && slices.ContainsFunc(c.limits[q.Namespace], func(l *limit) bool { return l.Quota == q.Name }) {
		c.problems = append(c.problems, plan.Problem{
			Object: object, Message: "status says nothing yet: the API server refuses nothing until the quota controller has written it",
		})
	}
}

// ignored says why a quota does not count claims, or is empty.
func ignored(q *corev1.ResourceQuota, name corev1.ResourceName) string {
	switch _, ofPods := cutRequests(name); {
	case len(q.Spec.Scopes) == 0 && q.Spec.ScopeSelector == nil:
		return ""
	case ofPods:
		return "the quota has scopes: it counts pods of those scopes and no claims, and fettle does not look at scopes"
	}
	return "the quota has scopes, which claims have not: it counts none"
}

// ask charges an object that does not exist yet, with the claims that it brings along, until one is refused.
func (c *counter) ask(it item) {
	c.namespace(it.namespace)
	asked, total := Asked{Object: it.object}, charges{}
	for _, s := range it.steps {
		total.add(s.charges)
	}
	asked.Charges = total.amounts()
	for _, s := range it.steps {
		if refused := c.refusals(it.namespace, s); len(refused) > 0 {
			asked.Refused = refused
			break
		}
		for _, l := range c.limits[it.namespace] {
			l.now += s.charges[l.Resource]
		}
	}
	for _, l := range c.limits[it.namespace] {
		if l.Ignored == "" {
			l.After = quantity(l.now)
		}
	}
	c.asked = append(c.asked, asked)
}

// refusals says for each ResourceQuota that would refuse an object why, in the API server's words after the object.
func (c *counter) refusals(namespace string, s step) []string {
	type exceeded struct{ requested, used, limited []string }
	byQuota := map[string]*exceeded{}
	for _, l := range c.limits[namespace] {
		n := s.charges[l.Resource]
		if n == 0 || l.Ignored != "" || resource.NewQuantity(l.now+n, resource.DecimalSI).Cmp(l.Hard) <= 0 {
			continue
		}
		if byQuota[l.Quota] == nil {
			byQuota[l.Quota] = &exceeded{}
		}
		e := byQuota[l.Quota]
		e.requested = append(e.requested, fmt.Sprintf("%s=%d", l.Resource, n))
		e.used = append(e.used, fmt.Sprintf("%s=%d", l.Resource, l.now))
		e.limited = append(e.limited, fmt.Sprintf("%s=%s", l.Resource, l.Hard.String()))
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(byQuota)) {
		e := byQuota[name]
		out = append(out, fmt.Sprintf("%s: exceeded quota: %s, requested: %s, used: %s, limited: %s",
			s.object, name, strings.Join(e.requested, ","), strings.Join(e.used, ","), strings.Join(e.limited, ",")))
	}
	return out
}
