// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Origins are the presets that the requests of a claim have something from, by the request without its alternative.
func (f *Feature) Origins(r *record.Record) (map[string][]preset.Origin, error) {
	decided, err := decodeDecision(r.Decisions[f.Name()])
	if err != nil {
		return nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	out := map[string][]preset.Origin{}
	for request := range decided {
		out[request] = decided[request].Presets
	}
	return out, nil
}

// NodeStatus counts, by preset, the claims that have something from any generation of it. A decision that cannot be read counts for none.
func (f *Feature) NodeStatus(claims []*record.Record) []v1alpha1.NodePreset {
	var all [][]preset.Origin
	for _, r := range claims {
		origins, _ := f.Origins(r)
		all = append(all, slices.Concat(slices.Collect(maps.Values(origins))...))
	}
	return countPresets(all)
}

// countPresets counts, by preset, the claims that have something from any generation of it.
func countPresets(claims [][]preset.Origin) []v1alpha1.NodePreset {
	counts := map[preset.Origin]int{}
	for _, origins := range claims {
		seen := map[preset.Origin]bool{}
		for _, o := range origins {
			o.Generation = 0
			if !seen[o] {
				counts[o]++
			}
			seen[o] = true
		}
	}
	var out []v1alpha1.NodePreset
	for o, n := range counts {
		out = append(out, v1alpha1.NodePreset{Namespace: o.Namespace, Name: o.Name, Claims: int32(min(n, math.MaxInt32))})
	}
	slices.SortFunc(out, func(a, b v1alpha1.NodePreset) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
