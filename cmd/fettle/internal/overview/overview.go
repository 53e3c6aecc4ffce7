// SPDX-License-Identifier: Apache-2.0

// Package overview says in one screen how Fettle does on a cluster: what is installed, which devices there are, what is wrong, and what to
// do next.
package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Cluster is what was read of one.
type Cluster struct {
	// DaemonSets and Deployments are those with Fettle's label, of all namespaces.
	DaemonSets  []*appsv1.DaemonSet
	Deployments []*appsv1.Deployment
	Nodes       []*v1alpha1.AcceleratorNode
	// Objects are those of Fettle's other kinds that have conditions.
	Objects []Object
	// Pods are those without a node, or that do not run, and that have claims.
	Pods []*corev1.Pod
	// Unread says what may not be read, and why.
	Unread []string
	// Now is when it was read.
	Now time.Time
}

// patience is how long a pod may wait, or take to start, before anybody needs to know.
const patience = time.Minute

// Object is one with conditions.
type Object struct {
	Kind string
	metav1.ObjectMeta
	Conditions []metav1.Condition
}

// Report is the overview.
type Report struct {
	Programs []Program `json:"programs"`
	Nodes    []Node    `json:"nodes"`
	Objects  []Count   `json:"objects"`
	Wrong    []Fault   `json:"wrong"`
	// Unread says what is not in the report.
	Unread []string `json:"unread,omitempty"`
}

// Program is a part of Fettle that runs on the cluster.
type Program struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Version is that of its image.
	Version string `json:"version"`
	Ready   int32  `json:"ready"`
	Want    int32  `json:"want"`
}

// Node has the devices of a node, by kind.
type Node struct {
	Name  string `json:"name"`
	Pools []Pool `json:"pools"`
	// Claims is how many have devices of the node.
	Claims   int32 `json:"claims"`
	Problems int32 `json:"problems"`
	// State is Ready, or what is against it.
	State string `json:"state"`
}

// Pool counts the devices of a kind.
type Pool struct {
	Kind      string `json:"kind"`
	Devices   int32  `json:"devices"`
	Used      int32  `json:"used"`
	Free      int32  `json:"free"`
	Unhealthy int32  `json:"unhealthy,omitempty"`
}

// Count says how many objects of a kind there are, and with how many of them something is wrong.
type Count struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
	Wrong int    `json:"wrong"`
}

// Fault is one thing that is wrong.
type Fault struct {
	// About is the object: "Node node-1".
	About string `json:"about"`
	What  string `json:"what"`
	// Next is a command that shows more, or mends it.
	Next string `json:"next"`
}

// Of makes the overview. Everything in it is sorted, what is most urgent first.
func Of(c Cluster) Report {
	r := Report{Programs: []Program{}, Nodes: []Node{}, Objects: []Count{}, Wrong: []Fault{}, Unread: c.Unread}
	r.programs(c)
	for _, n := range sorted(c.Nodes) {
		r.node(n)
	}
	r.pods(c.Pods, c.Now)
	r.objects(c.Objects)
	return r
}

func sorted[T metav1.Object](all []T) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

func (r *Report) wrong(about, what, next string) { r.Wrong = append(r.Wrong, Fault{about, what, next}) }

func (r *Report) programs(c Cluster) {
	for _, d := range sorted(c.DaemonSets) {
		r.program("DaemonSet", d.ObjectMeta, d.Spec.Template.Spec, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
	}
	for _, d := range sorted(c.Deployments) {
		r.program("Deployment", d.ObjectMeta, d.Spec.Template.Spec, d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1))
	}
	if len(r.Programs)+len(c.Nodes) == 0 && len(c.Unread) == 0 {
		r.wrong("Fettle", "is not installed: no namespace has a DaemonSet or Deployment of it",
			"read https://github.com/fettle-dev/fettle/blob/main/docs/user/start.md")
	}
	for _, p := range r.Programs {
		if first := r.Programs[0]; p.Version != first.Version {
			r.wrong(p.Name, fmt.Sprintf("has version %s, and %s has %s", p.Version, first.Name, first.Version),
				"kubectl -n "+p.Namespace+" get pods -o wide, and look again once an upgrade is over")
			break
		}
	}
}

func (r *Report) program(kind string, meta metav1.ObjectMeta, pods corev1.PodSpec, ready, want int32) {
	p := Program{Namespace: meta.Namespace, Name: meta.Name, Ready: ready, Want: want}
	if len(pods.Containers) > 0 {
		image := pods.Containers[0].Image
		image, _, _ = strings.Cut(image, "@")
		p.Version = image[strings.LastIndex(image, ":")+1:]
	}
	r.Programs = append(r.Programs, p)
	if ready < want {
		r.wrong(kind+" "+meta.Namespace+"/"+meta.Name, fmt.Sprintf("%d of %d pods are ready", ready, want),
			fmt.Sprintf("kubectl -n %s describe pods -l app.kubernetes.io/component=%s", meta.Namespace, meta.Labels["app.kubernetes.io/component"]))
	}
}

