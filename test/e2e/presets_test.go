// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// presetFiles is the directory of the GPU node that has what presets give. Its disks are discovered by other names.
const presetFiles = "/mnt/disks/presets"

func presetsForPods() {
	It("gives variables, directories and tools of the node by claim alone, and what a preset becomes to the next claim", presetsGive)
	It("has a program find the node's library on glibc and on musl, whatever LD_LIBRARY_PATH says", ofNode, presetLibraries)
	It("gives what NVIDIA lists of the node's driver, and only one that fits the kernel", ofNode, presetDriver)
	It("gives namespaces the paths that they may use, and memory, and nothing else of the node", ofNode, presetPaths)
	It("keeps a claim whose preset the node cannot meet, says why, and prepares it once it can", ofNode, presetsUnmet)
	presetVariables()
	presetsOfHostileImages()
	presetsOfProposal()
	presetsOfPods()
	presetsInTime()
}

// onGPUNode writes a file of the GPU node.
func onGPUNode(name, content string, mode os.FileMode) {
	GinkgoHelper()
	at := filepath.Join(h.MachineDir(gpuNode), presetFiles, name)
	Expect(os.MkdirAll(filepath.Dir(at), 0o755)).To(Succeed())
	Expect(os.WriteFile(at, []byte(content), mode)).To(Succeed())
	DeferCleanup(func() { Expect(os.RemoveAll(filepath.Join(h.MachineDir(gpuNode), presetFiles))).To(Succeed()) })
}

// newClusterPreset is for claims of NVIDIA GPUs in a namespace.
func newClusterPreset(ctx context.Context, namespace, name string, change func(*v1alpha1.PresetRules)) {
	GinkgoHelper()
	preset := &v1alpha1.ClusterDevicePreset{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterDevicePreset},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	preset.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	preset.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{CEL: `device.attributes["fettle.dev"].?vendor.orValue("") == "nvidia"`}
	change(&preset.Spec.PresetRules)
	create(ctx, "clusterdevicepresets", "", preset)
}

func presetsGive(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	onGPUNode("data/file", "of the node\n", 0o644)
	onGPUNode("bin/fake-smi", "#!/bin/sh\necho \"one GPU\"\n", 0o755)
	newClusterPreset(ctx, ns, "e2e-gives", func(r *v1alpha1.PresetRules) {
		r.Env = []v1alpha1.PresetEnv{
			{Name: "CUDA_CACHE_MAXSIZE", Value: new("4294967296")},
			{Name: "OWN", Mode: v1alpha1.EnvDefault, Value: new("of the preset")},
			{Name: "LIST", Mode: v1alpha1.EnvAppend, Value: new("/of/preset")},
			{Name: v1alpha1.EnvLibraryPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/data")},
		}
		r.Mounts = []v1alpha1.PresetMount{{HostPath: presetFiles + "/data", ContainerPath: "/opt/data"}}
		r.Tools = []v1alpha1.PresetFiles{{Names: []string{"fake-smi"}, Directories: []string{presetFiles + "/bin"}}}
	})
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	const look = `echo "$CUDA_CACHE_MAXSIZE|$OWN|$LIST|$LD_LIBRARY_PATH"; cat /opt/data/file; ` +
		`touch /opt/data/x 2>/dev/null || echo read-only; fake-smi`
	env := func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OWN", Value: "of the pod"}, {Name: "LIST", Value: "/of/pod"}}
	}
	first := newPod(ctx, ns, "first", withTemplate("gpu"), onNode(gpuNode), env)
	running(ctx, first)
	const want = "4294967296|of the pod|/of/pod:/of/preset|\nof the node\nread-only\none GPU\n"
	Expect(inside(ctx, first, main, look)).To(Equal(want))

	say("an edit reaches the next claim, and no container that is restarted")
	_, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterdevicepresets")).Patch(ctx, "e2e-gives", types.MergePatchType,
		[]byte(`{"spec":{"env":[{"name":"CUDA_CACHE_MAXSIZE","value":"1"}],"tools":null,"mounts":null}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	restarted(ctx, first)
	Expect(inside(ctx, first, main, look)).To(Equal(want))
	second := newPod(ctx, ns, "second", withTemplate("gpu"), onNode(gpuNode), env)
	running(ctx, second)
	Expect(inside(ctx, second, main, `echo "$CUDA_CACHE_MAXSIZE|$OWN|$LIST"; ls /opt/data 2>&1 || true`)).To(
		HavePrefix("1|of the pod|/of/pod\n"))
}

// restarted ends a pod's container and waits until it runs again.
func restarted(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	status := func() (*corev1.Pod, *corev1.ContainerStatus, error) {
		pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		return pod, &pod.Status.ContainerStatuses[0], nil
	}
	pod, before, err := status()
	Expect(err).NotTo(HaveOccurred())
	Expect(h.KillContainer(ctx, pod.Spec.NodeName, before.ContainerID)).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		_, now, err := status()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.RestartCount).To(Equal(before.RestartCount + 1))
		g.Expect(now.Ready).To(BeTrue())
	}).Should(Succeed())
}

func presetsUnmet(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newClusterPreset(ctx, ns, "e2e-unmet", func(r *v1alpha1.PresetRules) {
		r.Mounts = []v1alpha1.PresetMount{{HostPath: presetFiles + "/late", ContainerPath: "/opt/late"}}
	})
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	pod := newPod(ctx, ns, "pod", withTemplate("gpu"), onNode(gpuNode))
	Eventually(ctx, func(g Gomega) {
		events, err := h.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=PresetUnmet"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events.Items).NotTo(BeEmpty())
		g.Expect(events.Items[0].Note).To(And(ContainSubstring("ClusterDevicePreset e2e-unmet"),
			ContainSubstring(presetFiles+"/late is not on this node")))
	}).Should(Succeed())
	onGPUNode("late/file", "now\n", 0o644)
	running(ctx, pod)
	Expect(inside(ctx, pod, main, "cat /opt/late/file")).To(Equal("now\n"))
}

// presetLibraries: nothing of the library is in the images, and the pod says nothing of where it is.
func presetLibraries(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	onGPUNode("lib/libfakecuda.so.1.2", string(cudaPrograms(ctx)), 0o644)
	newClusterPreset(ctx, ns, "e2e-libraries", func(r *v1alpha1.PresetRules) {
		r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libfakecuda.so.*"}, Directories: []string{presetFiles + "/lib"}}}
	})
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	var pods []*corev1.Pod
	for name, env := range map[string][]corev1.EnvVar{"none": nil, "set": {{Name: v1alpha1.EnvLibraryPath, Value: "/nowhere:/opt/own"}}} {
		for libc, image := range map[string]string{"glibc": glibcImage, "musl": muslImage} {
			pods = append(pods, newPod(ctx, ns, libc+"-"+name, withTemplate("gpu"), onNode(gpuNode), func(p *corev1.Pod) {
				p.Spec.Containers[0].Image, p.Spec.Containers[0].Env = image, env
			}))
		}
	}
	running(ctx, pods...)
	for _, p := range pods {
		Expect(inside(ctx, p, main, "uses")).To(Equal("the node's CUDA\n"), p.Name)
	}
}
