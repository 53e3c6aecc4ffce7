// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/fettle-dev/fettle/test/check"
)

// TestNoAccountWritesAdmission: whoever stole the token of any account of the chart cannot have the API server send other objects to a
// webhook, loosen a policy, or make a token or a right of its own, whatever the values are. Policies never see webhook configurations, so
// only the missing right helps.
func TestNoAccountWritesAdmission(t *testing.T) {
	writes := func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) }
	for _, v := range variants() {
		for _, object := range renderObjects(t, v.args...) {
			if !strings.HasSuffix(object.GetKind(), "Role") {
				continue
			}
			rules, _, err := unstructured.NestedSlice(object.Object, "rules")
			check.Must(t, err)
			for _, r := range rules {
				rule, ok := r.(map[string]any)
				if !ok {
					t.Fatalf("a rule is %v", r)
				}
				words := func(field string) []string {
					list, _, err := unstructured.NestedStringSlice(rule, field)
					check.Must(t, err)
					return list
				}
				who := v.name + ": " + object.GetKind() + " " + object.GetName()
				for _, group := range words("apiGroups") {
					if group == "admissionregistration.k8s.io" || group == "certificates.k8s.io" || group == "*" {
						t.Errorf("%s has a right to %v of %s", who, words("resources"), group)
					}
				}
				for _, resource := range words("resources") {
					secret := resource == "secrets" && slices.ContainsFunc(words("verbs"), writes) &&
						!slices.Equal(words("resourceNames"), []string{"fettle-controller-tls"})
					if secret || resource == "*" || resource == "serviceaccounts/token" || slices.Contains(words("resourceNames"), "fettle-webhook-tls") {
						t.Errorf("%s may %v %s %v", who, words("verbs"), resource, words("resourceNames"))
					}
				}
				for _, verb := range words("verbs") {
					if slices.Contains([]string{"bind", "escalate", "impersonate", "approve", "sign", "*"}, verb) {
						t.Errorf("%s may %s %v", who, verb, words("resources"))
					}
				}
			}
		}
	}
}

// TestWebhookCertificate: what one rendering says of the webhook fits together: the API server trusts what the webhook serves for years,
// and calls it where it listens.
func TestWebhookCertificate(t *testing.T) {
	objects := rawObjects(t)
	secret := secretData(t, objects)
	pair, err := tls.X509KeyPair(secret["tls.crt"], secret["tls.key"])
	check.Must(t, err)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	check.Must(t, err)
	for name, prefix := range map[string]string{"fettle-config": "/validate-config/", "fettle-pods": "/mutate-pods/"} {
		targets := clientConfigs(t, objects, name)
		if len(targets) == 0 {
			t.Errorf("%s has no webhooks", name)
		}
		for _, target := range targets {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(target.bundle)
			for _, years := range []int{0, 9} {
				_, err := leaf.Verify(x509.VerifyOptions{
					Roots: roots, DNSName: "fettle-webhook." + namespace + ".svc", CurrentTime: time.Now().Add(time.Minute).AddDate(years, 0, 0),
				})
				if err != nil {
					t.Errorf("%s, after %d years: %v", name, years, err)
				}
			}
			if token := string(secret["token"]); target.path != prefix+token || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(token) {
				t.Errorf("%s calls %q, and the token is %q", name, target.path, token)
			}
		}
	}
	again := secretData(t, rawObjects(t))
	if string(again["token"]) == string(secret["token"]) || string(again["tls.key"]) == string(secret["tls.key"]) {
		t.Error("two installations have the same secrets")
	}
}

// TestWebhookCertificateOfAnother takes the certificate of cert-manager.
func TestWebhookCertificateOfAnother(t *testing.T) {
	token := strings.Repeat("t", 64)
	objects := rawObjects(t, "--set=webhook.certificate.secretName=mine,webhook.certificate.token="+token,
		"--set=webhook.certificate.annotations.cert-manager\\.io/inject-ca-from=fettle-system/mine")
	if secret := secretData(t, objects); len(secret) != 1 || string(secret["token"]) != token {
		t.Errorf("the chart's own Secret has %d keys, and the token %q", len(secret), secret["token"])
	}
	for _, target := range clientConfigs(t, objects, "fettle-config") {
		if len(target.bundle) > 0 || target.path != "/validate-config/"+token {
			t.Errorf("got %q, and a bundle of %d bytes", target.path, len(target.bundle))
		}
	}
	config := find(t, objects, "ValidatingWebhookConfiguration", "fettle-config")
	if config.GetAnnotations()["cert-manager.io/inject-ca-from"] == "" {
		t.Error("cert-manager is not asked for the bundle")
	}
	deployment := find(t, objects, "Deployment", "fettle-webhook")
	volumes, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "volumes")
	check.Must(t, err)
	sources, _, err := unstructured.NestedSlice(volumes[0].(map[string]any), "projected", "sources") //nolint:forcetypeassert // or it panics
	check.Must(t, err)
	var names []string
	for _, s := range sources {
		name, _, err := unstructured.NestedString(s.(map[string]any), "secret", "name") //nolint:forcetypeassert // or it panics
		check.Must(t, err)
		names = append(names, name)
	}
	if !slices.Equal(names, []string{"fettle-webhook-tls", "mine"}) {
		t.Errorf("mounted are %v", names)
	}
}

