// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
)

// fromCluster reads one claim, and what its presets ask for.
func (f *explainFlags) fromCluster(ctx context.Context, operand string) (source, error) {
	name, err := claimName(operand)
	if err != nil {
		return source{}, err
	}
	client, namespace, err := f.client()
	if err != nil {
		return source{}, err
	}
	r := &clusterReader{
		ctx: ctx, client: client, namespace: namespace,
		Objects: explain.Objects{Driver: v1alpha1.DriverName, Namespaces: map[string]map[string]string{}},
	}
	r.ConfigMap = r.configMap
	r.readPresets()
	r.readClaim(name)
	r.readSlices()
	wanted := func(c *resourceapi.ResourceClaim) bool { return c.Name == name }
	return source{r.Objects, wanted, r.unread}, r.unread()
}

// clusterReader collects objects of a cluster, and what kept it from them.
type clusterReader struct {
	explain.Objects
	ctx       context.Context //nolint:containedctx // it is that of the one call
	client    dynamic.Interface
	namespace string
	errs      []error
}

func (r *clusterReader) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
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
	object, err := r.client.Resource(resource).Namespace(namespace).Get(r.ctx, name, metav1.GetOptions{})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		r.fail("read %s %s: %w", kind, name, err)
	}
	return err == nil
}

func (r *clusterReader) readPresets() {
	own, err := listAll(r.ctx, r.client.Resource(v1alpha1.GroupVersion.WithResource("devicepresets")).Namespace(r.namespace))
	if err != nil {
		r.errs = append(r.errs, absent("DevicePresets", err))
	}
	for i := range own {
		r.addPreset(&own[i])
	}
	ofCluster, err := listAll(r.ctx, r.client.Resource(v1alpha1.GroupVersion.WithResource("clusterdevicepresets")))
	if err != nil {
		r.errs = append(r.errs, absent("ClusterDevicePresets", err))
	}
	for i := range ofCluster {
		r.addPreset(&ofCluster[i])
	}
	// Who may not see its own namespace has the answer without its labels, and is told.
	n, err := r.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(r.ctx, r.namespace, metav1.GetOptions{})
	switch {
	case err == nil:
		r.Namespaces[r.namespace] = n.GetLabels()
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

// readClaim reads the claim, the pod that owns it, and what else the pod has.
func (r *clusterReader) readClaim(name string) {
	c := r.oneClaim(name)
	if c == nil {
		return
	}
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.Kind != "Pod" {
		return
	}
	pod := &corev1.Pod{}
	if !r.get("pod", corev1.SchemeGroupVersion.WithResource("pods"), r.namespace, owner.Name, pod) {
		return // Explain says what is missing
	}
	r.Pods = append(r.Pods, pod)
	for _, sibling := range preset.ClaimsOf(pod) {
		if sibling != name {
			r.oneClaim(sibling)
		}
	}
}

func (r *clusterReader) oneClaim(name string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	before := len(r.errs)
	if !r.get("claim", resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), r.namespace, name, c) {
		if len(r.errs) == before {
			r.fail("there is no claim %s in namespace %s", name, r.namespace)
		}
		return nil
	}
	r.Claims = append(r.Claims, c)
	return c
}

func (r *clusterReader) readSlices() {
	resources := r.client.Resource(resourceapi.SchemeGroupVersion.WithResource("resourceslices"))
	all, err := listAll(r.ctx, resources)
	if err != nil && !apierrors.IsForbidden(err) { // Explain says what CEL does not see
		r.fail("list the ResourceSlices: %w", err)
	}
	for i := range all {
		s := &resourceapi.ResourceSlice{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(all[i].Object, s); err != nil {
			r.fail("read ResourceSlice %s: %w", all[i].GetName(), err)
			continue
		}
		if s.Spec.Driver == v1alpha1.DriverName {
			r.Slices = append(r.Slices, s)
		}
	}
}
