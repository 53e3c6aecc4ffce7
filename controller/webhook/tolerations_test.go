// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	toleration = `{"key":"example.com/gpu","operator":"Equal","value":"a","effect":"NoSchedule"}`
	added      = `[{"op":"add","path":"/spec/tolerations","value":[` + toleration + `]}]`
)

// podsUnderTest knows a policy with one taint, a class of Fettle's with an extended resource, and a claim and a template of namespace ns.
func podsUnderTest(policies ...v1alpha1.PartitionPolicy) (p pods, verdicts *[]string) {
	ours := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "ours"}}
	ours.Spec.ExtendedResourceName = ptr.To("example.com/device")
	ours.Spec.Selectors = objects.Selectors(`device.driver == "fettle.dev"`)
	devices := func(class string) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{objects.Request("r", class)}}
	}
	claim := objects.Claim("ns", "claim")
	claim.Spec.Devices = devices("ours")
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "template"}}
	template.Spec.Spec.Devices = devices("ours")
	foreign := objects.Claim("ns", "foreign")
	foreign.Spec.Devices = devices("theirs")
	verdicts = new([]string)
	return pods{
		reader: fake.NewClientBuilder().WithObjects(claim, template, foreign).Build(), judge: &admission.Judge{},
		known: func(context.Context) (facts, error) {
			managed := schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{
				Name: "gpu", Labels: map[string]string{names.ManagedByLabel: names.Controller},
			}}
			theirs := schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
			return facts{policies, []resourceapi.DeviceClass{ours}, []schedulingv1.PriorityClass{managed, theirs}}, nil
		},
		observe: func(resource, verdict string) { *verdicts = append(*verdicts, resource+" "+verdict) },
	}, verdicts
}

