// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"crypto/tls"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// MetricsAskForTokens checks the metrics that a program serves at an address, such as 127.0.0.1:8080: only a caller whose token may get the
// path reads them, and only by HTTPS. It creates what it needs in a namespace that exists.
func MetricsAskForTokens(t *testing.T, config *rest.Config, namespace, address string) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	reader, nobody := account(t, kube, namespace, "metrics-reader"), account(t, kube, namespace, "metrics-nobody")
	mayRead(t, kube, rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: "metrics-reader"})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(scheme, token string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			return err.Error()
		}
		_ = response.Body.Close()
		return response.Status
	}
	Eventually(t, func() string {
		if got := get("https", reader); got != "200 OK" {
			return "the reader is answered with " + got
		}
		return ""
	})
	for _, test := range []struct{ name, scheme, token, want string }{
		{"no token", "https", "", "401 Unauthorized"},
		{"invented token", "https", "x.y.z", "500 Internal Server Error"},
		{"an account without the right", "https", nobody, "403 Forbidden"},
		{"plain HTTP", "http", reader, "400 Bad Request"},
	} {
		if got := get(test.scheme, test.token); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// account makes a ServiceAccount and returns a token of it.
func account(t *testing.T, kube kubernetes.Interface, namespace, name string) string {
	t.Helper()
	accounts := kube.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

func mayRead(t *testing.T, kube kubernetes.Interface, subject rbacv1.Subject) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	if _, err := kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
