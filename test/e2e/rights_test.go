// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
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
	"github.com/fettle-dev/fettle/test/harness"
)

// rightsFile has what every process of the chart may do, and what its container sees. E2E_UPDATE=1 writes it.
const rightsFile = "testdata/rights.txt"

// features are the chart's values that change what the kubelet plugin may do, alone, and all together.
func features() map[string]harness.Values {
	out := map[string]harness.Values{
		"none":        {},
		"hostDevices": {"hostDevices": hostDevices()},
		"presets": {"presets": harness.Values{
			"scratch": true, "allowedHostPaths": []harness.Values{{"path": teamFiles}, {"path": teamFiles + "/own", "writable": true}},
		}},
		"kernelCaches": {"kernelCaches": harness.Values{"enabled": true}},
		"nvidia":       {"nvidia": harness.Values{"enabled": true}},
		"partitions":   {"partitions": harness.Values{"pci": true}},
	}
	all := harness.Values{}
	for _, v := range out {
		all = all.Merge(v)
	}
	for _, backend := range []string{"dfl", "fpga_manager", "xrt"} {
		out["fpga "+backend] = harness.Values{"fpga": harness.Values{"programming": true, "backends": []string{backend}}}
	}
	out["all"] = all.Merge(harness.Values{"fpga": harness.Values{"programming": true, "backends": []string{"dfl", "fpga_manager", "xrt"}}})
	return out
}

// hasFewRights compares the rights and the mounts of every process of the chart with the golden file: those that run now, as the node sees
// them, and the plugin with each feature alone, as it sees itself.
func hasFewRights(ctx SpecContext) {
	var got strings.Builder
	for _, component := range []string{"kubeletplugin", "controller", "webhook"} {
		for _, line := range processesOf(ctx, component) {
			got.WriteString(line)
		}
	}
	say("the plugin with each feature")
	pods := map[string]*corev1.Pod{}
	for name, v := range features() {
		pods[name] = startRights(ctx, name, h.BaseValues().Merge(v))
	}
	for _, name := range sortedKeys(pods) {
		fmt.Fprintf(&got, "\nplugin with feature %s\n%s", name, rightsOf(ctx, pods[name]))
	}
	root, err := harness.Repository()
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(root, "test", "e2e", rightsFile)
	if os.Getenv("E2E_UPDATE") == "1" {
		Expect(os.WriteFile(path, []byte(got.String()), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	Expect(cmp.Diff(string(want), got.String())).To(BeEmpty(), "rights, -want +got: if they are meant to change, run with E2E_UPDATE=1")
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// processesOf describes the containers of a pod of a component, none that an earlier spec's chart had and that is about to end.
func processesOf(ctx context.Context, component string) []string {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	Expect(err).NotTo(HaveOccurred())
	stays := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning })
	Expect(stays).To(BeNumerically(">=", 0), "no pod of %s runs", component)
	pod := &pods.Items[stays]
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
	name = "rights-" + strings.ToLower(strings.NewReplacer(" ", "-", "_", "-").Replace(name))
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
	pod.Spec.NodeName, pod.Spec.RestartPolicy = gpuNode, corev1.RestartPolicyNever
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
