// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/pkg/admission"
)

const (
	goodClaim = `{"metadata":{"name":"a"},"spec":{"devices":{"config":[{"opaque":{"driver":"fettle.dev","parameters":
		{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}}}]}}}`
	badClaim = `{"metadata":{"name":"a"},"spec":{"devices":{"config":[{"opaque":{"driver":"fettle.dev","parameters":
		{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":"red"}}}]}}}`
	leaving   = `{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"},` + `"spec":{"devices":{"config":[`
	foreign   = `{"metadata":{"name":"a"},"spec":{"devices":{"config":[{"opaque":{"driver":"x.dev","parameters":{"a":1}}}]}}}`
	badClass  = `{"metadata":{"name":"c"},"spec":{"config":[{"opaque":{"driver":"fettle.dev","parameters":7}}]}}`
	goodParts = `{"metadata":{"name":"p"},"spec":{"devices":{"passthrough":true}}}`
	badParts  = `{"metadata":{"name":"p"},"spec":{"devices":{"passthrough":true,"deviceSelector":{"cel":"device.nothing"}}}}`
	goodStack = `{"metadata":{"name":"s"},"spec":{"driver":{"engine":"Host"}}}`
	badStack  = `{"metadata":{"name":"s"},"spec":{"driver":{"engine":"External"}}}`
	otherSpec = `{"metadata":{"name":"a"},"spec":{}}`
)

// badLeaving is the faulty claim while it is deleted.
var badLeaving = leaving + strings.SplitN(badClaim, `"config":[`, 2)[1] //nolint:gochecknoglobals // a constant

func request(kind, version, object, old string) ctrladmission.Request {
	r := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind:      metav1.GroupVersionKind{Group: "resource.k8s.io", Version: version, Kind: kind},
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(object)},
	}}
	if old != "" {
		r.Operation, r.OldObject = admissionv1.Update, runtime.RawExtension{Raw: []byte(old)}
	}
	return r
}

// partition is a request about a PartitionPolicy.
func partition(object, old string) ctrladmission.Request {
	r := request("PartitionPolicy", "v1alpha1", object, old)
	r.Kind.Group = "fettle.dev"
	return r
}

// stack is a request about an AcceleratorStack.
func stack(object, old string) ctrladmission.Request {
	r := partition(object, old)
	r.Kind.Kind = "AcceleratorStack"
	return r
}

func TestHandle(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		request ctrladmission.Request
		want    string
		message string // part of the denial or of the warning
	}{
		{"good claim", request("ResourceClaim", "v1", goodClaim, ""), Allowed, ""},
		{"unknown field", request("ResourceClaim", "v1", badClaim, ""), Denied, "spec.devices.config[0].opaque.parameters"},
		{
			"template", request("ResourceClaimTemplate", "v1", `{"metadata":{"generateName":"t-"},"spec":`+badClaim+`}`, ""),
			Denied, "spec.spec.devices.config[0].opaque.parameters",
		},
		{"class", request("DeviceClass", "v1", badClass, ""), Denied, "spec.config[0].opaque.parameters"},
		{"another driver", request("ResourceClaim", "v1", foreign, ""), Allowed, ""},
		{"bad as before", request("ResourceClaim", "v1", badClaim, badClaim), Allowed, ""},
		{"turned bad", request("ResourceClaim", "v1", badClaim, otherSpec), Denied, "colour"},
		{"leaving", request("ResourceClaim", "v1", badLeaving, otherSpec), Allowed, ""},
		{"good policy", partition(goodParts, ""), Allowed, ""},
		{"CEL of a policy", partition(badParts, ""), Denied, "spec.devices.deviceSelector.cel"},
		{"policy, bad as before", partition(badParts, badParts), Allowed, ""},
		{"policy, turned bad", partition(badParts, goodParts), Denied, "undefined field 'nothing'"},
		{"good stack", stack(goodStack, ""), Allowed, ""},
		{"stack without its operator", stack(badStack, ""), Denied, "spec.driver.external"},
		{"stack, bad as before", stack(badStack, badStack), Allowed, ""},
		{"another version", request("ResourceClaim", "v1beta1", badClaim, ""), Undecided, "v1beta1"},
		{"another kind", request("Gadget", "v1", `{}`, ""), Undecided, "Gadget"},
		{"garbage", request("ResourceClaim", "v1", "\x00", ""), Undecided, "not checked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var verdicts []string
			h := Handler{Validate: admission.Validate, Observe: func(_, v string) { verdicts = append(verdicts, v) }}
			got := h.Handle(t.Context(), tt.request)
			if len(verdicts) != 1 || verdicts[0] != tt.want || got.Allowed != (tt.want != Denied) {
				t.Fatalf("verdicts %q, allowed %v; want %q", verdicts, got.Allowed, tt.want)
			}
			text := strings.Join(got.Warnings, " ")
			if got.Result != nil {
				text += got.Result.Message
			}
			if !strings.Contains(text, tt.message) {
				t.Errorf("answer %q lacks %q", text, tt.message)
			}
			if tt.want == Denied && got.Result.Code != 422 {
				t.Errorf("code %d, want 422", got.Result.Code)
			}
		})
	}
}

