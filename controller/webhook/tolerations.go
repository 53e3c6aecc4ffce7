// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// ofPods is the resource by which changed pods are counted, since [Handler] counts pods, too.
const ofPods = "podtolerations"

// pods lets new pods that get devices of Fettle's tolerate the taints of PartitionPolicies, and gives those without a priority class the
// policies' default. It refuses none, and changes no other pod.
type pods struct {
	// reader reads the claims and templates that a pod names, which nobody follows.
	reader client.Reader
	// known returns the policies and classes, without waiting.
	known   func(context.Context) (facts, error)
	judge   *admission.Judge
	shares  *shares
	observe func(resource, verdict string)
}

// Handle answers the review of one new pod. If the webhook itself fails, the pod is admitted as it is, with a warning.
func (p pods) Handle(ctx context.Context, req ctrladmission.Request) (response ctrladmission.Response) {
	verdict := Undecided
	defer func() {
		if fault := recover(); fault != nil {
			klog.FromContext(ctx).Error(nil, "Panic in the review of a pod", "namespace", req.Namespace, "name", req.Name, "panic", fault,
				"stack", string(debug.Stack()))
			verdict, response = Undecided, unchanged("the webhook had an internal fault")
		}
		p.observe(ofPods, verdict)
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done, ok := p.shares.take(&req)
	if !ok {
		return unchanged(busy)
	}
	defer done()
	p.reader = p.shares.reader(p.reader, req.Namespace)
	verdict, response = p.review(ctx, req)
	return response
}

// unchanged admits a pod as it is, with a warning.
func unchanged(why string) ctrladmission.Response {
	return ctrladmission.Allowed("").WithWarnings(fmt.Sprintf(
		"fettle.dev: the pod got no tolerations for nodes with devices, and no priority class (%s); "+
			"if it stays pending, add them, or make it again", why))
}

func (p pods) review(ctx context.Context, req ctrladmission.Request) (verdict string, response ctrladmission.Response) {
	known, err := p.known(ctx)
	if err != nil {
		return Undecided, unchanged(err.Error())
	}
	taints, class := nodepolicy.Tolerated(known.policies), known.defaultClass()
	if len(taints) == 0 && class == "" {
		return Allowed, ctrladmission.Allowed("")
	}
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return Undecided, unchanged(fmt.Sprintf("decode the pod: %v", err))
	}
	gets, unknown := p.getsDevices(ctx, req.Namespace, &pod, known.classes)
	switch {
	case !gets && unknown != "":
		return Undecided, unchanged(unknown)
	case !gets:
		return Allowed, ctrladmission.Allowed("")
	}
	operations := append(tolerating(ctx, pod.Spec.Tolerations, taints), prioritized(&pod.Spec, class)...)
	patch, err := json.Marshal(operations)
	if err != nil {
		return Undecided, unchanged(err.Error())
	}
	response = ctrladmission.Allowed("")
	if len(operations) > 0 {
		response.Patch, response.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
	}
	return Allowed, response
}

// givesDevices says whether a list has an extended resource that gives devices of Fettle's.
func (p pods) givesDevices(list corev1.ResourceList, known admission.Known) bool {
	for name, quantity := range list {
		if !quantity.IsZero() && p.judge.GivesDevices(string(name), known) {
			return true
		}
	}
	return false
}

// getsDevices says whether a pod may get a device of Fettle's: by an extended resource, a claim or a template. Unknown says which object
// could not be read.
func (p pods) getsDevices(
	ctx context.Context, namespace string, pod *corev1.Pod, classes []resourceapi.DeviceClass,
) (gets bool, unknown string) {
	known := admission.Known{Classes: map[string]*resourceapi.DeviceClass{}}
	for i := range classes {
		known.Classes[classes[i].Name] = &classes[i]
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if p.givesDevices(c.Resources.Requests, known) || p.givesDevices(c.Resources.Limits, known) {
			return true, ""
		}
	}
	claims, all := lookable(pod.Spec.ResourceClaims)
	if !all {
		unknown = errTooManyLookups.Error()
	}
	for i := range claims {
		object, err := p.claim(ctx, namespace, &claims[i])
		switch {
		case err != nil:
			unknown = err.Error()
		case object != nil && p.judge.WantsDevices(object, known):
			return true, ""
		}
	}
	return false, unknown
}

// claim reads the claim or template that a pod names, nil if it names none.
func (p pods) claim(ctx context.Context, namespace string, of *corev1.PodResourceClaim) (client.Object, error) {
	kind, key := "ResourceClaim", client.ObjectKey{Namespace: namespace}
	var object client.Object
	switch {
	case of.ResourceClaimName != nil:
		key.Name, object = *of.ResourceClaimName, &resourceapi.ResourceClaim{}
	case of.ResourceClaimTemplateName != nil:
		kind, key.Name, object = "ResourceClaimTemplate", *of.ResourceClaimTemplateName, &resourceapi.ResourceClaimTemplate{}
	default:
		return nil, nil //nolint:nilnil // documented above
	}
	err := p.reader.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s %s does not exist: make it before the pod", kind, key.Name)
	}
	if err != nil {
		if worthALine(err) {
			klog.FromContext(ctx).Error(err, "A claim that a pod names was not read", "kind", kind, "claim", key)
		}
		return nil, fmt.Errorf("%s %s could not be read", kind, key.Name)
	}
	return object, nil
}

// operation is one of a JSON patch. The patch names nothing but what is changed of the pod, whose fields may be newer than this program.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// tolerating returns what has a pod tolerate taints.
func tolerating(ctx context.Context, have []corev1.Toleration, taints []v1alpha1.NodeTaint) (patch []operation) {
	var more []corev1.Toleration
	for _, t := range taints {
		taint := corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		if !slices.ContainsFunc(have, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.FromContext(ctx), &taint, false) }) {
			more = append(more, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpEqual, Value: t.Value, Effect: t.Effect})
		}
	}
	const path = "/spec/tolerations"
	switch {
	case len(more) == 0:
		return nil
	case len(have) == 0:
		return []operation{{Op: "add", Path: path, Value: more}}
	}
	for _, t := range more {
		patch = append(patch, operation{Op: "add", Path: path + "/-", Value: t})
	}
	return patch
}

// defaultClass returns the priority class of pods with devices, and nothing if there is none. A class that does not exist is not given,
// since the API server refuses pods with it, and neither is one that somebody else made.
func (f facts) defaultClass() string {
	name := nodepolicy.Default(f.policies)
	there := slices.ContainsFunc(f.priorities, func(c schedulingv1.PriorityClass) bool {
		return c.Name == name && c.Labels[names.ManagedByLabel] == names.Controller
	})
	if !there {
		return ""
	}
	return name
}

// prioritized returns what gives a pod without a priority class this one. The API server computed a priority without the class already. It
// computes it again after a change, and refuses a pod whose priority is another than its class's, so the computed one is taken away.
func prioritized(spec *corev1.PodSpec, class string) (patch []operation) {
	if class == "" || spec.PriorityClassName != "" {
		return nil
	}
	patch = []operation{{Op: "add", Path: "/spec/priorityClassName", Value: class}}
	if spec.Priority != nil {
		patch = append(patch, operation{Op: "remove", Path: "/spec/priority"})
	}
	if spec.PreemptionPolicy != nil {
		patch = append(patch, operation{Op: "remove", Path: "/spec/preemptionPolicy"})
	}
	return patch
}
