// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// harmless are the values, and what is below them, that give an attacker nothing: names, images, places and sizes of the programs' own
// pods, and how often something is done.
func harmless() []string {
	return []string{
		"image", "commonLabels", "nvidia.timeout", "nvidia.publishUnlinked", "mps.resources", "partitions.sharedTaintKeys",
		"fpga.bindingConditions", "fpga.fetchAhead", "fpga.simulatedNodes", "presets.vendors", "kernelCaches.volumes.image",
		"kernelCaches.fetchAhead", "kernelCaches.bindingConditions",
		"discoveryInterval", "reconcileInterval", "health", "nfd", "kubeletPlugin.image", "kubeletPlugin.logVerbosity", "kubeletPlugin.maxSurge",
		"kubeletPlugin.kubeAPIQPS", "kubeletPlugin.kubeAPIBurst", "kubeletPlugin.httpPort", "kubeletPlugin.metricsPort",
		"kubeletPlugin.terminationGracePeriodSeconds", "kubeletPlugin.tolerations", "kubeletPlugin.nodeSelector", "kubeletPlugin.affinity",
		"kubeletPlugin.podAnnotations", "kubeletPlugin.podLabels", "kubeletPlugin.resources", "controller", "webhook.replicas",
		"webhook.logVerbosity", "webhook.port", "webhook.metricsPort", "webhook.terminationGracePeriodSeconds", "webhook.tolerations",
		"webhook.nodeSelector", "webhook.affinity", "webhook.podAnnotations", "webhook.podLabels", "webhook.resources",
		"deviceClasses.extendedResources", "deviceClasses.mig", "deviceClasses.partition", "bitstreams.resolveInterval", "priorityClass",
		"metrics.certificateSecret", "monitoring",
	}
}

var code = regexp.MustCompile("`([^`]+)`")

// judged lists the values that the page about security judges: what is before the colon in each line of its list. ".x" is beside the value
// before it, and "x.*" is all that is below x.
func judged(t *testing.T) (out []string) {
	t.Helper()
	_, list, found := strings.Cut(read(t, "../../docs/user/security.md"), "\n## What each value gives\n")
	if !found {
		t.Fatal("docs/user/security.md has no list of values")
	}
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "- `") {
			continue
		}
		before := ""
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
		for _, name := range code.FindAllStringSubmatch(first, -1) {
			value := strings.TrimSuffix(name[1], ".*")
			if strings.HasPrefix(value, ".") {
				value = before[:strings.LastIndex(before, ".")] + value
			} else if !strings.Contains(value, ".") && before != "" && !isValue(t, value) {
				continue // a choice of the value before it
			}
			before = value
			out = append(out, value)
		}
	}
	return out
}

func isValue(t *testing.T, name string) bool {
	t.Helper()
	_, ok := valueAt(defaults(t), strings.Split(name, "."))
	return ok
}

func defaults(t *testing.T) (out map[string]any) {
	t.Helper()
	check.Must(t, yaml.Unmarshal([]byte(read(t, filepath.Join(chart, "values.yaml"))), &out))
	return out
}

// TestSecurityOfValues: each value of the chart is judged on the page about security, or gives an attacker nothing, and not both.
func TestSecurityOfValues(t *testing.T) {
	entries := map[string]bool{}
	for _, name := range slices.Concat(judged(t), harmless()) {
		if entries[name] {
			t.Errorf("%s is judged twice", name)
		}
		if entries[name] = true; !isValue(t, name) {
			t.Errorf("%s is no value of the chart", name)
		}
	}
	var leaves func(prefix string, fields map[string]any)
	leaves = func(prefix string, fields map[string]any) {
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			path := strings.TrimPrefix(prefix+"."+name, ".")
			if entries[path] {
				continue
			}
			if below, _ := fields[name].(map[string]any); len(below) > 0 {
				leaves(path, below)
				continue
			}
			t.Errorf("%s: say in the list of docs/user/security.md what it gives to an attacker, or name it in harmless", path)
		}
	}
	leaves("", defaults(t))
}
