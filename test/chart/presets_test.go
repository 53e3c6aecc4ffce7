// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/controller/shippedpresets"
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
