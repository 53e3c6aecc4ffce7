// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// Cluster is a snapshot as the scheduler sees it: with the API server's defaults, without the fields of gates that are off, with the
// taints of DeviceTaintRules, and with what is allocated. Run changes it: what a pod gets is allocated for those after it. Its objects
// are its own, so a snapshot can be used for several clusters. It is not safe for concurrent use.
type Cluster struct {
	Gates gates.Set
	// Nodes are sorted by name.
	Nodes []*corev1.Node
	// Pods are in the order of the snapshot.
	Pods []*corev1.Pod
	// Slices are sorted by driver, pool and name.
	Slices []*resourceapi.ResourceSlice
	// Classes are by name.
	Classes map[string]*resourceapi.DeviceClass
	// Claims are those that exist, generated ones included.
	Claims map[types.NamespacedName]*resourceapi.ResourceClaim
	// Templates make claims.
	Templates  map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	Namespaces map[string]*corev1.Namespace
	Quotas     []*corev1.ResourceQuota
	PodGroups  map[types.NamespacedName]*schedulingapi.PodGroup

	// extended are the classes by the name of their extended resource.
	extended map[corev1.ResourceName]*resourceapi.DeviceClass
	// extendedNameOf are the names that classes give themselves.
	extendedNameOf map[string]corev1.ResourceName
	pools          map[poolID]*pool
	// owned are the claims of a pod by its UID, podCharges what it counts in quotas itself.
	owned      map[types.UID][]types.NamespacedName
	podCharges map[types.UID]corev1.ResourceList
	// charged is what the claims and pods of a namespace count in quotas.
	charged map[string]corev1.ResourceList
	views   []*view
	// placed are the pods that have a node.
	placed   []placed
	verdicts verdicts
	// shares counts the shares of devices that got a name.
	shares   int
	cel      *cel.Cache
	reads    *readings
	kept     judge.Kept
	problems []Problem
	journal  journal
}

// NewCluster makes a cluster of a snapshot, which stays as it is. Problems are about objects that were changed or left out. An error is
// about a version or gates that no plan can be made for.
func NewCluster(s Snapshot) (*Cluster, []Problem, error) { return Adopt(s.clone()) }

// Adopt makes a cluster of a snapshot as NewCluster does, and copies nothing: the objects are the cluster's from then on, and it changes
// them.
func Adopt(s Snapshot) (*Cluster, []Problem, error) {
	set, notes, err := gates.For(s.Version, s.Gates)
	if err != nil {
		return nil, nil, err
	}
	SetDefaults(&s)
	c := &Cluster{
		Gates: set, Nodes: s.Nodes, Pods: s.Pods, Slices: s.Slices, Quotas: s.Quotas,
		Classes:    byName(s.Classes),
		Namespaces: byName(s.Namespaces),
		Claims:     map[types.NamespacedName]*resourceapi.ResourceClaim{},
		Templates:  byKey(s.Templates),
		PodGroups:  byKey(s.PodGroups),
		pools:      map[poolID]*pool{},
		owned:      map[types.UID][]types.NamespacedName{},
		podCharges: map[types.UID]corev1.ResourceList{},
		charged:    map[string]corev1.ResourceList{},
	}
	c.forgetCompiled()
	for _, note := range notes {
		c.problem("Snapshot kubernetes", "%s", note)
	}
	sortObjects(c.Quotas)
	slices.SortFunc(c.Slices, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(a.Spec.Driver, b.Spec.Driver), cmp.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name), cmp.Compare(a.Name, b.Name))
	})
	if len(c.Nodes) == 0 {
		c.assumeNodes()
	}
	sortObjects(c.Nodes)
	c.dropDisabled(s)
	c.extended, c.extendedNameOf = ExtendedClasses(set, s.Classes), ExtendedNames(set, s.Classes)
	c.addPools()
	c.chargePods()
	for _, claim := range s.Claims {
		c.addClaim(claim)
	}
	for _, pod := range c.Pods {
		c.occupy(pod)
	}
	sortProblems(c.problems)
	return c, c.problems, nil
}

