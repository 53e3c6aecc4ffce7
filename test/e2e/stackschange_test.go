// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// changes is the name of a stack whose container brings the driver, and changes it.
const changes = "e2e-change"

const changedStack = `
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: ` + changes + `}
spec:
  driver:
    engine: DaemonSet
    daemonSet:
      repository: %s/driver
      tag: ${DRIVER_VERSION}-${KERNEL}
      version: %s
      %s
      privileged: true
      hostPID: true
      hostPaths: [{path: %s, mountPath: /machine}]
      command: [sh, /driver/driver.sh, run]
      readyCommand: [sh, /driver/driver.sh, ready]
  check: {deviceClassNames: [gpu.fettle.dev]}
  upgrade: {drainTimeout: 1m, maxFailed: 0}
`

// The versions of the driver, as it has them and as the AcceleratorNode shows them. Two do not work: one fails to load, and one is there
// and has nothing loaded.
const (
	driver1, shown1           = "580.95.05", "580.95.5"
	driver2, shown2           = "580.105.08", "580.105.8"
	driverFails, driverAbsent = "590.1.01", "590.2.02"
	whyItFails                = "insmod: ERROR: could not insert module nvidia.ko: Exec format error"
)

// changesDriver: a stack brings the driver to nodes that have none. Then another version is wanted, and then versions that do not load.
func changesDriver(ctx SpecContext) {
	d := startDrivers(ctx)
	say("the stack brings the driver to nodes that have none")
	d.want(ctx, driver1, shown1)
	DeferCleanup(func(ctx SpecContext) { // each container unloads its driver before it ends
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", changes, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	for _, node := range []string{gpuNode, mixedNode} {
		availableStack(ctx, changes, node, "")
		d.has(ctx, node, shown1, "loaded "+driver1)
	}
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	first := keptWorker(ctx, ns)
	d.plans(ctx, first)
	d.changes(ctx, first)
	say("the pod's successor runs there again")
	d.fails(ctx, successor(ctx, ns, first))
}

// plans: the preview of the change of version names the pod and its budget.
func (d *drivers) plans(ctx context.Context, first *corev1.Pod) {
	GinkgoHelper()
	say("what another version would do")
	plan := stackPlan(ctx, d.manifest(driver2, shown2))
	Expect(plan.Nodes).To(HaveLen(h.Nodes))
	Expect(plan.Nodes[0]).To(And(HaveField("Node", gpuNode), HaveField("Turn", 1), HaveField("Phase", stack.PhaseDraining)))
	Expect(plan.Nodes[0].Pods).To(HaveLen(1))
	Expect(plan.Nodes[0].Pods[0]).To(And(HaveField("Name", first.Name), HaveField("Budgets", []string{"keeps"})))
	Expect(plan.Nodes[1]).To(And(HaveField("Node", mixedNode), HaveField("Turn", 2), HaveField("Pods", BeEmpty())))
}

// changes: the node with a pod that a disruption budget keeps is stuck, with the reason, and the other node gets the new driver meanwhile.
// Without the budget the pod is evicted, the driver changed, and claims checked. The controller is killed twice on the way.
func (d *drivers) changes(ctx context.Context, first *corev1.Pod) {
	GinkgoHelper()
	say("another version is wanted, and the controller is killed")
	begun := time.Now().Truncate(time.Second)
	d.want(ctx, driver2, shown2)
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Annotations).To(HaveKey(v1alpha1.UpgradeAnnotation))
	}).Should(Succeed())
	killController(ctx)

	say("the node of the pod is stuck, and the other one is changed")
	Eventually(ctx, func(g Gomega) {
		w := readStack(ctx, g, changes).Status.Waiting
		g.Expect(w).To(HaveLen(1))
		g.Expect(w[0].Node).To(Equal(gpuNode))
		g.Expect(w[0].Reason).To(Equal("UpgradeDrainBlocked"))
		g.Expect(w[0].Message).To(And(ContainSubstring(first.Namespace+"/"+first.Name), ContainSubstring("keeps")))
	}).WithTimeout(h.Patient(4 * soon)).Should(Succeed())
	d.has(ctx, mixedNode, shown2, changed()...)
	stuck := shown1
	if older { // the API keeps no taints, so nothing of a node is published that its pods are to leave
		stuck = ""
	}
	d.has(ctx, gpuNode, stuck, "loaded "+driver1)
	stillRun(ctx, first)
	eventuallyUpgradeTaints(ctx, gpuNode, true)

	say("the budget goes, and the controller is killed again")
	Expect(h.Kube.PolicyV1().PodDisruptionBudgets(first.Namespace).Delete(ctx, "keeps", metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, first)
	eventuallyEvent(ctx, first.Namespace, "Pod", first.Name, "EvictedForUpgrade", changes)
	killController(ctx)
	for _, node := range []string{gpuNode, mixedNode} {
		availableStack(ctx, changes, node, "")
		d.has(ctx, node, shown2, changed()...)
		eventuallyReleased(ctx, node, begun)
	}
}

