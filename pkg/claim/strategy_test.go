// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// TestStrategy: a claim chooses over its class, the parameters of a strategy come from either, the defaults are those of the chosen one.
func TestStrategy(t *testing.T) {
	const (
		limits = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":50,` +
			`"pinnedMemoryLimit":"1Gi"}}}`
		users = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"mps":{"multiUser":true}}}`
	)
	for _, tc := range []struct {
		name    string
		config  []apiConfig
		want    GPUEffective
		setting string
	}{
		{"none", nil, GPUEffective{Strategy: v1alpha1.SharingExclusive}, "strategy Exclusive"},
		{
			"default interval",
			[]apiConfig{own(sliced)},
			GPUEffective{Strategy: v1alpha1.SharingTimeSlicing, Interval: v1alpha1.IntervalDefault},
			"strategy TimeSlicing, interval Default",
		},
		{
			"interval of the claim",
			[]apiConfig{class(sliced), own(interval)},
			GPUEffective{Strategy: v1alpha1.SharingTimeSlicing, Interval: v1alpha1.IntervalLong},
			"strategy TimeSlicing, interval Long",
		},
		{
			"interval of the class",
			[]apiConfig{class(interval), own(sliced)},
			GPUEffective{Strategy: v1alpha1.SharingTimeSlicing, Interval: v1alpha1.IntervalLong},
			"strategy TimeSlicing, interval Long",
		},
		{"class's interval without use", []apiConfig{class(interval)}, GPUEffective{Strategy: v1alpha1.SharingExclusive}, "strategy Exclusive"},
		{
			"MPS over time slices",
			[]apiConfig{class(sliced), class(interval), own(mps)},
			GPUEffective{Strategy: v1alpha1.SharingMPS, MPS: &MPSEffective{ActiveThreadPercentage: 100}},
			"strategy MPS",
		},
		{
			"limits of the class",
			[]apiConfig{class(limits), own(users)},
			GPUEffective{Strategy: v1alpha1.SharingMPS, MPS: &MPSEffective{ActiveThreadPercentage: 50, PinnedMemoryLimit: 1 << 30, MultiUser: true}},
			"strategy MPS",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Resolve(Input{
				Claim: allocated([]apiResult{result("main", "gpu", "g0")}, tc.config...), Driver: driver, Node: node,
			})
			if err != nil {
				t.Fatal(err)
			}
			r := got.Results[0]
			if diff := cmp.Diff(tc.want, *r.Config.GPU); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			r.ShareID = new(types.UID("s"))
			if r.Setting() != tc.setting {
				t.Errorf("setting %q, want %q", r.Setting(), tc.setting)
			}
		})
	}
}
