// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// gpuKind is the kind of a pool with GPUs.
const gpuKind = "gpu"

// nodeCounts sums up what the nodes report of one cache.
type nodeCounts struct {
	Counts v1alpha1.CacheCounts
	// WithGPU is how many nodes have a GPU, and Missing how many of them do not list the newest digest.
	WithGPU, Missing int32
	// Ready is how many nodes have the newest digest and did not report that it fits none of their GPUs. Downloading is how many nodes fetch
	// it, and Unfit how many have no GPU that it fits.
	Ready, Downloading, Unfit int32
	// Fits says that some node has a GPU that the cache fits.
	Fits bool
	// Failures say which nodes failed to get it and why, sorted. Misfits say on which nodes it fits no GPU.
	Failures, Misfits []string

	// Sets of nodes, since a node may have a digest both in its store and in a volume. newest has or tried to get the newest digest, inUse
	// has a pod that uses it, failed could not get it.
	newest, inUse, failed map[string]bool
}

// countNodes adds up what nodes and volumes have of a cache. The newest digest is the resolved one, or that of the image if it was
// resolved to an index.
func countNodes(nodes []v1alpha1.AcceleratorNode, o object, inVolumes volumes.Plan) nodeCounts {
	n := nodeCounts{newest: map[string]bool{}, inUse: map[string]bool{}, failed: map[string]bool{}}
	for i := range nodes {
		node := &nodes[i]
		gpu := hasGPU(node.Status.Pools)
		if gpu {
			n.WithGPU++
		}
		if !n.add(node, o) && gpu {
			n.Missing++
		}
	}
	n.addVolumes(o, inVolumes)
	count := func(set map[string]bool) int32 { return int32(len(set)) }
	n.Counts.Nodes, n.Counts.NodesInUse, n.Counts.NodesError = count(n.newest), count(n.inUse), count(n.failed)
	n.Counts.NodesNotInUse = n.Counts.Nodes - n.Counts.NodesInUse
	slices.Sort(n.Failures)
	slices.Sort(n.Misfits)
	return n
}

// addVolumes adds the volumes of nodes, and the pods that use volumes.
func (n *nodeCounts) addVolumes(o object, p volumes.Plan) {
	for i := range p.Volumes {
		v := &p.Volumes[i]
		if v.Node == "" {
			continue
		}
		if v.Phase == v1alpha1.CacheVolumeFailed {
			n.failed[v.Node], n.newest[v.Node] = true, true
		}
		if v.Digest != "" && isNewest(o.Status, v.Digest) {
			n.newest[v.Node] = true
		}
	}
	for _, pod := range p.Pods {
		n.Counts.PodsRunning++
		if !isNewest(o.Status, pod.Digest) {
			n.Counts.PodsOutdated++
			continue
		}
		n.newest[pod.Node], n.inUse[pod.Node] = true, true
	}
}

// hasGPU says whether a node with these pools has a GPU, published or withheld.
func hasGPU(pools []v1alpha1.PoolStatus) bool {
	return slices.ContainsFunc(pools, func(p v1alpha1.PoolStatus) bool { return p.Kind == gpuKind && p.Devices+p.Withheld > 0 })
}

// add counts what one node reports, and returns whether it lists the newest digest.
func (n *nodeCounts) add(node *v1alpha1.AcceleratorNode, o object) (newest bool) {
	entries := cachesOf(&node.Status, o)
	for i := range entries {
		entry := &entries[i]
		n.Counts.PodsRunning += entry.Claims
		if !isNewest(o.Status, entry.Digest) {
			n.Counts.PodsOutdated += entry.Claims
			continue
		}
		if !newest {
			newest = true
			n.addNewest(node.Name, entry)
		}
	}
	return newest
}

// cachesOf returns what a node reports of a cache.
func cachesOf(s *v1alpha1.AcceleratorNodeStatus, o object) []v1alpha1.NodeCache {
	digests := []string{o.Status.ResolvedDigest}
	if o.Status.Image != nil {
		digests = append(digests, o.Status.Image.Digest)
	}
	return s.CachesOf(o.GetNamespace(), o.GetName(), digests...)
}

func isNewest(s *v1alpha1.GPUKernelCacheStatus, digest string) bool {
	return digest != "" && (digest == s.ResolvedDigest || s.Image != nil && digest == s.Image.Digest)
}

func (n *nodeCounts) addNewest(node string, entry *v1alpha1.NodeCache) {
	n.newest[node] = true
	if entry.Claims > 0 {
		n.inUse[node] = true
	}
	unfit := entry.CompatibleDevices == 0 && entry.IncompatibleDevices > 0
	n.Fits = n.Fits || entry.CompatibleDevices > 0
	text := "node " + node
	if why := strings.Trim(entry.Reason+": "+entry.Message, ": "); why != "" {
		text += ": " + why
	}
	switch {
	case unfit:
		n.Unfit++
		n.Misfits = append(n.Misfits, text)
	case entry.Phase == v1alpha1.NodeCacheError:
		n.Failures = append(n.Failures, text)
	case entry.Phase == v1alpha1.NodeCacheExtracted:
		n.Ready++
	default:
		n.Downloading++
	}
	if unfit || entry.Phase == v1alpha1.NodeCacheError {
		n.failed[node] = true
	}
}

// volumeCounts sums up the volumes of one cache.
type volumeCounts struct {
	Filled, Open int32
	// Failures say which volumes could not be filled, or need an administrator first, sorted. Waits say what the other volumes wait for.
	Failures, Waits []string
}

func countVolumes(s *v1alpha1.GPUKernelCacheStatus, p volumes.Plan) (v volumeCounts) {
	v.Failures, v.Waits = slices.Clone(p.Stuck), slices.Clone(p.Messages)
	for i := range p.Volumes {
		volume := &p.Volumes[i]
		text := fmt.Sprintf("volume claim %s/%s: %s", volume.Namespace, volume.ClaimName, volume.Message)
		switch {
		case volume.Phase == v1alpha1.CacheVolumeFailed:
			v.Failures = append(v.Failures, strings.TrimSuffix(text, ": "))
		case volume.Phase == v1alpha1.CacheVolumeFilled && isNewest(s, volume.Digest):
			v.Filled++
		default:
			v.Open++
			if volume.Message != "" && !slices.Contains(v.Failures, text) {
				v.Waits = append(v.Waits, text)
			}
		}
	}
	slices.Sort(v.Failures)
	return v
}
