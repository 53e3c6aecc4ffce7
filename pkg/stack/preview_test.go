// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/objects"
)

// previewed is a cluster whose stack s is to have the driver 2 on the nodes, which have the driver 1.
func previewed(nodes ...string) *stack.Objects {
	s := &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineDaemonSet, DaemonSet: &v1alpha1.DaemonSetDriver{
		Repository: "r.example/d", Tag: "${DRIVER_VERSION}-${KERNEL}", Version: "2",
	}}
	o := &stack.Objects{
		Stacks: []*v1alpha1.AcceleratorStack{s}, Namespace: "fettle-system", Drivers: "fettle-drivers", Now: upgradeTime,
	}
	for _, name := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "boot-1", KernelVersion: "6.1.0-1", Architecture: "amd64"}
		a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
		a.Status = *healthy(name).Accelerator
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "fettle-system", Name: "plugin-" + name, UID: "pod-1",
			Labels: map[string]string{stack.PluginLabel: stack.PluginComponent},
		}}
		p.Spec.NodeName = name
		d := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "fettle-drivers", Name: "driver-" + name, Labels: map[string]string{stack.DriverLabel: "set"},
			Annotations: map[string]string{
				stack.DriverStackAnnotation: "s", stack.DriverImageAnnotation: "r.example/d:1-6.1.0-1", stack.DriverKernelAnnotation: "6.1.0-1",
			},
		}}
		d.Spec.NodeName = name
		for _, pod := range []*corev1.Pod{p, d} {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		o.Nodes, o.Accelerators, o.Pods = append(o.Nodes, n), append(o.Accelerators, a), append(o.Pods, p, d)
	}
	return o
}

// holds adds a pod with a device of a node.
func holds(o *stack.Objects, node, namespace, name string, admin bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name},
	}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c := objects.Claim(namespace, name+"-gpu")
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{
		Driver: v1alpha1.DriverName, Pool: node + "/gpu", Device: "gpu-0", AdminAccess: &admin,
	}}
	c.Status.ReservedFor = objects.ReservedFor(name, p.UID)
	o.Pods, o.Claims = append(o.Pods, p), append(o.Claims, c)
	return p
}

// inShort is a preview's nodes: turn, node, phase, drivers, pods.
func inShort(t *testing.T, o *stack.Objects) []string {
	t.Helper()
	previews := o.Previews("s")
	if len(previews) != 1 {
		t.Fatalf("got %d previews", len(previews))
	}
	var out []string
	for _, n := range previews[0].Nodes {
		line := fmt.Sprintf("%d %s %s %s", n.Turn, n.Node, n.Phase, n.Reason)
		for _, d := range []*stack.DriverPreview{n.From, n.To} {
			if d != nil {
				line += " " + strings.TrimPrefix(d.Image, "r.example/")
			}
		}
		for _, p := range n.Pods {
			line += fmt.Sprintf(" %s%v%v", p.Name, p.Claims, p.Budgets)
		}
		out = append(out, strings.TrimSpace(line))
	}
	return out
}

