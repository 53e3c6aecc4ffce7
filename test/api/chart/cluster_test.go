// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/check"
)

const (
	repository    = "../../.."
	chartDir      = repository + "/deployments/helm/fettle"
	namespace     = "fettle-system"
	nodeNameExtra = "authentication.kubernetes.io/node-name"
)

// apiServer is a real API server, without nodes or controllers, in which Helm has installed the chart.
type apiServer struct {
	config     *rest.Config
	kubeconfig string
	clients    kubernetes.Interface
	helm       string
}

// startAPIServer starts etcd and kube-apiserver from $KUBEBUILDER_ASSETS or .cache/bin and installs the CRDs and
// the chart. flags are added to those of kube-apiserver.
func startAPIServer(t *testing.T, flags map[string]string) *apiServer {
	t.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(repository, ".cache/bin")
	}
	helm := check.Helm(t, repository)
	for _, name := range []string{"etcd", "kube-apiserver"} {
		check.Needs(t, filepath.Join(assets, name), "build the cluster's binaries with `make cluster-build`, or set KUBEBUILDER_ASSETS")
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        []string{repository + "/deployments/crds"},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 2 * time.Minute,
	}
	for name, value := range flags {
		environment.ControlPlane.GetAPIServer().Configure().Set(name, value)
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, config)
	if err != nil {
		t.Fatal(err)
	}
	server := &apiServer{config: admin.Config(), kubeconfig: writeKubeconfig(t, admin), helm: helm}
	server.config.QPS = -1
	server.clients, err = kubernetes.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	server.runHelm(t, "install", "fettle", chartDir, "--create-namespace")
	return server
}

func writeKubeconfig(t *testing.T, user *envtest.AuthenticatedUser) string {
	t.Helper()
	data, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runHelm runs Helm against this server, in the release's namespace.
func (s *apiServer) runHelm(t *testing.T, args ...string) {
	t.Helper()
	args = append(args, "--kubeconfig="+s.kubeconfig, "--namespace="+namespace)
	output, err := exec.CommandContext(t.Context(), s.helm, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, output)
	}
}

// endNamespace ends a namespace that Helm has deleted, which a controller does where one runs.
func (s *apiServer) endNamespace(t *testing.T, name string) {
	t.Helper()
	ns, err := s.clients.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if ns.DeletionTimestamp == nil {
		return
	}
	ns.Spec.Finalizers = nil
	if _, err := s.clients.CoreV1().Namespaces().Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// configOf is the access of a service account of the release; node is the node that its token is bound to, or empty.
func (s *apiServer) configOf(account, node string) *rest.Config {
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{nodeNameExtra: {node}}
	}
	return config
}

// as returns clients of a service account of the release; node is the node that its token is bound to, or empty.
func (s *apiServer) as(t *testing.T, account, node string) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	config := s.configOf(account, node)
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return typed, untyped
}

// createNamespace makes a namespace for claims.
func (s *apiServer) createNamespace(t *testing.T, name string) {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.clients.CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// eventually calls check until it returns nil, for a minute at most; policies take a moment to be seen by the API server.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within a minute: %v", err)
		case <-tick.C:
		}
	}
}
