// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
)

// fromCluster reads a claim, or a pod with its claims, and what the presets ask for.
func (f *explainFlags) fromCluster(ctx context.Context, operand string, stderr io.Writer) (source, error) {
	t, err := parseTarget(operand)
	if err != nil {
		return source{}, err
	}
	client, namespace, err := f.client()
	if err != nil {
		return source{}, err
	}
	r := &clusterReader{
		ctx: ctx, client: client, namespace: namespace, stderr: stderr,
		Objects: explain.Objects{Driver: v1alpha1.DriverName, Namespaces: map[string]map[string]string{}},
	}
	r.ConfigMap = r.configMap
	r.readPresets()
	names := r.readTarget(t)
	r.readSlices()
	wanted := func(c *resourceapi.ResourceClaim) bool { return slices.Contains(names, c.Name) }
	return source{r.Objects, wanted, r.unread}, r.unread()
}

// clusterReader collects objects of a cluster, and what kept it from them.
type clusterReader struct {
	explain.Objects
	ctx       context.Context //nolint:containedctx // it is that of the one call
	client    *reader
	namespace string
	stderr    io.Writer
	errs      []error
}

func (r *clusterReader) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// lack is a failure for what may still come.
func (r *clusterReader) lack(format string, args ...any) {
	r.errs = append(r.errs, notThereError{fmt.Errorf(format, args...)})
}

func (r *clusterReader) unread() error { return errors.Join(r.errs...) }

// configMap reads one when a preset asks for it.
func (r *clusterReader) configMap(namespace, name string) (map[string]string, bool) {
	var m corev1.ConfigMap
	ok := r.get("ConfigMap", corev1.SchemeGroupVersion.WithResource("configmaps"), namespace, name, &m)
	return m.Data, ok
}

// get reads an object, and says whether it is there.
func (r *clusterReader) get(kind string, resource schema.GroupVersionResource, namespace, name string, into any) bool {
	err := r.client.get(r.ctx, resource, namespace, name, into)
	if err != nil && !apierrors.IsNotFound(err) {
		r.fail("read %s %s: %w", kind, name, err)
	}
	return err == nil
}

func (r *clusterReader) readPresets() {
	own, err := r.client.list(r.ctx, v1alpha1.GroupVersion.WithResource("devicepresets"), r.namespace)
	if err != nil {
		r.errs = append(r.errs, absent("DevicePresets", err))
	}
	for i := range own {
		r.addPreset(&own[i])
	}
	ofCluster, err := r.client.list(r.ctx, v1alpha1.GroupVersion.WithResource("clusterdevicepresets"), "")
	if err != nil {
		r.errs = append(r.errs, absent("ClusterDevicePresets", err))
	}
	for i := range ofCluster {
		r.addPreset(&ofCluster[i])
	}
	// Who may not see its own namespace has the answer without its labels, and is told.
	var n corev1.Namespace
	err = r.client.get(r.ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "", r.namespace, &n)
	switch {
	case err == nil:
		r.Namespaces[r.namespace] = n.Labels
	case !apierrors.IsForbidden(err):
		r.fail("read namespace %s: %w", r.namespace, err)
	}
}

// addPreset decodes a preset of either kind.
func (r *clusterReader) addPreset(object *unstructured.Unstructured) {
	p, err := v1alpha1.DecodeDevicePreset(object)
	if err != nil {
		r.fail("read %w", err)
	}
	r.Presets = append(r.Presets, preset.Of(p))
}

// readTarget reads what is to be explained and returns the names of the claims.
func (r *clusterReader) readTarget(t target) []string {
	before := len(r.errs)
	switch t.kind {
	case kindClaim:
		return r.readClaim(t.name)
	case kindPod:
		return r.readPod(t.name)
	}
	if c, pod := r.oneClaim(t.name), r.onePod(t.name); c != nil {
		if pod != nil && !slices.Contains(preset.ClaimsOf(pod), t.name) {
			fmt.Fprintf(r.stderr, "note: this is claim %s; there is a pod %[1]s too, see pod/%[1]s\n", t.name)
		}
		r.Claims, r.Pods = nil, nil
		return r.readClaim(t.name)
	} else if pod != nil {
		r.Pods = nil
		return r.readPod(t.name)
	}
	if len(r.errs) == before {
		r.lack("there is neither a claim nor a pod %s in namespace %s", t.name, r.namespace)
	}
	return nil
}