// TestPreview: nodes have their turns by the rules that the controller has, and what is stuck or held back takes nobody's.
func TestPreview(t *testing.T) {
	const drivers = " d:1-6.1.0-1 d:2-6.1.0-1"
	note := func(o *stack.Objects, at int, ago time.Duration) {
		o.Accelerators[at].Annotations[v1alpha1.UpgradeAnnotation] = "s " + upgradeTime.Add(-ago).Format(time.RFC3339)
	}
	for _, tc := range []struct {
		name   string
		change func(*stack.Objects)
		want   []string
	}{
		{"one after the other", func(*stack.Objects) {}, []string{
			"1 a Draining UpgradeDraining" + drivers, "2 b Waiting UpgradeWaiting" + drivers, "3 c Waiting UpgradeWaiting" + drivers,
		}},
		{"two at once", func(o *stack.Objects) {
			o.Stacks[0].Spec.Upgrade = &v1alpha1.StackUpgrade{MaxUnavailable: new(intstr.FromString("67%"))}
		}, []string{
			"1 a Draining UpgradeDraining" + drivers, "1 b Draining UpgradeDraining" + drivers, "2 c Waiting UpgradeWaiting" + drivers,
		}},
		{"half of the nodes with a device", func(o *stack.Objects) {
			o.Stacks[0].Spec.Upgrade = &v1alpha1.StackUpgrade{MaxUnavailable: new(intstr.FromString("50%"))}
			empty := previewed("d", "e", "f")
			for _, a := range empty.Accelerators {
				a.Status.Pools = nil
			}
			empty.Pods = slices.DeleteFunc(empty.Pods, func(p *corev1.Pod) bool { return p.Namespace == o.Drivers })
			o.Nodes, o.Accelerators = append(o.Nodes, empty.Nodes...), append(o.Accelerators, empty.Accelerators...)
			o.Pods = append(o.Pods, empty.Pods...)
		}, []string{
			"1 a Draining UpgradeDraining" + drivers, "2 b Waiting UpgradeWaiting" + drivers, "3 c Waiting UpgradeWaiting" + drivers,
			"0 d Current", "0 e Current", "0 f Current",
		}},
		{"one that began is stuck", func(o *stack.Objects) {
			note(o, 2, time.Hour)
			holds(o, "c", "default", "p", false)
		}, []string{
			"1 a Draining UpgradeDraining" + drivers, "1 c Draining UpgradeDrainBlocked" + drivers + " p[p-gpu][]",
			"2 b Waiting UpgradeWaiting" + drivers,
		}},
		{"one that began goes first", func(o *stack.Objects) {
			note(o, 2, time.Minute)
			holds(o, "c", "default", "p", false)
		}, []string{
			"1 c Draining UpgradeDraining" + drivers + " p[p-gpu][]", "2 a Waiting UpgradeWaiting" + drivers,
			"3 b Waiting UpgradeWaiting" + drivers,
		}},
		{"one is held back", func(o *stack.Objects) { o.Nodes[0].Labels[v1alpha1.UpgradeHoldLabel] = "" }, []string{
			"1 b Draining UpgradeDraining" + drivers, "2 c Waiting UpgradeWaiting" + drivers, "0 a Waiting UpgradeWaiting" + drivers,
		}},
		{"paused", func(o *stack.Objects) { o.Stacks[0].Spec.Upgrade = &v1alpha1.StackUpgrade{Paused: true} }, []string{
			"0 a Waiting UpgradeWaiting" + drivers, "0 b Waiting UpgradeWaiting" + drivers, "0 c Waiting UpgradeWaiting" + drivers,
		}},
		{"a kernel without a report, and one without an image's name", func(o *stack.Objects) {
			o.Stacks[0].Spec.Driver.DaemonSet.Tag = "${OS}-${KERNEL}"
			o.Nodes[0].Status.NodeInfo.KernelVersion = ""
			o.Accelerators = o.Accelerators[:2]
			o.Pods = o.Pods[:4]
		}, []string{"0 a Current DriverPending d:1-6.1.0-1", "0 b Current OSUnknown d:1-6.1.0-1"}},
		{"another kernel", func(o *stack.Objects) { o.Nodes[1].Status.NodeInfo.KernelVersion = "6.1.0-2" }, []string{
			"1 a Draining UpgradeDraining" + drivers, "2 b Waiting UpgradeWaiting d:1-6.1.0-1 d:2-6.1.0-2",
			"3 c Waiting UpgradeWaiting" + drivers,
		}},
		{"pods go, those with admin access last", func(o *stack.Objects) {
			holds(o, "a", "default", "exporter", true)
			holds(o, "a", "web", "p", false)
			holds(o, "elsewhere", "web", "q", false)
		}, []string{
			"1 a Draining UpgradeDraining" + drivers + " p[p-gpu][] exporter[exporter-gpu][]", "2 b Waiting UpgradeWaiting" + drivers,
			"3 c Waiting UpgradeWaiting" + drivers,
		}},
	} {
		o := previewed("a", "b", "c")
		tc.change(o)
		if diff := cmp.Diff(tc.want, inShort(t, o)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// TestPreviewKMM: what KMM has loaded is from, what its mappings name is to.
func TestPreviewKMM(t *testing.T) {
	o := previewed("a")
	o.Stacks[0].Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineKMM, KMM: &v1alpha1.KMMDriver{
		Version: "2", KernelMappings: []v1alpha1.KernelMapping{{Regexp: "^6", Image: "r.example/m:2-${KERNEL_FULL_VERSION}"}},
	}}
	module := stack.ModuleName("s")
	o.Nodes[0].Labels[stack.KMMLabel("fettle-drivers", module)] = "1"
	of := map[string]any{"modules": []any{map[string]any{
		"name": module, "namespace": "fettle-drivers", "version": "1", "bootId": "boot-1",
		"config": map[string]any{"kernelVersion": "6.1.0-1", "containerImage": "r.example/m:1-6.1.0-1"},
	}}}
	o.NodeModules = []*unstructured.Unstructured{{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "spec": of, "status": of}}}
	if diff := cmp.Diff([]string{"1 a Draining UpgradeDraining m:1-6.1.0-1 m:2-6.1.0-1"}, inShort(t, o)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	warnings := o.Previews("s")[0].Warnings
	if len(warnings) != 1 || !strings.Contains(warnings[0], "the engine is KMM, so the pod of the driver there is deleted at once") {
		t.Errorf("warnings %q", warnings)
	}
}

// TestPreviewWarns: what is unloaded without a drain is said, and engines that look on change nothing.
func TestPreviewWarns(t *testing.T) {
	o := previewed("a", "b")
	o.Stacks[0].Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "x"}}
	o.Nodes[0].Labels["pool"] = "x"
	p := o.Previews("")[0]
	if len(p.Nodes) != 1 || len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], "node b: the stack does not hold for it any more") {
		t.Errorf("a node that is left out: %+v", p)
	}
	o.Stacks[0].Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineHost}
	p = o.Previews("")[0]
	if p.Changes || len(p.Warnings) != 2 || p.Nodes[0].Phase != stack.PhaseCurrent {
		t.Errorf("another engine: %+v", p)
	}
	if got := o.Previews("other"); len(got) != 0 {
		t.Errorf("another stack: %+v", got)
	}
}

