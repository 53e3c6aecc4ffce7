// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

// configMapNamespace is the one whose DevicePresets may name ConfigMaps.
const configMapNamespace = "e2e-configmaps"

// The resources of both kinds of presets.
const (
	devicePresets  = "devicepresets"
	clusterPresets = "clusterdevicepresets"
)

// newConfigMap is one that goes with the spec.
func newConfigMap(ctx context.Context, namespace, name string, data map[string]string) {
	GinkgoHelper()
	maps := h.Kube.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(maps.Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed()) })
}

// newPreset is for claims of GPUs in its namespace.
func newPreset(ctx context.Context, namespace, name string, change func(*v1alpha1.PresetRules)) {
	GinkgoHelper()
	preset := &v1alpha1.DevicePreset{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindDevicePreset},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
	}
	preset.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass}}
	change(&preset.Spec.PresetRules)
	create(ctx, devicePresets, namespace, preset)
}

// presetStatus is what the controller says of a preset.
func presetStatus(ctx context.Context, resource, namespace, name string) (*v1alpha1.DevicePresetStatus, error) {
	object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var preset v1alpha1.DevicePreset // Both kinds have the same status.
	return &preset.Status, runtime.DefaultUnstructuredConverter.FromUnstructured(
		map[string]any{"status": object.Object["status"]}, &preset)
}

// eventuallyValid waits until the controller says whether a preset is valid, and why.
func eventuallyValid(ctx context.Context, resource, namespace, name string, want metav1.ConditionStatus, why string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		status, err := presetStatus(ctx, resource, namespace, name)
		g.Expect(err).NotTo(HaveOccurred())
		valid := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionValid)
		g.Expect(valid).NotTo(BeNil())
		g.Expect(valid.Status).To(Equal(want), valid.Message)
		g.Expect(valid.Message).To(ContainSubstring(why))
	}).Should(Succeed())
}

