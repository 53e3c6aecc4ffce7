// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPresetVendors: all vendors that the controller knows, but none on a simulated machine unless somebody says so. What it may change is
// what it ships.
func TestPresetVendors(t *testing.T) {
	all := shippedpresets.Vendors()
	for name, test := range map[string]struct {
		set  []string
		want []string
	}{
		"real machine":              {nil, all},
		"simulated machine":         {[]string{"--set=hostRoot=/sim"}, nil},
		"simulated, and wanted":     {[]string{"--set=hostRoot=/sim,presets.vendors={amd,nvidia}"}, []string{"amd", "nvidia"}},
		"none":                      {[]string{"--set-json=presets.vendors=[]"}, nil},
		"one":                       {[]string{"--set=presets.vendors={nvidia}"}, []string{"nvidia"}},
		"as nobody had said a word": {[]string{"--set=presets.vendors=null"}, all},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, arg := range controllerArgs(t, test.set...) {
				if value, ok := strings.CutPrefix(arg, "--preset-vendors="); ok && value != "" {
					got = strings.Split(value, ",")
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	for _, p := range shippedpresets.Presets(all) {
		if !strings.Contains(shippedPresets, p.Name) {
			t.Errorf("the controller may not change %s", p.Name)
		}
	}
}

// TestPartClasses: parts of GPUs have classes, but whole PCI functions only if somebody says so. What the controller may delete is what can
// be switched off.
func TestPartClasses(t *testing.T) {
	for set, want := range map[string]string{
		"": "mig,partition,vf", "--set=deviceClasses.vfio=true": "mig,partition,vf,vfio", "--set=deviceClasses.partition=false": "mig,vf",
		"--set=deviceClasses.mig=false,deviceClasses.partition=false,deviceClasses.vf=false": "",
	} {
		args := controllerArgs(t, strings.Fields(set)...)
		if !slices.Contains(args, "--gpu-part-classes="+want) {
			t.Errorf("%s: the arguments are %q, want classes of %q", set, args, want)
		}
	}
	shipped := len(deviceclasses.Classes(deviceclasses.Options{}))
	for _, class := range deviceclasses.Classes(deviceclasses.Options{Parts: deviceclasses.PartTypes()})[shipped:] {
		if !strings.Contains(partClasses, class.Name) {
			t.Errorf("the controller may not delete %s", class.Name)
		}
	}
}

// controllerArgs are the arguments of the controller's container.
func controllerArgs(t *testing.T, set ...string) []string {
	t.Helper()
	for _, object := range renderObjects(t, set...) {
		if object.GetKind() != "Deployment" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			t.Fatalf("containers: %v, %v", containers, err)
		}
		container, _ := containers[0].(map[string]any)
		args, _, err := unstructured.NestedStringSlice(container, "args")
		if err != nil {
			t.Fatal(err)
		}
		return args
	}
	t.Fatal("no Deployment")
	return nil
}

// TestPresetsMissing: where Helm is told of no preset for a vendor, its notes name the vendor, and the nodes tell pods. A simulated machine
// has nothing that pods could miss.
func TestPresetsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		set    []string
		want   string
		report bool
	}{
		"real machine":      {nil, "", true},
		"simulated machine": {[]string{"--set=hostRoot=/sim"}, "", false},
		"none":              {[]string{"--set-json=presets.vendors=[]"}, "of their node: nvidia, amd, intel, xrt, opae.", true},
		"some":              {[]string{"--set=presets.vendors={nvidia,intel}"}, "of their node: amd, xrt, opae.", true},
		"simulated, none":   {[]string{"--set=hostRoot=/sim", "--set-json=presets.vendors=[]"}, "of their node: nvidia,", true},
	} {
		t.Run(name, func(t *testing.T) {
			notes := notesOf(t, test.set...)
			if strings.Contains(notes, "No preset of Fettle gives") != (test.want != "") || !strings.Contains(notes, test.want) {
				t.Errorf("want %q in\n%s", test.want, notes)
			}
			if strings.Contains(notes, "no image can bring") != strings.Contains(test.want, "nvidia") {
				t.Errorf("NVIDIA's driver in\n%s", notes)
			}
			if got := parseConfig(t, test.set...).Presets.ReportMissing; got != test.report {
				t.Errorf("the nodes report missing presets: %v, want %v", got, test.report)
			}
		})
	}
}

// notesOf returns what Helm prints after an installation.
func notesOf(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"install", "fettle", chartDir, "--namespace=" + namespace, "--dry-run=client"}, args...)
	out, err := exec.CommandContext(t.Context(), check.Helm(t, repository), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
	_, notes, ok := strings.Cut(string(out), "NOTES:\n")
	if !ok {
		t.Fatalf("helm %q prints no notes:\n%s", args, out)
	}
	return notes
}
