// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/kubeletplugin"
)

// TestConfigFile gives every rendered configuration file to the plugin's own strict reader.
func TestConfigFile(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			file := find(t, renderObjects(t, v.args...), "ConfigMap", "fettle-kubeletplugin")
			data, _, err := unstructured.NestedString(file.Object, "data", "config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kubeletplugin.ParseFile([]byte(data)); err != nil {
				t.Errorf("%v in\n%s", err, data)
			}
		})
	}
}

// TestFlags checks that the binaries know each flag that the chart gives them.
func TestFlags(t *testing.T) {
	flagName := regexp.MustCompile(`^--([a-z0-9-]+)=`)
	for _, test := range []struct{ kind, name string }{
		{"DaemonSet", "fettle-kubeletplugin"}, {"Deployment", "fettle-controller"}, {"Job", "fettle-uninstall"},
	} {
		t.Run(test.name, func(t *testing.T) {
			container := podOf(t, find(t, renderObjects(t), test.kind, test.name)).Spec.Containers[0]
			var words, flags []string
			for _, arg := range container.Args {
				match := flagName.FindStringSubmatch(arg)
				if match == nil {
					words = append(words, arg)
					continue
				}
				flags = append(flags, match[1])
			}
			known := help(t, strings.TrimPrefix(container.Command[0], "/"), words)
			for _, flag := range flags {
				if !regexp.MustCompile(`(?m)^\s*--?` + flag + `\b`).MatchString(known) {
					t.Errorf("%s does not know --%s; it says\n%s", container.Command[0], flag, known)
				}
			}
		})
	}
}

// help builds a command of this repository and returns what it prints for --help.
func help(t *testing.T, name string, words []string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/"+name)
	build.Dir = repository
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, output)
	}
	output, err := exec.CommandContext(t.Context(), binary, append(words, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", name, err, output)
	}
	return string(output)
}
