// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// testStacks: a node joins and goes through all states, another one fails and holds back nobody, a node starts again and waits for its
// plugin, and a younger stack has no node.
func (c cluster) testStacks(t *testing.T) {
	apitest.Eventually(t, func() string { return errorText(c.client.List(t.Context(), &v1alpha1.AcceleratorStackList{})) })
	s := hostStack("api-stack", "stacks")
	c.create(t, s)
	c.awaitStack(t, s, "Unknown NoNodes", "False Settled", "False NoNodeFailed", 0, 0, "")

	good := c.joins(t, "stack-good", "stacks")
	c.awaitStack(t, s, "False NoPlugin", "True NoPlugin", "False NoNodeFailed", 1, 0, "stack-good Facts NoPlugin")
	first := c.pluginPod(t, good)
	c.create(t, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: good}})
	c.awaitStack(t, s, "False NotReported", "True NotReported", "False NoNodeFailed", 1, 0, "stack-good Facts NotReported")
	c.reportsFacts(t, good, "boot-1", first, func(a *v1alpha1.AcceleratorNodeStatus) {
		meta.SetStatusCondition(&a.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPublished, Status: metav1.ConditionFalse, Reason: "Pending", Message: "not yet",
		})
	})
	c.awaitStack(t, s, "False NotPublished", "True NotPublished", "False NoNodeFailed", 1, 0, "stack-good Published NotPublished")
	c.reportsFacts(t, good, "boot-1", first, nil)
	c.awaitStack(t, s, "False CheckRunning", "True CheckRunning", "False NoNodeFailed", 1, 0, "stack-good ClaimChecked CheckRunning")
	c.endCheck(t, good, corev1.PodSucceeded, "")
	c.awaitStack(t, s, "True AllNodesReady", "False Settled", "False NoNodeFailed", 1, 1, "")
	c.awaitNoCheck(t, good)
	apitest.Eventually(t, func() string { return c.missingEvent(good, "NodeReady") })

	bad := c.joins(t, "stack-bad", "stacks")
	second := c.pluginPod(t, bad)
	c.create(t, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: bad}})
	c.reportsFacts(t, bad, "boot-1", second, func(a *v1alpha1.AcceleratorNodeStatus) {
		a.Pools[0].Devices, a.Facts.WithoutDriver = 0, 1
		a.SetProblems([]v1alpha1.NodeProblem{{Subject: "0000:17:00.0", Reason: "DriverNotLoaded", Message: "load nvidia"}})
	})
	c.awaitStack(t, s, "False DriverNotLoaded", "False Settled", "True DriverNotLoaded", 2, 1, "stack-bad DriverChecked DriverNotLoaded")
	apitest.Eventually(t, func() string { return c.missingEvent(bad, "DriverNotLoaded") })
	c.wantRow(t, "acceleratorstacks/"+s.Name, map[string]string{
		"Driver": "Host", "Nodes": "2", "Ready": "1", "Failed": "1", "Available": "False", "Degraded": "True",
		"Why": "1 of 2 nodes have passed every state; node stack-bad: DriverChecked: 0000:17:00.0: load nvidia",
	})

	c.boots(t, good, "boot-2")
	c.awaitStack(t, s, "False DriverNotLoaded", "True OtherBoot", "True DriverNotLoaded", 2, 0,
		"stack-bad DriverChecked DriverNotLoaded, stack-good Facts OtherBoot")
	c.reportsFacts(t, good, "boot-2", first, nil)
	c.reportsFacts(t, bad, "boot-1", second, nil)
	c.endCheck(t, bad, corev1.PodFailed, "selftest: open /dev/nvidia0: no such device")
	c.endCheck(t, good, corev1.PodSucceeded, "")
	c.awaitStack(t, s, "False CheckFailed", "False Settled", "True CheckFailed", 2, 1, "stack-bad ClaimChecked CheckFailed")
	apitest.Eventually(t, func() string { return c.missingEvent(bad, "CheckFailed") })
	c.pluginReplaced(t, bad) // the driver was mended, and the plugin's pod is another: the result says nothing any more
	c.endCheck(t, bad, corev1.PodSucceeded, "")
	c.awaitStack(t, s, "True AllNodesReady", "False Settled", "False NoNodeFailed", 2, 2, "")

	younger := hostStack("api-younger", "stacks")
	c.create(t, younger)
	c.awaitStack(t, younger, "Unknown NoNodes", "False Settled", "False NoNodeFailed", 0, 0, "")
	o := meta.FindStatusCondition(younger.Status.Conditions, v1alpha1.ConditionOverruled)
	if o == nil || !strings.Contains(o.Message, s.Name) {
		t.Errorf("Overruled is %+v", o)
	}
	check.Must(t, c.client.Delete(t.Context(), s)) // the results are of the nodes: the next stack believes them
	c.awaitStack(t, younger, "True AllNodesReady", "False Settled", "False NoNodeFailed", 2, 2, "")
	check.Must(t, c.client.Delete(t.Context(), younger))
	c.testExternal(t, good, bad)
	c.testDrivers(t, good, bad)
	c.testKMM(t, good, bad)
	c.testStates(t, good, bad)
}

