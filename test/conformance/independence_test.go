// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestIndependence keeps the tool and what it imports free of the rest of this repository, so that it says the same of any driver
// and others can use it.
func TestIndependence(t *testing.T) {
	t.Parallel()
	const here = "github.com/fettle-dev/fettle/test/conformance"
	repository, _, _ := strings.Cut(here, "/test/")
	own := []string{here, here + "/fettle-conformance"}
	output, err := exec.Command("go", append([]string{"list", "-deps", "-test", "-f", "{{.ImportPath}}"}, own...)...).Output()
	must(t, err)
	packages := strings.Fields(string(output))
	if !slices.Contains(packages, "k8s.io/api/resource/v1") {
		t.Errorf("go list named %d packages and not that of ResourceClaims", len(packages))
	}
	for _, name := range packages {
		if strings.HasPrefix(name, repository) && !slices.ContainsFunc(own, func(p string) bool { return strings.HasPrefix(name, p) }) {
			t.Errorf("%s is imported: the tool knows only kubelet's protocol, the API and CDI", name)
		}
	}
}

// TestDirectImports wants nothing but the libraries of the protocols that are spoken.
func TestDirectImports(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"github.com/fettle-dev/fettle/test/conformance", "k8s.io/", "sigs.k8s.io/yaml", "tags.cncf.io/container-device-interface/",
		"github.com/opencontainers/runtime-spec/", "google.golang.org/grpc",
	}
	output, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, ".", "./fettle-conformance").Output()
	must(t, err)
	for _, name := range strings.Fields(string(output)) {
		first, _, _ := strings.Cut(name, "/")
		if strings.Contains(first, ".") && !slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(name, p) }) {
			t.Errorf("%s is imported, want only %s", name, list(allowed))
		}
	}
}

// TestReadme wants every check in the table, in the words of --list.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	must(t, err)
	for _, c := range Checks() {
		if line := "| `" + c.Name + "` | " + c.Summary + " |"; !strings.Contains(string(text), line) {
			t.Errorf("README.md lacks the line that begins with\n%s", line)
		}
	}
}
