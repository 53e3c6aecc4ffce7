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

// Node is a node that runs the driver.
type Node struct {
	Name   string
	Labels map[string]string
	// Caches are those that the node reports.
	Caches []v1alpha1.NodeCache
}

// Key names an object in a namespace.
type Key struct{ Namespace, Name string }

// Observed are the objects that a plan depends on.
type Observed struct {
	// Namespaces are those of the object that exist and are not being deleted.
	Namespaces map[string]bool
	// Nodes are those that run the driver.
	Nodes []Node
	// Claims and Jobs are the object's own, and claims of other owners that have the names of its claims.
	Claims map[Key]*corev1.PersistentVolumeClaim
	Jobs   map[Key]*batchv1.Job
	// Pods are those that use one of the claims or belong to one of the Jobs, if the [Reader] read them.
	Pods []corev1.Pod
	// Now is the time of the observation.
	Now time.Time
}

// wanted returns the volumes that the object wants, in the order of namespaces and nodes, and the namespaces that do not exist.
func (o Object) wanted(w Observed) (all []v1alpha1.CacheVolume, missing []string) {
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

// nodes returns the names of the nodes that get a volume.
func (o Object) nodes(w Observed) (names []string) {
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

// misfits says whether the node reports that the cache fits none of its GPUs.
func (o Object) misfits(n Node) bool {
	return slices.ContainsFunc(n.Caches, func(c v1alpha1.NodeCache) bool {
		return c.Namespace == o.Namespace && c.Name == o.Name && o.isNewest(c.Digest) && c.CompatibleDevices == 0 && c.IncompatibleDevices > 0
	})
}

// isNewest says whether a digest that a node reports is the one that volumes get, or that of the image below it.
func (o Object) isNewest(digest string) bool {
	newest := o.digest()
	return newest != "" && (digest == newest || digest == o.Status.Image.Digest)
}

// owns says whether a claim or a Job belongs to the object.
func (o Object) owns(labels map[string]string) bool { return labels[UIDLabel] == string(o.UID) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
