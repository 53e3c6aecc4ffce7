// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// valueTable has the values of an attribute for every device of the node, as an alternative sees them.
type valueTable map[*request][][]string

// valuesFor evaluates the attribute of a constraint.
func (pr *proof) valuesFor(ctx context.Context, c constraint, needs []need) valueTable {
	t := valueTable{}
	for a := range allOf(needs) {
		if a.request.named(c.requests) {
			t[a.request] = pr.rows(ctx, a.request, c)
		}
	}
	return t
}

// rows returns the values of a constraint's attribute for each device of the node, none where it cannot be evaluated.
func (pr *proof) rows(ctx context.Context, r *request, c constraint) [][]string {
	var rows [][]string
	for _, p := range pr.pools {
		for _, d := range p.devices() {
			values, err := pr.attributes.valuesOf(ctx, r, p, d, c.attribute)
			if err != nil {
				values = nil
			}
			rows = append(rows, values)
		}
	}
	return rows
}

// restrict narrows a filter to the devices that have a value.
func (t valueTable) restrict(ok filter, value string) filter {
	return func(a *alternative, device int) bool {
		rows, affected := t[a.request]
		return ok(a, device) && (!affected || slices.Contains(rows[device], value))
	}
}

// all lists the values that usable devices have.
func (t valueTable) all(needs []need) []string {
	seen := map[string]bool{}
	for a := range allOf(needs) {
		rows := t[a.request]
		if rows == nil {
			continue
		}
		for _, device := range a.usable(everyDevice) {
			for _, value := range rows[device] {
				seen[value] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// proveConstraints tries every choice of values for the constraints that want one value, and counts.
func (pr *proof) proveConstraints(ctx context.Context, c *ClaimVerdict, needs []need) []Check {
	constraints := pr.constraintsOf(needsClaim(needs))
	var equal []constraint
	var tables []valueTable
	combinations := 1
	for _, one := range constraints {
		table := pr.valuesFor(ctx, one, needs)
		if len(table) == 0 {
			continue
		}
		if one.distinct {
			if check := proveDistinct(one, table, needs); check != nil {
				return []Check{*check}
			}
			continue
		}
		equal, tables = append(equal, one), append(tables, table)
		combinations *= max(1, len(table.all(needs)))
		if combinations > maxCombinations {
			return nil
		}
	}
	if len(equal) == 0 || pr.anyChoice(needs, tables, everyDevice) {
		return nil
	}
	for i, one := range equal { // is it one alone?
		if !pr.anyChoice(needs, tables[i:i+1], everyDevice) {
			return []Check{{Kind: KindConstraint, Attribute: one.attribute, Message: fmt.Sprintf(
				"no value of %s has enough devices: %s", one.attribute, tableText(c, one))}}
		}
	}
	var names []string
	for _, one := range equal {
		names = append(names, one.attribute)
	}
	return []Check{{Kind: KindConstraint, Attribute: names[0], Message: fmt.Sprintf(
		"no choice of values for %s has enough devices", strings.Join(names, ", "))}}
}

func needsClaim(needs []need) *resourceapi.ResourceClaim {
	if len(needs) == 0 {
		return &resourceapi.ResourceClaim{}
	}
	return needs[0].claim
}

// anyChoice says whether some choice of one value a table leaves enough devices.
func (pr *proof) anyChoice(needs []need, tables []valueTable, ok filter) bool {
	if len(tables) == 0 {
		return len(pr.shortage(needs, ok)) == 0
	}
	if tables[0].avoidable(needs) && pr.anyChoice(needs, tables[1:], ok) {
		return true
	}
	for _, value := range tables[0].all(needs) {
		if pr.anyChoice(needs, tables[1:], tables[0].restrict(ok, value)) {
			return true
		}
	}
	return false
}

// avoidable says whether the claim can do without any alternative that the constraint is about.
func (t valueTable) avoidable(needs []need) bool {
	for i := range needs {
		if !slices.ContainsFunc(needs[i].alternatives, func(a alternative) bool { return t[a.request] == nil || a.count == 0 }) {
			return false
		}
	}
	return true
}

// proveDistinct counts the values that the devices of each request have.
func proveDistinct(c constraint, t valueTable, needs []need) *Check {
	values := t.all(needs)
	capacity := make([]int, len(values))
	for i := range capacity {
		capacity[i] = 1
	}
	var demands []demand
	for i := range needs {
		d, affected := t.demandOf(&needs[i], values)
		if affected {
			demands = append(demands, d)
		}
	}
	short := match(demands, capacity)
	if short == nil {
		return nil
	}
	want, total := have(demands, capacity, short)
	return &Check{Kind: KindConstraint, Attribute: c.attribute, Message: fmt.Sprintf(
		"%s with different values of %s are needed, and the free devices have %d", devices(want), c.attribute, total)}
}

// demandOf counts values in place of devices: the fewest that any alternative needs, if all of them are affected.
func (t valueTable) demandOf(n *need, values []string) (d demand, affected bool) {
	bins := map[int]bool{}
	d.count = -1
	for i := range n.alternatives {
		a := &n.alternatives[i]
		rows := t[a.request]
		if rows == nil {
			return d, false
		}
		if !a.possible(everyDevice) {
			continue
		}
		if d.count < 0 || a.count < d.count {
			d.count = a.count
		}
		for _, device := range a.usable(everyDevice) {
			for _, value := range rows[device] {
				at, _ := slices.BinarySearch(values, value)
				bins[at] = true
			}
		}
	}
	d.bins = slices.Sorted(maps.Keys(bins))
	return d, d.count > 0
}

// tables counts, for every constraint of a claim, the usable devices by value.
func (pr *proof) tables(ctx context.Context, v ClaimVerdict, needs []need) []ConstraintVerdict {
	var out []ConstraintVerdict
	for _, c := range pr.constraintsOf(needsClaim(needs)) {
		table := pr.valuesFor(ctx, c, needs)
		verdict := ConstraintVerdict{Attribute: c.attribute, Distinct: c.distinct}
		var affected []*alternative
		for a := range allOf(needs) {
			if table[a.request] != nil {
				affected = append(affected, a)
				verdict.Requests = append(verdict.Requests, v.Requests[a.verdict].Name)
				verdict.Need = append(verdict.Need, a.count)
			}
		}
		for _, value := range table.all(needs) {
			row := ConstraintValueRow{Value: value}
			for _, a := range affected {
				row.Free = append(row.Free, len(a.usable(table.restrict(everyDevice, value))))
			}
			verdict.Rows = append(verdict.Rows, row)
		}
		verdict.Without = withoutAttribute(affected, table)
		out = append(out, verdict)
	}
	return out
}

// withoutAttribute counts the devices that fail only since they lack an attribute.
func withoutAttribute(affected []*alternative, t valueTable) int {
	lacking := map[int]bool{}
	for _, a := range affected {
		for i, values := range t[a.request] {
			if len(values) == 0 && len(a.devices[i].Failed) == 1 {
				lacking[i] = true
			}
		}
	}
	return len(lacking)
}

// tableText writes a table on one line: VALUE has 1 of 2.
func tableText(c *ClaimVerdict, one constraint) string {
	for _, t := range c.Constraints {
		if t.Attribute != one.attribute || t.Distinct {
			continue
		}
		var rows []string
		for _, row := range t.Rows {
			var cells []string
			for i, free := range row.Free {
				cells = append(cells, fmt.Sprintf("%d of %d for request %s", free, t.Need[i], t.Requests[i]))
			}
			rows = append(rows, row.Value+" has "+strings.Join(cells, " and "))
		}
		if t.Without > 0 {
			rows = append(rows, devices(t.Without)+" without the attribute")
		}
		if len(rows) == 0 {
			return "no free device has the attribute"
		}
		return strings.Join(rows, "; ")
	}
	return ""
}
