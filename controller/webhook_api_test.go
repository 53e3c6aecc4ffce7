// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/objects"
)

// testWebhook sends objects through the API server to the running webhook.
func (c cluster) testWebhook(t *testing.T, r replica) {
	w := c.startWebhook(t, "--metrics-authentication=false")
	c.routeWebhook(t, w.port)
	c.create(t, webhookConfiguration(w))
	// The API server reads its webhooks with a delay.
	apitest.Eventually(t, func() string {
		wrong := claimWith(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":1}`)
		err := c.client.Create(t.Context(), wrong, client.DryRunAll)
		want := "spec.devices.config[0].opaque.parameters"
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "colour") {
			return "a wrong config was answered with " + errorText(err) + ", want an error with " + want
		}
		t.Logf("refusal: %v", err)
		return ""
	})
	good := claimWith(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`)
	if err := c.client.Create(t.Context(), good, client.DryRunAll); err != nil {
		t.Errorf("a good config was refused: %v", err)
	}
	c.reviewPolicies(t)
	c.reviewStacks(t)
	c.tolerateTaints(t, w)
	c.forgeReviews(t, r, w)
	foreign := claimWith(`{"whatever":1}`)
	foreign.Spec.Devices.Config[0].Opaque.Driver = "x.dev"
	if err := c.client.Create(t.Context(), foreign, client.DryRunAll); err != nil {
		t.Errorf("another driver's config was refused: %v", err)
	}
}

// reviewPolicies: what the rules of the CRD cannot read of a PartitionPolicy is refused when it is written.
func (c cluster) reviewPolicies(t *testing.T) {
	t.Helper()
	policy := poolPolicy("reviewed", 1)
	if err := c.client.Create(t.Context(), policy, client.DryRunAll); err != nil {
		t.Errorf("a good PartitionPolicy was refused: %v", err)
	}
	policy.Spec.Devices.DeviceSelector = &v1alpha1.PartitionDeviceSelector{CEL: "device.nothing"}
	err := c.client.Create(t.Context(), policy, client.DryRunAll)
	if want := "spec.devices.deviceSelector.cel"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("CEL that does not compile was answered with %s, want an error with %s", errorText(err), want)
	}
	policy = poolPolicy("reviewed", 1)
	policy.Spec.Devices.NVIDIA.MIG = v1alpha1.MIGPartition{
		Mode: v1alpha1.MIGParted, MigParted: &v1alpha1.MigPartedConfig{Config: "a", Document: "version: v2"},
	}
	policy.Spec.Devices.Passthrough = nil
	err = c.client.Create(t.Context(), policy, client.DryRunAll)
	if want := "spec.devices.nvidia.mig.migParted.document"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a wrong file of mig-parted was answered with %s, want an error with %s", errorText(err), want)
	}
}

// reviewStacks: a selector that the rules of the CRD let through is refused when an AcceleratorStack is written.
func (c cluster) reviewStacks(t *testing.T) {
	t.Helper()
	stack := &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: "reviewed"}}
	stack.Spec.Driver.Engine = v1alpha1.EngineHost
	if err := c.client.Create(t.Context(), stack, client.DryRunAll); err != nil {
		t.Errorf("a good AcceleratorStack was refused: %v", err)
	}
	stack.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "pool", Operator: "Near"}}}
	err := c.client.Create(t.Context(), stack, client.DryRunAll)
	if want := "spec.nodeSelector.matchExpressions[0].operator"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a selector with an unknown operator was answered with %s, want an error with %s", errorText(err), want)
	}
}

// kubeconfig writes how the API server is reached to a file.
func (c cluster) kubeconfig(t *testing.T) string {
	t.Helper()
	return apitest.Kubeconfig(t, t.TempDir(), c.config)
}

// peakMemory returns the largest resident size that the process had, in bytes (proc/PID/status).
func (w webhookProcess) peakMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kilobytes, found := strings.CutPrefix(line, "VmHWM:"); found {
			size, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kilobytes), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return size << 10
		}
	}
	t.Fatalf("no VmHWM in %s", status)
	return 0
}

// forgeReviews sends large reviews, as any pod could, without the secret path: all are refused unread. They name resources and namespaces
// of their own choice. Meanwhile the API server is answered within its limit for a webhook, as it would refuse with other words after that,
// the webhook's memory stays, and the controller answers its probes.
func (c cluster) forgeReviews(t *testing.T, r replica, w webhookProcess) {
	const forgers, rounds, size = 200, 5, 5 << 20
	body := []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"x","namespace":"a",` +
		`"resource":{"resource":"invented"},"kind":{"group":"resource.k8s.io","version":"v1","kind":"ResourceClaim"},` +
		`"object":{"metadata":{"name":"` + strings.Repeat("n", size) + `"}}}}`)
	before := w.peakMemory(t)
	anybody := &tls.Config{InsecureSkipVerify: true}
	let := &http.Client{Transport: &http.Transport{TLSClientConfig: anybody}, Timeout: time.Minute}
	var admitted atomic.Int64
	var group sync.WaitGroup
	for i := range forgers {
		group.Go(func() {
			for range rounds {
				path := []string{"/validate-config", webhook.PathPrefix, webhook.PathPrefix + strings.Repeat("0", 64)}[i%3]
				resp, err := let.Post("https://127.0.0.1:"+w.port+path, "application/json", bytes.NewReader(body))
				if err != nil {
					continue // the connection was one too many, or closed before the body was sent
				}
				if resp.StatusCode != http.StatusNotFound {
					admitted.Add(1)
				}
				_ = resp.Body.Close()
			}
		})
	}
	slowest := time.Duration(0)
	for range 20 {
		begin := time.Now()
		err := c.client.Create(t.Context(), claimWith(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":1}`), client.DryRunAll)
		if slowest = max(slowest, time.Since(begin)); err == nil || !strings.Contains(err.Error(), "colour") {
			t.Errorf("a wrong config was answered with %s while others forged reviews", errorText(err))
		}
	}
	testHealth(t, r)
	group.Wait()
	peak := w.peakMemory(t)
	t.Logf("the API server waited at most %s; the webhook took %d MiB at most, before %d", slowest, peak>>20, before>>20)
	if admitted.Load() > 0 || peak > 128<<20 {
		t.Errorf("%d forged reviews were answered, the memory went from %d to %d bytes", admitted.Load(), before, peak)
	}
	response, err := http.Get("http://" + w.metrics + "/metrics") //nolint:noctx // the server is the test's own
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(text), `fettle_controller_config_reviews_total{resource="resourceclaims",verdict="denied"}`) {
		t.Errorf("the API server's reviews are not counted; error %v", err)
	}
	if strings.Contains(string(text), "invented") || strings.Contains(string(text), `resource="other"`) {
		t.Errorf("a forged review is counted:\n%s", text)
	}
}

// routeWebhook gives the Service endpoints at this machine's own address; the API server accepts no loopback one.
func (c cluster) routeWebhook(t *testing.T, webhookPort string) {
	t.Helper()
	address := ""
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			address = ip.IP.String()
		}
	}
	if address == "" {
		t.Skip("this machine has no IPv4 address besides loopback, and the API server sends no webhook call to loopback")
	}
	number, err := strconv.ParseInt(webhookPort, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	port := int32(number)
	c.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names.Webhook},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "webhook", Port: 443}}},
	})
	c.create(t, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: names.Webhook, Labels: map[string]string{discoveryv1.LabelServiceName: names.Webhook},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("webhook"), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}},
	})
}

// webhookConfiguration is what the chart renders, as far as this test needs it. Its policy is Fail, to show a call that fails.
func webhookConfiguration(w webhookProcess) *admissionregistrationv1.ValidatingWebhookConfiguration {
	of := func(name, group, version, resource string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"},
			SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ClientConfig:  w.target(webhook.PathPrefix),
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
				},
			}},
		}
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fettle-config"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			of("config.fettle.dev", "resource.k8s.io", "v1", "resourceclaims"),
			of("partitionpolicies.fettle.dev", "fettle.dev", "v1alpha1", "partitionpolicies"),
			of("acceleratorstacks.fettle.dev", "fettle.dev", "v1alpha1", "acceleratorstacks"),
		},
	}
}

// claimWith is a claim for one GPU with the parameters.
func claimWith(parameters string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "claim-"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{objects.Request("gpu", "gpu.fettle.dev")},
			Config:   []resourceapi.DeviceClaimConfiguration{objects.Config("fettle.dev", parameters)},
		}},
	}
}