func presetConfigMaps(ctx SpecContext) {
	const settings, later = "settings", "later"
	ns := configMapNamespace
	newConfigMap(ctx, harness.Namespace, "e2e-settings", map[string]string{"COLOR": "red", "size.large": "4096", "not-a-name": "x"})
	newConfigMap(ctx, ns, settings, map[string]string{"COLOR": "green", "SHAPE": "round"})
	newConfigMap(ctx, ns, "other", map[string]string{"COLOR": "secret"})
	from := func(name string, optional bool) v1alpha1.PresetConfigMap {
		return v1alpha1.PresetConfigMap{Name: name, Optional: optional}
	}
	key := func(name, key string, optional bool) *v1alpha1.PresetEnvSource {
		return &v1alpha1.PresetEnvSource{ConfigMapKeyRef: v1alpha1.PresetConfigMapKey{Name: name, Key: key, Optional: optional}}
	}
	newClusterPreset(ctx, ns, "e2e-configmaps", func(r *v1alpha1.PresetRules) {
		r.EnvFrom = []v1alpha1.PresetEnvFrom{
			{Prefix: "CLUSTER_", ConfigMapRef: from("e2e-settings", false)}, {ConfigMapRef: from("e2e-absent", true)},
		}
		r.Env = []v1alpha1.PresetEnv{
			{Name: "SIZE", ValueFrom: key("e2e-settings", "size.large", false)},
			{Name: "LIST", Mode: v1alpha1.EnvAppend, ValueFrom: key("e2e-settings", "COLOR", false)},
			{Name: "ABSENT", ValueFrom: key("e2e-settings", "absent", true)},
		}
	})
	newPreset(ctx, ns, "team", func(r *v1alpha1.PresetRules) {
		r.EnvFrom = []v1alpha1.PresetEnvFrom{{Prefix: "TEAM_", ConfigMapRef: from(settings, false), Mode: v1alpha1.EnvDefault}}
		r.Env = []v1alpha1.PresetEnv{{Name: "LATER", ValueFrom: key(later, "key", false)}}
	})
	eventuallyValid(ctx, clusterPresets, "", "e2e-configmaps", metav1.ConditionTrue, "")
	eventuallyValid(ctx, devicePresets, ns, "team", metav1.ConditionTrue, "")
	grantsOnly(ctx, harness.Namespace, "fettle.dev:clusterdevicepreset:e2e-configmaps", "e2e-absent", "e2e-settings")
	grantsOnly(ctx, ns, "fettle.dev:devicepreset:team", later, settings)

	say("a claim waits for a ConfigMap that is not there")
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	DeferCleanup(func(ctx SpecContext) { // The namespace stays.
		Expect(h.Kube.ResourceV1().ResourceClaimTemplates(ns).Delete(ctx, "gpu", metav1.DeleteOptions{})).To(Succeed())
	})
	pod := newPod(ctx, ns, "pod", withTemplate("gpu"), onNode(gpuNode), func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TEAM_COLOR", Value: "blue"}, {Name: "LIST", Value: "white"}}
	})
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
	})
	claim := eventuallyClaimed(ctx, pod)
	eventuallyEvent(ctx, ns, "ResourceClaim", claim, "PresetUnmet",
		fmt.Sprintf("DevicePreset %s/team, spec.env[0].valueFrom.configMapKeyRef: there is no ConfigMap %s/later: create it", ns, ns))
	newConfigMap(ctx, ns, later, map[string]string{"key": "now"})
	running(ctx, pod)
	Expect(inside(ctx, pod, main, `echo "$CLUSTER_COLOR|$SIZE|$LIST|$TEAM_COLOR|$TEAM_SHAPE|$LATER|${ABSENT-none}"`)).To(
		Equal("red|4096|white:red|blue|round|now|none\n"))
	eventuallyEvent(ctx, ns, "ResourceClaim", claim, "PresetRefused", "spec.envFrom[0]: key not-a-name of the ConfigMap")

	say("elsewhere nobody allowed it, and the Role goes with the preset")
	elsewhere := newNamespace(ctx, nil)
	newPreset(ctx, elsewhere, "team", func(r *v1alpha1.PresetRules) {
		r.EnvFrom = []v1alpha1.PresetEnvFrom{{ConfigMapRef: from(settings, false)}}
	})
	eventuallyValid(ctx, devicePresets, elsewhere, "team", metav1.ConditionFalse, "presets.configMapNamespaces of the chart")
	deletePreset(ctx, devicePresets, ns, "team")
	Eventually(ctx, func(g Gomega) {
		_, err := h.Kube.RbacV1().Roles(ns).Get(ctx, "fettle.dev:devicepreset:team", metav1.GetOptions{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	}).Should(Succeed())
}

// deletePreset deletes one before its spec ends.
func deletePreset(ctx context.Context, resource, namespace, name string) {
	GinkgoHelper()
	Expect(h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).
		Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
}

// grantsOnly expects a Role to have nothing but get on ConfigMaps of some names, and the plugin to have it and no more of the namespace.
func grantsOnly(ctx context.Context, namespace, name string, maps ...string) {
	GinkgoHelper()
	role, err := h.Kube.RbacV1().Roles(namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(role.Rules).To(Equal([]rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: maps, Verbs: []string{"get"},
	}}))
	binding, err := h.Kube.RbacV1().RoleBindings(namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(binding.Subjects).To(HaveLen(1))
	account := "system:serviceaccount:" + binding.Subjects[0].Namespace + ":" + binding.Subjects[0].Name
	for name, want := range map[string]bool{maps[0]: true, "other": false} {
		review, err := h.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "get", Resource: "configmaps", Name: name,
			}},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(review.Status.Allowed).To(Equal(want), "%s reads ConfigMap %s/%s", account, namespace, name)
	}
}

// eventuallyClaimed waits until a pod has its only claim, and gives its name.
func eventuallyClaimed(ctx context.Context, p *corev1.Pod) (name string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Status.ResourceClaimStatuses).To(HaveLen(1))
		g.Expect(pod.Status.ResourceClaimStatuses[0].ResourceClaimName).NotTo(BeNil())
		name = *pod.Status.ResourceClaimStatuses[0].ResourceClaimName
	}).Should(Succeed())
	return name
}