// rawObjects are what the chart renders, with the bytes that differ each time.
func rawObjects(t *testing.T, args ...string) []unstructured.Unstructured {
	t.Helper()
	stdout, stderr, err := helmTemplate(t, args...)
	if err != nil {
		t.Fatalf("helm template %q: %v\n%s", args, err, stderr)
	}
	return parse(t, documents(t, stdout))
}

// secretData is the content of the webhook's Secret.
func secretData(t *testing.T, objects []unstructured.Unstructured) map[string][]byte {
	t.Helper()
	secret := find(t, objects, "Secret", "fettle-webhook-tls")
	encoded, _, err := unstructured.NestedStringMap(secret.Object, "data")
	check.Must(t, err)
	data := map[string][]byte{}
	for key, value := range encoded {
		data[key], err = base64.StdEncoding.DecodeString(value)
		check.Must(t, err)
	}
	return data
}

// target is where the API server calls a webhook.
type target struct {
	bundle []byte
	path   string
}

// clientConfigs are the targets of a webhook configuration.
func clientConfigs(t *testing.T, objects []unstructured.Unstructured, name string) (out []target) {
	t.Helper()
	for _, object := range objects {
		if !strings.HasSuffix(object.GetKind(), "WebhookConfiguration") || object.GetName() != name {
			continue
		}
		hooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		check.Must(t, err)
		for _, h := range hooks {
			hook, ok := h.(map[string]any)
			if !ok {
				t.Fatalf("a webhook is %v", h)
			}
			bundle, _, err := unstructured.NestedString(hook, "clientConfig", "caBundle")
			check.Must(t, err)
			path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
			check.Must(t, err)
			decoded, err := base64.StdEncoding.DecodeString(bundle)
			check.Must(t, err)
			out = append(out, target{bundle: decoded, path: path})
		}
	}
	return out
}

// TestReachOfWebhook: whoever takes the webhook over is asked to change new pods that may get devices, and nothing else: no other pod, and
// none of Kubernetes and of Fettle.
func TestReachOfWebhook(t *testing.T) {
	for _, v := range variants() {
		for _, object := range renderObjects(t, v.args...) {
			if object.GetKind() == "MutatingWebhookConfiguration" && object.GetName() != "fettle-pods" {
				t.Errorf("%s: %s changes objects, too", v.name, object.GetName())
			}
		}
	}
	var all admissionregistrationv1.MutatingWebhookConfiguration
	object := find(t, renderObjects(t), "MutatingWebhookConfiguration", "fettle-pods")
	check.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &all))
	if len(all.Webhooks) != 1 || len(all.Webhooks[0].MatchConditions) != 1 {
		t.Fatalf("webhooks are %+v", all.Webhooks)
	}
	hook := all.Webhooks[0]
	want := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: new(admissionregistrationv1.NamespacedScope),
		},
	}}
	if diff := cmp.Diff(want, hook.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	selector, err := metav1.LabelSelectorAsSelector(hook.NamespaceSelector)
	check.Must(t, err)
	for _, name := range []string{"team-a", "default", "kube-system", "kube-public", "kube-node-lease", namespace} {
		tenant := name != namespace && !strings.HasPrefix(name, "kube-")
		if got := selector.Matches(labels.Set{"kubernetes.io/metadata.name": name}); got != tenant {
			t.Errorf("pods of %s are sent: %t", name, got)
		}
	}
	plain := []corev1.Container{{Name: "a", Image: "a", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
	asks := func(resource string) []corev1.Container {
		return append(slices.Clone(plain), corev1.Container{Name: "b", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceName(resource): apiresource.MustParse("1")},
		}})
	}
	claims := []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	for _, of := range versions() {
		sent := newMatchConditions(t, of, hook.MatchConditions)
		for name, test := range map[string]struct {
			spec corev1.PodSpec
			want bool
		}{
			"a claim":                      {corev1.PodSpec{Containers: plain, ResourceClaims: claims}, true},
			"an extended resource":         {corev1.PodSpec{Containers: asks("fettle.dev/gpu")}, true},
			"an extended resource at init": {corev1.PodSpec{Containers: plain, InitContainers: asks("a.b/c")}, true},
			"nothing":                      {corev1.PodSpec{Containers: plain, InitContainers: plain}, false},
			"CPUs":                         {corev1.PodSpec{Containers: asks("cpu")}, false},
			"memory in large pages":        {corev1.PodSpec{Containers: asks("hugepages-2Mi")}, false},
			"no claims in a list of them":  {corev1.PodSpec{Containers: plain, ResourceClaims: claims[:0]}, false},
		} {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: test.spec,
			})
			check.Must(t, err)
			if got := sent.refuses(t, "team-a", content, nil) == ""; got != test.want {
				t.Errorf("%s: a pod with %s is sent: %t", of, name, got)
			}
		}
	}
}

// newMatchConditions compiles the conditions of a webhook: the fence refuses what the webhook is not asked about.
func newMatchConditions(t *testing.T, of *version.Version, conditions []admissionregistrationv1.MatchCondition) *fence {
	t.Helper()
	f := &fence{resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}}
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(of))
	check.Must(t, err)
	var all []plugincel.ExpressionAccessor
	for _, c := range conditions {
		all = append(all, celExpression{text: c.Expression, returns: cel.BoolType})
		f.policy.Spec.Validations = append(f.policy.Spec.Validations, admissionregistrationv1.Validation{Message: "not " + c.Name})
	}
	f.compiled = compiler.CompileCondition(all, plugincel.OptionalVariableDeclarations{}, environment.NewExpressions)
	if errs := f.compiled.CompilationErrors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return f
}
