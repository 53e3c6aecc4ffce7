// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/features"
)

// allFeatures are those of the chart.
func allFeatures(t *testing.T) []features.Feature {
	t.Helper()
	all, err := features.Read(chartDir, features.Samples())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// given renders the chart with values, as on a cluster that serves all kinds that the chart may use.
func given(t *testing.T, values map[string]any) [][]byte {
	t.Helper()
	text, err := sigsyaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return render(t, "--values="+file, "--api-versions=security.openshift.io/v1", "--api-versions=monitoring.coreos.com/v1",
		"--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
}

// rightsGiven lists what the manifests give to programs and to accounts, one right a line.
func rightsGiven(t *testing.T, manifests [][]byte) []string {
	t.Helper()
	var out []string
	for _, p := range programs(t, manifests) {
		for _, right := range append(p.Rights(), features.There) {
			out = append(out, fmt.Sprintf("%s %s/%s: %s", p.Kind, p.Component, p.Container.Name, right))
		}
	}
	for role, table := range rights(t, parse(t, manifests)) {
		for resource, verbs := range table {
			out = append(out, fmt.Sprintf("%s: %s %s", role, resource, verbs))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func programs(t *testing.T, manifests [][]byte) []features.Program {
	t.Helper()
	var out []features.Program
	for _, document := range manifests {
		found, err := features.Programs(document)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// TestFeatures compares what the chart gives to its programs and their accounts by default, and what each feature of the schema adds and
// takes away, with a golden file. A feature without a line there changes no right, no mount, no workload and nothing of the kubelet
// plugin's configuration.
func TestFeatures(t *testing.T) {
	var mu sync.Mutex
	changes := map[string]string{}
	without := map[string][][]byte{} // by what features need
	for _, f := range allFeatures(t) {
		if key := fmt.Sprint(f.Needs); without[key] == nil {
			without[key] = given(t, f.Needs)
		}
	}
	t.Run("features", func(t *testing.T) {
		for _, f := range allFeatures(t) {
			t.Run(f.Name, func(t *testing.T) {
				t.Parallel()
				with := given(t, f.Values)
				changed := changesOf(without[fmt.Sprint(f.Needs)], with, func(m [][]byte) []string { return rightsGiven(t, m) })
				noNodeListsAll(t, with)
				mu.Lock()
				defer mu.Unlock()
				if changed != "" {
					changes[f.Name] = changed
				}
			})
		}
	})
	text := "by default\n" + strings.Join(rightsGiven(t, without[fmt.Sprint(map[string]any{})]), "\n") + "\n"
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		text += "\n" + features.Heading(name) + changes[name]
	}
	check.Golden(t, "testdata/golden/features.txt", []byte(text))
}

// noNodeListsAll holds that the account of the nodes reads claims and pods by their names only: thousands of nodes share it.
func noNodeListsAll(t *testing.T, manifests [][]byte) {
	t.Helper()
	account := rights(t, parse(t, manifests))["ClusterRole fettle-kubeletplugin"]
	for _, resource := range []string{"/pods", "resource.k8s.io/resourceclaims"} {
		if account[resource] != "get" {
			t.Errorf("the kubelet plugin may %q %s", account[resource], resource)
		}
	}
}

// changesOf lists what manifests give more and less than others.
func changesOf(without, with [][]byte, rights func([][]byte) []string) string {
	var out []string
	before, after := rights(without), rights(with)
	for sign, both := range map[string][2][]string{"+ ": {after, before}, "- ": {before, after}} {
		for _, line := range both[0] {
			if !slices.Contains(both[1], line) {
				out = append(out, sign+line+"\n")
			}
		}
	}
	if features.Configuration(without) != features.Configuration(with) {
		out = append(out, features.Configured+"\n")
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// rightsFile has what the programs have on a node, where a spec of the end-to-end tests looks.
const rightsFile = repository + "/test/e2e/testdata/rights.txt"

// TestRightsOnNodes: the spec that looks at the rights of running programs covers every program that the chart can render, and every
// feature that changes the kubelet plugin's pod or configuration.
func TestRightsOnNodes(t *testing.T) {
	seen, err := os.ReadFile(rightsFile)
	if err != nil {
		t.Fatal(err)
	}
	known, err := features.OpenList(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(known.Programs()) < 6 || len(known.OfPlugin()) < 20 {
		t.Fatalf("the list has the programs %v and the features %q", known.Programs(), known.OfPlugin())
	}
	for _, p := range known.Programs() {
		if !strings.Contains(string(seen), "\ncontainer "+p.Container+" of "+p.Component+",") {
			t.Errorf("the chart has container %s of %s, which is not in %s", p.Container, p.Component, rightsFile)
		}
	}
	for _, name := range known.OfPlugin() {
		if !strings.Contains(string(seen), "\nplugin with feature "+name+"\n") {
			t.Errorf("%s changes the kubelet plugin's pod or configuration, and is not in %s", name, rightsFile)
		}
	}
}
