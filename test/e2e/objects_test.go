// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	image     = "fettle.dev/test/busybox:1"
	gpuClass  = "gpu.fettle.dev"
	hostClass = "host.fettle.dev"
	// main is the name of a pod's container where it has one.
	main = "main"
)

// newNamespace makes a namespace that is gone, with its pods, some time after the spec.
func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels}}
	ns, err := h.Kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})).To(Succeed())
	})
	// No pod is admitted before the controller manager has made it.
	Eventually(ctx, func() error {
		_, err := h.Kube.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}).Should(Succeed())
	return ns.Name
}

// request asks for one device of a class, as its modifications say.
func request(name, class string, modify ...func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class}
	for _, m := range modify {
		m(exactly)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

func count(n int64) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, n
	}
}

func where(expressions ...string) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = append(r.Selectors, objects.Selectors(expressions...)...)
	}
}

func asAdmin(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = new(true) }

// onVendor selects by our attribute vendor.
func onVendor(vendor string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].vendor == %q`, vendor)
}

func spec(requests ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
}

// config is a GPUConfig or HostConfig with further fields, in JSON.
func config(kind, fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q%s}`, v1alpha1.GroupVersion, kind, fields)
}

func newTemplate(ctx context.Context, namespace, name string, s resourceapi.ResourceClaimSpec) {
	GinkgoHelper()
	_, err := h.Kube.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: s},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

func newClaim(ctx context.Context, namespace, name string, s resourceapi.ResourceClaimSpec) {
	GinkgoHelper()
	_, err := h.Kube.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s,
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// newClass makes a DeviceClass that selects what another of ours does, with configurations.
func newClass(ctx context.Context, name, like string, configs ...resourceapi.DeviceClaimConfiguration) {
	GinkgoHelper()
	kind, _, _ := strings.Cut(like, ".")
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = objects.Selectors(fmt.Sprintf(
		`device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == %q`, kind))
	for _, c := range configs {
		class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: c.DeviceConfiguration})
	}
	_, err := h.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	})
}

// stay is a container's script: it ends at once when it is asked to.
const stay = `trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done`

// newPod starts a pod with one container that stays. As modified.
func newPod(ctx context.Context, namespace, name string, modify ...func(*corev1.Pod)) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			Containers: []corev1.Container{{
				Name: main, Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", stay},
			}},
		},
	}
	for _, m := range modify {
		m(pod)
	}
	created, err := h.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return created
}

// withTemplate gives all containers a claim made from a template; a claim's name in the pod is the template's.
func withTemplate(name string) func(*corev1.Pod) {
	return withClaimSource(corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &name})
}

// withClaim gives all containers a claim that exists.
func withClaim(name string) func(*corev1.Pod) {
	return withClaimSource(corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
}

func withClaimSource(source corev1.PodResourceClaim) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, source)
		for i := range p.Spec.Containers {
			r := &p.Spec.Containers[i].Resources
			r.Claims = append(r.Claims, corev1.ResourceClaim{Name: source.Name})
		}
	}
}

func onNode(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

// script replaces what the first container runs.
func script(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh", "-c", text} }
}
