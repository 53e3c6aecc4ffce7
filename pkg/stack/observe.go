// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Observed is what is there of all nodes, by their names.
type Observed struct {
	// Labels are those of the Nodes.
	Labels       map[string]map[string]string
	Nodes        map[string]*corev1.Node
	Accelerators map[string]*v1alpha1.AcceleratorNode
	Plugins      map[string][]Pod
	// Has are the stacks of which a node has a driver, or pods of an extra state: by the node's name, and by that of the stack the name of
	// the driver's DaemonSet, empty if it has something else.
	Has map[string]map[string]string
}

// NewObserved returns one of no node.
func NewObserved() *Observed {
	return &Observed{
		Labels: map[string]map[string]string{}, Nodes: map[string]*corev1.Node{}, Plugins: map[string][]Pod{},
		Accelerators: map[string]*v1alpha1.AcceleratorNode{}, Has: map[string]map[string]string{},
	}
}

// AddOwn notes that a node has something of a stack: a driver of the DaemonSet, or something else if that is empty.
func (o *Observed) AddOwn(node, stack, driver string) {
	if o.Has[node] == nil {
		o.Has[node] = map[string]string{}
	}
	o.Has[node][stack] = cmp.Or(driver, o.Has[node][stack])
}

// AddDriver notes of which stack a pod in the namespace of drivers is, if a DaemonSet has brought it to its node: the pods of Deployments
// and Jobs of extra states run on any node.
func (o *Observed) AddDriver(p *corev1.Pod) {
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		return
	}
	if stack := p.Annotations[DriverStackAnnotation]; stack != "" {
		o.AddOwn(p.Spec.NodeName, stack, p.Labels[DriverLabel])
	}
	if stack := p.Annotations[StateStackAnnotation]; stack != "" && p.Annotations[StateDigestAnnotation] != "" {
		o.AddOwn(p.Spec.NodeName, stack, "")
	}
}

// AddModules notes which nodes KMM is to give the modules of stacks.
func (o *Observed) AddModules(stacks []v1alpha1.AcceleratorStack, drivers string) {
	for i := range stacks {
		label := KMMLabel(drivers, ModuleName(stacks[i].Name))
		for node, labels := range o.Labels {
			if labels[label] != "" {
				o.AddOwn(node, stacks[i].Name, "")
			}
		}
	}
}

// AddPlugin adds a pod of the plugin.
func (o *Observed) AddPlugin(p *corev1.Pod) {
	if p.Spec.NodeName != "" {
		o.Plugins[p.Spec.NodeName] = append(o.Plugins[p.Spec.NodeName], PodOf(p))
	}
}

// Candidates returns the nodes that stacks may select, sorted.
func (o *Observed) Candidates() []Candidate {
	out := make([]Candidate, 0, len(o.Nodes))
	for name := range o.Nodes {
		out = append(out, Candidate{Name: name, Labels: o.Labels[name], Reported: o.Accelerators[name] != nil, Has: o.Has[name]})
	}
	slices.SortFunc(out, func(a, b Candidate) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Node returns what was observed of a node.
func (o *Observed) Node(name string) Node {
	n := Node{Name: name, Labels: o.Labels[name], Plugins: o.Plugins[name]}
	if info := o.Nodes[name]; info != nil {
		i := &info.Status.NodeInfo
		n.BootID, n.KernelVersion, n.OSImage, n.Architecture = i.BootID, i.KernelVersion, i.OSImage, i.Architecture
	}
	if a := o.Accelerators[name]; a != nil {
		n.Accelerator, n.Annotations = &a.Status, a.Annotations
	}
	return n
}

// PodOf returns what states look at of a pod.
func PodOf(p *corev1.Pod) Pod { return Pod{UID: string(p.UID), Name: p.Name, Ready: ready(p)} }

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// DriverPods collects the pods of a stack's drivers, by their nodes.
type DriverPods map[string][]DriverPod

// Add adds a pod if it is one of the stack's. The pods of a node stay sorted by their names.
func (d DriverPods) Add(stack string, p *corev1.Pod) {
	node := p.Spec.NodeName
	if p.Annotations[DriverStackAnnotation] != stack || node == "" {
		return
	}
	d[node] = append(d[node], driverPod(p))
	slices.SortFunc(d[node], func(a, b DriverPod) int { return cmp.Compare(a.Name, b.Name) })
}

func driverPod(p *corev1.Pod) DriverPod {
	out := DriverPod{
		Name: p.Name, UID: string(p.UID), Set: p.Labels[DriverLabel],
		Image: p.Annotations[DriverImageAnnotation], Kernel: p.Annotations[DriverKernelAnnotation],
		OS: p.Annotations[DriverOSAnnotation], Architecture: p.Annotations[DriverArchAnnotation],
		Ready: ready(p), Leaving: p.DeletionTimestamp != nil,
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return out
	}
	c := &p.Status.ContainerStatuses[0]
	if c.State.Running != nil {
		out.Started = c.State.Running.StartedAt.Time
	}
	out.Waits, out.Message = WhyNotRunning(c)
	return out
}

// WhyNotRunning returns the kubelet's reason why a container does not run, and what the container itself said when it last ended, or else
// the kubelet's message. Both are empty for one that runs.
func WhyNotRunning(c *corev1.ContainerStatus) (reason, message string) {
	switch {
	case c.State.Waiting != nil:
		reason, message = c.State.Waiting.Reason, c.State.Waiting.Message
		if last := c.LastTerminationState.Terminated; last != nil && last.Message != "" {
			message = last.Message
		}
	case c.State.Terminated != nil:
		reason, message = c.State.Terminated.Reason, c.State.Terminated.Message
	}
	return reason, message
}

// Holders are the pods that hold claims, by the nodes of which they have devices.
type Holders map[string][]Holder

// Add adds the pods for which a claim is reserved to each node of which it has devices of ours.
func (h Holders) Add(claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	admin := map[string]bool{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		node, _, ofNode := device.SplitPool(r.Pool)
		if r.Driver != v1alpha1.DriverName || !ofNode {
			continue
		}
		before, known := admin[node]
		admin[node] = r.AdminAccess != nil && *r.AdminAccess && (before || !known)
	}
	for node, only := range admin {
		for _, pod := range claim.Status.ReservedFor {
			holder := Holder{Namespace: claim.Namespace, Name: pod.Name, UID: string(pod.UID), Claim: claim.Name, Admin: only}
			if pod.APIGroup == "" && pod.Resource == "pods" {
				h[node] = append(h[node], holder)
			}
		}
	}
}

// ChecksOf says how the claims of a stack's nodes are checked.
func ChecksOf(s *v1alpha1.AcceleratorStack) Checks {
	out := Checks{Interval: DefaultCheckInterval, Timeout: DefaultCheckTimeout, Running: map[string]Verdict{}}
	if c := s.Spec.Check; c != nil {
		out.Classes = c.DeviceClassNames
		if c.Interval != nil {
			out.Interval = c.Interval.Duration
		}
		if c.Timeout != nil {
			out.Timeout = c.Timeout.Duration
		}
	}
	return out
}