// changed is what the containers of the driver have done on a node whose driver was changed once, and more.
func changed(more ...string) []string {
	return append([]string{"loaded " + driver1, "unloaded " + driver1, "loaded " + driver2}, more...)
}

// fails: a version that does not load takes one node out, and says so, until the version before is wanted again.
func (d *drivers) fails(ctx context.Context, worker *corev1.Pod) {
	GinkgoHelper()
	say("a version that does not load takes one node out, and no other")
	d.want(ctx, driverFails, "")
	d.eventuallyOut(ctx, v1alpha1.StateDriver, "DriverFailed", whyItFails)
	eventuallyGone(ctx, worker)
	d.has(ctx, gpuNode, "", changed("unloaded "+driver2)...)

	say("nor does one whose container is ready with nothing loaded")
	d.want(ctx, driverAbsent, "")
	d.eventuallyOut(ctx, v1alpha1.StateDriverChecked, "DriverNotLoaded", "no kernel driver holds")
	d.has(ctx, gpuNode, "", changed("unloaded "+driver2)...)

	say("the version before makes it available again")
	begun := time.Now().Truncate(time.Second)
	d.want(ctx, driver2, shown2)
	availableStack(ctx, changes, gpuNode, "")
	d.has(ctx, gpuNode, shown2, changed("unloaded "+driver2, "loaded "+driver2)...)
	d.has(ctx, mixedNode, shown2, changed()...)
	eventuallyReleased(ctx, gpuNode, begun)
	successor(ctx, worker.Namespace, worker)
}

// drivers are containers that bring a driver to nodes whose GPUs and library are simulated.
type drivers struct{ registry string }

// manifest is the stack that wants a version, which the plugin has to find as it is shown; for "" it is to have the image only.
func (d *drivers) manifest(version, shown string) string {
	if shown != "" {
		shown = "moduleVersion: " + shown
	}
	return fmt.Sprintf(changedStack, d.registry, version, shown, harness.MachineRoot)
}

// want changes the version that the stack wants.
func (d *drivers) want(ctx context.Context, version, shown string) {
	GinkgoHelper()
	_, err := h.Apply(ctx, d.manifest(version, shown))
	Expect(err).NotTo(HaveOccurred())
}

