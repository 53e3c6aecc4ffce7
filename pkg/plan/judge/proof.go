// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// maxCombinations bounds how many choices of values for matchAttribute are tried.
const maxCombinations = 1000

// need is a request of a claim: one of the alternatives has to be satisfied.
type need struct {
	claim        *resourceapi.ResourceClaim
	name         string
	admin        bool
	alternatives []alternative
}

// allOf returns the alternatives of all requests.
func allOf(needs []need) iter.Seq[*alternative] {
	return func(yield func(*alternative) bool) {
		for i := range needs {
			for k := range needs[i].alternatives {
				if !yield(&needs[i].alternatives[k]) {
					return
				}
			}
		}
	}
}

// alternative is one way to satisfy a request.
type alternative struct {
	request *request
	// verdict is its place in the verdict of the claim.
	verdict int
	count   int
	devices []DeviceVerdict
}

// filter says whether an alternative may have a device.
type filter func(a *alternative, device int) bool

func everyDevice(*alternative, int) bool { return true }

// usable returns the devices that an alternative can have, by their place on the node.
func (a *alternative) usable(ok filter) []int {
	var out []int
	for i := range a.devices {
		if a.devices[i].Usable() && ok(a, i) {
			out = append(out, i)
		}
	}
	return out
}

// possible says whether the alternative could be satisfied if it were alone.
func (a *alternative) possible(ok filter) bool {
	usable := len(a.usable(ok))
	if a.request.all() {
		return a.count > 0 && usable == a.count
	}
	return a.count <= usable
}

// demandOf loosens a need: the fewest devices of any possible alternative, out of the devices of all of them.
func (n *need) demandOf(ok filter) (d demand, possible bool) {
	bins := map[int]bool{}
	d.count = math.MaxInt
	for i := range n.alternatives {
		a := &n.alternatives[i]
		if !a.possible(ok) {
			continue
		}
		possible = true
		d.count = min(d.count, a.count)
		for _, bin := range a.usable(ok) {
			bins[bin] = true
		}
	}
	d.bins = slices.Sorted(maps.Keys(bins))
	return d, possible
}

// proof looks for reasons why no choice of devices can satisfy the claims.
type proof struct {
	features
	pools      []*pool
	held       *holdings
	attributes *attributes
}

// prove looks for reasons why no choice of devices can satisfy the claims. It does not search: each reason is about counts.
func (pr *proof) prove(ctx context.Context, v *Verdict, needs [][]need) {
	var plain []need
	for i := range v.Claims {
		c := &v.Claims[i]
		c.Constraints = pr.tables(ctx, v.Claims[i], needs[i])
		c.Problems = append(c.Problems, pr.proveClaim(ctx, c, needs[i])...)
		for _, n := range needs[i] {
			if !n.admin {
				plain = append(plain, n)
			}
		}
	}
	if v.Impossible() {
		return
	}
	if len(v.Claims) > 1 {
		v.Problems = append(v.Problems, pr.shortage(plain, everyDevice)...)
	}
	v.Problems = append(v.Problems, pr.counterShortage(plain)...)
}

