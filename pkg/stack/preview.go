// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// kernelVariable is what KMM replaces in an image by the kernel's release.
const kernelVariable = "${KERNEL_FULL_VERSION}"

// Objects are those that a preview is made of.
type Objects struct {
	Stacks       []*v1alpha1.AcceleratorStack
	Nodes        []*corev1.Node
	Accelerators []*v1alpha1.AcceleratorNode
	Pods         []*corev1.Pod
	Claims       []*resourceapi.ResourceClaim
	Budgets      []*policyv1.PodDisruptionBudget
	// NodeModules are KMM's NodeModulesConfigs.
	NodeModules []*unstructured.Unstructured
	// Namespace is Fettle's, and Drivers the one in which stacks run drivers.
	Namespace, Drivers string
	Now                time.Time
}

// Preview is what the controller would do next with the drivers of a stack's nodes, and in which order the others follow.
type Preview struct {
	Stack  string                `json:"stack"`
	Engine v1alpha1.DriverEngine `json:"engine"`
	// Changes says that the engine changes drivers.
	Changes bool `json:"changesDrivers"`
	// MaxUnavailable is how many nodes at once, as a number of nodes; the others are spec.upgrade's.
	MaxUnavailable int             `json:"maxUnavailable"`
	MaxFailed      int             `json:"maxFailed"`
	DrainTimeout   metav1.Duration `json:"drainTimeout"`
	Force          bool            `json:"force"`
	Paused         bool            `json:"paused"`
	// Nodes are in the order in which their drivers are changed, then those that wait for something else, then the rest.
	Nodes []NodePreview `json:"nodes"`
	// Warnings are about drivers that are unloaded without a drain.
	Warnings []string `json:"warnings,omitempty"`
	// Unknown is what the preview cannot say.
	Unknown []string `json:"unknown,omitempty"`
}