// TestHandleReferences: the objects that a valid object names are checked, with the namespace of the review.
func TestHandleReferences(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		object, want, says string
		asked              bool
	}{
		"not for this namespace": {goodClaim, Denied, "not for team-a", true},
		"faults come first":      {badClaim, Denied, "colour", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked bool
			h := Handler{
				Validate: admission.Validate, Observe: func(string, string) {},
				Refer: func(_ context.Context, namespace string, _ runtime.Object) (field.ErrorList, []string) {
					asked = true
					return field.ErrorList{field.Forbidden(field.NewPath("spec"), "not for "+namespace)}, []string{"lost"}
				},
			}
			req := request("ResourceClaim", "v1", tt.object, "")
			req.Namespace = "team-a"
			got := h.Handle(t.Context(), req)
			if got.Allowed || !strings.Contains(got.Result.Message, tt.says) || asked != tt.asked {
				t.Errorf("allowed %v, asked %v: %+v", got.Allowed, asked, got.Result)
			}
		})
	}
	h := Handler{
		Validate: admission.Validate, Observe: func(string, string) {},
		Refer: func(context.Context, string, runtime.Object) (field.ErrorList, []string) {
			return nil, []string{"not there"}
		},
	}
	if got := h.Handle(t.Context(), request("ResourceClaim", "v1", goodClaim, "")); !got.Allowed || len(got.Warnings) != 1 {
		t.Errorf("answer %+v, want allowed with a warning", got)
	}
}

func TestHandlePanic(t *testing.T) {
	t.Parallel()
	h := Handler{
		Validate: func(runtime.Object) field.ErrorList { panic("boom") },
		Observe: func(_, verdict string) {
			if verdict != Undecided {
				t.Errorf("verdict %q, want %q", verdict, Undecided)
			}
		},
	}
	if got := h.Handle(t.Context(), request("ResourceClaim", "v1", goodClaim, "")); !got.Allowed || len(got.Warnings) != 1 {
		t.Errorf("answer %+v, want allowed with a warning", got)
	}
}

func FuzzHandle(f *testing.F) {
	for _, seed := range []string{goodClaim, badClaim, badLeaving, foreign, badClass} {
		f.Add("ResourceClaim", seed, "")
		f.Add("DeviceClass", seed, seed)
	}
	f.Fuzz(func(t *testing.T, kind, object, old string) {
		// No recover here: a panic in review is a bug even though Handle survives it.
		h := Handler{Validate: admission.Validate}
		if verdict, answer := h.review(t.Context(), request(kind, "v1", object, old)); answer.Allowed == (verdict == Denied) {
			t.Errorf("verdict %q with allowed %v", verdict, answer.Allowed)
		}
	})
}
