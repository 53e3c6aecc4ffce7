// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

func fettleConfig(parameters string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
		Driver: "fettle.dev", Parameters: runtime.RawExtension{Raw: []byte(parameters)},
	}}
}

// newClaim asks for one device of a class.
func newClaim(name, class string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
	}
}

// newClass is a class whose policy allows these namespaces, or any if the JSON list is empty.
func newClass(name, allowed string) *resourcev1.DeviceClass {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	parameters := `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`
	if allowed != "" {
		parameters = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":` + allowed + `}}`
	}
	class.Spec.Config = []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: fettleConfig(parameters)}}
	return class
}

// testNamespaces checks policy.allowedNamespaces of classes, for claims and templates, and that other classes are not touched.
func testNamespaces(t *testing.T, server *apiServer) {
	for _, name := range []string{"team-a", "team-b"} {
		server.createNamespace(t, name)
	}
	plain := newClass("plain", "")
	plain.Spec.Config = nil
	for _, class := range []*resourcev1.DeviceClass{newClass("closed", `["team-a"]`), newClass("open", ""), plain} {
		if _, err := server.clients.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	claims := server.clients.ResourceV1()
	claim := func(ctx context.Context, space, class string) error {
		_, err := claims.ResourceClaims(space).Create(ctx, newClaim("of-"+class, class), metav1.CreateOptions{})
		return err
	}
	template := func(space string, claim *resourcev1.ResourceClaim) error {
		_, err := claims.ResourceClaimTemplates(space).Create(t.Context(), &resourcev1.ResourceClaimTemplate{
			ObjectMeta: claim.ObjectMeta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim.Spec},
		}, metav1.CreateOptions{})
		return err
	}
	const want = "DeviceClass closed does not allow namespace team-b (it allows: team-a)"
	eventually(t, func(ctx context.Context) error {
		err := refused(claim(ctx, "team-b", "closed"), want)
		if err != nil {
			_ = claims.ResourceClaims("team-b").Delete(ctx, "of-closed", metav1.DeleteOptions{})
		}
		return err
	})
	alternatives := newClaim("alternatives", "open")
	alternatives.Spec.Devices.Requests[0].Exactly = nil
	alternatives.Spec.Devices.Requests[0].FirstAvailable = []resourcev1.DeviceSubRequest{
		{Name: "a", DeviceClassName: "open", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		{Name: "b", DeviceClassName: "closed", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
	}
	for name, err := range map[string]error{
		"template":              template("team-b", newClaim("t", "closed")),
		"second of the choices": template("team-b", alternatives),
	} {
		if err := refused(err, want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"allowed namespace":      claim(t.Context(), "team-a", "closed"),
		"allowed template":       template("team-a", newClaim("t", "closed")),
		"class without policy":   claim(t.Context(), "team-b", "open"),
		"class of another owner": claim(t.Context(), "team-b", "plain"),
		"class not there yet":    claim(t.Context(), "team-b", "missing"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// allocated makes a claim that holds a device of ours on node1 and one of another driver.
func allocated(t *testing.T, clients kubernetes.Interface) *resourcev1.ResourceClaim {
	t.Helper()
	ours := resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: "fettle.dev", Pool: "node1/gpu", Device: "gpu-0"}
	theirs := resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: "nic.example.com", Pool: "node1", Device: "nic-0"}
	claim, err := clients.ResourceV1().ResourceClaims("held").Create(t.Context(), newClaim("held", "any"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{ours, theirs}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node1"},
			}},
		}}},
	}
	claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: theirs.Driver, Pool: theirs.Pool, Device: theirs.Device}}
	claim, err = clients.ResourceV1().ResourceClaims("held").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// testClaimStatus checks that the plugin writes its own entries of status.devices of claims on its node, and nothing else.
// The newest API server refuses most of this by itself; for 1.34 it is the policy alone.
func testClaimStatus(t *testing.T, server *apiServer) {
	server.createNamespace(t, "held")
	claim := allocated(t, server.clients)
	write := func(ctx context.Context, node string, change func(*resourcev1.ResourceClaim)) error {
		clients, _ := server.as(t, plugin, node)
		current, err := clients.ResourceV1().ResourceClaims("held").Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(current)
		_, err = clients.ResourceV1().ResourceClaims("held").UpdateStatus(ctx, current, metav1.UpdateOptions{})
		return err
	}
	own := func(c *resourcev1.ResourceClaim) {
		c.Status.Devices = append(c.Status.Devices,
			resourcev1.AllocatedDeviceStatus{Driver: "fettle.dev", Pool: "node1/gpu", Device: "gpu-0"})
	}
	for name, test := range map[string]struct {
		node   string
		change func(*resourcev1.ResourceClaim)
	}{
		"another node":     {"node2", own},
		"unbound token":    {"", own},
		"another driver's": {"node1", func(c *resourcev1.ResourceClaim) { c.Status.Devices = nil }},
		"allocation":       {"node1", func(c *resourcev1.ResourceClaim) { c.Status.Devices, c.Status.Allocation = nil, nil }},
		"reservation": {"node1", func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
		}},
	} {
		if err := refused(write(t.Context(), test.node, test.change), ""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := write(t.Context(), "node1", own); err != nil {
		t.Errorf("own entry: %v", err)
	}
}