// TestPreviewBudgets: which pods the API server would not evict now, as it decides.
func TestPreviewBudgets(t *testing.T) {
	budget := func(name string, allowed int32, app string) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 2}
		return b
	}
	always := policyv1.AlwaysAllow
	for _, tc := range []struct {
		name   string
		change func(o *stack.Objects, p *corev1.Pod)
		want   string
	}{
		{"none", func(*stack.Objects, *corev1.Pod) {}, ""},
		{"of other pods", func(o *stack.Objects, _ *corev1.Pod) { o.Budgets[0] = budget("b", 0, "other") }, ""},
		{"allows one", func(o *stack.Objects, _ *corev1.Pod) { o.Budgets[0] = budget("b", 1, "p") }, ""},
		{"allows none", func(o *stack.Objects, _ *corev1.Pod) { o.Budgets[0] = budget("b", 0, "p") }, "[b] needs 2 healthy pods and has 1"},
		{"of another namespace", func(o *stack.Objects, _ *corev1.Pod) {
			o.Budgets[0] = budget("b", 0, "p")
			o.Budgets[0].Namespace = "other"
		}, ""},
		{"the pod is going", func(o *stack.Objects, p *corev1.Pod) {
			o.Budgets[0], p.DeletionTimestamp = budget("b", 0, "p"), new(metav1.Now())
		}, ""},
		{"the pod is not ready, and too few are", func(o *stack.Objects, p *corev1.Pod) {
			o.Budgets[0], p.Status.Conditions = budget("b", 0, "p"), nil
		}, "[b] needs 2"},
		{"the pod is not ready, and the budget lets such go", func(o *stack.Objects, p *corev1.Pod) {
			o.Budgets[0], p.Status.Conditions = budget("b", 0, "p"), nil
			o.Budgets[0].Spec.UnhealthyPodEvictionPolicy = &always
		}, ""},
		{"the pod is not ready, and enough are", func(o *stack.Objects, p *corev1.Pod) {
			o.Budgets[0], p.Status.Conditions = budget("b", 0, "p"), nil
			o.Budgets[0].Status.CurrentHealthy = 2
		}, ""},
		{"its status is old", func(o *stack.Objects, _ *corev1.Pod) {
			o.Budgets[0] = budget("b", 1, "p")
			o.Budgets[0].Generation = 2
		}, "[b] its status is not up to date"},
		{"two", func(o *stack.Objects, _ *corev1.Pod) {
			o.Budgets = []*policyv1.PodDisruptionBudget{budget("b", 1, "p"), budget("c", 1, "p")}
		}, "[b c] more than one PodDisruptionBudget"},
		{"another pod of its name", func(_ *stack.Objects, p *corev1.Pod) { p.UID = "other" }, "unknown"},
	} {
		o := previewed("a")
		p := holds(o, "a", "web", "p", false)
		o.Budgets = []*policyv1.PodDisruptionBudget{budget("none", 0, "nobody")}
		tc.change(o, p)
		got := o.Previews("s")[0].Nodes[0].Pods[0]
		names, text, _ := strings.Cut(tc.want, "] ")
		switch {
		case tc.want == "unknown":
			if !got.Unknown {
				t.Errorf("%s: %+v", tc.name, got)
			}
		case tc.want == "" && (got.Refused != "" || len(got.Budgets) > 0), got.Unknown, !strings.Contains(got.Refused, text),
			tc.want != "" && fmt.Sprint(got.Budgets) != names+"]":
			t.Errorf("%s: %+v, want %q", tc.name, got, tc.want)
		}
	}
	o := previewed("a")
	holds(o, "a", "kube-system", "p", false)
	if got := o.Previews("s")[0].Nodes[0].Pods[0]; !strings.Contains(got.Refused, "namespace kube-system are not evicted") {
		t.Errorf("a pod of Kubernetes: %+v", got)
	}
}