func tainting() v1alpha1.PartitionPolicy {
	p := v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Nodes = &v1alpha1.NodePartition{
		Taints: []v1alpha1.NodeTaint{{Key: "example.com/gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule}},
	}
	p.Status.ToleratedTaints = p.Spec.Nodes.Taints
	return p
}

// withForeign has one policy with a taint that a node has from somebody else.
func withForeign() []v1alpha1.PartitionPolicy {
	p := tainting()
	p.Status.ToleratedTaints = nil
	return []v1alpha1.PartitionPolicy{p}
}

// prioritizing has one policy with a class by default.
func prioritizing(class string) []v1alpha1.PartitionPolicy {
	p := v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Nodes = &v1alpha1.NodePartition{PriorityClasses: []v1alpha1.NodePriorityClass{{Name: class, Value: 1000, Default: true}}}
	return []v1alpha1.PartitionPolicy{p}
}

func askingFor(resourceName string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}
	return corev1.ResourceRequirements{Limits: list, Requests: list}
}

// TestTolerations is which pods tolerate the taints of policies.
func TestTolerations(t *testing.T) {
	t.Parallel()
	naming := func(name string, of corev1.PodResourceClaim) func(*corev1.Pod) {
		of.Name = name
		return func(p *corev1.Pod) { p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, of) }
	}
	tolerates := func(list ...corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = list }
	}
	claimed := naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("claim")})
	for name, test := range map[string]struct {
		change          []func(*corev1.Pod)
		policies        []v1alpha1.PartitionPolicy
		want, says      string
		verdict         string
		otherNamespaces bool
	}{
		"a claim": {change: []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("claim")})}, want: added},
		"a template": {
			change: []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimTemplateName: ptr.To("template")})}, want: added,
		},
		"an extended resource": {
			change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Containers[0].Resources = askingFor("example.com/device") }}, want: added,
		},
		"a class as a resource": {
			change: []func(*corev1.Pod){func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources = askingFor("deviceclass.resource.kubernetes.io/ours")
			}}, want: added,
		},
		"an init container, or a sidecar": {change: []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: askingFor("example.com/device")}}
		}}, want: added},
		"nothing":          {},
		"another resource": {change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Containers[0].Resources = askingFor("x.com/y") }}},
		"another's claim":  {change: []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("foreign")})}},
		"another's claim and ours": {change: []func(*corev1.Pod){
			naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("foreign")}),
			naming("b", corev1.PodResourceClaim{ResourceClaimTemplateName: ptr.To("template")}),
		}, want: added},
		"a claim that does not exist": {
			change: []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("later")})},
			says:   "ResourceClaim later does not exist: make it before the pod", verdict: Undecided,
		},
		"a claim of another namespace": {
			change:          []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("claim")})},
			otherNamespaces: true, says: "does not exist", verdict: Undecided,
		},
		"no policy": {
			change:   []func(*corev1.Pod){naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("later")})},
			policies: []v1alpha1.PartitionPolicy{},
		},
		"a taint that a node has from somebody else": {change: []func(*corev1.Pod){claimed}, policies: withForeign()},
		"a class by default": {
			change: []func(*corev1.Pod){claimed, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](0) }}, policies: prioritizing("gpu"),
			want: `[{"op":"add","path":"/spec/priorityClassName","value":"gpu"},{"op":"remove","path":"/spec/priority"}]`,
		},
		"a class of its own": {
			change: []func(*corev1.Pod){claimed, func(p *corev1.Pod) { p.Spec.PriorityClassName = "x" }}, policies: prioritizing("gpu"),
		},
		"a class by default, without devices":  {policies: prioritizing("gpu")},
		"a class that somebody else made":      {change: []func(*corev1.Pod){claimed}, policies: prioritizing("theirs")},
		"a class that does not exist any more": {change: []func(*corev1.Pod){claimed}, policies: prioritizing("gone")},
		"tolerated already": {change: []func(*corev1.Pod){
			naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("claim")}),
			tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists}),
		}},
		"other tolerations stay": {
			change: []func(*corev1.Pod){
				naming("a", corev1.PodResourceClaim{ResourceClaimName: ptr.To("claim")}),
				tolerates(corev1.Toleration{Key: "x", Operator: corev1.TolerationOpExists}),
			},
			want: `[{"op":"add","path":"/spec/tolerations/-","value":` + toleration + `}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.policies == nil {
				test.policies = []v1alpha1.PartitionPolicy{tainting()}
			}
			p, verdicts := podsUnderTest(test.policies...)
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
			for _, change := range test.change {
				change(pod)
			}
			raw, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			req := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns", Object: runtime.RawExtension{Raw: raw}}}
			if test.otherNamespaces {
				req.Namespace = "other"
			}
			got := p.Handle(t.Context(), req)
			if diff := cmp.Diff(test.want, string(got.Patch)); diff != "" || !got.Allowed || (got.PatchType == nil) != (test.want == "") {
				t.Errorf("allowed %t (-want +got):\n%s", got.Allowed, diff)
			}
			warned := strings.Join(got.Warnings, " ")
			if (warned == "") != (test.says == "") || !strings.Contains(warned, test.says) {
				t.Errorf("warned: %q, want %q", warned, test.says)
			}
			if test.verdict == "" {
				test.verdict = Allowed
			}
			if diff := cmp.Diff([]string{ofPods + " " + test.verdict}, *verdicts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTolerationsUndecided: a webhook that does not know the policies yet, or has a fault, admits a pod as it is and says so.
func TestTolerationsUndecided(t *testing.T) {
	t.Parallel()
	p, verdicts := podsUnderTest(tainting())
	pod := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte(`{}`)}}}
	p.known = func(context.Context) (facts, error) { return facts{}, errNotFollowed }
	if got := p.Handle(t.Context(), pod); !got.Allowed || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "not read yet") {
		t.Errorf("%+v", got)
	}
	p.known = func(context.Context) (facts, error) { panic("boom") }
	if got := p.Handle(t.Context(), pod); !got.Allowed || len(got.Warnings) != 1 {
		t.Errorf("%+v", got)
	}
	if len(*verdicts) != 2 {
		t.Errorf("verdicts %q", *verdicts)
	}
}
