// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// kernelDriver is the version of NVIDIA's driver that the GPU node's kernel says it runs.
const kernelDriver = "580.95.05"

// driverImages are those of a program that is linked with the driver's library and has no more of it than that name, by C library. The
// library is returned, too.
func driverImages(ctx context.Context) (library []byte, refs map[string]string) {
	GinkgoHelper()
	w := newWorkshop()
	library = w.library(ctx, "libcuda", fakeCUDA)
	w.write("main.c", usesCUDA)
	refs = map[string]string{}
	var images []builtImage
	for libc, compiler := range map[string]string{"glibc": "gcc", "musl": "musl-gcc"} {
		w.run(ctx, compiler, "-o", libc, "main.c", "-L.", "-lcuda")
		refs[libc] = "fettle.dev/test/driver-" + libc + ":1"
		images = append(images, builtImage{ref: refs[libc], files: append(busybox("bin"), dynamic("bin/uses", w.at(libc))...)})
	}
	loadImages(ctx, images...)
	return library, refs
}

// presetDriver: what NVIDIA lists of the driver on the node is in the container, and a driver that does not fit the kernel keeps the claim.
func presetDriver(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	library, images := driverImages(ctx)
	const dir = "driver/usr/lib64/"
	onGPUNode(dir+"libcuda.so.550.1", string(library), 0o755)
	onGPUNode("driver/usr/bin/nvidia-smi", "#!/bin/sh\necho \"eight GPUs\"\n", 0o755)
	onGPUNode("driver/lib/firmware/nvidia/"+kernelDriver+"/gsp_ga10x.bin", "firmware\n", 0o644)
	preset := &v1alpha1.ClusterDevicePreset{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterDevicePreset},
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-driver"},
	}
	preset.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	preset.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass}}
	preset.Spec.Driver = &v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA, Root: presetFiles + "/driver"}
	create(ctx, "clusterdevicepresets", "", preset)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	var pods []*corev1.Pod
	for libc, image := range images {
		pods = append(pods, newPod(ctx, ns, libc, withTemplate("gpu"), onNode(gpuNode), func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = image
		}))
	}
	eventuallyUnmet(ctx, ns, "the kernel runs version "+kernelDriver+" of NVIDIA's driver", "libcuda.so.550.1")

	say("the node gets the driver of its kernel")
	onGPUNode(dir+"libcuda.so."+kernelDriver, string(library), 0o755)
	running(ctx, pods...)
	for _, p := range pods {
		Expect(inside(ctx, p, main, `uses; nvidia-smi; echo "$NVIDIA_VISIBLE_DEVICES|$LD_LIBRARY_PATH"; ls /usr/lib64; `+
			`cat /lib/firmware/nvidia/`+kernelDriver+`/*; touch /usr/bin/nvidia-smi 2>/dev/null || echo read-only`)).To(Equal(
			"the node's CUDA\neight GPUs\nvoid|\nlibcuda.so\nlibcuda.so.1\nlibcuda.so."+kernelDriver+"\nfirmware\nread-only\n"), p.Name)
	}
}
