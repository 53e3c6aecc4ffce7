// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
)

const plugin = "fettle-kubeletplugin"

// TestAPI installs the chart in a real API server, as it is and as the oldest one supported, and checks what its
// admission objects do there.
func TestAPI(t *testing.T) {
	for name, flags := range map[string]map[string]string{
		"newest": nil,
		"1.34":   {"emulated-version": "1.34"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startAPIServer(t, flags)
			t.Run("rights", func(t *testing.T) { testRights(t, server) })
			t.Run("types", func(t *testing.T) { testPolicyTypes(t, server) })
			t.Run("slices", func(t *testing.T) { testSlices(t, server) })
			t.Run("acceleratornodes", func(t *testing.T) { testAcceleratorNodes(t, server) })
			t.Run("checks", func(t *testing.T) { testChecks(t, server) })
			t.Run("upgrades", func(t *testing.T) { testUpgrades(t, server) })
			t.Run("bitstream status", func(t *testing.T) { testBitstreamStatus(t, server) })
			t.Run("bitstream rights", func(t *testing.T) { testBitstreamRights(t, server) })
			t.Run("pull secrets", func(t *testing.T) { testPullSecretRights(t, server) })
			t.Run("kernel cache status", func(t *testing.T) { testKernelCacheStatus(t, server) })
			t.Run("kernel cache rights", func(t *testing.T) { testKernelCacheRights(t, server) })
			t.Run("preset status", func(t *testing.T) { testPresetStatus(t, server) })
			t.Run("budget", func(t *testing.T) { testBudget(t, server) })
			t.Run("ConfigMaps", func(t *testing.T) { testConfigMapRights(t, server) })
			t.Run("claim status", func(t *testing.T) { testClaimStatus(t, server) })
			t.Run("allocations", func(t *testing.T) { testAllocations(t, server) })
			t.Run("claims deleted under pods", func(t *testing.T) { testDeleteProtection(t, server) })
			t.Run("quota of claims deleted under pods", func(t *testing.T) { testQuotaOfDeleted(t, server, flags) })
			t.Run("namespaces", func(t *testing.T) { testNamespaces(t, server) })
			t.Run("limits of claims", func(t *testing.T) { testClaimLimits(t, server) })
			t.Run("fences of the controller", func(t *testing.T) { testFences(t, server) })
			t.Run("Events", func(t *testing.T) { testEvents(t, server) })
			t.Run("webhook down", func(t *testing.T) { testWebhookDown(t, server) })
			t.Run("self-test template", func(t *testing.T) { testSelfTestTemplate(t, server) })
			t.Run("webhook configurations", func(t *testing.T) { testWebhookConfigurations(t, server) })
			t.Run("claims of nodes", func(t *testing.T) { testNodeClaims(t, server, flags == nil) })
			t.Run("fences of Jobs", func(t *testing.T) { testJobFences(t, server) })
			t.Run("flows", func(t *testing.T) { testFlows(t, server) })
			t.Run("rights for extra states", func(t *testing.T) { testStateRights(t, server) })
		})
	}
}

// testPolicyTypes runs the type checker that the controller manager runs for a policy's status. It must warn about nothing,
// and it must warn about a field that is not there, so that silence means something. The API server publishes the schema of a
// new CRD a moment after the CRD itself; until then the checker is silent.
func testPolicyTypes(t *testing.T, server *apiServer) {
	discovery := server.clients.Discovery()
	groups, err := restmapper.GetAPIGroupResources(discovery)
	if err != nil {
		t.Fatal(err)
	}
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: discovery},
		RestMapper:     restmapper.NewDiscoveryRESTMapper(groups),
	}
	policies, err := server.clients.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=fettle",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(policies.Items) != 24 {
		t.Fatalf("%d policies, want 24", len(policies.Items))
	}
	for _, policy := range policies.Items {
		if policy.Name == "fettle-controller-evictions" {
			continue // what is evicted is no Pod, and the checker finds no type for it; fencedEvictions tries the policy
		}
		checkedResources(&policy)
		wrong := policy.DeepCopy()
		wrong.Spec.Validations = []admissionv1.Validation{{Expression: "object.spec.notThere == 1"}}
		eventually(t, func(context.Context) error {
			if len(checker.Check(wrong)) == 0 {
				return fmt.Errorf("%s: the type checker does not see the schema: a missing field passes", policy.Name)
			}
			return nil
		})
		for _, warning := range checker.Check(&policy) {
			t.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
	}
}

