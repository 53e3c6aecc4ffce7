// SPDX-License-Identifier: Apache-2.0

package judge

import "slices"

// demand is how many bins something wants, and which would do. It takes each bin at most once.
type demand struct {
	count int
	bins  []int
}

// match gives bins to demands, bin i to at most capacity[i] of them. If that is impossible, it returns demands that together want more than
// all their bins have.
func match(demands []demand, capacity []int) (short []int) {
	m := matching{demands: demands, capacity: capacity, taken: make([][]int, len(capacity))}
	for i := range demands {
		for range demands[i].count {
			m.seenBins, m.seenDemands = make([]bool, len(capacity)), make([]bool, len(demands))
			if m.give(i) {
				continue
			}
			return m.short()
		}
	}
	return nil
}

// matching is a partial result: taken has the demands that each bin was given to.
type matching struct {
	demands  []demand
	capacity []int
	taken    [][]int
	// seenBins and seenDemands are what the search for one more bin has come to.
	seenBins, seenDemands []bool
}

// short lists the demands that the search has come to, and others that want nothing but what those want.
func (m *matching) short() []int {
	var out, more []int
	for i, seen := range m.seenDemands {
		if seen {
			out = append(out, i)
		} else if m.demands[i].count > 0 {
			more = append(more, i)
		}
	}
	for _, i := range more {
		need, total := have(m.demands, m.capacity, out)
		if withIt, totalWithIt := have(m.demands, m.capacity, append(slices.Clone(out), i)); withIt-totalWithIt > need-total {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return out
}

// give finds one more bin for a demand, and moves others to other bins if that helps.
func (m *matching) give(i int) bool {
	m.seenDemands[i] = true
	for _, bin := range m.demands[i].bins {
		if m.seenBins[bin] || slices.Contains(m.taken[bin], i) {
			continue
		}
		m.seenBins[bin] = true
		if len(m.taken[bin]) < m.capacity[bin] {
			m.taken[bin] = append(m.taken[bin], i)
			return true
		}
		for at, other := range m.taken[bin] {
			if !m.seenDemands[other] && m.give(other) {
				m.taken[bin][at] = i
				return true
			}
		}
	}
	return false
}

// have counts what the bins of demands can give together.
func have(demands []demand, capacity, which []int) (need, total int) {
	bins := map[int]int{} // how many of the demands want it
	for _, i := range which {
		need += demands[i].count
		for _, bin := range demands[i].bins {
			bins[bin]++
		}
	}
	for bin, wanted := range bins {
		total += min(wanted, capacity[bin])
	}
	return need, total
}
