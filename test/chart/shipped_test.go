// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/test/check"
)

// TestShippedPresetsFile: the chart knows the ClusterDevicePresets as the controller ships them, to let it write no others.
func TestShippedPresetsFile(t *testing.T) {
	specs := map[string]v1alpha1.ClusterDevicePresetSpec{}
	for _, p := range shippedpresets.Presets(shippedpresets.Vendors()) {
		specs[p.Name] = p.Spec
	}
	content, err := yaml.Marshal(specs)
	check.Must(t, err)
	head := "# What the controller ships, by name; the policy fettle-controller-clusterdevicepresets compares with it.\n" +
		"# To change it, change controller/shippedpresets and run go test ./test/chart -run TestShippedPresetsFile -update.\n"
	check.Golden(t, chartDir+"/files/presets.yaml", append([]byte(head), content...))
}
