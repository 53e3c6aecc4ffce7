// SPDX-License-Identifier: Apache-2.0

// Package apitest starts a real etcd and kube-apiserver for tests. There is no scheduler, controller-manager or kubelet behind
// them: a test that needs those belongs to test/e2e.
package apitest

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/check"
)

// Start runs an API server until the test ends and returns an administrator's access to it. Flags are kube-apiserver's, without
// the dashes. The binaries are those of "make cluster-up" in .cache/bin, or in $KUBEBUILDER_ASSETS; without them the test is
// skipped, or fails where CI is "true".
func Start(t *testing.T, flags map[string]string) *rest.Config {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = filepath.Join(root(t), ".cache", "bin")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			missing(t, name, dir)
		}
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory:    dir,
		UseExistingCluster:       ptr.To(false),
		ControlPlaneStartTimeout: Patience(),
		ControlPlaneStopTimeout:  Patience(),
	}
	arguments := environment.ControlPlane.GetAPIServer().Configure()
	for name, value := range flags {
		arguments.Set(name, value)
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	config.QPS, config.Burst = 500, 500
	return config
}

// missing says in one line what a machine lacks.
func missing(t *testing.T, name, dir string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not in %s: build the test cluster's binaries first", name, dir)
	}
	t.Skipf("%s is not in %s: build the test cluster's binaries to run the API tests", name, dir)
}

// root is the directory of the module's go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = parent
	}
}

// Patience is how long to wait for what must come. On a slow machine, $FETTLE_PATIENCE makes it so many times longer, as in the end-to-end
// suite.
func Patience() time.Duration {
	factor, _ := strconv.Atoi(os.Getenv("FETTLE_PATIENCE"))
	return check.Patience * time.Duration(max(1, factor))
}

// Eventually calls look until it returns an empty text or the patience is over, and then fails with its last text.
func Eventually(t *testing.T, look func() string) {
	t.Helper()
	check.Poll(t, Patience(), look)
}