// checkedResources names resources instead of their subresources, which have the same type but which the checker passes over.
func checkedResources(policy *admissionv1.ValidatingAdmissionPolicy) {
	for i := range policy.Spec.MatchConstraints.ResourceRules {
		resources := policy.Spec.MatchConstraints.ResourceRules[i].Resources
		for j := range resources {
			resources[j], _, _ = strings.Cut(resources[j], "/")
		}
	}
}

// refused returns nil if err is a refusal that contains want.
func refused(err error, want string) error {
	if err == nil {
		return errors.New("allowed, want a refusal")
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return fmt.Errorf("not a refusal: %w", err)
	}
	if !strings.Contains(err.Error(), want) {
		return fmt.Errorf("refused, but without %q: %w", want, err)
	}
	return nil
}

func newSlice(name, node, driver string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node + "/gpu", Generation: 1, ResourceSliceCount: 1},
		},
	}
}

func createSlice(ctx context.Context, clients kubernetes.Interface, slice *resourcev1.ResourceSlice) error {
	_, err := clients.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
	return err
}

func testSlices(t *testing.T, server *apiServer) {
	node1, _ := server.as(t, plugin, "node1")
	node2, _ := server.as(t, plugin, "node2")
	unbound, _ := server.as(t, plugin, "")
	eventually(t, func(ctx context.Context) error {
		return refused(createSlice(ctx, node1, newSlice("early", "node2", "fettle.dev")), "node node1 writes only ResourceSlices")
	})
	if err := createSlice(t.Context(), node1, newSlice("own", "node1", "fettle.dev")); err != nil {
		t.Fatalf("own slice: %v", err)
	}
	inPool := func(pool string) *resourcev1.ResourceSlice {
		slice := newSlice("x", "node1", "fettle.dev")
		slice.Spec.Pool.Name = pool
		return slice
	}
	for _, pool := range []string{"node2/gpu", "node2/host", "node1/tpu", "node1", "node1/gpu/gpu", "gpu", "node11/gpu"} {
		if err := refused(createSlice(t.Context(), node1, inPool(pool)), "this slice is of pool "+pool); err != nil {
			t.Errorf("pool %s: %v", pool, err)
		}
	}
	patch := []byte(`{"spec":{"pool":{"generation":2}}}`)
	remove := func(clients kubernetes.Interface) error {
		return clients.ResourceV1().ResourceSlices().Delete(t.Context(), "own", metav1.DeleteOptions{})
	}
	change := func(clients kubernetes.Interface) error {
		_, err := clients.ResourceV1().ResourceSlices().Patch(t.Context(), "own", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	for _, test := range []struct {
		name, want string
		err        error
	}{
		{
			"another driver", "only ResourceSlices of driver fettle.dev",
			createSlice(t.Context(), node1, newSlice("x", "node1", "gpu.example.com")),
		},
		{"no bound token", "bound to no node", createSlice(t.Context(), unbound, newSlice("x", "node1", "fettle.dev"))},
		{"update of another node's", "node node2 writes only", change(node2)},
		{"delete of another node's", "node node2 writes only", remove(node2)},
	} {
		if err := refused(test.err, test.want); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := change(node1); err != nil {
		t.Errorf("update of own slice: %v", err)
	}
	if err := remove(node1); err != nil {
		t.Errorf("delete of own slice: %v", err)
	}
	if err := createSlice(t.Context(), server.clients, newSlice("others", "node2", "gpu.example.com")); err != nil {
		t.Errorf("another driver's own slice: %v", err)
	}
}

func newAcceleratorNode(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fettle.dev/v1alpha1", "kind": "AcceleratorNode", "metadata": map[string]any{"name": name},
	}}
}

func testAcceleratorNodes(t *testing.T, server *apiServer) {
	resource := schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: "acceleratornodes"}
	_, node1 := server.as(t, plugin, "node1")
	_, node2 := server.as(t, plugin, "node2")
	_, controller := server.as(t, "fettle-controller", "")
	create := func(ctx context.Context, client dynamic.Interface, name string) error {
		_, err := client.Resource(resource).Create(ctx, newAcceleratorNode(name), metav1.CreateOptions{})
		return err
	}
	status := func(client dynamic.Interface) error {
		_, err := client.Resource(resource).Patch(t.Context(), "node1", types.MergePatchType,
			[]byte(`{"status":{"preparedClaims":1}}`), metav1.PatchOptions{}, "status")
		return err
	}
	eventually(t, func(ctx context.Context) error {
		return refused(create(ctx, node1, "node9"), "node node1 writes only the AcceleratorNode named node1")
	})
	if err := create(t.Context(), node1, "node1"); err != nil {
		t.Fatalf("own AcceleratorNode: %v", err)
	}
	if err := status(node1); err != nil {
		t.Errorf("own status: %v", err)
	}
	if err := refused(status(node2), "this one is named node1"); err != nil {
		t.Errorf("another node's status: %v", err)
	}
	err := node1.Resource(resource).Delete(t.Context(), "node1", metav1.DeleteOptions{})
	if err := refused(err, "cannot delete resource"); err != nil {
		t.Errorf("delete by the plugin: %v", err)
	}
	if err := controller.Resource(resource).Delete(t.Context(), "node1", metav1.DeleteOptions{}); err != nil {
		t.Errorf("prune by the controller: %v", err)
	}
}

