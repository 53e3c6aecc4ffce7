// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/test/check"
)

const controllerAccount = "fettle-controller"

func bitstreams(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: kind}
}

func newBitstream(kind, namespace string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fettle.dev/v1alpha1", "kind": kind,
		"metadata": map[string]any{"name": "nlb0"},
		"spec":     map[string]any{"image": "registry.example/nlb0:v1"},
	}}
	if namespace == "" {
		object.Object["spec"].(map[string]any)["namespaces"] = []any{"*"}
	}
	return object
}

// testBitstreamStatus: nobody but the controller says what a reference means or who vouches for it, not even an administrator.
func testBitstreamStatus(t *testing.T, server *apiServer) {
	server.createNamespace(t, "fpga")
	_, controller := server.as(t, controllerAccount, "")
	_, node := server.as(t, plugin, "node1")
	admin, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ kind, resource, namespace string }{
		{"FPGABitstream", "fpgabitstreams", "fpga"}, {"ClusterFPGABitstream", "clusterfpgabitstreams", ""},
	} {
		t.Run(test.kind, func(t *testing.T) {
			object := newBitstream(test.kind, test.namespace)
			object.Object["status"] = map[string]any{"digest": "sha256:forged"}
			made, err := admin.Resource(bitstreams(test.resource)).Namespace(test.namespace).Create(t.Context(), object, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, kept := made.Object["status"]; kept {
				t.Errorf("a status came with the object: %v", made.Object["status"])
			}
			write := func(ctx context.Context, client dynamic.Interface) error {
				_, err := client.Resource(bitstreams(test.resource)).Namespace(test.namespace).Patch(ctx, "nlb0", types.MergePatchType,
					[]byte(`{"status":{"digest":"sha256:forged"}}`), metav1.PatchOptions{}, "status")
				return err
			}
			eventually(t, func(ctx context.Context) error {
				return refused(write(ctx, admin), "only the controller of Fettle writes the status of a bitstream, not admin")
			})
			if err := refused(write(t.Context(), node), "cannot patch resource"); err != nil {
				t.Errorf("by the kubelet plugin: %v", err)
			}
			if err := write(t.Context(), controller); err != nil {
				t.Errorf("by the controller: %v", err)
			}
			_, err = node.Resource(bitstreams(test.resource)).Namespace(test.namespace).Get(t.Context(), "nlb0", metav1.GetOptions{})
			if err != nil {
				t.Errorf("read by the kubelet plugin: %v", err)
			}
			_, err = controller.Resource(bitstreams(test.resource)).Namespace(test.namespace).Patch(t.Context(), "nlb0", types.MergePatchType,
				[]byte(`{"spec":{"image":"registry.example/other:v1"}}`), metav1.PatchOptions{})
			if err := refused(err, "cannot patch resource"); err != nil {
				t.Errorf("spec by the controller: %v", err)
			}
		})
	}
}

// testBitstreamRights: the roles that every cluster has know the new kinds. No controller manager aggregates them here, so what is
// bound is the chart's part of each.
func testBitstreamRights(t *testing.T, server *apiServer) {
	for _, test := range []struct {
		role       string
		aggregates []string
		may        map[string]bool
	}{
		{"fettle-view", []string{"view"}, map[string]bool{"get": true, "list": true, "watch": true, "create": false, "delete": false}},
		{"fettle-edit", []string{"edit", "admin"}, map[string]bool{"create": true, "update": true, "patch": true, "delete": true}},
	} {
		role, err := server.clients.RbacV1().ClusterRoles().Get(t.Context(), test.role, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range test.aggregates {
			if !aggregated(t, server, name, role.Labels) {
				t.Errorf("%s is no part of the role %s", test.role, name)
			}
		}
		bind(t, server, "fpga", test.role)
		for verb, want := range test.may {
			// The API server hears of a new binding a moment later.
			check.Eventually(t, fmt.Sprintf("%s may %s: %v", test.role, verb, want), func() bool {
				return may(t, server, test.role, "fpga", verb, "fpgabitstreams", "") == want
			})
			if verb != "get" && verb != "list" && verb != "watch" && may(t, server, test.role, "fpga", verb, "fpgabitstreams", "status") {
				t.Errorf("%s may %s the status", test.role, verb)
			}
		}
	}
}

// aggregated says whether the aggregation rule of a role selects the labels.
func aggregated(t *testing.T, server *apiServer, name string, labels map[string]string) bool {
	t.Helper()
	role, err := server.clients.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, selector := range role.AggregationRule.ClusterRoleSelectors {
		compiled, err := metav1.LabelSelectorAsMap(&selector)
		if err != nil {
			t.Fatal(err)
		}
		matches := true
		for key, value := range compiled {
			matches = matches && labels[key] == value
		}
		if matches {
			return true
		}
	}
	return false
}

// bind gives a user of the role's name the role in a namespace.
func bind(t *testing.T, server *apiServer, namespace, role string) {
	t.Helper()
	_, err := server.clients.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func may(t *testing.T, server *apiServer, user, namespace, verb, resource, subresource string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: "fettle.dev", Version: "v1alpha1", Resource: resource, Subresource: subresource,
		},
	}}
	review, err := server.clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// testPullSecretRights: the controller reads Secrets, and grants the kubelet plugin one, where the administrator said so and nowhere
