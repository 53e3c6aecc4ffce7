// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
)

// Counters are amounts by counter set and name of the counter.
type Counters map[string]map[string]resourceapi.Counter

// Add puts counter sets of a slice in, which stay as they are.
func (c Counters) Add(sets []resourceapi.CounterSet) {
	for i := range sets {
		c[sets[i].Name] = maps.Clone(sets[i].Counters)
	}
}

// Take takes off what a device consumes, and returns the sets that had too little, of which nothing is left then. Sets that are not
// there are passed over.
func (c Counters) Take(d *resourceapi.Device) (over []string) {
	for _, consumed := range d.ConsumesCounters {
		if set := c[consumed.CounterSet]; set != nil && subtract(set, consumed.Counters) {
			over = append(over, consumed.CounterSet)
		}
	}
	return over
}

// Fit says whether there is as much as a device consumes.
func (c Counters) Fit(d *resourceapi.Device) bool {
	for _, consumed := range d.ConsumesCounters {
		if len(lacking(c[consumed.CounterSet], consumed.Counters)) > 0 {
			return false
		}
	}
	return true
}

// clone returns counters that can be changed without the first ones.
func (c Counters) clone() Counters {
	out := make(Counters, len(c))
	for name, set := range c {
		out[name] = maps.Clone(set)
	}
	return out
}

// subtract takes counters off what is left, and says whether there was too little.
func subtract(left, taken map[string]resourceapi.Counter) (over bool) {
	for name, c := range taken {
		rest := left[name].Value.DeepCopy()
		rest.Sub(c.Value)
		if rest.Sign() < 0 {
			over = true
			rest.Set(0)
		}
		left[name] = resourceapi.Counter{Value: rest}
	}
	return over
}

// lacking is what a device needs beyond what is left.
func lacking(left, needed map[string]resourceapi.Counter) map[string]resourceapi.Counter {
	lacks := map[string]resourceapi.Counter{}
	for name, c := range needed {
		short := c.Value.DeepCopy()
		short.Sub(left[name].Value)
		if short.Sign() > 0 {
			lacks[name] = resourceapi.Counter{Value: short}
		}
	}
	return lacks
}
