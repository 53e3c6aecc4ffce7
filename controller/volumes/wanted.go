// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Node is one that runs the driver.
type Node struct {
	Name   string
	Labels map[string]string
	// Caches are those that the node told of.
	Caches []v1alpha1.NodeCache
}

// Key is an object in a namespace.
type Key struct{ Namespace, Name string }

// World is what is there.
type World struct {
	// Namespaces are those of the object's that are there, without those that are being deleted.
	Namespaces map[string]bool
	// Nodes are those that run the driver.
	Nodes []Node
	// Claims and Jobs are the object's own, and whatever else has the names of its claims.
	Claims map[Key]*corev1.PersistentVolumeClaim
	Jobs   map[Key]*batchv1.Job
	// Pods are those that have one of the claims or are of one of the Jobs, as far as that was asked.
	Pods []corev1.Pod
	// Now is when that was so.
	Now time.Time
}

// wanted are the volumes that there should be, in the order of namespaces and nodes, and the namespaces that are not there.
func (o Object) wanted(w World) (all []v1alpha1.CacheVolume, missing []string) {
	nodes := []string{""}
	if o.Type() == v1alpha1.CacheRWOPerNode {
		nodes = o.nodes(w)
	}
	for _, namespace := range slices.Sorted(slices.Values(o.Namespaces)) {
		if !w.Namespaces[namespace] {
			missing = append(missing, namespace)
			continue
		}
		for _, node := range nodes {
			claim := ClaimName(o.Name, node)
			v := v1alpha1.CacheVolume{Namespace: namespace, Node: node, ClaimName: claim}
			if digest := o.digest(); digest != "" {
				v.JobName = JobName(claim, digest, o.path())
			}
			all = append(all, v)
		}
	}
	return all, missing
}

// nodes are the names of those that are to have a volume.
func (o Object) nodes(w World) (names []string) {
	selector := labels.Everything()
	if d := o.Spec.Distribution; d != nil && len(d.NodeSelector) > 0 {
		selector = labels.SelectorFromSet(d.NodeSelector)
	}
	for _, n := range w.Nodes {
		if selector.Matches(labels.Set(n.Labels)) && !o.misfits(n) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// misfits says whether the node knows that none of its GPUs is one that the cache is for.
func (o Object) misfits(n Node) bool {
	return slices.ContainsFunc(n.Caches, func(c v1alpha1.NodeCache) bool {
		return c.Namespace == o.Namespace && c.Name == o.Name && o.isNewest(c.Digest) && c.CompatibleDevices == 0 && c.IncompatibleDevices > 0
	})
}

// isNewest says whether a digest that a node tells is what volumes are to have, or the image below that.
func (o Object) isNewest(digest string) bool {
	newest := o.digest()
	return newest != "" && (digest == newest || digest == o.Status.Image.Digest)
}

// ours says whether a claim or a Job is of the object.
func (o Object) ours(labels map[string]string) bool { return labels[UIDLabel] == string(o.UID) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
