// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/hardware"
	"github.com/fettle-dev/fettle/test/harness"
)

func copesWithMachines() {
	It("follows hardware that appears, breaks and goes, without a restart", ofNode, func(ctx SpecContext) {
		before := map[string]int32{}
		for _, node := range h.NodeNames() {
			pod, err := h.PluginPod(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			before[node] = harness.PluginContainer(pod).RestartCount // an earlier spec may have killed it
		}
		plugin, err := h.PluginPod(ctx, mixedNode)
		Expect(err).NotTo(HaveOccurred())
		for _, machine := range []string{
			"empty", "broken-attribute", "broken-dangling-link", "broken-garbage", "broken-no-driver", "2xintel-gpu", "empty",
		} {
			say("the node is %s now", machine)
			place(ctx, mixedNode, machine)
			eventuallyExplained(ctx, mixedNode, plugin.Name)
			if machine == "empty" {
				withoutDevicesAtNight(ctx, mixedNode)
			}
		}
		placeAll(ctx)
		eventuallyExplained(ctx, mixedNode, plugin.Name)
		for _, node := range h.NodeNames() {
			pod, err := h.PluginPod(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			Expect(harness.PluginContainer(pod).RestartCount).To(Equal(before[node]), "nothing crashes")
			if node == mixedNode {
				Expect(pod.UID).To(Equal(plugin.UID), "and nothing was replaced")
			}
		}
	})

	It("gives the healthy GPU of a machine with broken ones", ofNode, func(ctx SpecContext) {
		place(ctx, mixedNode, "broken-garbage")
		DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
		eventuallyExplained(ctx, mixedNode, "")
		pod := newPod(ctx, ns, "healthy", withTemplate("gpu"), onNode(mixedNode))
		running(ctx, pod)
		hasExactly(ctx, pod, main, devicesOf(results(onlyClaim(ctx, pod)))...)
	})

	It("publishes what fettle slices says of a machine that is not there", ofNode, foretold)

	It("publishes 200 devices in slices of at most 64, and the same bytes after a restart", later("two hundred devices take long"), twoHundred)
}

// eventuallyExplained waits until a node publishes the healthy devices of its machine, and its AcceleratorNode and the plugin's
// metrics, where the pod is named, tell the rest.
func eventuallyExplained(ctx context.Context, node, plugin string) {
	GinkgoHelper()
	machine := hardwareOf(node)
	var names []string
	for _, d := range machine.Devices {
		if d.Kind == "gpu" {
			names = append(names, d.Name)
		}
	}
	reasons := map[string]int{}
	for _, p := range machine.Problems {
		reasons[p.Reason]++
	}
	eventuallyPublished(ctx, node+"/gpu", names...)
	Eventually(ctx, func(g Gomega) {
		accelerators, err := h.AcceleratorNode(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		var told []hardware.Problem
		for _, p := range accelerators.Status.Problems {
			told = append(told, hardware.Problem{Subject: p.Subject, Reason: p.Reason})
			g.Expect(p.Message).NotTo(BeEmpty())
		}
		g.Expect(told).To(ConsistOf(machine.Problems))
		g.Expect(accelerators.Status.ProblemCount).To(BeEquivalentTo(len(machine.Problems)))
		if plugin == "" {
			return
		}
		metrics, err := h.Metrics(ctx, plugin)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(metrics).To(HaveKeyWithValue(`fettle_devices{kind="gpu"}`, strconv.Itoa(len(names))))
		for reason, count := range reasons {
			g.Expect(metrics).To(HaveKeyWithValue(fmt.Sprintf("fettle_discovery_problems{reason=%q}", reason), strconv.Itoa(count)))
		}
	}).Should(Succeed())
}

// foretold compares the specs of the slices of a node, but for their generation, with those that its machine's file gives before. The
// driver of these cards has a version of its own: one that comes with the kernel has the kernel's, which is the test machine's.
func foretold(ctx SpecContext) {
	config, err := h.Kube.CoreV1().ConfigMaps(harness.Namespace).Get(ctx, "fettle-kubeletplugin", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(config.Data).To(HaveKey("config.yaml"))
	dir := GinkgoT().TempDir()
	file, template := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "node.yaml")
	Expect(os.WriteFile(file, []byte(config.Data["config.yaml"]), 0o600)).To(Succeed())
	Expect(os.WriteFile(template, []byte("apiVersion: v1\nkind: Node\nmetadata: {name: "+gpuNode+"}\n"), 0o600)).To(Succeed())
	var list struct{ Items []resourceapi.ResourceSlice }
	Expect(json.Unmarshal([]byte(fettle(ctx, "slices", "--machine", filepath.Join(h.Root, "test/machines/8xh100-sxm.txtar"),
		"--config", file, "--node-template", template, "-o", "json")), &list)).To(Succeed())
	pool := gpuNode + "/gpu"
	var want []string
	for i := range list.Items {
		if s := &list.Items[i]; s.Kind == "ResourceSlice" && s.Spec.Pool.Name == pool {
			want = append(want, specText(s))
		}
	}
	Expect(want).NotTo(BeEmpty())
	Eventually(ctx, func(g Gomega) {
		published, err := poolSlices(ctx, pool)
		g.Expect(err).NotTo(HaveOccurred())
		var got []string
		for i := range published {
			got = append(got, specText(&published[i]))
		}
		g.Expect(got).To(ConsistOf(want))
	}).Should(Succeed())
}

// specText is the spec of a slice as bytes. The generation counts the changes of a pool.
func specText(s *resourceapi.ResourceSlice) string {
	GinkgoHelper()
	spec := s.Spec.DeepCopy()
	spec.Pool.Generation = 1
	text, err := json.Marshal(spec)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

func twoHundred(ctx SpecContext) {
	place(ctx, mixedNode, "200-devices")
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	pool := mixedNode + "/gpu"
	eventuallyExplained(ctx, mixedNode, "")
	before, err := poolSlices(ctx, pool)
	Expect(err).NotTo(HaveOccurred())
	Expect(devicesIn(before)).To(Equal(200))
	Expect(before).To(HaveLen(4))
	for i := range before {
		Expect(len(before[i].Spec.Devices)).To(BeNumerically("<=", 64))
	}

	say("a restarted plugin writes nothing: the slices are the same objects in the same version")
	old, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, old)
	pluginReady(ctx, mixedNode)
	plugin, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		metrics, err := h.Metrics(ctx, plugin.Name)
		g.Expect(err).NotTo(HaveOccurred())
		looks, err := strconv.Atoi(metrics["fettle_discovery_duration_seconds_count"])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(looks).To(BeNumerically(">=", 3))
		g.Expect(metrics).To(HaveKey("fettle_published_timestamp_seconds"))
	}).Should(Succeed())
	after, err := poolSlices(ctx, pool)
	Expect(err).NotTo(HaveOccurred())
	Expect(after).To(Equal(before))
	reportFootprint(ctx, plugin.Name)

	say("the scheduler can give out every one of them")
	ns := newNamespace(ctx, nil)
	var pods []*corev1.Pod
	for i, n := range []int64{32, 32, 32, 32, 32, 32, 8} {
		name := fmt.Sprintf("take-%d", i)
		newTemplate(ctx, ns, name, spec(request("gpus", gpuClass, count(n))))
		pods = append(pods, newPod(ctx, ns, name, withTemplate(name), onNode(mixedNode)))
	}
	running(ctx, pods...)
	var given []string
	for _, p := range pods {
		for _, r := range results(onlyClaim(ctx, p)) {
			given = append(given, r.Device)
		}
	}
	slices.Sort(given)
	Expect(slices.Compact(given)).To(HaveLen(200))
}

func devicesIn(slices []resourceapi.ResourceSlice) int {
	n := 0
	for i := range slices {
		n += len(slices[i].Spec.Devices)
	}
	return n
}

// reportFootprint puts what the plugin needs into the report.
func reportFootprint(ctx context.Context, plugin string) {
	GinkgoHelper()
	metrics, err := h.Metrics(ctx, plugin)
	Expect(err).NotTo(HaveOccurred())
	number := func(name string) float64 {
		v, err := strconv.ParseFloat(metrics[name], 64)
		Expect(err).NotTo(HaveOccurred())
		return v
	}
	Expect(number("go_gc_gomemlimit_bytes")).To(BeNumerically("<", 1<<40), "the garbage collector keeps below the container's limit")
	AddReportEntry("plugin", fmt.Sprintf("%s: %.0f MiB resident, slices seen as wanted %.1f s after the process started", plugin,
		number("process_resident_memory_bytes")/(1<<20), number("fettle_published_timestamp_seconds")-number("process_start_time_seconds")),
		ReportEntryVisibilityAlways)
}