// testDrivers: the engine DaemonSet with two kernels. The node whose kernel has no image waits alone, and the DaemonSets go with the
// stack's engine.
func (c cluster) testDrivers(t *testing.T, good, bad string) {
	for node, kernel := range map[string]string{good: "6.1.0-1", bad: "6.1.0-2+"} {
		patch := fmt.Appendf(nil, `{"status":{"nodeInfo":{"kernelVersion":%q}}}`, kernel)
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		check.Must(t, c.client.Status().Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", patch)))
	}
	s := hostStack("api-drivers", "stacks")
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineDaemonSet, DaemonSet: &v1alpha1.DaemonSetDriver{
		Repository: "registry.example/driver", Tag: "${DRIVER_VERSION}-${KERNEL}-${OS}", Version: "1", Privileged: new(true),
		HostPaths:    []v1alpha1.DriverHostPath{{Path: "/run/d", MountPath: "/run/d", Shared: true}},
		ReadyCommand: []string{"true"},
	}}
	c.create(t, s)
	c.awaitSets(t, "6.1.0-1 registry.example/driver:1-6.1.0-1-debian12, 6.1.0-2+ registry.example/driver:1-6.1.0-2_-debian12")
	for node, kernel := range map[string]string{good: "6.1.0-1", bad: "6.1.0-2+"} {
		c.driverPod(t, node, kernel)
	}
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err.Error()
		}
		var failed []string
		for _, w := range s.Status.Waiting {
			if w.Failed {
				failed = append(failed, w.Node+" "+w.Reason)
			}
		}
		if got := strings.Join(failed, ", "); got != bad+" DriverImageMissing" {
			return "failed: " + got
		}
		return ""
	})
	apitest.Eventually(t, func() string { return c.missingEvent(bad, "DriverImageMissing") })
	before := s.DeepCopy()
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineHost}
	check.Must(t, c.client.Patch(t.Context(), s, client.MergeFrom(before)))
	c.awaitSets(t, "")
	for _, node := range []string{good, bad} { // as they go with their DaemonSets: a node gets no other driver before
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: driverNamespace, Name: "driver-" + node}}
		check.Must(t, c.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
	}
	check.Must(t, c.client.Delete(t.Context(), s))
}

// driverPod makes the pod of a driver as the DaemonSet's controller would. On the kernel 6.1.0-1 it runs; for others there is no image.
func (c cluster) driverPod(t *testing.T, node, kernel string) {
	t.Helper()
	var list appsv1.DaemonSetList
	check.Must(t, c.client.List(t.Context(), &list, client.InNamespace(driverNamespace)))
	for i := range list.Items {
		d := &list.Items[i]
		if d.Annotations["fettle.dev/driver-kernel"] != kernel {
			continue
		}
		p := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
		p.Namespace, p.Name, p.Spec.NodeName = driverNamespace, "driver-"+node, node
		c.create(t, p)
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}
		if kernel == "6.1.0-1" {
			state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver", Image: "x", ImageID: "x", State: state}}
		check.Must(t, c.client.Status().Update(t.Context(), p))
		return
	}
	t.Fatalf("no DaemonSet for kernel %s", kernel)
}