// node adds a node. Its first problem stands for all.
func (r *Report) node(a *v1alpha1.AcceleratorNode) {
	n := Node{Name: a.Name, Pools: []Pool{}, Claims: a.Status.PreparedClaims, Problems: a.Status.ProblemCount, State: "Ready"}
	for _, p := range a.Status.Pools {
		n.Pools = append(n.Pools, Pool{Kind: p.Kind, Devices: p.Devices, Used: p.Used, Free: p.Free, Unhealthy: p.Unhealthy})
	}
	about, next := "AcceleratorNode "+a.Name, "kubectl describe acceleratornode "+a.Name
	for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished, v1alpha1.ConditionHealthy} {
		if found := apimeta.FindStatusCondition(a.Status.Conditions, condition); found != nil && found.Status != metav1.ConditionTrue {
			if n.State == "Ready" {
				n.State = "not " + condition
			}
			r.wrong(about, fmt.Sprintf("is not %s: %s: %s", condition, found.Reason, found.Message), next)
		}
	}
	for _, condition := range []string{v1alpha1.ConditionRetired, v1alpha1.ConditionQuiesced} {
		if apimeta.IsStatusConditionTrue(a.Status.Conditions, condition) {
			n.State = condition
		}
	}
	if len(a.Status.Problems) > 0 {
		first, more := a.Status.Problems[0], ""
		if a.Status.ProblemCount > 1 {
			more = fmt.Sprintf(" (and %d more)", a.Status.ProblemCount-1)
		}
		r.wrong(about, fmt.Sprintf("%s: %s: %s%s", first.Subject, first.Reason, first.Message, more), next)
	}
	r.Nodes = append(r.Nodes, n)
}

// pods tells of those that wait for a node, the one that has waited longest first, and those that have one and do not start.
func (r *Report) pods(all []*corev1.Pod, now time.Time) {
	oldest := slices.SortedStableFunc(slices.Values(sorted(all)), func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, p := range oldest {
		if now.Sub(p.CreationTimestamp.Time) < patience {
			break
		}
		about := "Pod " + p.Namespace + "/" + p.Name
		if p.Spec.NodeName == "" {
			r.wrong(about, "waits for a node", fmt.Sprintf("fettle explain pod %s -n %s", p.Name, p.Namespace))
		} else {
			r.wrong(about, "does not start on node "+p.Spec.NodeName, fmt.Sprintf("kubectl -n %s describe pod %s", p.Namespace, p.Name))
		}
	}
}

// bad is the status of each condition with which something is wrong.
func bad() map[string]metav1.ConditionStatus {
	return map[string]metav1.ConditionStatus{
		v1alpha1.ConditionAvailable: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionTrue,
		v1alpha1.ConditionValid: metav1.ConditionFalse, v1alpha1.ConditionConflicting: metav1.ConditionTrue,
		v1alpha1.ConditionResolved: metav1.ConditionFalse, v1alpha1.ConditionVerified: metav1.ConditionFalse,
		v1alpha1.ConditionCompatible: metav1.ConditionFalse, v1alpha1.ConditionNamespaceMissing: metav1.ConditionTrue,
		v1alpha1.ConditionApplied: metav1.ConditionFalse, v1alpha1.ConditionOverruled: metav1.ConditionTrue,
	}
}

func (r *Report) objects(all []Object) {
	counts := map[string]*Count{}
	byName := slices.SortedFunc(slices.Values(all), func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range byName {
		o := &byName[i]
		if counts[o.Kind] == nil {
			counts[o.Kind] = &Count{Kind: o.Kind}
		}
		counts[o.Kind].Count++
		if what := faultOf(o.Conditions); what != "" {
			counts[o.Kind].Wrong++
			about, next := o.Kind+" "+o.Name, "kubectl describe "+strings.ToLower(o.Kind)+" "+o.Name
			if o.Namespace != "" {
				about, next = o.Kind+" "+o.Namespace+"/"+o.Name, next+" -n "+o.Namespace
			}
			r.wrong(about, what, next)
		}
	}
	for _, c := range counts {
		r.Objects = append(r.Objects, *c)
	}
	slices.SortFunc(r.Objects, func(a, b Count) int { return cmp.Compare(a.Kind, b.Kind) })
}

// faultOf says what is wrong by the first condition that says so.
func faultOf(conditions []metav1.Condition) string {
	wrong := bad()
	for _, c := range conditions {
		if status, known := wrong[c.Type]; known && c.Status == status {
			return fmt.Sprintf("%s is %s: %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return ""
}
