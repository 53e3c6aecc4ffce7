// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/test/features"
	"github.com/fettle-dev/fettle/test/harness"
)

// rightsFile has what every process of the chart may do, and what its container sees. E2E_UPDATE=1 writes it.
const rightsFile = "testdata/rights.txt"

// pluginFeatures are the features of the chart's schema that change what the kubelet plugin has or how it is configured, alone, and all
// together.
func pluginFeatures(list features.List) map[string]harness.Values {
	GinkgoHelper()
	all := chartFeatures()
	out := map[string]harness.Values{"none": {}}
	together := harness.Values{}
	for _, name := range list.OfPlugin() {
		at := slices.IndexFunc(all, func(f features.Feature) bool { return f.Name == name })
		Expect(at).To(BeNumerically(">=", 0), "the chart has no feature %s", name)
		out[name] = all[at].Values
		if !strings.Contains(name, "=") {
			together = together.Merge(all[at].Values)
		}
	}
	out["all"] = together.Merge(harness.Values{"fpga": harness.Values{"backends": []string{"dfl", "fpga_manager", "xrt"}}})
	return out
}

// chartDir is where the source tree has the chart.
const chartDir = "deployments/helm/fettle"

// chartFeatures are those of the chart's schema, with what this cluster's nodes have.
func chartFeatures() []features.Feature {
	GinkgoHelper()
	samples := features.Samples()
	maps.Copy(samples, map[string]any{
		"hostDevices":              hostDevices(),
		"presets.allowedHostPaths": []harness.Values{{"path": teamFiles}, {"path": teamFiles + "/own", "writable": true}},
		"presets.hostDirectories":  []string{"/mnt/disks"},
		"fpga.stores":              []string{"/mnt"},
	})
	all, err := features.Read(filepath.Join(h.Root, chartDir), samples)
	Expect(err).NotTo(HaveOccurred())
	return all
}

// hasFewRights compares the rights and the mounts of every process of the chart with the golden file: as the node sees them, and the plugin
// with each feature alone, as it sees itself.
func hasFewRights(ctx SpecContext) {
	var got strings.Builder
	list, err := features.OpenList(filepath.Join(h.Root, chartDir))
	Expect(err).NotTo(HaveOccurred())
	say("every program of the chart")
	for _, component := range components(list) {
		for _, text := range processesOf(ctx, component, programPod(ctx, component)) {
			got.WriteString(text)
		}
	}
	say("the plugin with each feature")
	pods := map[string]*corev1.Pod{}
	for name, v := range pluginFeatures(list) {
		pods[name] = startRights(ctx, name, h.BaseValues().Merge(v))
	}
	none := rightsOf(ctx, pods["none"])
	fmt.Fprintf(&got, "\nplugin with no feature\n%s", none)
	delete(pods, "none")
	for _, name := range sortedKeys(pods) {
		fmt.Fprintf(&got, "\nplugin with feature %s\n%s", name, difference(none, rightsOf(ctx, pods[name])))
	}
	path := filepath.Join(h.Root, "test", "e2e", rightsFile)
	if os.Getenv("E2E_UPDATE") == "1" {
		Expect(os.WriteFile(path, []byte(got.String()), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	Expect(cmp.Diff(string(want), got.String())).To(BeEmpty(), "rights, -want +got: if they are meant to change, run with E2E_UPDATE=1")
}

// difference lists the lines of a text that another has not, and the other way round.
func difference(before, after string) string {
	var out strings.Builder
	for _, both := range [][3]string{{"- ", before, after}, {"+ ", after, before}} {
		for line := range strings.Lines(both[1]) {
			if !strings.Contains("\n"+both[2], "\n"+line) {
				out.WriteString(both[0] + line)
			}
		}
	}
	return out.String()
}

// components are those of the chart's workloads.
func components(list features.List) []string {
	var out []string
	for _, p := range list.Programs() {
		out = append(out, p.Component)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// programPod returns a pod of a component that runs: that of the release, or one that is made as the chart has it.
func programPod(ctx context.Context, component string) *corev1.Pod {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	Expect(err).NotTo(HaveOccurred())
	// None that an earlier spec's chart had and that is about to end.
	runs := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning })
	if runs >= 0 {
		return &pods.Items[runs]
	}
	return startProgram(ctx, component)
}

// startProgram starts a pod as a workload of the chart has it. Of one that ends by itself it shows what the runtime gives: another program
// runs, which stays.
func startProgram(ctx context.Context, component string) *corev1.Pod {
	GinkgoHelper()
	text, err := h.Manifests(ctx, h.BaseValues().Merge(harness.Values{
		"nvidia": harness.Values{"enabled": true}, "mps": harness.Values{"enabled": true},
	}))
	Expect(err).NotTo(HaveOccurred())
	programs, err := features.Programs([]byte(text))
	Expect(err).NotTo(HaveOccurred())
	at := slices.IndexFunc(programs, func(p features.Program) bool { return p.Component == component })
	Expect(at).To(BeNumerically(">=", 0), "the chart renders no workload of %s", component)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "rights-" + component, Namespace: harness.Namespace}, Spec: *programs[at].Pod.DeepCopy(),
	}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName, pod.Spec.ResourceClaims, pod.Spec.Affinity = gpuNode, "", nil, nil
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Resources = corev1.ResourceRequirements{}
		if kind := programs[at].Kind; kind == "Job" || kind == "Pod" {
			c.Image, c.ImagePullPolicy, c.Command, c.Args = image, corev1.PullNever, []string{"sh", "-c", stay}, nil
		}
	}
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})).To(Succeed())
	}, NodeTimeout(h.Patient(time.Minute)))
	made, err := h.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	running(ctx, made)
	made, err = h.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return made
}