// awaitSets waits until the DaemonSets of drivers are those of these kernels and images.
func (c cluster) awaitSets(t *testing.T, want string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		var list appsv1.DaemonSetList
		if err := c.client.List(t.Context(), &list, client.InNamespace(driverNamespace)); err != nil {
			return err.Error()
		}
		var have []string
		for i := range list.Items {
			d := &list.Items[i]
			have = append(have, d.Annotations["fettle.dev/driver-kernel"]+" "+d.Spec.Template.Spec.Containers[0].Image)
		}
		slices.Sort(have)
		if got := strings.Join(have, ", "); got != want {
			return fmt.Sprintf("the DaemonSets are %q, want %q", got, want)
		}
		return ""
	})
}

// testExternal: an operator that is not installed is no error, and what it reports of a node once it is there counts for that node
// alone.
func (c cluster) testExternal(t *testing.T, good, bad string) {
	s := hostStack("api-external", "stacks")
	s.Spec.Driver = v1alpha1.StackDriver{
		Engine: v1alpha1.EngineExternal, External: &v1alpha1.ExternalDriver{Operator: v1alpha1.OperatorAMD},
	}
	c.create(t, s)
	missing := fmt.Sprintf("%s Driver OperatorMissing, %s Driver OperatorMissing", bad, good)
	c.awaitStack(t, s, "False OperatorMissing", "True OperatorMissing", "False NoNodeFailed", 2, 0, missing)
	c.create(t, deviceConfigs())
	config := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "amd.com/v1alpha1", "kind": "DeviceConfig", "metadata": map[string]any{"namespace": namespace, "name": "gpus"},
		"status": map[string]any{"nodeModuleStatus": map[string]any{
			good: map[string]any{"kernelVersion": "6.1.0-1", "status": "Install-Complete"},
			bad:  map[string]any{"kernelVersion": "6.1.0-1", "status": "Upgrade-Failed"},
		}},
	}}
	apitest.Eventually(t, func() string { return errorText(c.client.Create(t.Context(), config.DeepCopy())) })
	before := s.DeepCopy()
	s.Spec.Check = &v1alpha1.StackCheck{} // has the stack judged now, and not when the minute is over
	check.Must(t, c.client.Patch(t.Context(), s, client.MergeFrom(before)))
	c.awaitStack(t, s, "False DriverFailed", "False Settled", "True DriverFailed", 2, 1, bad+" Driver DriverFailed")
	check.Must(t, c.client.Delete(t.Context(), s))
	check.Must(t, c.client.Delete(t.Context(), deviceConfigs()))
}

// deviceConfigs is the kind of AMD's operator, with any fields.
func deviceConfigs() *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "deviceconfigs.amd.com"}}
	d.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "amd.com", Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "deviceconfigs", Singular: "deviceconfig", Kind: "DeviceConfig"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1alpha1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: new(true),
			}},
		}},
	}
	return d
}

func hostStack(name, pool string) *v1alpha1.AcceleratorStack {
	s := &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
	s.Spec.Driver.Engine = v1alpha1.EngineHost
	return s
}

// joins adds a Node.
func (c cluster) joins(t *testing.T, name, pool string) string {
	t.Helper()
	labels := map[string]string{"pool": pool, corev1.LabelOSStable: "linux"}
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	c.boots(t, name, "boot-1")
	return name
}

