// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/pkg/admission"
)

// references reads the objects that a claim, template or class names, as they are now, and judges it by them. Prepare checks them again.
type references struct {
	reader client.Reader
	judge  *admission.Judge
	shares *shares
}

// check returns the faults that stay unless another object changes. It warns of what has no effect, of selectors that no device matches,
// and of objects that are refused or do not exist yet: objects may be created in any order.
func (r references) check(ctx context.Context, namespace string, object runtime.Object) (faults field.ErrorList, warnings []string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.reader = r.shares.reader(r.reader, namespace)
	if pod, ok := object.(*corev1.Pod); ok {
		return nil, r.pod(ctx, namespace, pod)
	}
	if stack, ok := object.(*v1alpha1.AcceleratorStack); ok {
		return nil, r.stack(ctx, stack)
	}
	return r.claim(ctx, namespace, object)
}

// stack warns of classes that do not exist: nodes fail the state ClaimChecked until they do.
func (r references) stack(ctx context.Context, stack *v1alpha1.AcceleratorStack) (warnings []string) {
	if stack.Spec.Check == nil {
		return nil
	}
	path := field.NewPath("spec", "check", "deviceClassNames")
	for i, name := range stack.Spec.Check.DeviceClassNames {
		switch err := r.reader.Get(ctx, client.ObjectKey{Name: name}, &resourceapi.DeviceClass{}); {
		case apierrors.IsNotFound(err):
			warnings = append(warnings, fmt.Sprintf("%s: DeviceClass %s does not exist: no claim of it can be checked until it does",
				path.Index(i), name))
		case err != nil:
			klog.FromContext(ctx).Error(err, "A class that a stack names was not checked", "class", name)
		}
	}
	return warnings
}

// claim judges a claim, template or class.
func (r references) claim(ctx context.Context, namespace string, object runtime.Object) (faults field.ErrorList, warnings []string) {
	known := admission.Known{
		Classes: r.classes(ctx, object), Bitstreams: map[types.NamespacedName]v1alpha1.CommonFPGABitstream{},
	}
	for _, remark := range r.judge.Ignored(object, known) {
		warnings = append(warnings, remark.String())
	}
	for _, fault := range r.judge.Selectors(object, known) { // the plugins may be newer than the webhook and publish more
		warnings = append(warnings, fault.Field+": "+fault.Detail)
	}
	for _, reference := range admission.References(object, known) {
		fault, warning := r.look(ctx, namespace, reference, known)
		if fault != nil {
			faults = append(faults, fault)
		}
		if warning != "" {
			warnings = append(warnings, reference.Path.String()+": "+warning)
		}
	}
	forbidden, remarks := r.judge.Policies(namespace, object, known)
	for _, remark := range remarks {
		warnings = append(warnings, remark.String())
	}
	return append(faults, forbidden...), warnings
}

// classes reads the DeviceClasses that an object names. One that does not exist is left out: the claim waits for it, whoever makes it.
func (r references) classes(ctx context.Context, object runtime.Object) map[string]*resourceapi.DeviceClass {
	classes := map[string]*resourceapi.DeviceClass{}
	for _, name := range admission.ClassNames(object) {
		class := &resourceapi.DeviceClass{}
		err := r.reader.Get(ctx, client.ObjectKey{Name: name}, class)
		switch {
		case err == nil:
			classes[name] = class
		case !apierrors.IsNotFound(err) && worthALine(err):
			klog.FromContext(ctx).Error(err, "A claim was not judged by its DeviceClass", "class", name)
		}
	}
	return classes
}

// look reads a bitstream or kernel cache that an object names, and says what keeps pods from having it. A bitstream that was read is added
// to known.Bitstreams.
func (r references) look(
	ctx context.Context, namespace string, reference admission.Reference, known admission.Known,
) (fault *field.Error, warning string) {
	key := client.ObjectKey{Namespace: namespace, Name: reference.Name}
	var verdict *v1alpha1.ImageVerdict
	var allowed bool
	var err error
	switch reference.Kind {
	case v1alpha1.KindGPUKernelCache, v1alpha1.KindClusterGPUKernelCache:
		var cache v1alpha1.CommonGPUKernelCache
		if cache, err = pairs.KernelCache(ctx, r.reader, keyOf(key, reference.Kind == v1alpha1.KindClusterGPUKernelCache)); err == nil {
			verdict, allowed = cache.Refused(), namespace == "" || cache.AllowsNamespace(namespace)
		}
	default:
		var bitstream v1alpha1.CommonFPGABitstream
		if bitstream, err = pairs.Bitstream(ctx, r.reader, keyOf(key, reference.Kind == v1alpha1.KindClusterFPGABitstream)); err == nil {
			verdict, allowed = bitstream.Refused(), namespace == "" || bitstream.AllowsNamespace(namespace)
			known.Bitstreams[bitstream.Key()] = bitstream
		}
	}
	what, pods := reference.Kind+" "+reference.Name, "pods wait"
	if reference.Optional {
		pods = "pods start without it"
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("%s does not exist: %s until it does", what, pods)
	case err != nil:
		if worthALine(err) {
			klog.FromContext(ctx).Error(err, "An object that a claim names was not checked", "kind", reference.Kind, "object", key)
		}
		return nil, ""
	case !allowed && reference.Kind == v1alpha1.KindClusterFPGABitstream:
		return field.Forbidden(reference.Path, fmt.Sprintf("%s is not for namespace %s: name another, "+
			"or ask an administrator to add the namespace to its spec.namespaces", what, namespace)), ""
	case !allowed:
		return nil, fmt.Sprintf("%s is not for namespace %s, so %s: ask its owner to add the namespace to its spec.workloadNamespaces",
			what, namespace, pods)
	case verdict != nil:
		return nil, fmt.Sprintf("%s is refused, so %s: %s", what, pods, verdict.Message)
	}
	return nil, ""
}

// keyOf returns the key of an object of a pair of kinds: that of the cluster has no namespace.
func keyOf(key client.ObjectKey, ofCluster bool) client.ObjectKey {
	if ofCluster {
		key.Namespace = ""
	}
	return key
}
