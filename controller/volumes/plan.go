// SPDX-License-Identifier: Apache-2.0

// Package volumes puts kernel caches into volumes: one PersistentVolumeClaim a namespace for ROXVolume, one a namespace and node for
// RWOPerNode, and the Jobs that fill them. [Make] plans from the cache and the observed objects alone, [Reader] reads these objects, and
// the reconciler carries plans out.
//
// A claim's files never change under a pod: a Job writes another digest into a claim only while no pod uses it. PersistentVolumes come
// from the provisioner of the storage class or from an administrator.
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

// Switch is the value of the chart that lets the controller make volumes.
const Switch = "kernelCaches.volumes.enabled"

// Plan lists what to do, in the order of its fields, and describes the volumes for the status.
type Plan struct {
	// Delete are claims and Jobs that are not wanted any more. Kubernetes deletes a claim that a pod uses after the pod.
	Delete []client.Object
	// Mark are digests to write to claims' annotations.
	Mark []Mark
	// Create are claims and Jobs.
	Create []client.Object
	// Volumes and the fields below are for the status. Missing are namespaces that do not exist, Messages say what all volumes wait for, and
	// Stuck says what an administrator has to solve.
	Volumes  []v1alpha1.CacheVolume
	Missing  []string
	Messages []string
	Stuck    []string
	// Pods use a filled volume. Empty if the [Reader] did not read them.
	Pods []User
}

// User is a pod that uses a volume.
type User struct{ Node, Digest string }

// Mark says what a claim holds from now on. An empty digest is an unknown content.
type Mark struct {
	Claim  *corev1.PersistentVolumeClaim
	Digest string
	// Path is the one for which its files are made, empty for the path of their producer.
	Path string
}

// Settled says that no volume waits for a pod, a Job or a namespace.
func (p Plan) Settled() bool {
	return len(p.Delete)+len(p.Mark)+len(p.Create) == 0 && !slices.ContainsFunc(p.Volumes, func(v v1alpha1.CacheVolume) bool {
		return v.Phase != v1alpha1.CacheVolumeFilled || v.Message != ""
	})
}

// Make plans the volumes of a cache. It plans nothing for a cache that is being deleted: the garbage collector follows the owner
// references.
func Make(o Object, options Options, w Observed) Plan {
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
		s := step{Object: o, options: options, observed: w, plan: &p, volume: v}
		s.decide()
		s.volume.Message = message.Clip(s.volume.Message, maxMessage)
		p.Volumes = append(p.Volumes, s.volume)
		p.Pods = append(p.Pods, s.pods()...)
	}
	return p
}

// orphans plans the deletion of claims and Jobs of the object that are not wanted: Jobs first, so that none writes to a claim that is
// deleted, or that somebody else has made in its place. Jobs of claims that stay are kept until the controller has resolved a changed spec.
func (p *Plan) orphans(o Object, wanted []v1alpha1.CacheVolume, w Observed) {
	claims, jobs := map[Key]bool{}, map[Key]bool{}
	for _, v := range wanted {
		claims[Key{v.Namespace, v.ClaimName}], jobs[Key{v.Namespace, v.JobName}] = true, true
	}
	for _, key := range slices.SortedFunc(maps.Keys(w.Jobs), compareKeys) {
		j := w.Jobs[key]
		fills := Key{j.Namespace, j.Annotations[ClaimAnnotation]}
		unknown, claim := !o.current && claims[fills], w.Claims[fills]
		foreign := claim != nil && !o.owns(claim.Labels)
		if o.owns(j.Labels) && (foreign || !jobs[key] && !unknown) && j.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, j)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(w.Claims), compareKeys) {
		if c := w.Claims[key]; o.owns(c.Labels) && !claims[key] && c.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, c)
		}
	}
}

const (
	// maxMessage is how long the message of a volume may be in a status.
	maxMessage = 1024
	shown      = 3
)

// firstOf joins the first names and says how many more there are.
func firstOf(names []string) string {
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