// boots has a Node report a boot.
func (c cluster) boots(t *testing.T, name, boot string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q,"kernelVersion":"6.1.0-1","osImage":"Debian GNU/Linux 12 (bookworm)",
		"architecture":"amd64"}}}`, boot)
	check.Must(t, c.client.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", patch)))
}

// pluginPod makes a pod of the plugin that is ready, and returns its UID.
func (c cluster) pluginPod(t *testing.T, node string) string {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "fettle-kubeletplugin-" + node, Labels: map[string]string{names.ComponentLabel: names.PluginComponent},
	}}
	p.Spec.NodeName, p.Spec.ServiceAccountName = node, ""
	p.Spec.Containers = []corev1.Container{{Name: "plugin", Image: "registry.example/plugin:v1"}}
	c.create(t, p)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	check.Must(t, c.client.Status().Update(t.Context(), p))
	return string(p.UID)
}

// pluginReplaced gives a node another pod of the plugin, which reports.
func (c cluster) pluginReplaced(t *testing.T, node string) {
	t.Helper()
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fettle-kubeletplugin-" + node}}
	check.Must(t, c.client.Delete(t.Context(), old, client.GracePeriodSeconds(0)))
	c.reportsFacts(t, node, "boot-1", c.pluginPod(t, node), nil)
}

// checkOf returns the pod of a node's check, nil if there is none.
func (c cluster) checkOf(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	check.Must(t, c.client.List(t.Context(), &pods, client.InNamespace(checkNamespace)))
	for i := range pods.Items {
		if pods.Items[i].Annotations["fettle.dev/check-node"] == node {
			return &pods.Items[i]
		}
	}
	return nil
}

// endCheck has the pod of a node's check end, once there is one.
func (c cluster) endCheck(t *testing.T, node string, phase corev1.PodPhase, message string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		p := c.checkOf(t, node)
		if p == nil || p.Status.Phase == phase || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return "node " + node + " has no pod of a check that runs"
		}
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "look", Image: "x", ImageID: "x", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: message},
		}}}
		return errorText(c.client.Status().Update(t.Context(), p))
	})
}

func (c cluster) awaitNoCheck(t *testing.T, node string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if p := c.checkOf(t, node); p != nil {
			return "pod " + p.Name + " is left"
		}
		return ""
	})
}

// reportsFacts has a node report eight GPUs and nothing against them, but for what change says.
func (c cluster) reportsFacts(t *testing.T, name, boot, pod string, change func(*v1alpha1.AcceleratorNodeStatus)) {
	t.Helper()
	var a v1alpha1.AcceleratorNode
	check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: name}, &a))
	before := a.DeepCopy()
	a.Status = v1alpha1.AcceleratorNodeStatus{
		Checks:        a.Status.Checks, // the controller's
		PluginVersion: "v1", Facts: &v1alpha1.NodeFacts{BootID: boot, PluginPod: pod},
		Pools: []v1alpha1.PoolStatus{{Name: name + "/gpu", Kind: "gpu", Devices: 8}},
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished, v1alpha1.ConditionHealthy} {
		meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", Message: "test"})
	}
	if change != nil {
		change(&a.Status)
	}
	check.Must(t, c.client.Status().Patch(t.Context(), &a, client.MergeFrom(before)))
}

// awaitStack waits until the conditions are of this generation and as wanted, and the counts and the named nodes too.
func (c cluster) awaitStack(
	t *testing.T, s *v1alpha1.AcceleratorStack, available, progressing, degraded string, nodes, ready int32, waiting string,
) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err.Error()
		}
		for kind, want := range map[string]string{
			v1alpha1.ConditionAvailable: available, v1alpha1.ConditionProgressing: progressing, v1alpha1.ConditionDegraded: degraded,
		} {
			got := meta.FindStatusCondition(s.Status.Conditions, kind)
			if got == nil || got.ObservedGeneration != s.Generation || string(got.Status)+" "+got.Reason != want {
				return fmt.Sprintf("%s of %s is %+v, want %s", kind, s.Name, got, want)
			}
		}
		var named []string
		for _, w := range s.Status.Waiting {
			named = append(named, fmt.Sprintf("%s %s %s", w.Node, w.State, w.Reason))
		}
		if got := strings.Join(named, ", "); got != waiting || s.Status.Nodes != nodes || s.Status.ReadyNodes != ready {
			return fmt.Sprintf("%d nodes, %d ready, waiting %q; want %d, %d, %q", s.Status.Nodes, s.Status.ReadyNodes, got, nodes, ready, waiting)
		}
		return ""
	})
}
