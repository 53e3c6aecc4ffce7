// SPDX-License-Identifier: Apache-2.0

// Package webhook answers the API server's reviews of PartitionPolicies, of the objects that may carry a Fettle configuration, and of pods
// that name claims. Package admission decides what is valid; this package decodes, asks and answers. If it cannot decide it admits the
// object, since the node checks
// again.
package webhook

import (
	"context"
	"fmt"
	"runtime/debug"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// PathPrefix is where the reviews arrive; a secret follows it.
const PathPrefix = "/validate-config/"

// PodsPathPrefix is where new pods arrive that may be changed; the same secret follows it.
const PodsPathPrefix = "/mutate-pods/"

// The verdicts that Observe gets.
const (
	Allowed   = "allowed"
	Denied    = "denied"
	Undecided = "undecided"
)

// Handler answers reviews of resource.k8s.io/v1 ResourceClaims, ResourceClaimTemplates and DeviceClasses, of PartitionPolicies,
// AcceleratorStacks and Pods.
type Handler struct {
	// Validate returns every fault of a PartitionPolicy or AcceleratorStack, or of the Fettle configurations in another of these objects,
	// with the path of its field.
	Validate func(runtime.Object) field.ErrorList
	// Refer checks the objects that a valid object of a namespace names. It may be nil.
	Refer func(ctx context.Context, namespace string, object runtime.Object) (faults field.ErrorList, warnings []string)
	// Observe is called with each verdict.
	Observe func(resource, verdict string)
	// shares limits the reviews of one namespace. Nil: they are not limited.
	shares *shares
}

// Handle answers one review. If the webhook itself fails it admits the object with a warning, so that no fault of Fettle keeps objects
// out.
func (h Handler) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	verdict := Undecided
	defer func() {
		if fault := recover(); fault != nil {
			klog.FromContext(ctx).Error(nil, "Panic in the review of a configuration", "resource", req.Resource.Resource,
				"namespace", req.Namespace, "name", req.Name, "panic", fault, "stack", string(debug.Stack()))
			verdict, response = Undecided, undecided("the webhook had an internal fault")
		}
		h.Observe(label(req.Resource.Resource), verdict)
	}()
	done, ok := h.shares.take(&req)
	if !ok {
		return undecided(busy)
	}
	defer done()
	verdict, response = h.review(ctx, req)
	return response
}

// label returns the resource if it is one of those that the webhook is for: a metric has a series for each.
func label(resource string) string {
	switch resource {
	case "resourceclaims", "resourceclaimtemplates", "deviceclasses", "partitionpolicies", "acceleratorstacks", "pods":
		return resource
	}
	return "other"
}

// review decodes and validates.
func (h Handler) review(ctx context.Context, req admission.Request) (string, admission.Response) {
	object, err := decode(req.Kind, req.Object.Raw)
	if err != nil {
		return Undecided, undecided(err.Error())
	}
	if object.GetDeletionTimestamp() != nil || req.Operation == admissionv1.Update && sameSpec(req, object) {
		// An invalid object may exist since the webhook was down. Its labels and finalizers must still be changeable.
		return Allowed, admission.Allowed("")
	}
	faults := h.Validate(object)
	var warnings []string
	if len(faults) == 0 && h.Refer != nil {
		faults, warnings = h.Refer(ctx, req.Namespace, object)
	}
	if len(faults) == 0 {
		return Allowed, admission.Allowed("").WithWarnings(warnings...)
	}
	name := object.GetName()
	if name == "" {
		name = object.GetGenerateName()
	}
	status := apierrors.NewInvalid(schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}, name, faults).Status()
	return Denied, admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status}}
}

// undecided admits the object with a warning that its configuration was not checked.
func undecided(why string) admission.Response {
	return admission.Allowed("").WithWarnings(fmt.Sprintf(
		"fettle.dev: the configuration was not checked (%s); a fault in it will only show later, when a pod starts or a node reads it", why))
}

// decode decodes the object of a review. With matchPolicy Equivalent the API server converts other versions to v1.
func decode(kind metav1.GroupVersionKind, raw []byte) (client.Object, error) {
	var object client.Object
	switch (schema.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: kind.Kind}) {
	case resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"):
		object = &resourceapi.ResourceClaim{}
	case resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"):
		object = &resourceapi.ResourceClaimTemplate{}
	case resourceapi.SchemeGroupVersion.WithKind("DeviceClass"):
		object = &resourceapi.DeviceClass{}
	case corev1.SchemeGroupVersion.WithKind("Pod"):
		object = &corev1.Pod{}
	case v1alpha1.GroupVersion.WithKind(v1alpha1.KindPartitionPolicy):
		object = &v1alpha1.PartitionPolicy{}
	case v1alpha1.GroupVersion.WithKind(v1alpha1.KindAcceleratorStack):
		object = &v1alpha1.AcceleratorStack{}
	default:
		return nil, fmt.Errorf("%s/%s %s is not known here, expected a kind of %s, a %s, an %s or a Pod",
			kind.Group, kind.Version, kind.Kind, resourceapi.SchemeGroupVersion, v1alpha1.KindPartitionPolicy, v1alpha1.KindAcceleratorStack)
	}
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind.Kind, err)
	}
	return object, nil
}

// sameSpec says whether an update leaves the spec unchanged.
func sameSpec(req admission.Request, object client.Object) bool {
	old, err := decode(req.Kind, req.OldObject.Raw)
	return err == nil && equality.Semantic.DeepEqual(spec(old), spec(object))
}

// spec returns the part of an object that is validated.
func spec(object client.Object) any {
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		return o.Spec
	case *resourceapi.ResourceClaimTemplate:
		return o.Spec
	case *resourceapi.DeviceClass:
		return o.Spec
	case *v1alpha1.PartitionPolicy:
		return o.Spec
	case *v1alpha1.AcceleratorStack:
		return o.Spec
	}
	return nil
}
