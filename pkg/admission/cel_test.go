// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	apiadmission "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/fettle-dev/fettle/test/objects"
)

// oldest is the oldest API server that Fettle supports: its CEL has the fewest functions.
func oldest() *version.Version { return version.MajorMinor(1, 34) }

type expression struct {
	name, text string
	returns    *cel.Type
}

func (e expression) GetName() string          { return e.name }
func (e expression) GetExpression() string    { return e.text }
func (e expression) ReturnTypes() []*cel.Type { return []*cel.Type{e.returns} }

// evaluate runs expressions in the API server's own engine and returns their values and what they cost.
func evaluate(t *testing.T, object, old, params runtime.Object, request *admissionv1.AdmissionRequest,
	variables []Variable, expressions ...plugincel.ExpressionAccessor,
) ([]plugincel.EvaluationResult, int64) {
	t.Helper()
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(oldest()))
	if err != nil {
		t.Fatal(err)
	}
	declared := plugincel.OptionalVariableDeclarations{HasParams: params != nil}
	for _, v := range variables {
		named := expression{name: v.Name, text: v.Expression, returns: cel.AnyType}
		if got := compiler.CompileAndStoreVariable(named, declared, environment.NewExpressions); got.Error != nil {
			t.Fatalf("compile variable %s: %v", v.Name, got.Error)
		}
	}
	condition := compiler.CompileCondition(expressions, declared, environment.NewExpressions)
	if errs := condition.CompilationErrors(); len(errs) > 0 {
		t.Fatalf("compile: %v", errs)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	attributes := apiadmission.NewAttributesRecord(object, old, kind, request.Namespace, "",
		resourceapi.SchemeGroupVersion.WithResource(""), "", apiadmission.Operation(request.Operation), nil, false, nil)
	versioned := &apiadmission.VersionedAttributes{
		Attributes: attributes, VersionedKind: kind,
		VersionedObject: apiadmission.NewLazyObject(object), VersionedOldObject: apiadmission.NewLazyObject(old),
	}
	budget := int64(celconfig.RuntimeCELCostBudget)
	results, left, err := condition.ForInput(context.Background(), versioned, request,
		plugincel.OptionalVariableBindings{VersionedParams: params}, nil, budget)
	if err != nil {
		t.Fatal(err)
	}
	return results, budget - left
}

func firstAvailable(name string, classes ...string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name}
	for i, class := range classes {
		request.FirstAvailable = append(request.FirstAvailable,
			resourceapi.DeviceSubRequest{Name: fmt.Sprintf("alt-%d", i), DeviceClassName: class})
	}
	return request
}

func claimOf(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return objects.Claim("team-a", "work", requests...)
}

func classOf(name string, configs ...resourceapi.DeviceConfiguration) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, config := range configs {
		class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: config})
	}
	return class
}

func policyFor(namespaces ...string) resourceapi.DeviceConfiguration {
	return objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":["`+
		strings.Join(namespaces, `","`)+`"]}}`)
}

func create(namespace string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{Operation: admissionv1.Create, Namespace: namespace}
}