// compiled is how many CEL expressions stay compiled: more than judge.Kept lets there be.
const compiled = 1000

// forgetCompiled has expressions compiled anew.
func (c *Cluster) forgetCompiled() {
	c.cel = cel.NewCache(compiled, cel.Features{
		EnableConsumableCapacity: c.Gates.On(gates.ConsumableCapacity), EnableListTypeAttributes: c.Gates.On(gates.ListTypeAttributes),
	})
	c.reads = &readings{known: map[string]selector.Reads{}}
}

func (c *Cluster) problem(object, format string, args ...any) {
	c.problems = append(c.problems, Problem{Object: object, Message: fmt.Sprintf(format, args...)})
}

// dropDisabled clears the fields of gates that are off, and taints devices by rules if their gate is on.
func (c *Cluster) dropDisabled(s Snapshot) {
	note := func(object string, sentences []string) {
		for _, sentence := range sentences {
			c.problem(object, "%s", sentence)
		}
	}
	for _, slice := range s.Slices {
		note(titleOf("ResourceSlice", "", slice.Name), c.Gates.DropSlice(slice))
	}
	for _, class := range s.Classes {
		note(titleOf("DeviceClass", "", class.Name), c.Gates.DropClass(class))
	}
	for _, t := range s.Templates {
		note(titleOf("ResourceClaimTemplate", t.Namespace, t.Name), c.Gates.DropClaim(&t.Spec.Spec, nil))
	}
	for _, claim := range s.Claims {
		note(titleOf("ResourceClaim", claim.Namespace, claim.Name), c.Gates.DropClaim(&claim.Spec, &claim.Status))
	}
	if c.Gates.On(gates.DeviceTaints) && c.Gates.On(gates.DeviceTaintRules) {
		rules := slices.Clone(s.TaintRules)
		sortObjects(rules)
		taintSlices(c.Slices, rules)
		return
	}
	for _, rule := range s.TaintRules {
		c.problem(titleOf("DeviceTaintRule", "", rule.Name), "has no effect: %s or %s is off in Kubernetes %s",
			gates.DeviceTaints, gates.DeviceTaintRules, c.Gates.Version())
	}
}

// taintSlices adds the taints of rules to the devices that they select, in the order of the rules. The slices are changed.
func taintSlices(slices []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) {
	for _, slice := range slices {
		for i := range slice.Spec.Devices {
			taintDevice(slice, &slice.Spec.Devices[i], rules)
		}
	}
}

func taintDevice(slice *resourceapi.ResourceSlice, device *resourceapi.Device, rules []*resourceapi.DeviceTaintRule) {
	for _, rule := range rules {
		if ruleSelects(rule.Spec.DeviceSelector, slice, device.Name) {
			device.Taints = append(device.Taints, rule.Spec.Taint)
		}
	}
}

// ruleSelects says whether a rule is for a device. A rule without a selector is for none, one with an empty selector for all.
func ruleSelects(selector *resourceapi.DeviceTaintSelector, slice *resourceapi.ResourceSlice, device string) bool {
	return selector != nil &&
		(selector.Driver == nil || *selector.Driver == slice.Spec.Driver) &&
		(selector.Pool == nil || *selector.Pool == slice.Spec.Pool.Name) &&
		(selector.Device == nil || *selector.Device == device)
}

func byName[T metav1.Object](objects []T) map[string]T {
	out := make(map[string]T, len(objects))
	for _, o := range objects {
		out[o.GetName()] = o
	}
	return out
}

func byKey[T metav1.Object](objects []T) map[types.NamespacedName]T {
	out := make(map[types.NamespacedName]T, len(objects))
	for _, o := range objects {
		out[keyOf(o)] = o
	}
	return out
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func sortObjects[T metav1.Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
