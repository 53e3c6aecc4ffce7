// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// OfCluster returns an input with the objects of a cluster as they are now.
func OfCluster(c *plan.Cluster) Input {
	in := Input{Nodes: c.Nodes, Slices: c.Slices}
	for _, claim := range c.Claims {
		in.Claims = append(in.Claims, claim)
	}
	slices.SortFunc(in.Claims, func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return in
}

// Allocated returns the claims of a cluster that have devices, as NAMESPACE/NAME.
func Allocated(c *plan.Cluster) map[string]bool {
	out := map[string]bool{}
	for key, claim := range c.Claims {
		if claim.Status.Allocation != nil {
			out[key.String()] = true
		}
	}
	return out
}

// AddReport adds what a plan gave to pods. Claims that had no devices before are marked as new.
func (in *Input) AddReport(report plan.Report, before map[string]bool) {
	in.Pods, in.Problems = report.Pods, report.Problems
	in.New = map[string]bool{}
	for _, claim := range in.Claims {
		if name := claim.Namespace + "/" + claim.Name; claim.Status.Allocation != nil && !before[name] {
			in.New[name] = true
		}
	}
}