// testWebhookDown checks that a claim with a configuration of ours is created although no controller answers.
func testWebhookDown(t *testing.T, server *apiServer) {
	server.createNamespace(t, "down")
	claim := newClaim("configured", "some-class")
	claim.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{
		DeviceConfiguration: fettleConfig(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`),
	}}
	_, err := server.clients.ResourceV1().ResourceClaims("down").Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("claim while the controller is down: %v", err)
	}
}

// testWebhookConfigurations: with a stolen token of any account of the chart, the API server cannot be made to send Secrets or all pods to
// a webhook, by a configuration of Fettle or by a new one, and no token can be made. An upgrade keeps certificate and path.
func testWebhookConfigurations(t *testing.T, server *apiServer) {
	read := func() (out []string) {
		config, err := server.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "fettle-config",
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range config.Webhooks {
			out = append(out, string(w.ClientConfig.CABundle)+*w.ClientConfig.Service.Path)
		}
		return out
	}
	before := read()
	for _, account := range []string{controllerAccount, "fettle-webhook", "fettle-uninstall", plugin} {
		clients, _ := server.as(t, account, "node1")
		webhooks := clients.AdmissionregistrationV1()
		wider := []byte(`[{"op":"add","path":"/webhooks/0/rules/-","value":` +
			`{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["secrets"]}}]`)
		_, validating := webhooks.ValidatingWebhookConfigurations().Patch(t.Context(), "fettle-config", types.JSONPatchType, wider,
			metav1.PatchOptions{})
		_, mutating := webhooks.MutatingWebhookConfigurations().Patch(t.Context(), "fettle-pods", types.JSONPatchType, wider,
			metav1.PatchOptions{})
		_, another := webhooks.MutatingWebhookConfigurations().Create(t.Context(),
			&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
		policy := webhooks.ValidatingAdmissionPolicyBindings().Delete(t.Context(), "fettle-controller-nodes", metav1.DeleteOptions{})
		_, secret := clients.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "stolen", Annotations: map[string]string{corev1.ServiceAccountNameKey: plugin}},
			Type:       corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		_, certificate := clients.CoreV1().Secrets(namespace).Patch(t.Context(), "fettle-webhook-tls", types.MergePatchType,
			[]byte(`{"data":null}`), metav1.PatchOptions{})
		for what, err := range map[string]error{
			"widens fettle-config": validating, "widens fettle-pods": mutating, "makes a webhook": another, "deletes a policy": policy,
			"makes a token of another account": secret, "changes the webhook's certificate": certificate,
		} {
			if err := refused(err, "cannot"); err != nil {
				t.Errorf("%s %s: %v", account, what, err)
			}
		}
	}
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=controller.replicas=2")
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Errorf("certificate and path after an upgrade (-before +after):\n%s", diff)
	}
}

// testSelfTestTemplate checks that the API server accepted the template with adminAccess as written, not with it dropped.
func testSelfTestTemplate(t *testing.T, server *apiServer) {
	templates, err := server.clients.ResourceV1().ResourceClaimTemplates("fettle-selftest").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(templates.Items) != 1 {
		t.Fatalf("%d templates, want one", len(templates.Items))
	}
	request := templates.Items[0].Spec.Spec.Devices.Requests[0].Exactly
	if request.AdminAccess == nil || !*request.AdminAccess {
		t.Errorf("adminAccess is lost: %+v", request)
	}
}
