// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

// What the proposal of resource-dependent PodPresets wants to be possible.
func presetsOfProposal() {
	It("adds the libraries and programs of several presets, raises a limit for all new pods, and has debugging in one namespace", ofNode,
		presetsAddUp)
	It("mounts a directory for all pods that claim a local SSD", later("a variant of presets for GPUs"), ofNode, presetsForSSD)
	It("mounts it for pods that ask for the SSD as extended resource", later("a variant of presets for GPUs"), presetsForExtendedSSD)
	It("takes the proposal's own example through the converter", later("unit tests compare what the converter makes"),
		ofNode, presetsConverted)
}

const usesBoth = `#include <stdio.h>
const char *fake_cuda(void), *fake_cudnn(void);
int main(void) { printf("%s, %s\n", fake_cuda(), fake_cudnn()); return 0; }`

// bothImages are images of a program that asks for two libraries, by name: each C library, with LD_LIBRARY_PATH set and without.
func bothImages(ctx context.Context, w workshop) (refs map[string]string) {
	GinkgoHelper()
	w.write("both.c", usesBoth)
	refs = map[string]string{}
	var images []builtImage
	for libc, compiler := range map[string]string{"glibc": "gcc", "musl": "musl-gcc"} {
		w.run(ctx, compiler, "-o", libc+"-both", "both.c", "-L.", "-lfakecuda", "-lfakecudnn")
		files := append(busybox("bin"), dynamic("bin/uses", w.at(libc+"-both"))...)
		for name, env := range map[string][]string{libc: nil, libc + "-with-path": {v1alpha1.EnvLibraryPath + "=/nowhere:/opt/own"}} {
			refs[name] = "fettle.dev/test/both-" + name + ":1"
			images = append(images, builtImage{ref: refs[name], env: env, files: files})
		}
	}
	loadImages(ctx, images...)
	return refs
}

// newNamed makes a namespace of a name, once an earlier one is gone.
func newNamed(ctx context.Context, name string) {
	GinkgoHelper()
	namespaces := h.Kube.CoreV1().Namespaces()
	Eventually(ctx, func() error {
		_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}).Should(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(namespaces.Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed()) })
}

// newEverywhere is a ClusterDevicePreset for GPUs in all namespaces, or in those that are selected.
func newEverywhere(ctx context.Context, name string, selector *metav1.LabelSelector, rules v1alpha1.PresetRules) {
	GinkgoHelper()
	preset := &v1alpha1.ClusterDevicePreset{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterDevicePreset},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	preset.Spec.NamespaceSelector, preset.Spec.PresetRules = selector, rules
	if rules.DeviceSelector == nil {
		preset.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass}}
	}
	create(ctx, clusterPresets, "", preset)
}

func presetsAddUp(ctx SpecContext) {
	const dev = "dev"
	newNamed(ctx, dev)
	ns := newNamespace(ctx, nil)
	w := newWorkshop()
	onGPUNode("cuda/libfakecuda.so.1", string(w.library(ctx, "libfakecuda", fakeCUDA)), 0o644)
	onGPUNode("cudnn/libfakecudnn.so.1", string(w.library(ctx, "libfakecudnn", `const char *fake_cudnn(void) { return "its cuDNN"; }`)), 0o644)
	w.write("smi.c", "#include <stdio.h>\nint main(void) { puts(\"one GPU\"); return 0; }")
	w.run(ctx, "musl-gcc", "-static", "-o", "nvidia-smi", "smi.c")
	onGPUNode("bin/nvidia-smi", string(w.read("nvidia-smi")), 0o755)
	onGPUNode("debug/tool", "debugging\n", 0o644)
	refs := bothImages(ctx, w)
	for _, namespace := range []string{ns, dev} {
		newTemplate(ctx, namespace, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	}
	old := newPod(ctx, ns, "old", withTemplate("gpu"), onNode(gpuNode))
	running(ctx, old)

	mount := func(name, to string) []v1alpha1.PresetMount {
		return []v1alpha1.PresetMount{{HostPath: presetFiles + "/" + name, ContainerPath: to}}
	}
	appended := func(name, value string) v1alpha1.PresetEnv {
		return v1alpha1.PresetEnv{Name: name, Mode: v1alpha1.EnvAppend, Value: &value}
	}
	newEverywhere(ctx, "e2e-cuda", nil, v1alpha1.PresetRules{
		Mounts: append(mount("cuda", "/opt/cuda"), mount("bin", "/opt/bin")...),
		Env: []v1alpha1.PresetEnv{
			{Name: "CUDA_CACHE_MAXSIZE", Value: new("4294967296")},
			appended(v1alpha1.EnvLibraryPath, "/opt/cuda"), appended(v1alpha1.EnvPath, "/opt/bin"),
		},
	})
	newEverywhere(ctx, "e2e-cudnn", nil, v1alpha1.PresetRules{
		Mounts: mount("cudnn", "/opt/cudnn"), Env: []v1alpha1.PresetEnv{appended(v1alpha1.EnvLibraryPath, "/opt/cudnn")},
	})
	newEverywhere(ctx, "e2e-debug", &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: dev}},
		v1alpha1.PresetRules{Mounts: mount("debug", "/opt/debug")})
	newPreset(ctx, dev, "debug", func(r *v1alpha1.PresetRules) { r.Env = []v1alpha1.PresetEnv{{Name: "DEBUG", Value: new("1")}} })
	pods := []*corev1.Pod{newPod(ctx, dev, "debugged", withTemplate("gpu"), onNode(gpuNode), ofImage(refs["glibc"]))}
	for name, ref := range refs {
		pods = append(pods, newPod(ctx, ns, name, withTemplate("gpu"), onNode(gpuNode), ofImage(ref)))
	}
	running(ctx, pods...)
	for _, p := range pods {
		want := "the node's CUDA, its cuDNN\none GPU\n4294967296||no debugging\n"
		if p.Namespace == dev {
			want = "the node's CUDA, its cuDNN\none GPU\n4294967296|1|debugging\n"
		}
		Expect(inside(ctx, p, main, `uses; nvidia-smi
			echo "$CUDA_CACHE_MAXSIZE|$DEBUG|$(cat /opt/debug/tool 2>/dev/null || echo no debugging)"`)).To(Equal(want), p.Name)
		path := ""
		if strings.HasSuffix(p.Name, "-with-path") {
			path = "/nowhere:/opt/own"
		}
		Expect(inside(ctx, p, main, `echo "$LD_LIBRARY_PATH|$PATH"`)).To(Equal(path+"|"+strings.TrimPrefix(searched, "PATH=")+"\n"),
			"what the image says stays")
	}
	Expect(inside(ctx, old, main, `echo "${CUDA_CACHE_MAXSIZE-none}"; ls /opt/cuda 2>/dev/null || true`)).To(Equal("none\n"))
}

