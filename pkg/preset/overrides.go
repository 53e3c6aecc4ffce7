// SPDX-License-Identifier: Apache-2.0

package preset

import "fmt"

// Overrides tells people which preset replaced which value of which other preset, sorted by the value.
func (r *Request) Overrides() []string {
	var out []string
	lost := func(what string, to Origin, origins []Origin) {
		for _, o := range origins {
			out = append(out, fmt.Sprintf("%s of %s overrides that of %s", what, to, o))
		}
	}
	for i := range r.Env {
		v := &r.Env[i]
		winner := v.From[len(v.From)-1]
		lost("variable "+v.Name, winner, v.Overrode)
		if v.OverrodePod {
			out = append(out, fmt.Sprintf("variable %s of %s overrides the pod's", v.Name, winner))
		}
	}
	for i := range r.Mounts {
		lost("the mount at "+r.Mounts[i].ContainerPath, r.Mounts[i].From, r.Mounts[i].Overrode)
	}
	for i := range r.Nodes {
		lost("device node "+r.Nodes[i].Path, r.Nodes[i].From, r.Nodes[i].Overrode)
	}
	for i := range r.Drivers {
		lost("the driver of "+string(r.Drivers[i].Vendor), r.Drivers[i].From, r.Drivers[i].Overrode)
	}
	return out
}