// NodePreview is what comes of the driver of a node.
type NodePreview struct {
	Node string `json:"node"`
	// Phase is that after the controller's next step. Reason and Message say why, or, of a node with nothing to change, what its driver
	// lacks.
	Phase   Phase  `json:"phase"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Failed says that the node has failed with the new driver, Stuck that its pods did not go in time.
	Failed bool `json:"failed,omitempty"`
	Stuck  bool `json:"stuck,omitempty"`
	// Turn is 1 for nodes that are in change or begin now, 2 for those that begin once these are done, and so on. 0: none, or not before
	// something else happens.
	Turn int `json:"turn,omitempty"`
	// Found are the drivers that the plugin finds.
	Found string `json:"found,omitempty"`
	// From is the driver that the engine has brought, To the one that it is to bring. Nil: none, or not known.
	From *DriverPreview `json:"from,omitempty"`
	To   *DriverPreview `json:"to,omitempty"`
	// Pods are those that the change evicts, those with admin access last.
	Pods []PodPreview `json:"pods,omitempty"`
	// MayHold are the pods that may hold the driver without a claim. The change does not evict them.
	MayHold []PossibleHolder `json:"mayHold,omitempty"`
}

// DriverPreview is a driver of an engine. Version is empty if only the image has it.
type DriverPreview struct {
	Version string `json:"version,omitempty"`
	Image   string `json:"image,omitempty"`
	Kernel  string `json:"kernel,omitempty"`
}

// PodPreview is a pod that a change evicts.
type PodPreview struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Claims    []string `json:"claims"`
	// AdminAccess says that it has admin access only: it is evicted once the others are gone.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Refused says why the pod cannot be evicted now. Budgets are the PodDisruptionBudgets that refuse.
	Budgets []string `json:"budgets,omitempty"`
	Refused string   `json:"refused,omitempty"`
	// Unknown says that the pod was not read, so that its budgets are not known.
	Unknown bool `json:"unknown,omitempty"`
}

// previewer makes the preview of one stack.
type previewer struct {
	*Objects
	stack    *v1alpha1.AcceleratorStack
	observed *Observed
	drivers  DriverPods
	modules  map[string]KMM
	// others are the drivers of other stacks and engines.
	others  OtherDrivers
	holders Holders
	pods    map[types.NamespacedName]*corev1.Pod
	out     Preview
}

// Previews returns those of the stacks, or of the one that is named, by name.
func (o *Objects) Previews(name string) []Preview {
	observed, holders, pods := o.observe(), Holders{}, map[types.NamespacedName]*corev1.Pod{}
	for _, c := range o.Claims {
		holders.Add(c)
	}
	for _, p := range o.Pods {
		pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	}
	out := []Preview{}
	stacks := make([]v1alpha1.AcceleratorStack, 0, len(o.Stacks))
	for _, s := range o.Stacks {
		stacks = append(stacks, *s)
	}
	observed.AddModules(stacks, o.Drivers)
	for _, s := range o.Stacks {
		if name != "" && s.Name != name || s.DeletionTimestamp != nil {
			continue
		}
		p := previewer{
			Objects: o, stack: s, observed: observed, drivers: DriverPods{}, modules: map[string]KMM{}, others: OtherDrivers{},
			holders: holders, pods: pods,
		}
		p.make(Select(s.Name, stacks, observed.Candidates()).Nodes)
		out = append(out, p.out)
	}
	slices.SortFunc(out, func(a, b Preview) int { return cmp.Compare(a.Stack, b.Stack) })
	return out
}

func (o *Objects) observe() *Observed {
	out := NewObserved()
	for _, n := range o.Nodes {
		out.Nodes[n.Name], out.Labels[n.Name] = n, n.Labels
	}
	for _, a := range o.Accelerators {
		out.Accelerators[a.Name] = a
	}
	for _, p := range o.Pods {
		if p.Namespace == o.Namespace && p.Labels[PluginLabel] == PluginComponent {
			out.AddPlugin(p)
		}
		if p.Namespace == o.Drivers {
			out.AddDriver(p)
		}
	}
	return out
}

func (p *previewer) make(nodes []string) {
	driver, module, own := &p.stack.Spec.Driver, ModuleName(p.stack.Name), ""
	if driver.KMM != nil {
		own = module
	}
	for _, m := range p.NodeModules {
		p.modules[m.GetName()] = KMMReport(m, p.Drivers, module)
		p.others.AddModules(m, p.observed.Node(m.GetName()).BootID, p.Drivers, own)
	}
	for _, pod := range p.Pods {
		if pod.Namespace == p.Drivers && pod.Labels[DriverLabel] != "" {
			p.drivers.Add(p.stack.Name, pod)
			if driver.KMM != nil {
				p.others.AddPod(pod)
			}
		}
	}
	p.out = Preview{
		Stack: p.stack.Name, Engine: driver.Engine, Changes: driver.DaemonSet != nil || driver.KMM != nil, Nodes: []NodePreview{},
	}
	var upgraded []UpgradeNode
	for _, name := range nodes {
		of, n := NodePreview{Node: name}, p.observed.Node(name)
		n.Before = p.others[name]
		p.deliver(&n, &of)
		n.Checks = ChecksOf(p.stack)
		upgraded = append(upgraded, UpgradeNode{Node: &n, Outcome: Judge(&n), Holders: p.holders[name]})
		p.out.Nodes = append(p.out.Nodes, of)
	}
	rules := RulesOf(p.stack, upgraded)
	p.out.MaxUnavailable, p.out.MaxFailed, p.out.Force, p.out.Paused = rules.MaxUnavailable, rules.MaxFailed, rules.Force, rules.Paused
	p.out.DrainTimeout = metav1.Duration{Duration: rules.DrainTimeout}
	if p.out.Changes {
		p.phases(rules, upgraded)
	} else {
		for i := range p.out.Nodes {
			p.out.Nodes[i].Phase = PhaseCurrent
		}
	}
	p.warn(nodes)
	p.sort()
}

// deliver has the engine say what it knows of a node's driver, as the controller has it.
func (p *previewer) deliver(n *Node, of *NodePreview) {
	if n.Accelerator != nil {
		of.Found = drivers(n)
	}
	switch d := &p.stack.Spec.Driver; {
	case d.DaemonSet != nil:
		pods := p.drivers[n.Name]
		image, platform, v := ForDaemonSet(d.DaemonSet, n, pods)
		n.Delivered = v
		if image != "" {
			of.To = &DriverPreview{Version: d.DaemonSet.Version, Image: image, Kernel: platform.KernelVersion}
		}
		if at := slices.IndexFunc(pods, func(p DriverPod) bool { return !p.Leaving && p.Kernel == n.KernelVersion }); at >= 0 {
			of.From = &DriverPreview{Image: pods[at].Image, Kernel: pods[at].Kernel}
		} else if old := Outdated(n, pods); old != nil {
			of.From = &DriverPreview{Image: old.Image, Kernel: old.Kernel}
		}
	case d.KMM != nil:
		k := p.modules[n.Name]
		k.Label = n.Labels[KMMLabel(p.Drivers, ModuleName(p.stack.Name))]
		wants := WantsDriver(n, k.Label != "" || k.Loaded != nil)
		n.Delivered, _ = ForModule(d.KMM, n, k)
		if image, found := KMMImage(d.KMM, n.KernelVersion); found && wants {
			kernel := kernelOf(n.KernelVersion)
			of.To = &DriverPreview{Version: d.KMM.Version, Image: strings.ReplaceAll(image, kernelVariable, kernel), Kernel: n.KernelVersion}
		}
		if m := k.Loaded; m != nil {
			of.From = &DriverPreview{Version: m.Version, Image: m.Image, Kernel: m.KernelVersion}
		} else if k.Label != "" {
			of.From = &DriverPreview{Version: k.Label}
		}
	default:
		n.Delivered = Host()
	}
}

// phases fills in what the controller would do for each node next, and the turns of those that follow.
func (p *previewer) phases(rules UpgradeRules, nodes []UpgradeNode) {
	steps := Upgrade(rules, nodes, p.Now)
	changes, checks := false, false
	for i := range steps {
		s, of := &steps[i], &p.out.Nodes[i]
		of.Phase, of.Reason, of.Message, of.Failed, of.Stuck = s.Phase, s.Reason, s.Message, s.Failed, s.Stuck
		if s.Phase == PhaseCurrent {
			if v := nodes[i].Delivered; v.Status != Passed {
				of.Reason, of.Message = v.Reason, v.Message
			}
			continue
		}
		changes, checks = true, checks || s.Phase == PhaseChecking
		if s.Phase != PhaseChanging && s.Phase != PhaseChecking {
			p.evicted(of, nodes[i].Holders)
			of.MayHold = PossibleHolders(p.Pods, of.Node, nodes[i].Holders, p.Namespace, p.Drivers)
		}
	}
	p.turns(rules, nodes, steps)
	if changes {
		p.unknown("whether the images of the new driver are in their registry, and whether the driver loads")
		p.unknown("what budgets allow, and which pods hold devices, once the first pods have gone")
		p.unknown("programs of a node outside of pods that hold its driver, such as the vendor's daemons")
		p.unknown("pods that hold a driver without their YAML saying so: by an image or a ConfigMap that sets NVIDIA_VISIBLE_DEVICES, by a " +
			"runtime class of another name, or by a container that is privileged")
	}
	if checks {
		p.unknown("whether claims are checked at all, which selfTest.enabled says, and results of checks that are not written down yet")
	}
	if checks && len(p.stack.Spec.States) > 0 {
		p.unknown("whether nodes pass the states of spec.states")
	}
}

func (p *previewer) unknown(text string) { p.out.Unknown = append(p.out.Unknown, text) }

// turns says when nodes begin, as if all that begin together ended together, and well.
func (p *previewer) turns(rules UpgradeRules, nodes []UpgradeNode, steps []Step) {
	nodes = slices.Clone(nodes)
	for turn := 1; ; turn++ {
		begun := false
		for i := range steps {
			if steps[i].Phase == PhaseCurrent || steps[i].Phase == PhaseWaiting {
				continue
			}
			if p.out.Nodes[i].Turn == 0 {
				p.out.Nodes[i].Turn, begun = turn, true
			}
			if steps[i].Stuck || steps[i].Failed {
				continue // it stays where it is, and holds back no other
			}
			done := *nodes[i].Node
			done.Delivered, done.Annotations = passed("the driver was changed"), nil
			nodes[i] = UpgradeNode{Node: &done, Outcome: nodes[i].Outcome}
		}
		if !begun {
			return
		}
		steps = Upgrade(rules, nodes, p.Now)
	}
}

// evicted fills in the pods that go before a node's driver is changed.
func (p *previewer) evicted(of *NodePreview, holders []Holder) {
	at := map[types.NamespacedName]int{}
	for _, h := range holders {
		key := types.NamespacedName{Namespace: h.Namespace, Name: h.Name}
		if pod := p.pods[key]; pod != nil && string(pod.UID) == h.UID && podspec.Ended(pod) {
			continue // its claim is freed without it
		}
		i, known := at[key]
		if !known {
			i, at[key] = len(of.Pods), len(of.Pods)
			of.Pods = append(of.Pods, p.pod(h))
		}
		pod := &of.Pods[i]
		pod.Claims = append(pod.Claims, h.Claim)
		pod.AdminAccess = pod.AdminAccess && h.Admin
	}
	for i := range of.Pods {
		slices.Sort(of.Pods[i].Claims)
	}
	slices.SortFunc(of.Pods, func(a, b PodPreview) int {
		return cmp.Or(compareBool(a.AdminAccess, b.AdminAccess), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (p *previewer) pod(h Holder) PodPreview {
	out := PodPreview{Namespace: h.Namespace, Name: h.Name, AdminAccess: true}
	pod := p.pods[types.NamespacedName{Namespace: h.Namespace, Name: h.Name}]
	switch {
	case h.Namespace == metav1.NamespaceSystem || h.Namespace == p.Namespace:
		out.Refused = "pods of namespace " + h.Namespace + " are not evicted: delete it, or wait until it ends"
	case pod == nil || string(pod.UID) != h.UID:
		out.Unknown = true
	default:
		out.Budgets, out.Refused = refusal(pod, p.Budgets)
	}
	return out
}

// warn says which drivers are unloaded without a drain, since the stack does not bring them any more.
func (p *previewer) warn(nodes []string) {
	driver := &p.stack.Spec.Driver
	for _, name := range slices.Sorted(maps.Keys(p.drivers)) {
		switch {
		case driver.DaemonSet == nil:
			p.warning("node %s: the engine is %s, so the pod of the driver there is deleted at once", name, driver.Engine)
		case !slices.Contains(nodes, name):
			p.warning("node %s: the stack does not hold for it any more, so the pod of the driver there is deleted at once", name)
		}
	}
	label := KMMLabel(p.Drivers, ModuleName(p.stack.Name))
	for _, name := range slices.Sorted(maps.Keys(p.observed.Labels)) {
		switch {
		case p.observed.Labels[name][label] == "":
		case driver.KMM == nil:
			p.warning("node %s: the engine is %s, so KMM unloads the driver there at once", name, driver.Engine)
		case !slices.Contains(nodes, name):
			p.warning("node %s: the stack does not hold for it any more, so KMM unloads the driver there at once", name)
		}
	}
}

func (p *previewer) warning(format string, args ...any) {
	p.out.Warnings = append(p.out.Warnings, fmt.Sprintf(format, args...))
}

// sort puts nodes that wait for something else after those that have a turn, and those with nothing to change last.
func (p *previewer) sort() {
	rank := func(n *NodePreview) int {
		switch {
		case n.Turn > 0:
			return n.Turn
		case n.Phase == PhaseWaiting:
			return math.MaxInt - 1
		}
		return math.MaxInt
	}
	slices.SortFunc(p.out.Nodes, func(a, b NodePreview) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Node, b.Node))
	})
}
