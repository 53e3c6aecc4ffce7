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

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/convert"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/fpgasim"
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
			readme := read(t, filepath.Join(s.Dir, "README.md"))
			for _, step := range s.Script.Steps {
				if step.Verb == "convert" { // a file of another API, whose own test looks at what becomes of it
					read(t, filepath.Join(s.Dir, step.Args[0]))
					if !strings.Contains(readme, "]("+step.Args[0]+")") {
						t.Errorf("the README does not link to %s", step.Args[0])
					}
				}
				if step.Verb == "walk" {
					for _, e := range play.Exchanges(read(t, filepath.Join("..", step.Args[0]))) {
						if name, ok := strings.CutPrefix(e.Command, "kubectl apply -f "); ok {
							applied[name] = true
						}
					}
				}
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

// TestProposal: the converter makes of the proposal's pod what the class of its scenario allows, and the node has the file.
func TestProposal(t *testing.T) {
	const dir = "23-fpga-from-a-pod/"
	result, err := convert.IntelFPGA([]byte(read(t, dir+"proposal.txt")), "proposal.txt", convert.Options{Class: "demo-23-fpga"})
	if err != nil {
		t.Fatal(err)
	}
	made := string(result.YAML)
	const bitstream = "intel-" + arriaShell + "-" + compress
	for _, want := range []string{"name: " + bitstream, "store: " + bitstreamStore, "deviceClassName: demo-23-fpga", "clockMHz: 400"} {
		if !strings.Contains(made, want) {
			t.Errorf("the converted pod has no %q:\n%s", want, made)
		}
	}
	if !strings.Contains(read(t, dir+"class.yaml"), "["+bitstream+"]") {
		t.Errorf("the class does not list %s", bitstream)
	}
	if !slices.Contains(stagedBitstreams()[arriaShell], compress) {
		t.Errorf("the node has no file for %s", bitstream)
	}
}

// TestFPGACards: the demo's changes of the machine leave five regions, of which both of the Arria 10 have the proposal's interface.
func TestFPGACards(t *testing.T) {
	machine, err := fpgaCards("..")
	if err != nil {
		t.Fatal(err)
	}
	served, err := fpgasim.FromTree(machine)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range served.Cards {
		for _, p := range c.Ports {
			got = append(got, p.Interface)
		}
	}
	want := []string{d5005Shell, arriaShell, arriaShell, d5005Shell, n6000Shell}
	if !slices.Equal(got, want) {
		t.Errorf("interfaces %v, want %v: the scenarios name cards by their number", got, want)
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

// TestLayouts: the preset of two layouts finds its program at another place on each of the two nodes.
func TestLayouts(t *testing.T) {
	h := harness.New(harness.Config{Root: "..", State: t.TempDir()}, io.Discard)
	var preset v1alpha1.ClusterDevicePreset
	if err := sigsyaml.UnmarshalStrict([]byte(read(t, "26-preset-two-layouts/preset.yaml")), &preset); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, node := range []string{"node1", "node2", "node3"} {
		if err := vendorFiles(h, node); err != nil {
			t.Fatal(err)
		}
		for _, tool := range preset.Spec.Tools {
			for _, dir := range tool.Directories {
				path := filepath.Join(dir, tool.Names[0])
				if info, err := os.Stat(filepath.Join(h.MachineDir(node), path)); err == nil && info.Mode()&0o111 != 0 {
					found[node] = append(found[node], strings.TrimPrefix(path, layoutDir))
				}
			}
		}
	}
	want := map[string][]string{"node1": {"/bin/gpu-report"}, "node2": {"/sbin/gpu-report", "/sbin/gpu-extra"}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("programs by node (-want +got):\n%s", diff)
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
