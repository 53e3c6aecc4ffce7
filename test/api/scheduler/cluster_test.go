// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/apitest"
)

const repository = "../../.."

// impatient is a scheduler profile that searches for devices on a node for one second, where the default is ten.
const impatient = "impatient"

// cluster is a real etcd, API server, scheduler, and the two controllers that make claims of templates and keep quotas.
type cluster struct {
	config *rest.Config
	client client.Client
	// version is that of all programs, "1.34", or empty for the newest.
	version string
	// dir is for files that are kept until the test ends.
	dir string
	// log is the file of the scheduler's log.
	log string
	// round counts how often sync was called.
	round int
}

// startCluster starts all programs, which end with the test.
func startCluster(t *testing.T, version string) *cluster {
	t.Helper()
	flags := map[string]string{
		// Nothing would take the taint of a new node away again, and pods need no ServiceAccount.
		"disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
	}
	var emulated []string
	if version != "" {
		flags["emulated-version"] = version
		emulated = append(emulated, "--emulated-version=kube="+version)
	}
	c := &cluster{version: version, config: apitest.Start(t, flags)}
	c.config.QPS = -1
	var err error
	if c.client, err = client.New(c.config, client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.dir, c.log = dir, filepath.Join(dir, "kube-scheduler.log")
	start(t, c.log, "kube-scheduler", append(emulated,
		"--config="+schedulerConfig(t, dir, kubeconfig(t, dir, c.config, "system:kube-scheduler")),
		"--secure-port=0", "--vmodule=scheduling_queue=4")...)
	start(t, filepath.Join(dir, "kube-controller-manager.log"), "kube-controller-manager", append(emulated,
		"--kubeconfig="+kubeconfig(t, dir, c.config, ""),
		"--controllers=resourceclaim-controller,resourcequota-controller",
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=500")...)
	return c
}

// kubeconfig writes a file for the administrator, or for a user that the administrator acts as.
func kubeconfig(t *testing.T, dir string, config *rest.Config, user string) string {
	t.Helper()
	own := rest.CopyConfig(config)
	own.Impersonate.UserName = user
	path := filepath.Join(dir, "kubeconfig-"+filepath.Base(user))
	if err := apitest.WriteKubeconfig(path, own); err != nil {
		t.Fatal(err)
	}
	return path
}

// schedulerConfig writes the scheduler's configuration: short waits after a failure, and a second profile.
func schedulerConfig(t *testing.T, dir, kubeconfig string) string {
	t.Helper()
	const version = "kubescheduler.config.k8s.io/v1"
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": version, "kind": "KubeSchedulerConfiguration",
		"clientConnection":     map[string]any{"kubeconfig": kubeconfig, "qps": 500, "burst": 500},
		"leaderElection":       map[string]any{"leaderElect": false},
		"podMaxBackoffSeconds": 1,
		"profiles": []any{
			map[string]any{"schedulerName": "default-scheduler"},
			map[string]any{"schedulerName": impatient, "pluginConfig": []any{map[string]any{
				"name": "DynamicResources",
				"args": map[string]any{"apiVersion": version, "kind": "DynamicResourcesArgs", "filterTimeout": "1s"},
			}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "scheduler.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a program of the test cluster until the test ends, and shows the end of its log if the test failed.
func start(t *testing.T, log, name string, args ...string) {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = filepath.Join(repository, ".cache", "bin")
	}
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(dir, name), args...)
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		t.Fatalf("start %s, which `make cluster-build` builds: %v", name, err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = output.Close()
		text, err := os.ReadFile(log)
		if t.Failed() && err == nil {
			lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
			t.Logf("the end of the log of %s:\n%s", name, bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
		}
	})
}
