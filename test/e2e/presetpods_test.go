// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/harness"
)

// What users of PodPreset expect: a preset is for pods, wherever these run and however their claims are cut.
func presetsOfPods() {
	It("counts classes, minCount and absent over all claims of a pod", later("unit tests show every rule of the counts"), presetsCount)
	It("finds the files of one preset on nodes of several layouts", later("scenario 26 of the demo shows it"), ofNode, presetLayouts)
}

// presetsCount has pods with one GPU, with two by two claims, and with a GPU and a disk by two claims. A claim that pods share counts for
// the pod's own, and alone for itself.
func presetsCount(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	preset := func(name string, selector v1alpha1.PresetDeviceSelector) {
		newEverywhere(ctx, "e2e-"+name, &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
			v1alpha1.PresetRules{
				DeviceSelector: &selector, Env: []v1alpha1.PresetEnv{{Name: "IS_" + strings.ToUpper(name), Value: new("yes")}},
			})
	}
	preset("both", v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass, hostClass}})
	preset("pair", v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass}, MinCount: new(int32(2))})
	preset("alone", v1alpha1.PresetDeviceSelector{
		DeviceClassNames: []string{gpuClass}, Absent: &v1alpha1.PresetAbsent{DeviceClassNames: []string{hostClass}},
	})
	for _, name := range []string{"gpu", "second"} {
		newTemplate(ctx, ns, name, spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	}
	newTemplate(ctx, ns, "disk", spec(request("disk", hostClass)))
	newClaim(ctx, ns, "shared", spec(request("disk", hostClass)))

	one := newPod(ctx, ns, "one", onNode(gpuNode), withTemplate("gpu"))
	two := newPod(ctx, ns, "two", onNode(gpuNode), withTemplate("gpu"), withTemplate("second"))
	mixed := newPod(ctx, ns, "mixed", onNode(gpuNode), withTemplate("gpu"), withTemplate("disk"))
	sharing := newPod(ctx, ns, "sharing", onNode(gpuNode), withTemplate("gpu"), withClaim("shared"))
	only := newPod(ctx, ns, "only", onNode(gpuNode), withClaim("shared"))
	running(ctx, one, two, mixed, sharing, only)
	for pod, want := range map[*corev1.Pod]string{
		one: "IS_ALONE=yes\n", two: "IS_ALONE=yes\nIS_PAIR=yes\n", mixed: "IS_BOTH=yes\n", sharing: "IS_BOTH=yes\n", only: "",
	} {
		Expect(inside(ctx, pod, main, "env | grep ^IS_ | sort || true")).To(Equal(want), pod.Name)
	}
	Eventually(ctx, func() (string, error) { return h.Kubectl(ctx, "get", "clusterpresets", "e2e-both", "e2e-pair") }).
		Should(And(ContainSubstring("CLASSES"), ContainSubstring(gpuClass+", "+hostClass), Not(ContainSubstring(`["`))))
}

// layout is what the files of a directory tree are called and where its links lead. Each file's content names the layout.
type layout struct {
	name  string
	lines []string
}

func readLayout(name string) layout {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join("testdata", "layouts", name+".txt"))
	Expect(err).NotTo(HaveOccurred())
	return layout{name, lines(string(data))}
}

// placeOn makes the tree below a directory of a node, in place of what was there.
func (l layout) placeOn(node, dir string) {
	GinkgoHelper()
	root := filepath.Join(h.MachineDir(node), dir)
	Expect(os.RemoveAll(root)).To(Succeed())
	for _, line := range l.lines {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, target, link := strings.Cut(line, " -> ")
		at := filepath.Join(root, name)
		Expect(os.MkdirAll(filepath.Dir(at), 0o755)).To(Succeed())
		switch {
		case link:
			Expect(os.Symlink(target, at)).To(Succeed())
		case strings.Contains(filepath.Base(name), ".so."):
			soname, _, _ := strings.Cut(filepath.Base(name), ".so.")
			content := append(elffile.File{Soname: soname + ".so.1"}.Bytes(), "of "+l.name...)
			Expect(os.WriteFile(at, content, 0o755)).To(Succeed())
		default:
			Expect(os.WriteFile(at, []byte("#!/bin/sh\necho of "+l.name+"\n"), 0o755)).To(Succeed())
		}
	}
}