// startDrivers makes both nodes machines with H100 that have no driver, and pushes the images that bring one.
func startDrivers(ctx SpecContext) *drivers {
	GinkgoHelper()
	allowsDrivers(ctx)
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
	simulators := startSimulators(ctx)
	for _, node := range []string{gpuNode, mixedNode} {
		machine, err := h.LoadMachine("8xh100-iommu", "4xlocalssd")
		Expect(err).NotTo(HaveOccurred())
		machine.Entries = slices.DeleteFunc(machine.Entries, func(e sim.Entry) bool { // where a module is loaded, its version is in /proc, too
			return strings.HasPrefix(e.Path, "sys/module/nvidia")
		})
		placeChanged(ctx, node, machine, "8xh100-iommu", "4xlocalssd")
		Expect(simulators.StartPCI(ctx, node, machine)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(simulators.StopPCI(ctx, node)).To(Succeed()) })
		_, err = simulators.StartNVML(ctx, node, nvmlsim.H100)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(simulators.StopNVML(ctx, node)).To(Succeed()) })
	}
	registry, err := h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })
	d := &drivers{registry: registry}
	files := filesOfDriver()
	for version, also := range map[string][]tarFile{
		driver1: nil, driver2: nil, driverFails: {regular("driver/fails", []byte(whyItFails+"\n"))},
		driverAbsent: {regular("driver/loads-nothing", nil)},
	} {
		d.push(ctx, version, append(also, files...))
	}
	script := string(driverScript())
	for _, node := range []string{gpuNode, mixedNode} {
		_, err := h.OnNode(ctx, node, "env", "TREE="+harness.MachineRoot, "sh", "-c", script, "sh", "unload")
		Expect(err).NotTo(HaveOccurred())
		Expect(os.Remove(d.log(node))).To(Succeed())
	}
	tag, err := simulators.NVMLImage(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Install(ctx, values().Merge(driverValues()).Merge(harness.NVMLValues(tag)))).To(Succeed())
	for _, node := range []string{gpuNode, mixedNode} {
		pluginReady(ctx, node)
		eventuallyProblem(ctx, node, "DriverNotLoaded", "no kernel driver holds")
		Eventually(ctx, func() []string { return published(ctx, node) }).Should(BeEmpty())
	}
	return d
}

func driverScript() []byte {
	GinkgoHelper()
	script, err := os.ReadFile(filepath.Join(h.Root, "test/e2e/testdata/driver.sh"))
	Expect(err).NotTo(HaveOccurred())
	return script
}

