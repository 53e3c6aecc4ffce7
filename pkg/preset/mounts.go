// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// deviceNodes decides how each node is given. As with variables, the requests that containers use together say the same.
func (r *resolver) deviceNodes() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		all := r.nodes[name]
		for _, key := range receivers(all, func(n noding) []at { return n.to }) {
			var node Node
			for _, n := range slices.Backward(all) {
				switch {
				case !r.grouped(key, n.to):
				case node.Path == "":
					node = Node{PresetDeviceNode: n.node, From: n.from}
				case node.PresetDeviceNode != n.node:
					node.Overrode = append(node.Overrode, n.from)
				}
			}
			slices.Reverse(node.Overrode)
			r.given[key].Nodes = append(r.given[key].Nodes, node)
		}
	}
}

// mounts decides who has which path of the container. The pod's own mount wins over any preset's, since CDI would hide it; of presets
// the later that is given at all.
func (r *resolver) mounts() {
	for _, containerPath := range slices.Sorted(maps.Keys(r.mounted)) {
		var given []at
		for _, m := range slices.Backward(r.mounted[containerPath]) {
			for _, key := range m.to {
				if r.mountAt(key, &m, given) {
					given = append(given, key)
				}
			}
		}
		for _, key := range given {
			slices.Reverse(r.mountOf(key).Overrode)
		}
	}
}

// mountOf is what the request was given last.
func (r *resolver) mountOf(key at) *Mount {
	all := r.given[key].Mounts
	return &all[len(all)-1]
}

// mountAt gives a request a mount, unless one of its containers has another there: its own, or a later preset's by one of the requests
// that were given one at this path.
func (r *resolver) mountAt(key at, m *mounting, given []at) bool {
	refuse := func(format string, arguments ...any) {
		r.refusals = append(r.refusals, Refusal{
			From: m.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: m.field, Message: fmt.Sprintf(format, arguments...),
		})
	}
	if container := r.mountedBy(key, m.mount.ContainerPath); container != "" {
		refuse("container %s mounts something of its own at %s, which stays", container, m.mount.ContainerPath)
		return false
	}
	won := true
	for _, o := range given {
		other := r.mountOf(o)
		switch {
		case !r.meet(key, o):
		case same(m, key.claim, other, o.claim):
			won = won && o != key // The same is given once.
		case other.From == m.from:
			refuse("a container has the scratch directory of claim %s at %s already", r.Claims[o.claim].Name, m.mount.ContainerPath)
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
		g.Mounts = append(g.Mounts, Mount{PresetMount: m.mount, From: m.from})
	}
	return won
}

// same says whether two mounts show the same files. A scratch directory is the claim's own.
func same(m *mounting, claim int, other *Mount, otherClaim int) bool {
	return equality.Semantic.DeepEqual(m.mount, other.PresetMount) && (m.mount.Scratch == nil || claim == otherClaim)
}

// mountedBy is a container that uses the request and mounts a volume at the path.
func (r *resolver) mountedBy(key at, containerPath string) string {
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

// absolute is a mount path as kubelet takes it.
func absolute(mountPath string) string { return path.Clean("/" + mountPath) }
