// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/test/objects"
)

func fettleConfig(parameters string) resourcev1.DeviceConfiguration {
	return objects.Opaque("fettle.dev", parameters)
}

// newClaim asks for one device of a class.
func newClaim(name, class string) *resourcev1.ResourceClaim {
	return objects.Claim("", name, objects.Request("gpu", class))
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
	const want = "DeviceClass closed does not allow namespace team-b: "
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
	ours := objects.Result("gpu", "fettle.dev", "node1/gpu", "gpu-0")
	theirs := objects.Result("gpu", "nic.example.com", "node1", "nic-0")
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
			c.Status.ReservedFor = objects.ReservedFor("p", "u")
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

// testAllocations checks that a tenant who may write the status of the claims in its namespace allocates none of Fettle's
// devices, and that schedulers and the controller manager do what they do.
func testAllocations(t *testing.T, server *apiServer) {
	server.createNamespace(t, "forged")
	claims := server.clients.ResourceV1().ResourceClaims("forged")
	claim, err := claims.Create(t.Context(), newClaim("forged", "any"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := rbacv1.PolicyRule{
		APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaims/status"}, Verbs: []string{"*"},
	}
	driverStatus := status
	driverStatus.Resources, driverStatus.Verbs = []string{"resourceclaims/driver"}, []string{"*"}
	binding := status
	binding.Resources = []string{"resourceclaims/binding"}
	server.grant(t, "mallory", "forged", status, binding, driverStatus)
	server.grant(t, "binder", "", status, binding)
	server.grant(t, "system:serviceaccount:kube-system:resource-claim-controller", "", status)
	write := func(ctx context.Context, user string, change func(*resourcev1.ResourceClaim)) error {
		current, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(current)
		_, err = server.user(t, user).ResourceV1().ResourceClaims("forged").UpdateStatus(ctx, current, metav1.UpdateOptions{})
		return err
	}
	allocate := func(driver string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation = objects.Allocation(objects.Result("gpu", driver, "node1/gpu", "gpu-0"))
			c.Status.ReservedFor = objects.ReservedFor("p", "u")
		}
	}
	clearing := func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} }
	eventually(t, func(ctx context.Context) error {
		err := refused(write(ctx, "mallory", allocate("fettle.dev")), "")
		if err != nil {
			_ = write(ctx, "binder", clearing)
		}
		return err
	})
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	must("a scheduler allocates", write(t.Context(), "system:kube-scheduler", allocate("fettle.dev")))
	must("a tenant takes it back", refused(write(t.Context(), "mallory", clearing), ""))
	must("a tenant replaces it", refused(write(t.Context(), "mallory", allocate("nic.example.com")), ""))
	must("a tenant takes the reservation, so that deletion ends the claim under its pod", refused(write(t.Context(), "mallory",
		func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }), ""))
	must("a tenant writes a condition", write(t.Context(), "mallory", func(c *resourcev1.ResourceClaim) {
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "fettle.dev", Pool: "node1/gpu", Device: "gpu-0"}}
	}))
	must("the controller manager takes it back",
		write(t.Context(), "system:serviceaccount:kube-system:resource-claim-controller", clearing))
	must("another scheduler allocates", write(t.Context(), "binder", allocate("fettle.dev")))
	must("another scheduler takes it back", write(t.Context(), "binder", clearing))
	must("another driver's devices are not Fettle's", write(t.Context(), "binder", allocate("nic.example.com")))
}

// grant gives a user rights in a namespace, or in the cluster if it is empty.
func (s *apiServer) grant(t *testing.T, user, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{GenerateName: "test-", Namespace: namespace}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	rights := s.clients.RbacV1()
	var err error
	if namespace == "" {
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		if role, err = rights.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err == nil {
			_, err = rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			}, metav1.CreateOptions{})
		}
	} else {
		role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
		if role, err = rights.Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err == nil {
			_, err = rights.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			}, metav1.CreateOptions{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// user returns a client of a user.
func (s *apiServer) user(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}