// filesOfDriver are those with which driver.sh makes the driver appear, as the GPU node has them. The other node's are the same.
func filesOfDriver() []tarFile {
	GinkgoHelper()
	files := append(busybox("bin"), regular("driver/driver.sh", driverScript()))
	for _, applet := range []string{"cp", "grep", "mkdir", "mknod", "mv", "rm", "sed", "sort", "tr"} {
		files = append(files, symlink("bin/"+applet, "busybox"))
	}
	tree := h.MachineDir(gpuNode)
	files = append(files, fromHere("driver/devices", filepath.Join(tree, "proc/devices")))
	infos, err := filepath.Glob(filepath.Join(tree, "proc/driver/nvidia/gpus/*/information"))
	Expect(err).NotTo(HaveOccurred())
	Expect(infos).To(HaveLen(8))
	for _, info := range infos {
		files = append(files, fromHere("driver/gpus/"+filepath.Base(filepath.Dir(info))+"/information", info))
	}
	nodes, err := filepath.Glob(filepath.Join(tree, "dev/nvidia*"))
	Expect(err).NotTo(HaveOccurred())
	var list strings.Builder
	for _, node := range nodes {
		var stat unix.Stat_t
		Expect(unix.Lstat(node, &stat)).To(Succeed())
		if stat.Mode&unix.S_IFMT == unix.S_IFCHR {
			fmt.Fprintf(&list, "%s %d %d\n", filepath.Base(node), unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
	}
	return append(files, regular("driver/nodes", []byte(list.String())))
}

// push gives the registry the image of a version, for the kernel of the nodes.
func (d *drivers) push(ctx context.Context, version string, files []tarFile) {
	GinkgoHelper()
	ref, err := name.NewTag(d.registry+"/driver:"+version+"-"+kernelOf(ctx, gpuNode), name.Insecure)
	Expect(err).NotTo(HaveOccurred())
	image := builtImage{files: append([]tarFile{regular("driver/version", []byte(version+"\n"))}, files...)}
	Expect(remote.Write(ref, image.build())).To(Succeed())
}

// log is the file in which driver.sh notes what it does on a node.
func (d *drivers) log(node string) string { return filepath.Join(h.MachineDir(node), "driver.log") }

// has waits until the plugin of a node shows a version of the driver, and every GPU with it, or neither for "". It expects that the
// containers have done so much and no more since the spec began.
func (d *drivers) has(ctx context.Context, node, shown string, did ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		accelerators, err := h.AcceleratorNode(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		devices, err := poolDevices(ctx, node+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		if shown == "" {
			g.Expect(accelerators.Status.Summary.Drivers).NotTo(ContainSubstring("nvidia"))
			g.Expect(devices).To(BeEmpty())
			return
		}
		g.Expect(accelerators.Status.Summary.Drivers).To(HaveSuffix("nvidia " + shown)) // beside the disks' "host"
		g.Expect(devices).To(HaveLen(8))
		for _, one := range devices {
			g.Expect(*one.Attributes[device.AttributeDriverVersion].VersionValue).To(Equal(shown), one.Name)
		}
	}).Should(Succeed())
	text, err := os.ReadFile(d.log(node))
	Expect(err).NotTo(HaveOccurred())
	Expect(lines(string(text))).To(Equal(did), "what the containers of the driver did on %s", node)
}

// eventuallyOut waits until the GPU node has failed a state, for a reason. The other node keeps the driver that it has.
func (d *drivers) eventuallyOut(ctx context.Context, state v1alpha1.StackState, reason, why string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		s := readStack(ctx, g, changes)
		g.Expect(s.Status.Waiting).To(ContainElement(And(HaveField("Node", gpuNode), HaveField("State", state), HaveField("Failed", true),
			HaveField("Reason", reason), HaveField("Message", ContainSubstring(why)))), "%+v", s.Status.Waiting)
		g.Expect(s.Status.Waiting).To(ContainElement(And(HaveField("Node", mixedNode), HaveField("Failed", false),
			HaveField("Reason", "UpgradeStopped"))), "%+v", s.Status.Waiting)
		g.Expect(meta.IsStatusConditionFalse(s.Status.Conditions, v1alpha1.ConditionAvailable)).To(BeTrue(), "%+v", s.Status.Conditions)
		degraded := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
		g.Expect(degraded).NotTo(BeNil())
		g.Expect(degraded.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(degraded.Message).To(And(ContainSubstring(gpuNode), ContainSubstring(why)))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	eventuallyEvent(ctx, metav1.NamespaceDefault, "AcceleratorNode", gpuNode, reason, why)
	Expect(published(ctx, mixedNode)).To(HaveLen(8))
}

// eventuallyReleased waits until the change of a node's driver is over, with a check since then.
func eventuallyReleased(ctx context.Context, node string, begun time.Time) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		n, err := h.AcceleratorNode(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(n.Annotations).NotTo(Or(HaveKey(v1alpha1.UpgradeAnnotation), HaveKey(v1alpha1.QuiesceAnnotation)))
		check := checkOf(g, n, gpuClass)
		g.Expect(check.Time.Time).To(BeTemporally(">=", begun), "the check is of the new driver")
		g.Expect(check.Passed).To(BeTrue(), check.Message)
	}).Should(Succeed())
	eventuallyUpgradeTaints(ctx, node, false)
}

// successor waits until the pod that replaces a worker runs on the GPU node, with its GPU, and returns it.
func successor(ctx context.Context, ns string, before *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	var next *corev1.Pod
	Eventually(ctx, func(g Gomega) {
		pods := workers(ctx, g, ns)
		g.Expect(pods).To(HaveLen(1))
		g.Expect(pods[0].UID).NotTo(Equal(before.UID))
		g.Expect(pods[0].Spec.NodeName).To(Equal(gpuNode))
		g.Expect(pods[0].Status.Phase).To(Equal(corev1.PodRunning))
		next = &pods[0]
	}).WithTimeout(h.Patient(2 * soon)).Should(Succeed())
	hasExactly(ctx, next, main, devicesOf(results(onlyClaim(ctx, next)))...)
	return next
}

// stackPlan returns what fettle stack plan says of the cluster with another stack.
func stackPlan(ctx context.Context, manifest string) stack.Preview {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "stack.yaml")
	Expect(os.WriteFile(file, []byte(manifest), 0o600)).To(Succeed())
	out, err := h.Fettle(ctx, "stack", "plan", "--from-cluster", "-f", file, "-o", "json")
	Expect(err).NotTo(HaveOccurred())
	var plans struct{ Stacks []stack.Preview }
	Expect(json.Unmarshal([]byte(out), &plans)).To(Succeed())
	Expect(plans.Stacks).To(HaveLen(1))
	return plans.Stacks[0]
}

