// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// checkLabel marks the pods of checks. Their annotations say what for.
const (
	checkLabel         = v1alpha1.GroupName + "/check"
	stackAnnotation    = v1alpha1.GroupName + "/check-stack"
	nodeAnnotation     = v1alpha1.GroupName + "/check-node"
	classAnnotation    = v1alpha1.GroupName + "/check-class"
	evidenceAnnotation = v1alpha1.GroupName + "/check-evidence"
)

const (
	checkContainer, checkClaim, checkRequest = "look", "device", "look"
	// namePrefix begins the names of pods and templates; a hash follows.
	namePrefix = "check-"
	root       = 0
)

// Checks says how the claims of nodes are checked.
type Checks struct {
	// Namespace is labelled for admin access. Empty: no check is run.
	Namespace string
	// Image has /fettle-kubeletplugin, whose sub-command selftest opens what a container was given.
	Image       string
	PullPolicy  corev1.PullPolicy
	PullSecrets []string
}

// claimCheck is a claim of a class on a node.
type claimCheck struct {
	stack                 *v1alpha1.AcceleratorStack
	node, class, evidence string
}

// name is that of the pod. Two controllers that do not know of each other make one pod.
func (c *claimCheck) name() string { return namePrefix + stack.Digest(c.stack.Name, c.node, c.class) }

// template returns the claim template of a class. Its claims look at a device that others hold, and at one with taints: admin access does
// not get past taints.
func (o *Checks) template(class string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: namePrefix + stack.Digest(class),
			Labels: map[string]string{names.ManagedByLabel: names.Controller}, Annotations: map[string]string{classAnnotation: class},
		},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: checkRequest, Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: new(true),
				Tolerations: []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}},
			}}},
		}}},
	}
}

// pod returns the pod of a check. The scheduler places it, on its node or not at all, whatever taints the node has.
func (o *Checks) pod(c *claimCheck) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: c.name(), Labels: map[string]string{checkLabel: "claim", names.ManagedByLabel: names.Controller},
		Annotations: map[string]string{
			stackAnnotation: c.stack.Name, nodeAnnotation: c.node, classAnnotation: c.class, evidenceAnnotation: c.evidence,
		},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindAcceleratorStack, Name: c.stack.Name, UID: c.stack.UID,
			Controller: new(true),
		}},
	}}
	p.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		Affinity: &corev1.Affinity{NodeAffinity: placement.On(c.node)}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: checkClaim, ResourceClaimTemplateName: new(o.template(c.class).Name)}},
		Containers: []corev1.Container{{
			Name: checkContainer, Image: o.Image, ImagePullPolicy: o.PullPolicy,
			Command: []string{"/fettle-kubeletplugin"}, Args: []string{"selftest"},
			// What the program says is the message of the node's check.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				// Device nodes belong to root and often to a group that the image does not know.
				RunAsUser: new(int64(root)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
				Claims:   []corev1.ResourceClaim{{Name: checkClaim}},
			},
		}},
	}
	for _, name := range o.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return p
}
