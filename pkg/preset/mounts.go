// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// mounts decides who has which path of the container. The pod's own mount wins over any preset's, since CDI would hide it; of presets
// the later.
func (r *resolver) mounts() {
	for _, containerPath := range slices.Sorted(maps.Keys(r.mounted)) {
		all := r.mounted[containerPath]
		for i := range all {
			for _, key := range all[i].to {
				r.mountAt(key, all, i)
			}
		}
	}
}

// mountAt gives a request the ith of the mounts at one path, unless a container has another there: its own, or a later preset's by this
// or another request.
func (r *resolver) mountAt(key at, all []mounting, i int) {
	m := &all[i]
	if container := r.mountedBy(key, m.mount.ContainerPath); container != "" {
		r.refusals = append(r.refusals, Refusal{
			From: m.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: m.field,
			Message: fmt.Sprintf("container %s mounts something of its own at %s, which stays", container, m.mount.ContainerPath),
		})
		return
	}
	var overrode []Origin
	for j := range all {
		other := &all[j]
		if j == i || equality.Semantic.DeepEqual(other.mount, m.mount) && j < i {
			continue
		}
		reach := slices.ContainsFunc(other.to, func(o at) bool { return r.meet(key, o) })
		switch {
		case !reach:
		case j > i && !equality.Semantic.DeepEqual(other.mount, m.mount):
			return // The later one says that it overrode this.
		case j > i && slices.Contains(other.to, key):
			return // The same is given once.
		case j < i:
			overrode = append(overrode, other.from)
		}
	}
	g := r.given[key]
	g.Mounts = append(g.Mounts, Mount{PresetMount: m.mount, From: m.from, Overrode: overrode})
}

// mountedBy is a container that uses the request and mounts a volume at the path.
func (r *resolver) mountedBy(key at, containerPath string) string {
	if !r.Claims[key.claim].Owned {
		return ""
	}
	for _, c := range r.users[key] {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == containerPath }) {
			return c.Name
		}
	}
	return ""
}
