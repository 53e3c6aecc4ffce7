// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
)

// Switch is the chart's value that lets the controller make volumes.
const Switch = "kernelCaches.volumes.enabled"

// Plan is what to do, in the order of its fields, and how far the volumes are.
type Plan struct {
	// Delete are claims and Jobs that are not wanted any more. A claim that a pod uses goes when the pod does.
	Delete []client.Object
	// Mark are digests to note at claims.
	Mark []Mark
	// Create are claims and Jobs.
	Create []client.Object
	// Volumes and what follows are for the object's status: Missing are namespaces that are not there, Messages say what keeps all volumes,
	// and Stuck what somebody has to help on.
	Volumes  []v1alpha1.CacheVolume
	Missing  []string
	Messages []string
	Stuck    []string
	// Pods are those that have a volume with something in it, as far as that was asked.
	Pods []User
}

// User is a pod that has a volume.
type User struct{ Node, Digest string }

// Mark is what is in a claim from now on. An empty digest: nobody knows.
type Mark struct {
	Claim  *corev1.PersistentVolumeClaim
	Digest string
	// Path is the one that its files are made for. Empty: where their producer had them.
	Path string
}

// Settled says that nothing changes by itself: no volume waits for a pod, a Job or a namespace.
func (p Plan) Settled() bool {
	return len(p.Delete)+len(p.Mark)+len(p.Create) == 0 && !slices.ContainsFunc(p.Volumes, func(v v1alpha1.CacheVolume) bool {
		return v.Phase != v1alpha1.CacheVolumeFilled || v.Message != ""
	})
}

// Make plans an object's volumes. Nothing is done for one that is being deleted: the garbage collector has word from the owner references.
func Make(o Object, options Options, w World) Plan {
	p := Plan{}
	switch {
	case o.Deleting:
		return p
	case !options.Enabled:
		if o.Wants() {
			p.Stuck = append(p.Stuck, fmt.Sprintf("distribution.type %s: no volumes are made: set %s of the chart to true, which lets the "+
				"controller make PersistentVolumeClaims and Jobs in all namespaces, or use distribution.type NodeLocal", o.Type(), Switch))
		}
		return p
	}
	var all []v1alpha1.CacheVolume
	if o.Wants() {
		all, p.Missing = o.wanted(w)
	}
	if o.Wants() && o.digest() == "" {
		p.Messages = append(p.Messages, "no volume is filled before the image is resolved and verified")
	}
	if o.Type() == v1alpha1.CacheRWOPerNode && len(all) == 0 && len(p.Missing) < len(o.Namespaces) {
		p.Messages = append(p.Messages, "no node that runs the driver is to have a volume: look at distribution.nodeSelector")
	}
	p.orphans(o, all, w)
	for _, v := range all {
		s := step{Object: o, options: options, world: w, plan: &p, volume: v}
		s.take()
		s.volume.Message = message.Clip(s.volume.Message, maxMessage)
		p.Volumes = append(p.Volumes, s.volume)
		p.Pods = append(p.Pods, s.pods()...)
	}
	return p
}

// orphans has what is of the object and not wanted deleted: Jobs first, so that none writes to a claim that goes. Those
// of claims that stay are left alone while nobody knows what a changed spec means.
func (p *Plan) orphans(o Object, wanted []v1alpha1.CacheVolume, w World) {
	claims, jobs := map[Key]bool{}, map[Key]bool{}
	for _, v := range wanted {
		claims[Key{v.Namespace, v.ClaimName}], jobs[Key{v.Namespace, v.JobName}] = true, true
	}
	for _, key := range slices.SortedFunc(maps.Keys(w.Jobs), compareKeys) {
		j := w.Jobs[key]
		unknown := !o.current && claims[Key{j.Namespace, j.Annotations[ClaimAnnotation]}]
		if o.ours(j.Labels) && !jobs[key] && !unknown && j.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, j)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(w.Claims), compareKeys) {
		if c := w.Claims[key]; o.ours(c.Labels) && !claims[key] && c.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, c)
		}
	}
}

const (
	// maxMessage is how long the message of a volume may be in a status.
	maxMessage = 1024
	shown      = 3
)

// listed is some of many names.
func listed(names []string) string {
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
