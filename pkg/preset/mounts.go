// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// deviceNodes decides how each node is given.
func (r *resolver) deviceNodes() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		for _, key := range requestsIn(r.nodes[name]) {
			node, from, overrode := lastIn(r, key, r.nodes[name])
			r.given[key].Nodes = append(r.given[key].Nodes, Node{PresetDeviceNode: node, From: from, Overrode: overrode})
		}
	}
}

// vendorDrivers decides for each vendor where its driver is taken from.
func (r *resolver) vendorDrivers() {
	for _, vendor := range slices.Sorted(maps.Keys(r.drivers)) {
		for _, key := range requestsIn(r.drivers[vendor]) {
			driver, from, overrode := lastIn(r, key, r.drivers[vendor])
			r.given[key].Drivers = append(r.given[key].Drivers, Driver{PresetDriver: driver, From: from, Overrode: overrode})
		}
	}
}

// lastIn returns the last value that is given to the request, or to a request that a container uses together with it, and the presets whose
// values it replaced. As with variables, requests that a container uses together get the same: two versions of a library would break it.
func lastIn[T comparable](r *resolver, key requestKey, all []entry[T]) (value T, from Origin, overrode []Origin) {
	found := false
	for _, e := range slices.Backward(all) {
		switch {
		case !r.inGroup(key, e.to):
		case !found:
			value, from, found = e.value, e.from, true
		case value != e.value:
			overrode = append(overrode, e.from)
		}
	}
	slices.Reverse(overrode)
	return value, from, overrode
}

// mounts decides which mount each path of the container gets. A mount of the pod itself wins over those of presets, since CDI would hide
// it. Among presets the last one wins.
func (r *resolver) mounts() {
	for _, containerPath := range slices.Sorted(maps.Keys(r.mounted)) {
		given := r.mountsAt(containerPath)
		for _, key := range given {
			slices.Reverse(r.lastMount(key).Overrode)
		}
	}
}

// mountsAt decides for one path, and returns the requests that get a mount there.
func (r *resolver) mountsAt(containerPath string) (given []requestKey) {
	for _, m := range slices.Backward(r.mounted[containerPath]) {
		for _, key := range m.to {
			if r.tryMount(key, &m, given) {
				given = append(given, key)
			}
		}
	}
	return given
}

// lastMount returns the mount that the request was given last.
func (r *resolver) lastMount(key requestKey) *Mount {
	all := r.given[key].Mounts
	return &all[len(all)-1]
}

// tryMount gives a request a mount, unless one of its containers has another one at that path: the container's own, or one of a later
// preset by a request that was given one there.
func (r *resolver) tryMount(key requestKey, m *entry[v1alpha1.PresetMount], given []requestKey) bool {
	refuse := func(format string, arguments ...any) {
		r.refusals = append(r.refusals, Refusal{
			From: m.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: m.field, Message: fmt.Sprintf(format, arguments...),
		})
	}
	if container := r.mountingContainer(key, m.value.ContainerPath); container != "" {
		refuse("container %s mounts something of its own at %s, which stays", container, m.value.ContainerPath)
		return false
	}
	won := true
	for _, o := range given {
		other := r.lastMount(o)
		switch {
		case !r.shareContainer(key, o):
		case sameFiles(m, key.claim, other, o.claim):
			won = won && o != key // Each mount is given once.
		case other.From == m.from:
			refuse("a container has the scratch directory of claim %s at %s already", r.Claims[o.claim].Name, m.value.ContainerPath)
			return false
		default:
			won = false
			if !slices.Contains(other.Overrode, m.from) {
				other.Overrode = append(other.Overrode, m.from)
			}
		}
	}
	if won {
		g := r.given[key]
		g.Mounts = append(g.Mounts, Mount{PresetMount: m.value, From: m.from})
	}
	return won
}

// sameFiles reports whether two mounts show the same files. Each claim has a scratch directory of its own.
func sameFiles(m *entry[v1alpha1.PresetMount], claim int, other *Mount, otherClaim int) bool {
	return equality.Semantic.DeepEqual(m.value, other.PresetMount) && (m.value.Scratch == nil || claim == otherClaim)
}

// mountingContainer returns a container that uses the request and mounts a volume at the path, or "".
func (r *resolver) mountingContainer(key requestKey, containerPath string) string {
	if !r.Claims[key.claim].Owned {
		return ""
	}
	for _, c := range r.users[key] {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return absolute(m.MountPath) == containerPath }) {
			return c.Name
		}
	}
	return ""
}

// absolute returns a mount path as kubelet interprets it.
func absolute(mountPath string) string { return path.Clean("/" + mountPath) }