// TestWhoMayHold: pods that no claim gives devices are named by what their YAML shows, and pods that have ended are not.
func TestWhoMayHold(t *testing.T) {
	privileged := &corev1.SecurityContext{Privileged: new(true)}
	volume := func(at string) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at}}}}
	}
	limited := func(name corev1.ResourceName, n string) []corev1.Container {
		return []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{name: resource.MustParse(n)},
		}}}
	}
	visible := func(value string) []corev1.Container {
		return []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: value}}}}
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"a plain pod":     {},
		"the runtime":     {corev1.PodSpec{RuntimeClassName: new("nvidia-cdi")}, "runtimeClassName nvidia-cdi"},
		"another runtime": {corev1.PodSpec{RuntimeClassName: new("kata")}, ""},
		"all devices":     {corev1.PodSpec{Containers: visible("all")}, "NVIDIA_VISIBLE_DEVICES of container c"},
		"no devices":      {corev1.PodSpec{Containers: visible("void")}, ""},
		"from elsewhere": {corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{
			Name: "NVIDIA_VISIBLE_DEVICES", ValueFrom: &corev1.EnvVarSource{},
		}}}}}, "NVIDIA_VISIBLE_DEVICES of container c"},
		"a device plugin's": {
			corev1.PodSpec{Containers: limited("nvidia.com/mig-1g.10gb", "1")}, "resource nvidia.com/mig-1g.10gb of container c",
		},
		"Intel's":      {corev1.PodSpec{Containers: limited("gpu.intel.com/xe", "1")}, "resource gpu.intel.com/xe of container c"},
		"none of them": {corev1.PodSpec{Containers: limited("amd.com/gpu", "0")}, ""},
		"of no vendor": {corev1.PodSpec{Containers: limited("notnvidia.com/gpu", "1")}, ""},
		"a debugger": {corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(visible("all")[0]),
		}}}, "NVIDIA_VISIBLE_DEVICES of container c"},
		"in an init":        {corev1.PodSpec{InitContainers: visible("0")}, "NVIDIA_VISIBLE_DEVICES of container c"},
		"a node":            {corev1.PodSpec{Volumes: volume("/dev/nvidia0")}, "hostPath /dev/nvidia0"},
		"a node by detours": {corev1.PodSpec{Volumes: volume("/dev//dri/")}, "hostPath /dev/dri"},
		"other nodes":       {corev1.PodSpec{Volumes: volume("/dev/shm")}, ""},
		"all of the host": {
			corev1.PodSpec{Volumes: volume("/"), Containers: []corev1.Container{{SecurityContext: privileged}}}, "privileged, with hostPath /",
		},
		"the host without rights": {corev1.PodSpec{Volumes: volume("/dev")}, ""},
		"rights alone":            {corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: privileged}}}, ""},
	} {
		o := previewed("a")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "u"}, Spec: tc.spec}
		p.Spec.NodeName = "a"
		other, ended := p.DeepCopy(), p.DeepCopy()
		other.Spec.NodeName, other.Name = "b", "elsewhere"
		ended.Status.Phase, ended.Name = corev1.PodSucceeded, "ended"
		o.Pods = append(o.Pods, p, other, ended)
		var want []stack.PossibleHolder
		if tc.want != "" {
			want = []stack.PossibleHolder{{Namespace: "team", Name: "p", Why: tc.want}}
		}
		if diff := cmp.Diff(want, o.Previews("s")[0].Nodes[0].MayHold); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	o := previewed("a")
	holder := holds(o, "a", "web", "p", false)
	holder.Spec.NodeName, holder.Spec.RuntimeClassName = "a", new("nvidia")
	if got := o.Previews("s")[0].Nodes[0]; len(got.Pods) != 1 || len(got.MayHold) > 0 {
		t.Errorf("a pod with a claim is evicted: %+v", got)
	}
	holder.Status.Phase = corev1.PodFailed
	if got := o.Previews("s")[0].Nodes[0]; len(got.Pods) > 0 {
		t.Errorf("a pod that has ended is not evicted: %+v", got.Pods)
	}
}