// proveClaim looks at one claim alone.
func (pr *proof) proveClaim(ctx context.Context, c *ClaimVerdict, needs []need) []Check {
	var problems []Check
	for i := range needs {
		if _, possible := needs[i].demandOf(everyDevice); !possible {
			problems = append(problems, impossibleNeed(&needs[i]))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	if problems = pr.shortage(needs, everyDevice); len(problems) > 0 {
		return problems
	}
	return pr.proveConstraints(ctx, c, needs)
}

// impossibleNeed says why each alternative of a request fails.
func impossibleNeed(n *need) Check {
	var lines []string
	check := Check{Kind: KindShortage, Shortage: &Shortage{Requests: []string{n.name}, Need: math.MaxInt}}
	for i := range n.alternatives {
		a := &n.alternatives[i]
		usable := len(a.usable(everyDevice))
		if a.count < check.Shortage.Need {
			check.Shortage.Need, check.Shortage.Have = a.count, usable
		}
		switch {
		case a.request.all() && a.count == 0:
			lines = append(lines, fmt.Sprintf("request %s wants all devices, and none matches", a.request.name()))
		case a.request.all():
			lines = append(lines, fmt.Sprintf("request %s wants all %d devices that match, and can have %d", a.request.name(), a.count, usable))
		default:
			lines = append(lines, fmt.Sprintf("request %s needs %s and can have %d", a.request.name(), devices(a.count), usable))
		}
	}
	check.Message = strings.Join(lines, "; ")
	return check
}

func devices(n int) string {
	if n == 1 {
		return "1 device"
	}
	return fmt.Sprintf("%d devices", n)
}

// shortage finds requests that want more devices than there are for all of them.
func (pr *proof) shortage(needs []need, ok filter) []Check {
	demands, capacity := make([]demand, len(needs)), pr.capacities(needs)
	for i := range needs {
		var possible bool
		if demands[i], possible = needs[i].demandOf(ok); !possible {
			return []Check{impossibleNeed(&needs[i])}
		}
	}
	short := match(demands, capacity)
	if short == nil {
		return nil
	}
	want, total := have(demands, capacity, short)
	s := Shortage{Need: want, Have: total}
	for _, i := range short {
		s.Requests = append(s.Requests, needs[i].name)
	}
	return []Check{{Kind: KindShortage, Shortage: &s, Message: fmt.Sprintf("requests %s need %s together, and there are %d for all of them",
		strings.Join(s.Requests, ", "), devices(want), total)}}
}

// capacities says how many requests may have each device of the node at once.
func (pr *proof) capacities(needs []need) []int {
	var out []int
	for _, p := range pr.pools {
		for _, d := range p.devices() {
			capacity := 1
			if pr.shared(d) {
				capacity = pr.held.shares(structured.MakeDeviceID(p.driver, p.name, d.Name), d, needs)
			}
			out = append(out, capacity)
		}
	}
	return out
}

// shares says how many of the requests may have a share of a device at once, at most.
func (h *holdings) shares(id structured.DeviceID, d *resourceapi.Device, needs []need) int {
	most := len(needs)
	for name, capacity := range d.Capacity {
		var least *resource.Quantity
		for a := range allOf(needs) {
			q, err := h.consumption(a.request.Capacity, name, capacity)
			if err == nil && (least == nil || q.Cmp(*least) < 0) {
				least = &q
			}
		}
		if least == nil || least.Sign() <= 0 {
			continue
		}
		free := capacity.Value.DeepCopy()
		if q := h.state.AggregatedCapacity[id][name]; q != nil {
			free.Sub(*q)
		}
		n := 0
		for ; n < most && least.Cmp(free) <= 0; n++ {
			free.Sub(*least)
		}
		most = n
	}
	return most
}

// counterShortage finds counters of which the requests need more than is free, whichever devices they get.
func (pr *proof) counterShortage(needs []need) []Check {
	offset := 0
	for _, p := range pr.pools {
		first := offset
		consumed := map[int]map[counterKey]resource.Quantity{}
		for _, d := range p.devices() {
			if len(d.ConsumesCounters) > 0 && !pr.held.charged(p, d) && !pr.shared(d) {
				consumed[offset] = needOf(d)
			}
			offset++
		}
		if len(consumed) == 0 || p.incomplete != "" || p.invalid != "" {
			continue
		}
		t := pr.held.countersOf(p)
		for _, key := range slices.SortedFunc(maps.Keys(t.free), compareCounters) {
			least := resource.Quantity{}
			for i := range needs {
				least.Add(needs[i].leastOf(key, consumed, first, offset))
			}
			if free := t.free[key]; least.Cmp(free) > 0 && !least.IsZero() {
				total := t.total[key]
				return []Check{{
					Kind: KindCounters, Holders: uniqueHolders(t.holders[key]),
					Amounts: []Amount{{key.set, key.name, total.String(), free.String(), least.String()}},
					Message: counterLine(key, total, free, least, t.holders[key]),
				}}
			}
		}
	}
	return nil
}

// leastOf returns the least that a need takes of a counter. Devices outside of the pool, which is from first to end, take nothing.
func (n *need) leastOf(key counterKey, consumed map[int]map[counterKey]resource.Quantity, first, end int) resource.Quantity {
	var least *resource.Quantity
	for i := range n.alternatives {
		a := &n.alternatives[i]
		if !a.possible(everyDevice) {
			continue
		}
		var amounts []resource.Quantity
		for _, bin := range a.usable(everyDevice) {
			q := resource.Quantity{}
			if bin >= first && bin < end {
				q = consumed[bin][key]
			}
			amounts = append(amounts, q)
		}
		slices.SortFunc(amounts, func(a, b resource.Quantity) int { return a.Cmp(b) })
		sum := resource.Quantity{}
		for _, q := range amounts[:a.count] {
			sum.Add(q)
		}
		if least == nil || sum.Cmp(*least) < 0 {
			least = &sum
		}
	}
	if least == nil {
		return resource.Quantity{}
	}
	return *least
}
