// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/stack/extra"
	"github.com/fettle-dev/fettle/test/check"
)

// TestExtraChart runs the command of the user's page that makes a ConfigMap of a chart, up to where it needs a cluster, and reads what
// comes of it as a stack does.
func TestExtraChart(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs/user/stack-states.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(page), "\n    helm template ")
	command, _, cut := strings.Cut("helm template "+command, "|\n      kubectl apply")
	if !found || !cut {
		t.Fatal("the page does not say how a chart becomes a ConfigMap")
	}
	files := map[string]string{}
	if kubectl := filepath.Join(repository, ".cache/bin/kubectl"); exists(kubectl) { // `make cluster-build` puts it there
		var c corev1.ConfigMap
		if err := yaml.UnmarshalStrict(shell(t, command, kubectl), &c); err != nil {
			t.Fatal(err)
		}
		if files = c.Data; c.Namespace != "fettle-drivers" {
			t.Errorf("the ConfigMap is in the namespace %q", c.Namespace)
		}
	} else {
		render, _, _ := strings.Cut(command, "|")
		files["exporter.yaml"] = string(shell(t, render))
	}
	manifests, err := extra.Parse(files, "fettle-drivers")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifests {
		got = append(got, m.Kind.Kind)
		if m.Name != "exporter" || m.PerPlatform != (m.Kind.Kind == "DaemonSet") {
			t.Errorf("read %+v", m)
		}
	}
	if strings.Join(got, " ") != "Service ServiceAccount DaemonSet" {
		t.Errorf("the ConfigMap has %s", got)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shell runs a command with helm, and the tools, beside the charts of tests.
func shell(t *testing.T, command string, tools ...string) []byte {
	t.Helper()
	path := os.Getenv("PATH")
	for _, tool := range append(tools, check.Helm(t, repository)) {
		absolute, err := filepath.Abs(tool)
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Dir(absolute) + ":" + path
	}
	sh := exec.CommandContext(t.Context(), "sh", "-c", command)
	sh.Dir, sh.Env = "testdata", append(os.Environ(), "PATH="+path)
	out, err := sh.Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return out
}