// stayOpen stays, and has each GPU of NVIDIA's open as a program that computes does. Not the shell itself: a terminal would become its own.
const stayOpen = `for gpu in /dev/nvidia[0-9]*; do [ ! -e "$gpu" ] || sleep 86400 3<> "$gpu" & done; ` + stay

// startWorker runs a Deployment of one pod with a GPU of a node, and returns the pod.
func startWorker(ctx context.Context, ns, node string) *corev1.Pod {
	GinkgoHelper()
	pod := corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: node}, TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken: new(false),
		ResourceClaims:               []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}},
		Containers: []corev1.Container{{
			Name: main, Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", stayOpen},
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
		}},
	}
	_, err := h.Kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: workerLabels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: workerLabels()}, Spec: pod},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	var first *corev1.Pod
	Eventually(ctx, func(g Gomega) {
		pods := workers(ctx, g, ns)
		g.Expect(pods).To(HaveLen(1))
		first = &pods[0]
	}).Should(Succeed())
	running(ctx, first)
	return first
}

func workerLabels() map[string]string { return map[string]string{"e2e": "worker"} }

// keptWorker starts a worker that a disruption budget keeps.
func keptWorker(ctx context.Context, ns string) *corev1.Pod {
	GinkgoHelper()
	_, err := h.Kube.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keeps"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: workerLabels()}, MaxUnavailable: new(intstr.FromInt32(0)),
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return startWorker(ctx, ns, gpuNode)
}

func workers(ctx context.Context, g Gomega, ns string) []corev1.Pod {
	pods, err := h.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "e2e=worker"})
	g.Expect(err).NotTo(HaveOccurred())
	return pods.Items
}

// killController ends the controller's process without notice. The Deployment starts another.
func killController(ctx context.Context) {
	GinkgoHelper()
	of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"}
	pods, err := h.Kube.CoreV1().Pods("fettle-system").List(ctx, of)
	Expect(err).NotTo(HaveOccurred())
	gone := map[types.UID]bool{}
	for _, p := range pods.Items {
		gone[p.UID] = true
	}
	Expect(gone).NotTo(BeEmpty())
	err = h.Kube.CoreV1().Pods("fettle-system").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, of)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		pods, err := h.Kube.CoreV1().Pods("fettle-system").List(ctx, of)
		g.Expect(err).NotTo(HaveOccurred())
		for _, p := range pods.Items {
			g.Expect(gone).NotTo(HaveKey(p.UID))
		}
		g.Expect(pods.Items).NotTo(BeEmpty())
	}).Should(Succeed())
}

// eventuallyUpgradeTaints waits until all devices of a node are published with the taint of an upgrade, or without. Where the API keeps no
// taints, none is published instead: these are for nodes whose pods are to go.
func eventuallyUpgradeTaints(ctx context.Context, node string, want bool) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		devices, err := poolDevices(ctx, node+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		if older && want {
			g.Expect(devices).To(BeEmpty())
			return
		}
		for _, d := range devices {
			tainted := false
			for _, t := range d.Taints {
				tainted = tainted || t.Key == v1alpha1.UpgradeAnnotation
			}
			g.Expect(tainted).To(Equal(want), d.Name)
		}
		g.Expect(devices).NotTo(BeEmpty())
	}).Should(Succeed())
}
