// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/test/apitest"
)

// Repository is the root of the repository as a test in a directory below test/conformance sees it.
const Repository = "../../.."

// Build makes a program of the repository and returns its path.
func Build(t testing.TB, dir, path string) string {
	t.Helper()
	binary := filepath.Join(dir, filepath.Base(path))
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-X github.com/fettle-dev/fettle/pkg/nvml.Simulated="+os.TempDir(), "-o", binary, "./"+path)
	command.Dir = Repository
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", path, err, output)
	}
	return binary
}

// Cluster makes a Node in an API server, and returns a client and the path of credentials.
func Cluster(t testing.TB, dir, node string, config *rest.Config) (kubernetes.Interface, string) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	_, err = kube.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
	return kube, apitest.Kubeconfig(t, dir, config)
}

// Outcome is how the tool ended.
type Outcome struct {
	Status         int
	Stdout, Stderr string
}

// RunTool runs the tool and logs what it printed.
func RunTool(t testing.TB, tool string, args ...string) Outcome {
	t.Helper()
	command := exec.CommandContext(t.Context(), tool, args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	begin := time.Now()
	err := command.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	t.Logf("%s\n%s%s", time.Since(begin).Round(time.Second), &stdout, &stderr)
	return Outcome{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Note is why a check did not pass.
type Note struct {
	Cause string `xml:"type,attr"`
	Text  string `xml:",chardata"`
}

// Case is a check in the tool's JUnit report. Failure and Skipped are nil where it passed.
type Case struct {
	Name    string `xml:"name,attr"`
	Failure *Note  `xml:"failure"`
	Skipped *Note  `xml:"skipped"`
}

// ReadReport reads a JUnit report, which must have one suite.
func ReadReport(t testing.TB, name string) []Case {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	var report struct {
		Suites []struct {
			Cases []Case `xml:"testcase"`
		} `xml:"testsuite"`
	}
	must(t, xml.Unmarshal(text, &report))
	if len(report.Suites) != 1 {
		t.Fatalf("the report has %d suites, want one:\n%s", len(report.Suites), text)
	}
	return report.Suites[0].Cases
}

// WantCleanedUp wants nothing left of runs of the tool: no claim, and no namespace that is not on its way out. Without a controller that
// empties them, namespaces stay in an API server.
func WantCleanedUp(ctx context.Context, t testing.TB, kube kubernetes.Interface) {
	t.Helper()
	claims, err := kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range claims.Items {
		t.Errorf("claim %s/%s is left", c.Namespace, c.Name)
	}
	namespaces, err := kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	must(t, err)
	runs := 0
	for _, n := range namespaces.Items {
		if found, _ := filepath.Match("dra-conformance-*", n.Name); !found {
			continue
		}
		runs++
		if n.DeletionTimestamp == nil {
			t.Errorf("namespace %s is left", n.Name)
		}
	}
	if runs == 0 {
		t.Error("no run made a namespace")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
