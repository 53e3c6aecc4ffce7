// SPDX-License-Identifier: Apache-2.0

// Package fettle runs the conformance checks against Fettle's own kubelet plugin, as it is shipped, on a simulated machine.
package fettle

import (
	"bytes"
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/apitest"
)

const (
	repository = "../../.."
	nodeName   = "conformance"
)

// TestMain lets the test's own binary be the command that restarts and reboots: the tool runs "BINARY hook SOCKET VERB".
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "hook" {
		os.Exit(askHook(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// TestAPI wants every check to pass on Fettle.
func TestAPI(t *testing.T) {
	dir, err := os.MkdirTemp("", "fcf") //nolint:usetesting // the test's own directory is too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plugin, tool := build(t, dir, "cmd/fettle-kubeletplugin"), build(t, dir, "test/conformance/fettle-conformance")
	kubeconfig := startCluster(t, dir)
	m := newMachine(t, dir, plugin, kubeconfig)
	m.start()
	t.Cleanup(m.stop)
	control := m.serveHooks()
	self, err := os.Executable()
	must(t, err)

	report := filepath.Join(dir, "junit.xml")
	command := exec.CommandContext(t.Context(), tool, "--kubeconfig="+kubeconfig, "--driver=fettle.dev",
		"--registration="+filepath.Join(m.registry, "*-reg.sock"), "--cdi-dir="+m.cdi, "--junit="+report, "--stable-for=5s",
		"--restart-command="+strings.Join([]string{self, "hook", control, "restart"}, " "),
		"--reboot-command="+strings.Join([]string{self, "hook", control, "reboot"}, " "))
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	begin := time.Now()
	err = command.Run()
	t.Logf("%s\n%s%s", time.Since(begin).Round(time.Second), stdout.String(), stderr.String())
	if err != nil {
		t.Errorf("the tool: %v", err)
	}
	checkReport(t, report)
	wantFailure(t, tool, kubeconfig, m)
}

// wantFailure asks for another driver at Fettle's sockets, which must be seen in the exit status too.
func wantFailure(t *testing.T, tool, kubeconfig string, m *machine) {
	t.Helper()
	command := exec.CommandContext(t.Context(), tool, "--kubeconfig="+kubeconfig, "--driver=other.example.com",
		"--registration="+filepath.Join(m.registry, "*-reg.sock"), "--focus=^registration/info$", "--patience=1s")
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(output), `name is "fettle.dev"`) {
		t.Errorf("error %v, want exit status 1 and the name that is wrong\n%s", err, output)
	}
}

// checkReport wants all checks in the report, and every one passed: whatever a check can need, it was given.
func checkReport(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Text string `xml:",chardata"`
				} `xml:"failure"`
				Skipped *struct {
					Text string `xml:",chardata"`
				} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	must(t, xml.Unmarshal(text, &report))
	const least = 40
	if len(report.Suites) != 1 || len(report.Suites[0].Cases) < least {
		t.Fatalf("the report has %d suites, want one of at least %d checks:\n%s", len(report.Suites), least, text)
	}
	for _, c := range report.Suites[0].Cases {
		if c.Failure != nil {
			t.Errorf("%s failed: %s", c.Name, c.Failure.Text)
		}
		if c.Skipped != nil {
			t.Errorf("%s was skipped: %s", c.Name, c.Skipped.Text)
		}
	}
}

// build makes a program of the repository.
func build(t *testing.T, dir, path string) string {
	t.Helper()
	binary := filepath.Join(dir, filepath.Base(path))
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "./"+path)
	command.Dir = repository
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", path, err, output)
	}
	return binary
}

// startCluster starts an API server with Fettle's kinds and a Node, and returns the path of its credentials.
func startCluster(t *testing.T, dir string) string {
	t.Helper()
	config := apitest.Start(t, nil)
	crds := filepath.Join(repository, "deployments", "crds")
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{crds}, ErrorIfPathMissing: true})
	must(t, err)
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	must(t, err)
	return writeKubeconfig(t, dir, config)
}

func writeKubeconfig(t *testing.T, dir string, config *rest.Config) string {
	t.Helper()
	const name = "test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	path := filepath.Join(dir, "kubeconfig")
	must(t, clientcmd.WriteToFile(*file, path))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
