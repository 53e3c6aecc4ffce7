// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// added is what claims have from presets, and which caches, a list for each claim.
type added struct {
	presets [][]preset.Origin
	caches  [][]caches.Use
}

// addedTo looks at the records of claims. A claim whose record cannot be understood has nothing.
func (p *Plugin) addedTo(uids []string) (*added, error) {
	var all added
	for _, uid := range uids {
		r, err := p.store.Load(uid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, record.ErrDamaged) || errors.Is(err, record.ErrForeign) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all.presets = append(all.presets, presetsOfRecord(r))
		all.caches = append(all.caches, cachesOfRecord(r))
	}
	return &all, nil
}

// cachesOfRecord are the caches that the requests of a claim have.
func cachesOfRecord(r *record.Record) []caches.Use {
	var out []caches.Use
	for i := range r.Devices {
		if added := r.Devices[i].Preset; added != nil {
			uses, _ := usesIn(added.Given) // what cannot be read counts for none
			out = append(out, uses...)
		}
	}
	return out
}

// presetsOfRecord are the presets that the requests of a claim have something from.
func presetsOfRecord(r *record.Record) []preset.Origin {
	var out []preset.Origin
	for i := range r.Devices {
		added := r.Devices[i].Preset
		if added == nil {
			continue
		}
		var request preset.Request
		if err := json.Unmarshal(added.Given, &request); err == nil {
			out = append(out, request.Presets...)
		}
	}
	return out
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
		out = append(out, v1alpha1.NodePreset{Namespace: o.Namespace, Name: o.Name, Claims: count(n)})
	}
	slices.SortFunc(out, func(a, b v1alpha1.NodePreset) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
