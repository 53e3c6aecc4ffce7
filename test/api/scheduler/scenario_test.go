// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scenario is a small cluster, pods that come to it one after another, and what becomes of them.
type scenario struct {
	name string
	// objects are created in this order, pods after all others.
	objects []client.Object
	// labels are those of the namespace.
	labels map[string]string
	// want has a line for each pod, and for each object that the API server refuses:
	//
	//	POD NODE CLAIM=DEVICE,DEVICE
	//	POD waits CLASS: REASON, WORDS
	//	KIND/NAME refused TEXT
	//
	// CLASS is that of what the scheduler says. REASON is that of the explanation, whose first line has the WORDS.
	want string
	// older is what Kubernetes 1.34 does, if that differs.
	older string
	// events are texts of the Events of pods whose claims cannot be made: the scheduler says nothing of the cause.
	events map[string]string
	// loose compares only whether a pod has a node and how many devices it has: several choices are as good.
	loose bool
	// olderLoose is loose for Kubernetes 1.34, whose scheduler takes pools and slices in random order.
	olderLoose bool
}

// scenarios are all, by what they are about.
func scenarios() []scenario {
	return slices.Concat(
		requestScenarios(), allScenarios(), alternativeScenarios(), constraintScenarios(), poolScenarios(), counterScenarios(),
		capacityScenarios(), taintScenarios(), nodeScenarios(), placeScenarios(), sharingScenarios(), adminScenarios(), extendedScenarios(),
		errorScenarios(), quotaScenarios(),
	)
}

// written are the scenario's lines for a version.
func (s scenario) written(version string) []string {
	text := s.want
	if version != "" && s.older != "" {
		text = s.older
	}
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// lines are what has to be seen in a version, without explanations.
func (s scenario) lines(version string) []string {
	out := s.written(version)
	for i, line := range out {
		if seen, _, found := strings.Cut(line, ": "); found && strings.Contains(seen, " waits ") {
			out[i] = seen
		}
	}
	return out
}

// isLoose says whether a version may choose.
func (s scenario) isLoose(version string) bool { return s.loose || s.olderLoose && version != "" }

// refused is the text with which the API server refuses an object, or empty.
func (s scenario) refused(version, object string) string {
	for _, line := range s.lines(version) {
		if text, ok := strings.CutPrefix(line, object+" refused "); ok {
			return text
		}
	}
	return ""
}

// namespace is where the pods and claims of the scenario are.
func (s scenario) namespace() string {
	return strings.ToLower(strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(s.name))
}

// kindAndName names an object as scenarios do.
func kindAndName(o client.Object) string { return reflect.TypeOf(o).Elem().Name() + "/" + o.GetName() }

// placed has the objects in the scenario's namespace, and labels the others.
func (s scenario) placed() scenario {
	objects := make([]client.Object, 0, len(s.objects))
	for _, o := range s.objects {
		o, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			continue
		}
		switch o.(type) {
		case *corev1.Pod, *resourceapi.ResourceClaim, *resourceapi.ResourceClaimTemplate, *corev1.ResourceQuota:
			o.SetNamespace(s.namespace())
		default:
			labels := maps.Clone(o.GetLabels())
			if labels == nil {
				labels = map[string]string{}
			}
			labels[scenarioLabel] = s.namespace()
			o.SetLabels(labels)
		}
		objects = append(objects, o)
	}
	s.objects = objects
	return s
}

// pods come in this order.
func (s scenario) pods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range s.objects {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

// outcome is what became of a pod, in a plan or in the cluster.
type outcome struct {
	node string
	// devices are DRIVER/POOL/DEVICE by the pod's own name of the claim, in the order of allocation.
	devices map[string][]string
	// fits are the nodes that would do, in a plan.
	fits []string
	// reason is the class of what keeps the pod from a node, text what was said.
	reason, text string
}

// line writes an outcome as scenarios do.
func (o outcome) line(pod string, loose bool) string {
	if o.node == "" {
		return pod + " waits " + o.reason
	}
	words := []string{pod, o.node}
	if loose {
		words[1] = "any"
	}
	for _, claim := range slices.Sorted(maps.Keys(o.devices)) {
		var names []string
		for _, device := range o.devices[claim] {
			names = append(names, device[strings.LastIndex(device, "/")+1:])
		}
		if loose {
			names = []string{fmt.Sprint(len(names))}
		}
		words = append(words, claim+"="+strings.Join(names, ","))
	}
	return strings.Join(words, " ")
}
