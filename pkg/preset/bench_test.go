// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"fmt"
	"testing"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// BenchmarkResolve gives 200 presets, a quarter of them with CEL, to one of 50 claims after the other. A claim has one GPU of ten models;
// about a tenth of the presets are for it.
func BenchmarkResolve(b *testing.B) {
	var presets []preset.Preset
	for i := range 200 {
		selector := fmt.Sprintf("deviceSelector: {deviceClassNames: [class-%d.example.com]}", i%10)
		if i%4 == 0 {
			selector = fmt.Sprintf(`deviceSelector: {cel: 'device.attributes["fettle.dev"].model == "model-%d"'}`, i%10)
		}
		presets = append(presets, ofCluster(b, fmt.Sprintf("p%03d", i), selector+fmt.Sprintf(`
env: [{name: A%d, value: x}, {name: JOINED, value: /x%d, mode: append}, {name: LD_LIBRARY_PATH, value: /lib%d, mode: append}]
mounts: [{hostPath: /opt/%d, containerPath: /opt/%d}]
libraries: [{names: ["lib%d.so.*"]}]`, i%7, i, i, i, i%5, i)))
	}
	var inputs []preset.Input
	for i := range 50 {
		d := device("gpu", fmt.Sprintf("class-%d.example.com", i%10), fmt.Sprintf("model=model-%d", i%10), fmt.Sprintf("serial=%d", i))
		inputs = append(inputs, input(pod(with(container("main", "a"), "JOINED=/own")), presets, claim("a", d)))
	}
	conditions := &preset.Conditions{}
	given := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := preset.Resolve(b.Context(), inputs[i%len(inputs)], conditions)
		given += len(r.Requests[0].Presets)
	}
	b.ReportMetric(float64(given)/float64(b.N), "presets/claim")
}
