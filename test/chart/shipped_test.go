// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/vendors"
	"github.com/fettle-dev/fettle/test/check"
)

// TestShippedPresetsFile: the chart knows the ClusterDevicePresets as the controller ships them, to let it write no others.
func TestShippedPresetsFile(t *testing.T) {
	specs := map[string]v1alpha1.ClusterDevicePresetSpec{}
	for _, p := range shippedpresets.Presets(shippedpresets.Vendors()) {
		specs[p.Name] = p.Spec
	}
	shippedFile(t, "presets", "shippedpresets", specs)
}

// TestShippedClassesFile: the same for DeviceClasses.
func TestShippedClassesFile(t *testing.T) {
	specs := map[string]resourceapi.DeviceClassSpec{}
	for _, c := range deviceclasses.Classes(deviceclasses.Options{ExtendedResources: true, Parts: deviceclasses.PartTypes()}) {
		specs[c.Name] = c.Spec
	}
	shippedFile(t, "classes", "deviceclasses", specs)
}

// TestShippedNamesFile: the chart has the names of what is shipped, and of the kinds of device, in the order of the tables of the source.
func TestShippedNamesFile(t *testing.T) {
	var classes, gpus, presets []string
	for _, c := range deviceclasses.Classes(deviceclasses.Options{Parts: deviceclasses.PartTypes()}) {
		classes = append(classes, c.Name)
	}
	for _, v := range vendors.WithGPUs() {
		gpus = append(gpus, v.Name)
	}
	for _, p := range vendors.Presets() {
		presets = append(presets, p.Name)
	}
	content, err := yaml.Marshal(map[string]any{
		"classes": classes, "gpuVendors": gpus, "kinds": device.Kinds(), "parts": deviceclasses.PartTypes(), "presets": presets,
	})
	check.Must(t, err)
	head := "# Names that the chart's templates need, from the tables of pkg/vendors and pkg/device.\n" +
		"# To change it, change these and run go test ./test/chart -run TestShipped -update.\n"
	check.Golden(t, chartDir+"/files/names.yaml", append([]byte(head), content...))
}

// TestSchemaKnowsPresets: the value presets.vendors takes the names of the presets that are shipped, and no others.
func TestSchemaKnowsPresets(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/values.schema.json")
	check.Must(t, err)
	var schema struct {
		Properties struct {
			Presets struct {
				Properties struct {
					Vendors struct{ Items struct{ Enum []string } }
				}
			}
		}
	}
	check.Must(t, json.Unmarshal(text, &schema))
	got := slices.Sorted(slices.Values(schema.Properties.Presets.Properties.Vendors.Items.Enum))
	if want := shippedpresets.Vendors(); !slices.Equal(got, want) {
		t.Errorf("values.schema.json lets presets.vendors be %q, and %q are shipped", got, want)
	}
}

// TestNFDKnowsVendors: nodes with GPUs of each vendor are found by the labels of Node Feature Discovery.
func TestNFDKnowsVendors(t *testing.T) {
	labels := nfdLabels(t)
	for _, v := range vendors.WithGPUs() {
		end := fmt.Sprintf("_%04x.present", v.GPUs.ID)
		if !slices.ContainsFunc(labels, func(label string) bool { return strings.HasSuffix(label, end) }) {
			t.Errorf("nfd.labels has no label for GPUs of %s, such as feature.node.kubernetes.io/pci-0300%s", v.Name, end)
		}
	}
}

// shippedFile compares a file of the chart with what a package of the controller ships.
func shippedFile(t *testing.T, name, source string, specs any) {
	t.Helper()
	content, err := yaml.Marshal(specs)
	check.Must(t, err)
	head := "# What the controller ships, by name; a policy of templates/admission/controller.yaml compares with it.\n" +
		"# To change it, change controller/" + source + " and run go test ./test/chart -run TestShipped -update.\n"
	check.Golden(t, chartDir+"/files/"+name+".yaml", append([]byte(head), content...))
}
