// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/harness"
)

// decode reads the documents of a manifest as kinds of Kubernetes and of ours, strictly.
func decode(text string) error {
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if _, _, err := decoder.Decode(document, nil, nil); err != nil {
			return fmt.Errorf("%w in\n%s", err, document)
		}
	}
}

// findings are what admission would say of a manifest.
func findings(t *testing.T, text, name string) []admission.Finding {
	t.Helper()
	found, err := admission.ValidateYAML(strings.NewReader(text), name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func scenarios(t *testing.T) []play.Scenario {
	t.Helper()
	all, err := play.Load(".", regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestScenarios checks what does not need a cluster: each file is there, is used, is named in the README, is a manifest, and has a
// right configuration unless the scenario expects that it is refused.
func TestScenarios(t *testing.T) {
	for i, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			if want := fmt.Sprintf("%02d-", i+1); !strings.HasPrefix(s.Name, want) {
				t.Errorf("want the name to begin with %s: scenarios are counted without gaps", want)
			}
			applied := map[string]bool{}
			var refused []string
			for _, step := range s.Script.Steps {
				if step.Verb != "apply" {
					continue
				}
				for _, name := range step.Args {
					applied[name] = true
					if step.Fails {
						refused = append(refused, name)
					}
				}
			}
			readme := read(t, filepath.Join(s.Dir, "README.md"))
			paths, err := filepath.Glob(filepath.Join(s.Dir, "*.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				name := filepath.Base(path)
				if !applied[name] {
					t.Errorf("no step applies %s", name)
				}
				if !strings.Contains(readme, "]("+name+")") {
					t.Errorf("the README does not link to %s", name)
				}
				delete(applied, name)
				text := read(t, path)
				if err := decode(text); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if found := findings(t, text, name); len(found) > 0 && !slices.Contains(refused, name) {
					t.Errorf("%s: %v", name, found)
				}
			}
			for name := range applied {
				t.Errorf("a step applies %s, which is not there", name)
			}
		})
	}
}

// TestWrongConfigs holds that the scenario of wrong configurations is about configurations.
func TestWrongConfigs(t *testing.T) {
	paths, err := filepath.Glob("11-wrong-config/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files (%v)", err)
	}
	for _, path := range paths {
		if len(findings(t, read(t, path), path)) == 0 {
			t.Errorf("%s: nothing is wrong with it", path)
		}
	}
}

// TestChartValues holds that the demo's values say what the plugin takes.
func TestChartValues(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	values, err := chartValues(harness.New(harness.Config{Root: root}, io.Discard), "127.0.0.1:5000")
	if err != nil {
		t.Fatal(err)
	}
	var own struct {
		HostDevices []discover.HostDevice `json:"hostDevices"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(values, &own); err != nil {
		t.Fatal(err)
	}
	if len(own.HostDevices) == 0 {
		t.Error("no host devices")
	}
	for _, d := range own.HostDevices {
		if err := d.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestVendorFiles holds that what the presets of the scenarios name is on the nodes, where the plugin sees it.
func TestVendorFiles(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	h := harness.New(harness.Config{Root: root, State: t.TempDir()}, io.Discard)
	if err := vendorFiles(h, "node1"); err != nil {
		t.Fatal(err)
	}
	values, err := chartValues(h, "127.0.0.1:5000")
	if err != nil {
		t.Fatal(err)
	}
	var own struct {
		Presets nodeconfig.Presets `json:"presets"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(values, &own); err != nil {
		t.Fatal(err)
	}
	var cluster v1alpha1.ClusterDevicePreset
	if err := sigsyaml.UnmarshalStrict([]byte(read(t, "15-preset/preset.yaml")), &cluster); err != nil {
		t.Fatal(err)
	}
	rules := cluster.Spec.PresetRules
	names := []string{rules.Mounts[0].HostPath, rules.Tools[0].Directories[0] + "/" + rules.Tools[0].Names[0]}
	for _, name := range names {
		if !slices.ContainsFunc(own.Presets.HostDirectories, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
			t.Errorf("%s is below none of %v of demo/values.yaml", name, own.Presets.HostDirectories)
		}
		if info, err := os.Stat(filepath.Join(h.MachineDir("node1"), name)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s of a node: %v, want a directory or a program", name, err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