func TestNamespacePolicy(t *testing.T) {
	look := objects.Request("main", "closed")
	look.Exactly.AdminAccess = new(true)
	template := &resourceapi.ResourceClaimTemplate{
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimOf(objects.Request("a", "closed")).Spec},
	}
	closed := classOf("closed",
		objects.Opaque("other.example.com", `{"policy":{"allowedNamespaces":["team-a"]}}`), policyFor("team-b", "team-c"))
	message := "DeviceClass closed does not allow namespace team-a: create the claim in an allowed " +
		"namespace, use another class, or ask an administrator to add team-a to policy.allowedNamespaces of the class"
	for _, tc := range []struct {
		name   string
		object runtime.Object
		class  *resourceapi.DeviceClass
		want   string
	}{
		{name: "not allowed", object: claimOf(objects.Request("a", "open"), objects.Request("b", "closed")), class: closed, want: message},
		{name: "as an alternative", object: claimOf(firstAvailable("a", "open", "closed")), class: closed, want: message},
		{name: "in a template", object: template, class: closed, want: message},
		{name: "another class", object: claimOf(objects.Request("a", "open"), firstAvailable("b", "open")), class: closed},
		{name: "a look", object: claimOf(look), class: closed},
		{name: "allowed", object: claimOf(objects.Request("a", "closed")), class: classOf("closed", policyFor("team-b", "team-a"))},
		{name: "no requests", object: claimOf([]resourceapi.DeviceRequest{}...), class: closed},
		{
			name: "two lists narrow", object: claimOf(objects.Request("a", "closed")),
			class: classOf("closed", policyFor("team-a", "team-b", "team-c"), policyFor("team-c", "team-b")), want: message,
		},
		{name: "no config", object: claimOf(objects.Request("a", "closed")), class: classOf("closed")},
		{
			name: "a policy without namespaces", object: claimOf(objects.Request("a", "closed")),
			class: classOf("closed", objects.Opaque("fettle.dev", `{"policy":{"onRelease":"Keep"}}`), objects.Opaque("fettle.dev", `{}`)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			match, _ := evaluate(t, tc.object, nil, tc.class, create("team-a"), nil,
				expression{text: ClassHasPolicy, returns: cel.BoolType})
			if match[0].Error != nil {
				t.Fatalf("match condition: %v", match[0].Error)
			}
			got := ""
			if match[0].EvalResult.Value() == true {
				got = verdict(t, tc.object, tc.class)
			}
			if got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// verdict is the message of a refusal, or nothing.
func verdict(t *testing.T, object runtime.Object, class *resourceapi.DeviceClass) string {
	t.Helper()
	results, _ := evaluate(t, object, nil, class, create("team-a"), NamespaceVariables(),
		expression{text: NamespaceAllowed, returns: cel.BoolType}, expression{text: NamespaceMessage, returns: cel.StringType})
	for _, result := range results {
		if result.Error != nil {
			t.Fatalf("evaluate %s: %v", result.ExpressionAccessor.GetExpression(), result.Error)
		}
	}
	if results[0].EvalResult.Value() == true {
		return ""
	}
	return results[1].EvalResult.Value().(string)
}

// TestNamespacePolicyCost runs the largest claim against the largest class. An expression above the budget would let claims
// through.
func TestNamespacePolicyCost(t *testing.T) {
	names := make([]string, 128)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%03d", strings.Repeat("n", 59), i)
	}
	var requests []resourceapi.DeviceRequest
	for i := range 32 {
		requests = append(requests, firstAvailable(fmt.Sprintf("r%d", i), "a", "b", "c", "d", "e", "f", "g", "closed"))
	}
	class := classOf("closed", policyFor(names...))
	object := claimOf(requests...)
	results, cost := evaluate(t, object, nil, class, create("team-a"), NamespaceVariables(),
		expression{text: NamespaceAllowed, returns: cel.BoolType}, expression{text: NamespaceMessage, returns: cel.StringType})
	for _, result := range results {
		if result.Error != nil {
			t.Fatalf("evaluate %s: %v", result.ExpressionAccessor.GetExpression(), result.Error)
		}
	}
	if text := results[1].EvalResult.Value().(string); len(text) > celconfig.MaxEvaluatedMessageExpressionSizeBytes {
		t.Errorf("the message has %d bytes", len(text))
	}
	t.Logf("cost %d of %d", cost, celconfig.PerCallLimit)
	if cost > celconfig.PerCallLimit/4 {
		t.Errorf("cost %d, want at most a quarter of %d", cost, celconfig.PerCallLimit)
	}
}

func TestMatchConditions(t *testing.T) {
	ours, theirs := objects.Opaque("fettle.dev", `{}`), objects.Opaque("other.example.com", `{}`)
	withConfig := func(configs ...resourceapi.DeviceConfiguration) *resourceapi.ResourceClaim {
		claim := claimOf(objects.Request("a", "open"))
		for _, config := range configs {
			claim.Spec.Devices.Config = append(claim.Spec.Devices.Config,
				resourceapi.DeviceClaimConfiguration{DeviceConfiguration: config})
		}
		return claim
	}
	templateOf := func(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec}}
	}
	every := objects.Selectors("true")
	selecting := classOf("c")
	selecting.Spec.Selectors = every
	selects := func(class string) resourceapi.DeviceRequest {
		r := objects.Request("a", class)
		r.Exactly.Selectors = every
		return r
	}
	either := firstAvailable("a", "gpu.nvidia.com", "gpu.fettle.dev")
	either.FirstAvailable[1].Selectors = every
	labelled := classOf("c", ours)
	labelled.Labels = map[string]string{"a": "b"}
	for _, tc := range []struct {
		name        string
		object, old runtime.Object
		want        bool
	}{
		{name: "claim", object: withConfig(theirs, ours), want: true},
		{name: "claim with another driver's configuration", object: withConfig(theirs), want: true},
		{name: "claim on a class of ours", object: claimOf(objects.Request("a", "gpu.fettle.dev"))},
		{name: "claim that selects of ours", object: claimOf(selects("gpu.fettle.dev")), want: true},
		{name: "claim that selects of another", object: claimOf(selects("gpu.nvidia.com"))},
		{name: "claim that selects of ours as an alternative", object: claimOf(either), want: true},
		{name: "template that selects of ours", object: templateOf(claimOf(selects("nvidia.gpu.fettle.dev"))), want: true},
		{name: "claim without config", object: withConfig()},
		{name: "empty claim", object: &resourceapi.ResourceClaim{}},
		{name: "config that is not opaque", object: withConfig(resourceapi.DeviceConfiguration{})},
		{name: "template", object: templateOf(withConfig(ours)), want: true},
		{name: "template with another driver's configuration", object: templateOf(withConfig(theirs)), want: true},
		{name: "template without configuration", object: templateOf(withConfig())},
		{name: "empty template", object: &resourceapi.ResourceClaimTemplate{}},
		{name: "class", object: classOf("c", ours), want: true},
		{name: "class with another driver's configuration", object: classOf("c", theirs), want: true},
		{name: "class with a selector", object: selecting, want: true},
		{name: "class without config", object: classOf("c")},
		{name: "changed class", object: classOf("c", ours), old: classOf("c", theirs), want: true},
		{name: "labelled class", object: labelled, old: classOf("c", ours)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := create("team-a")
			if tc.old != nil {
				request.Operation = admissionv1.Update
			}
			results, _ := evaluate(t, tc.object, tc.old, nil, request, nil,
				expression{text: MayBeOurs, returns: cel.BoolType}, expression{text: SpecChanged, returns: cel.BoolType})
			got := true
			for _, result := range results {
				if result.Error != nil {
					t.Fatalf("evaluate %s: %v", result.ExpressionAccessor.GetExpression(), result.Error)
				}
				got = got && result.EvalResult.Value() == true
			}
			if got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestCopies keeps the CEL in the chart and in the design note equal to the constants.
func TestCopies(t *testing.T) {
	webhook := []string{MayBeOurs, SpecChanged}
	policy := []string{ClassHasPolicy, NamespaceAllowed, NamespaceMessage}
	for _, v := range NamespaceVariables() {
		policy = append(policy, v.Expression)
	}
	templates := "../../deployments/helm/fettle/templates/admission/"
	for file, expressions := range map[string][]string{
		templates + "webhook.yaml":       webhook,
		templates + "namespaces.yaml":    policy,
		"../../docs/design/admission.md": append(webhook, policy...),
	} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(strings.Fields(string(data)), " ")
			var missing []string
			for _, e := range expressions {
				if folded := strings.Join(strings.Fields(e), " "); !strings.Contains(text, folded) {
					missing = append(missing, folded)
				}
			}
			if diff := cmp.Diff([]string(nil), missing); diff != "" {
				t.Errorf("expressions that differ from pkg/admission/cel.go:\n%s", diff)
			}
		})
	}
}