// presetLayouts: the same preset, pods of one template, and nodes on which the same files are elsewhere.
func presetLayouts(ctx SpecContext) {
	const root = presetFiles + "/node"
	ns := newNamespace(ctx, nil)
	for _, node := range []string{gpuNode, mixedNode} {
		DeferCleanup(func() { Expect(os.RemoveAll(filepath.Join(h.MachineDir(node), presetFiles))).To(Succeed()) })
	}
	newClusterPreset(ctx, ns, "e2e-layouts", func(r *v1alpha1.PresetRules) {
		r.Libraries = []v1alpha1.PresetFiles{{
			Names: []string{"libcuda.so.*", "libnvidia-ml.so.*"}, Root: root,
			Directories: []string{"/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver/usr/lib64"},
		}}
		r.Tools = []v1alpha1.PresetFiles{{Names: []string{"nvidia-smi"}, Root: root, Directories: []string{"/run/nvidia/driver/usr/bin"}}}
	})
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	finds := func(name, node string) {
		GinkgoHelper()
		readLayout(name).placeOn(node, root)
		pod := newPod(ctx, ns, name, onNode(node), withTemplate("gpu"))
		running(ctx, pod)
		Expect(inside(ctx, pod, main, `nvidia-smi; for lib in libcuda libnvidia-ml; do
			tail -c `+strconv.Itoa(len("of "+name))+` /usr/local/fettle/lib/$lib.so.1; echo; done`)).To(Equal(strings.Repeat("of "+name+"\n", 3)))
	}
	finds("debian", gpuNode)
	finds("rhel", mixedNode)
	say("the driver of a container instead, for the next pod")
	finds("container", mixedNode)
}

// tellsOfMissingPresets: where Fettle's presets are switched off, a pod is told of what it lacks, whichever vendor's device it has.
// Helm's test says so, too.
func tellsOfMissingPresets(ctx SpecContext) {
	Expect(h.Install(ctx, values().Merge(harness.Values{"presets": harness.Values{"vendors": []string{}}}))).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
	ns := newNamespace(ctx, nil)
	wants := map[string]string{
		"nvidia": "Warning request gpu: no preset gives the libraries of the node's driver, which no image can bring",
		"amd":    "Normal request gpu: no preset gives ROCm's libraries",
		"intel":  "Normal request gpu: no preset gives the drivers for Level Zero and OpenCL",
	}
	for vendor := range wants {
		newTemplate(ctx, ns, vendor, spec(request("gpu", gpuClass, where(onVendor(vendor)))))
		newPod(ctx, ns, vendor, withTemplate(vendor))
	}
	for vendor, want := range wants {
		Eventually(ctx, func() []string { return missingEvents(ctx, ns, vendor) }).Should(ConsistOf(HavePrefix(want)))
	}
	say("a preset with a library of the node is enough")
	onGPUNode("lib/libfakecuda.so.1", string(elffile.File{Soname: "libfakecuda.so.1"}.Bytes()), 0o755)
	newClusterPreset(ctx, ns, "e2e-not-missing", func(r *v1alpha1.PresetRules) {
		r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libfakecuda.so.*"}, Directories: []string{presetFiles + "/lib"}}}
	})
	running(ctx, newPod(ctx, ns, "given", withTemplate("nvidia"), onNode(gpuNode)))
	Consistently(ctx, func() []string { return missingEvents(ctx, ns, "given") }, h.Pace(3*time.Second)).Should(BeEmpty())

	out, err := h.TestChart(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(ContainSubstring("PresetMissing: no preset gives this container files of the node"))
}

// missingEvents are the Events of a pod about a preset that is missing, as TYPE NOTE.
func missingEvents(ctx context.Context, namespace, pod string) (out []string) {
	GinkgoHelper()
	events, err := h.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=PresetMissing"})
	Expect(err).NotTo(HaveOccurred())
	for _, e := range events.Items {
		if e.Regarding.Kind == "Pod" && e.Regarding.Name == pod {
			Expect(e.Related).To(HaveField("Kind", "ResourceClaim"))
			out = append(out, e.Type+" "+e.Note)
		}
	}
	return out
}

// columnsSay expects the columns of a node to say what of it is used.
func columnsSay(ctx SpecContext) {
	columns := func(node, wide string) string {
		GinkgoHelper()
		out, err := h.Kubectl(ctx, append([]string{"get", "accnodes", node}, strings.Fields(wide)...)...)
		Expect(err).NotTo(HaveOccurred())
		return out
	}
	holdOnGPUNode(ctx, "holder")
	Eventually(ctx, func() string { return columns(gpuNode, "") }).Should(MatchRegexp(`8 \([1-8] used, [0-7] free\)`))
	// A driver that was away for another spec is found at the next look.
	Eventually(ctx, func() string { return columns(mixedNode, "") }).
		Should(And(ContainSubstring("amd "), ContainSubstring("intel"), ContainSubstring("nvidia ")), "vendors of all")
	Eventually(ctx, func() string { return columns(gpuNode, "-o wide") }).
		Should(And(ContainSubstring("MODELS"), ContainSubstring("FIRMWARE"), ContainSubstring("H100")))
	for _, kind := range []string{"presets", "clusterpresets", "bitstreams", "clusterbitstreams", "partitions", "trust", "gkc", "cgkc"} {
		_, err := h.Kubectl(ctx, "get", kind, "-A")
		Expect(err).NotTo(HaveOccurred())
	}
}