// processesOf describes the containers of a pod of a component that runs.
func processesOf(ctx context.Context, component string, pod *corev1.Pod) []string {
	GinkgoHelper()
	processes, err := h.Processes(ctx, pod.Spec.NodeName)
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		pid := processes[status.ContainerID]
		Expect(pid).NotTo(BeEmpty(), "container %s runs", status.Name)
		look := func(script string) string {
			text, err := h.OnNode(ctx, pod.Spec.NodeName, "sh", "-c", "cd /proc/"+pid+" && "+script)
			Expect(err).NotTo(HaveOccurred())
			return text
		}
		state, err := confine.ParseState(strings.NewReader(look("cat status")))
		Expect(err).NotTo(HaveOccurred())
		kubelet := strings.Fields(look("ls root/var/lib/kubelet 2>/dev/null; true"))
		text := fmt.Sprintf("\ncontainer %s of %s, which runs\n%s%sin /var/lib/kubelet: %s\n",
			status.Name, component, state, mounts(pod, status.Name, look("cat mountinfo")), strings.Join(kubelet, " "))
		if status.Name == "claims" {
			text += "in /kubelet/pods: " + strings.Join(strings.Fields(look("ls -A root/kubelet/pods")), " ") + "\n"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// mounts lists the mounts of a container: where and whether for reading. What is mounted below a volume of the host is the node's own
// business, and differs.
func mounts(pod *corev1.Pod, container, mountinfo string) string {
	var volumes []string
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == container {
			for _, m := range pod.Spec.Containers[i].VolumeMounts {
				volumes = append(volumes, m.MountPath)
			}
		}
	}
	var out []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		at, options := fields[4], fields[5]
		below := slices.ContainsFunc(volumes, func(v string) bool { return strings.HasPrefix(at, v+"/") }) && !slices.Contains(volumes, at)
		if system := strings.HasPrefix(at, "/proc/") || strings.HasPrefix(at, "/sys/"); !below && !system {
			mode, _, _ := strings.Cut(options, ",")
			out = append(out, fmt.Sprintf("mount %s %s\n", at, mode))
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "")
}

// startRights starts the plugin's pod as the chart has it with some values, but for its command: it gives up its rights as always, prints
// what is left, and ends.
func startRights(ctx context.Context, name string, v harness.Values) *corev1.Pod {
	GinkgoHelper()
	name = "rights-" + strings.ToLower(strings.NewReplacer("=", "-", ".", "-", "_", "-").Replace(name))
	var set struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}
	var config corev1.ConfigMap
	for template, into := range map[string]any{"kubeletplugin/daemonset.yaml": &set, "kubeletplugin/configmap.yaml": &config} {
		text, err := h.Template(ctx, template, v)
		Expect(err).NotTo(HaveOccurred())
		Expect(yaml.Unmarshal([]byte(text), into)).To(Succeed())
	}
	config.Name = name
	_, err := h.Kube.CoreV1().ConfigMaps(harness.Namespace).Create(ctx, &config, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: harness.Namespace}, Spec: set.Spec.Template.Spec}
	pod.Spec.NodeName, pod.Spec.RestartPolicy, pod.Spec.Affinity = gpuNode, corev1.RestartPolicyNever, nil
	pod.Spec.Containers = pod.Spec.Containers[:1] // claims runs for ever, and is in the release's own pod
	c := &pod.Spec.Containers[0]
	c.Resources = corev1.ResourceRequirements{} // these pods come all at once, and the kubelet refuses what its node has no processor left for
	c.Args, c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = []string{"rights", "--config=/etc/fettle/config.yaml"}, nil, nil, nil
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.ConfigMap != nil {
			volume.ConfigMap.Name = name
		}
	}
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})).To(Succeed())
		Expect(h.Kube.CoreV1().ConfigMaps(harness.Namespace).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	}, NodeTimeout(h.Patient(time.Minute)))
	pod, err = h.Kube.CoreV1().Pods(harness.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// rightsOf waits for the end of such a pod and returns what it printed, and the mounts that the chart gives it.
func rightsOf(ctx context.Context, pod *corev1.Pod) string {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the end of "+pod.Name, soon, func(ctx context.Context) error {
		return h.PodDone(ctx, pod.Namespace, pod.Name, corev1.PodSucceeded)
	})).To(Succeed())
	text, err := h.Logs(ctx, pod.Namespace, pod.Name, pod.Spec.Containers[0].Name)
	Expect(err).NotTo(HaveOccurred())
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if strings.HasPrefix(m.MountPath, "/var/run/secrets/") {
			continue
		}
		mode := map[bool]string{true: "ro", false: "rw"}[m.ReadOnly]
		if m.MountPropagation != nil {
			mode += " " + string(*m.MountPropagation)
		}
		text += fmt.Sprintf("volume %s %s\n", m.MountPath, mode)
	}
	return text
}