// else; and it can grant nothing else.
func testPullSecretRights(t *testing.T, server *apiServer) {
	server.createNamespace(t, "listed")
	server.createNamespace(t, "unlisted")
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=bitstreams.pullSecretNamespaces={listed}")
	clients, _ := server.as(t, controllerAccount, "")
	for _, space := range []string{namespace, "listed", "unlisted"} {
		_, err := server.clients.CoreV1().Secrets(space).Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pull"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	node, _ := server.as(t, plugin, "node1")
	for _, space := range []string{namespace, "listed"} {
		eventually(t, func(ctx context.Context) error {
			_, err := clients.CoreV1().Secrets(space).Get(ctx, "pull", metav1.GetOptions{})
			return err
		})
		role, binding := pullGrant(space, "pull", "get")
		if err := makeGrant(t.Context(), clients, role, binding); err != nil {
			t.Fatalf("grant in %s: %v", space, err)
		}
		eventually(t, func(ctx context.Context) error {
			_, err := node.CoreV1().Secrets(space).Get(ctx, "pull", metav1.GetOptions{})
			return err
		})
		_, err := node.CoreV1().Secrets(space).Get(t.Context(), "other", metav1.GetOptions{})
		if err := refused(err, "cannot get resource"); err != nil {
			t.Errorf("another Secret of %s by the kubelet plugin: %v", space, err)
		}
		_, err = clients.CoreV1().Secrets(space).List(t.Context(), metav1.ListOptions{})
		if err := refused(err, "cannot list resource"); err != nil {
			t.Errorf("Secrets of %s by the controller: %v", space, err)
		}
	}
	_, err := clients.CoreV1().Secrets("unlisted").Get(t.Context(), "pull", metav1.GetOptions{})
	if err := refused(err, "cannot get resource"); err != nil {
		t.Errorf("Secret of a namespace that is not listed: %v", err)
	}
	for _, wrong := range []struct{ space, verb string }{{"unlisted", "get"}, {"listed", "list"}} {
		role, binding := pullGrant(wrong.space, "more", wrong.verb)
		if err := makeGrant(t.Context(), clients, role, binding); !apierrors.IsForbidden(err) {
			t.Errorf("a grant of %s in %s: %v, want it refused", wrong.verb, wrong.space, err)
		}
	}
}

// pullGrant is what the controller makes for a bitstream.
func pullGrant(space, name, verb string) (*rbacv1.Role, *rbacv1.RoleBinding) {
	return grantFor(newBitstream("FPGABitstream", space), name, verb, grant.Request{
		Kind: "FPGABitstream", Resource: "secrets", Namespace: space, Names: []string{"pull"},
	})
}

func grantFor(owner *unstructured.Unstructured, name, verb string, request grant.Request) (*rbacv1.Role, *rbacv1.RoleBinding) {
	owner.SetName(name)
	request.Owner = owner
	w := grant.NewWriter(nil, nil, namespace)
	role, binding := w.Role(request), w.Binding(request)
	role.Rules[0].Verbs = []string{verb}
	// The object is not in the API, so nothing may belong to it.
	role.OwnerReferences, binding.OwnerReferences = nil, nil
	return role, binding
}

func makeGrant(ctx context.Context, clients kubernetes.Interface, role *rbacv1.Role, binding *rbacv1.RoleBinding) error {
	if _, err := clients.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("role: %w", err)
	}
	if _, err := clients.RbacV1().RoleBindings(role.Namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	return nil
}