func ofImage(ref string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Image = ref }
}

// newSSD is a class of local SSDs and the preset for those who ask for it.
func newSSD(ctx context.Context, class, extended string) {
	GinkgoHelper()
	onGPUNode("localssd/welcome", "fast\n", 0o644)
	object := objects.Class(class, `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "host"`)
	if extended != "" {
		object.Spec.ExtendedResourceName = &extended
	}
	_, err := h.Kube.ResourceV1().DeviceClasses().Create(ctx, object, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.ResourceV1().DeviceClasses().Delete(ctx, class, metav1.DeleteOptions{})).To(Succeed())
	})
	newEverywhere(ctx, "e2e-"+class, nil, v1alpha1.PresetRules{
		DeviceSelector: &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{class}},
		Mounts: []v1alpha1.PresetMount{
			{HostPath: presetFiles + "/localssd", ContainerPath: "/ssd", ReadOnly: new(false)},
		},
	})
}

// hasSSD expects that a pod has the directory and may write there.
func hasSSD(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	running(ctx, p)
	Expect(inside(ctx, p, main, "cat /ssd/welcome; echo "+p.Name+" > /ssd/mine")).To(Equal("fast\n"))
	written, err := os.ReadFile(filepath.Join(h.MachineDir(gpuNode), presetFiles, "localssd/mine"))
	Expect(err).NotTo(HaveOccurred())
	Expect(string(written)).To(Equal(p.Name + "\n"))
}

func presetsForSSD(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newSSD(ctx, "localssd.example.com", "")
	newTemplate(ctx, ns, "ssd", spec(request("ssd", "localssd.example.com")))
	newTemplate(ctx, ns, "other", spec(request("ssd", hostClass)))
	with, without := newPod(ctx, ns, "with", withTemplate("ssd")), newPod(ctx, ns, "without", withTemplate("other"))
	hasSSD(ctx, with)
	running(ctx, without)
	Expect(inside(ctx, without, main, "ls /ssd 2>/dev/null || true")).To(BeEmpty())
}

func presetsForExtendedSSD(ctx SpecContext) {
	if older {
		Skip("this API has no extended resources of DRA")
	}
	newSSD(ctx, "extended-ssd.example.com", "example.com/localssd")
	hasSSD(ctx, newPod(ctx, newNamespace(ctx, nil), "pod", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/localssd": resource.MustParse("1")}
	}))
}

// The example of the proposal, as it is there.
const proposed = `kind: PodPreset
apiVersion: settings/v1alpha1
metadata:
  name: gpu-setup
  namespace: myns
spec:
  resourceSelector:
    - alpha.kubernetes.io/nvidia-gpu
  volumeMounts:
    - name: binaries
      mountPath: /opt/bin
      readOnly: true
    - name: libraries
      mountPath: /usr/local/lib/nvidia
      readOnly: true
  volumes:
    - name: binaries
      hostPath:
        path: /opt/bin
    - name: libraries
      hostPath:
        path: /opt/lib64
  env:
    - name: LD_LIBRARY_PATH
      value: /usr/local/lib/nvidia
`

func presetsConverted(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	onGPUNode("opt/lib64/libfakecuda.so.1", string(cudaPrograms(ctx)), 0o644)
	onGPUNode("opt/bin/smi", "#!/bin/sh\necho \"one GPU\"\n", 0o755)
	file := filepath.Join(GinkgoT().TempDir(), "podpreset.yaml")
	// The nodes of the suite are of one machine, whose own /opt is not theirs.
	text := strings.NewReplacer("namespace: myns", "namespace: "+ns, "path: /opt/", "path: "+presetFiles+"/opt/").Replace(proposed)
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	_, err := h.Apply(ctx, fettle(ctx, "convert", "-f", file))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { deletePreset(ctx, clusterPresets, "", ns+"-gpu-setup") })
	eventuallyValid(ctx, clusterPresets, "", ns+"-gpu-setup", metav1.ConditionTrue, "")
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	pods := []*corev1.Pod{
		newPod(ctx, ns, "glibc", withTemplate("gpu"), onNode(gpuNode), ofImage(glibcImage)),
		newPod(ctx, ns, "musl", withTemplate("gpu"), onNode(gpuNode), ofImage(muslImage)),
	}
	running(ctx, pods...)
	for _, pod := range pods {
		Expect(inside(ctx, pod, main, "uses; /opt/bin/smi; touch /opt/bin/x 2>/dev/null || echo read-only")).To(
			Equal("the node's CUDA\none GPU\nread-only\n"))
	}
}
