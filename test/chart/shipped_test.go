// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
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

// shippedFile compares a file of the chart with what a package of the controller ships.
func shippedFile(t *testing.T, name, source string, specs any) {
	t.Helper()
	content, err := yaml.Marshal(specs)
	check.Must(t, err)
	head := "# What the controller ships, by name; a policy of templates/admission/controller.yaml compares with it.\n" +
		"# To change it, change controller/" + source + " and run go test ./test/chart -run TestShipped -update.\n"
	check.Golden(t, chartDir+"/files/"+name+".yaml", append([]byte(head), content...))
}
