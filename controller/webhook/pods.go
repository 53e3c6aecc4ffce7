// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pod judges the claims and templates that a pod names as if they were made now, since their classes, bitstreams and kernel caches may have
// changed. It only warns: an edit of these objects makes the pod run.
func (r references) pod(ctx context.Context, namespace string, pod *corev1.Pod) []string {
	var warnings []string
	claims, all := lookable(pod.Spec.ResourceClaims)
	if !all {
		warnings = append(warnings, fmt.Sprintf("%s: only the first %d were looked at", field.NewPath("spec", "resourceClaims"), maxLookups))
	}
	for i := range claims {
		kind, object := r.named(ctx, namespace, &claims[i])
		if object == nil {
			continue
		}
		where := fmt.Sprintf("%s: %s %s: ", field.NewPath("spec", "resourceClaims").Index(i), kind, object.GetName())
		faults, others := r.claim(ctx, namespace, object)
		for _, fault := range faults {
			warnings = append(warnings, where+"pods wait: "+fault.Error())
		}
		for _, other := range others {
			warnings = append(warnings, where+other)
		}
	}
	return warnings
}

// named reads the claim or template that a pod names. It returns none if that does not exist, which Kubernetes reports, or if the claim is
// in use: what was decided for it stays.
func (r references) named(ctx context.Context, namespace string, of *corev1.PodResourceClaim) (kind string, object client.Object) {
	var name string
	switch {
	case of.ResourceClaimName != nil:
		kind, name, object = "ResourceClaim", *of.ResourceClaimName, &resourceapi.ResourceClaim{}
	case of.ResourceClaimTemplateName != nil:
		kind, name, object = "ResourceClaimTemplate", *of.ResourceClaimTemplateName, &resourceapi.ResourceClaimTemplate{}
	default:
		return "", nil
	}
	if err := r.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		if !apierrors.IsNotFound(err) && worthALine(err) {
			klog.FromContext(ctx).Error(err, "A claim that a pod names was not checked", "kind", kind, "name", name)
		}
		return "", nil
	}
	if claim, ok := object.(*resourceapi.ResourceClaim); ok && len(claim.Status.ReservedFor) > 0 {
		return "", nil
	}
	return kind, object
}