// readClaim reads a claim, the pod that owns it or the pods that share it, and what else the owner has.
func (r *clusterReader) readClaim(name string) []string {
	c := r.oneClaim(name)
	if c == nil {
		r.missing(kindClaim, name)
		return nil
	}
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.Kind != "Pod" {
		for _, user := range c.Status.ReservedFor {
			if user.APIGroup == "" && user.Resource == "pods" {
				r.onePod(user.Name)
			}
		}
		return []string{name}
	}
	if pod := r.onePod(owner.Name); pod != nil { // Explain says what is missing
		r.readSiblings(pod, name)
	}
	return []string{name}
}

// readPod reads a pod and its claims, whose names it returns.
func (r *clusterReader) readPod(name string) []string {
	pod := r.onePod(name)
	if pod == nil {
		r.missing(kindPod, name)
		return nil
	}
	names := preset.ClaimsOf(pod)
	switch {
	case len(names) > 0:
		r.readSiblings(pod, "")
	case len(pod.Spec.ResourceClaims) > 0:
		r.lack("pod %s waits for its claims to be made: see kubectl describe pod %[1]s", name)
	default:
		r.fail("pod %s uses no claim, and presets are for what a claim holds: see spec.resourceClaims of a pod", name)
	}
	return names
}

// readSiblings reads the claims of a pod, but for one that was read.
func (r *clusterReader) readSiblings(pod *corev1.Pod, read string) {
	for _, name := range preset.ClaimsOf(pod) {
		if name != read && r.oneClaim(name) == nil {
			r.missing(kindClaim, name)
		}
	}
}

// missing tells that an object is not there, unless reading it failed.
func (r *clusterReader) missing(kind, name string) {
	if len(r.errs) == 0 {
		r.lack("there is no %s %s in namespace %s", kind, name, r.namespace)
	}
}

func (r *clusterReader) onePod(name string) *corev1.Pod {
	pod := &corev1.Pod{}
	if !r.get(kindPod, corev1.SchemeGroupVersion.WithResource("pods"), r.namespace, name, pod) {
		return nil
	}
	r.Pods = append(r.Pods, pod)
	return pod
}

func (r *clusterReader) oneClaim(name string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	if !r.get(kindClaim, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), r.namespace, name, c) {
		return nil
	}
	r.Claims = append(r.Claims, c)
	return c
}

// readSlices reads the slices of the pools that the claims have devices of, on the nodes where the claims have them.
func (r *clusterReader) readSlices() {
	pools := poolsOf(r.Claims)
	for _, node := range nodesOfClaims(r.Claims) {
		read, err := listOf(r.ctx, r.client, resourceSlices(), choice[resourceapi.ResourceSlice]{
			fields: ownSlices(node), keep: func(s *resourceapi.ResourceSlice) bool { return pools[poolOf(s)] },
		})
		if err != nil && !apierrors.IsForbidden(err) { // Explain says what CEL does not see
			r.fail("list the ResourceSlices: %w", err)
		}
		r.Slices = append(r.Slices, read...)
	}
}

// nodesOfClaims returns the nodes on which claims have their devices, each once. It is one empty name if a claim does not say it.
func nodesOfClaims(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		node, known := onlyNode(claim.Status.Allocation.NodeSelector)
		if !known {
			return []string{""}
		}
		if !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	return out
}

// onlyNode returns the one node that a selector names, as the scheduler writes it for devices of a node.
func onlyNode(selector *corev1.NodeSelector) (string, bool) {
	if selector == nil || len(selector.NodeSelectorTerms) != 1 {
		return "", false
	}
	fields := selector.NodeSelectorTerms[0].MatchFields
	if len(fields) != 1 || fields[0].Key != metav1.ObjectNameField || fields[0].Operator != corev1.NodeSelectorOpIn {
		return "", false
	}
	if len(fields[0].Values) != 1 {
		return "", false
	}
	return fields[0].Values[0], true
}
