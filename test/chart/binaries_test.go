// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// TestConfigFile gives every rendered configuration file to the plugin's own strict reader.
func TestConfigFile(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			parseConfig(t, v.args...)
		})
	}
}

// TestDefaults: by default the chart gives the plugin what is the default of the configuration file too, but for NVIDIA's library and
// presets, which the chart sets.
func TestDefaults(t *testing.T) {
	given, own := parseConfig(t), nodeconfig.File{}.WithDefaults()
	own.TypeMeta, own.NVML, own.Presets = given.TypeMeta, given.NVML, given.Presets
	if diff := cmp.Diff(own, given); diff != "" {
		t.Errorf("defaults (-file +chart):\n%s", diff)
	}
}

// TestRegistriesFile gives the registries' configuration that both programs get to its own strict reader.
func TestRegistriesFile(t *testing.T) {
	for _, v := range variants() {
		for name, kind := range map[string]string{"fettle-controller": "Deployment", "fettle-kubeletplugin": "DaemonSet"} {
			t.Run(v.name+" "+name, func(t *testing.T) {
				files, _, err := unstructured.NestedStringMap(find(t, renderObjects(t, v.args...), "ConfigMap", name).Object, "data")
				if err != nil {
					t.Fatal(err)
				}
				config, err := registry.ParseConfig([]byte(files["registries.yaml"]))
				if err != nil {
					t.Fatalf("%v in\n%s", err, files["registries.yaml"])
				}
				want := registry.ConfigFile{}
				if v.name == "all-on" {
					want.PlainHTTP, want.CAFile = []string{"registry.local:5000"}, "ca.crt"
					want.AllowedDestinations = []string{"registry.infra.svc:5000", "[fd00::7]:5000", "10.96.7.0/24"}
					want.ClusterCIDRs = []string{"10.244.0.0/16", "fd01::/48"}
					want.Mirrors = registry.Mirrors{"registry.example": {
						{Host: "mirror.example:5000/cache"},
						{
							Host: "dfdaemon.dragonfly-system.svc:4001", ForwardCredentials: true,
							Headers: map[string]string{"X-Dragonfly-Registry": "https://registry.example"},
						},
					}}
					want.MirrorsOnly = []string{"registry.example"}
				}
				if diff := cmp.Diff(want, config); diff != "" {
					t.Errorf("registries (-want +got):\n%s", diff)
				}
				program := podOf(t, find(t, renderObjects(t, v.args...), kind, name)).Spec.Containers[0]
				if arg := "--registries=/etc/fettle/registries.yaml"; !slices.Contains(program.Args, arg) {
					t.Errorf("no %s in %q", arg, program.Args)
				}
				if hasCA := strings.HasPrefix(files["ca.crt"], "-----BEGIN"); hasCA != (want.CAFile != "") {
					t.Errorf("ca.crt is %q", files["ca.crt"])
				}
			})
		}
	}
}

// parseConfig reads the configuration file that the chart renders with args.
func parseConfig(t *testing.T, args ...string) nodeconfig.File {
	t.Helper()
	file := find(t, renderObjects(t, args...), "ConfigMap", "fettle-kubeletplugin")
	data, _, err := unstructured.NestedString(file.Object, "data", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := nodeconfig.Parse([]byte(data))
	if err != nil {
		t.Errorf("%v in\n%s", err, data)
	}
	return config
}

// TestHealthValue checks that the value health reaches the plugin as it was written, whole or in part.
func TestHealthValue(t *testing.T) {
	byDefault := parseConfig(t).Health
	interval := byDefault
	interval.Interval = metav1.Duration{Duration: time.Minute}
	tests := []struct {
		name, values string
		want         nodeconfig.Health
	}{
		{"nothing", "health: {}", byDefault},
		{"one thing", "health: {interval: 1m}", interval},
		{
			"everything", `
health:
  interval: 5s
  disableEviction: true
  disabledSources: [ras, rival]
  rules:
    - {source: rival, severity: ignored}
    - {source: xid, code: "94", severity: fatal, message: "drain it: now"}
    - {source: xid, code: "14[4-9]", severity: ignored}
    - {source: aer, code: "nonfatal.*", severity: degraded, recoverAfter: 2h}
`,
			nodeconfig.Health{
				Interval: metav1.Duration{Duration: 5 * time.Second}, DisableEviction: true, DisabledSources: []string{"ras", "rival"},
				Rules: []health.Rule{
					{Source: health.SourceRival, Severity: health.Ignored},
					{Source: health.SourceXid, Code: "94", Severity: health.Fatal, Message: "drain it: now"},
					{Source: health.SourceXid, Code: "14[4-9]", Severity: health.Ignored},
					{Source: health.SourceAER, Code: "nonfatal.*", Severity: health.Degraded, RecoverAfter: metav1.Duration{Duration: 2 * time.Hour}},
				},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(test.values), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, parseConfig(t, "--values="+file).Health); diff != "" {
				t.Errorf("health (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEverySource checks that the chart's schema knows the sources that the plugin knows, and no others.
func TestEverySource(t *testing.T) {
	for _, source := range health.Sources() {
		rule := []string{"--set=health.rules[0].source=" + source + ",health.rules[0].severity=ignored"}
		if rules := parseConfig(t, rule...).Health.Rules; len(rules) != 1 || rules[0].Source != source {
			t.Errorf("source %s: rules %+v", source, rules)
		}
	}
	for _, source := range []string{health.SourceAER, health.SourceNVML, health.SourceRAS, health.SourceRival} {
		off := parseConfig(t, "--set=health.disabledSources[0]="+source).Health.DisabledSources
		if diff := cmp.Diff([]string{source}, off); diff != "" {
			t.Errorf("disabled (-want +got):\n%s", diff)
		}
	}
}

// TestFlags checks that the binaries know each flag that the chart gives them.
func TestFlags(t *testing.T) {
	flagName := regexp.MustCompile(`^--([a-z0-9-]+)=`)
	for _, test := range []struct{ kind, name string }{
		{"DaemonSet", "fettle-kubeletplugin"}, {"Deployment", "fettle-controller"}, {"Deployment", "fettle-webhook"}, {"Job", "fettle-uninstall"},
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
