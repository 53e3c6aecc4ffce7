// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// sorts counts alike devices, in the order in which they are published: the whole one first.
func (d *drawing) sorts() []Sort {
	var out []Sort
	for i := range d.devices {
		one := &d.devices[i]
		name := d.sortOf(one)
		at := slices.IndexFunc(out, func(s Sort) bool { return s.Name == name })
		if at < 0 {
			at = len(out)
			out = append(out, Sort{Name: name, Size: sizeOf(one)})
		}
		out[at].add(one)
	}
	return out
}

func (s *Sort) add(d *usage.Device) {
	s.Total++
	switch {
	case d.State == usage.StateHeld || d.State == usage.StateShared:
		s.Held++
	case d.State == usage.StateTaken:
		s.Taken++
	case d.State == usage.StateUnknown || keepsOff(d.Taints):
		s.Unusable++
	default:
		s.Free++
	}
}

// published sums sorts up: "26 devices: 9 free, 2 held, 15 taken by others".
func published(sorts []Sort) string {
	var all Sort
	for _, s := range sorts {
		all.Total += s.Total
		all.Free += s.Free
		all.Held += s.Held
		all.Taken += s.Taken
		all.Unusable += s.Unusable
	}
	if all.Free == all.Total {
		return plural(all.Total, "device") + ", all free"
	}
	return plural(all.Total, "device") + ": " + list(count(all.Free, "free"), count(all.Held, "held"),
		count(all.Taken, "overlap"), count(all.Unusable, "not usable"))
}

// claims are what is known of claims, by NAMESPACE/NAME.
type claims map[string]claimInfo

type claimInfo struct {
	// pods are those that use it.
	pods  string
	isNew bool
}

func claimsOf(in Input) claims {
	out := claims{}
	for _, c := range in.Claims {
		name := c.Namespace + "/" + c.Name
		out[name] = claimInfo{podsOf(c), in.New[name]}
	}
	return out
}

// podsOf names the pods that use a claim: "pod train", "pods a, b and 3 more". The claim says in which namespace.
func podsOf(c *resourceapi.ResourceClaim) string {
	var names []string
	for _, consumer := range c.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			names = append(names, consumer.Name)
		}
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return "no pod"
	case len(names) == 1:
		return "pod " + names[0]
	case len(names) > 3:
		return fmt.Sprintf("pods %s and %d more", strings.Join(names[:2], ", "), len(names)-2)
	}
	return "pods " + strings.Join(names, ", ")
}
