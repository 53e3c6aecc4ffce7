// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAllFaultsAtOnce: a value of a wrong type hides no other fault.
func TestAllFaultsAtOnce(t *testing.T) {
	text := `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: work, lables: {a: b}, annotations: [x], creationTimestamp: yesterday}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu.fettle.dev, cuont: 2, count: two}
    - name: [nic]
      exactly: {deviceClassName: gpu.fettle.dev, selectors: [{cel: {expression: 'device.attributes["fettle.dev"].vender == "x"'}}]}
    config:
    - requests: gpu
      opaque: {driver: fettle.dev, parameters: {apiVersion: fettle.dev/v1alpha1, kind: GPUConfig, sharing: {strateggy: Exclusive}}}
`
	findings, err := ValidateYAML(strings.NewReader(text), "f")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, f.Field)
	}
	want := []string{
		"metadata.annotations", "metadata.creationTimestamp", "metadata.lables", "spec.devices.config[0].requests",
		"spec.devices.requests[0].exactly.count", "spec.devices.requests[0].exactly.cuont", "spec.devices.requests[1].name",
		"spec.devices.config[0].opaque.parameters.sharing.strateggy", "spec.devices.requests[1].exactly.selectors[0].cel.expression",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s\n%v", diff, findings)
	}
}

// TestManifestsTogether: a claim is judged by the class and the bitstream of other files.
func TestManifestsTogether(t *testing.T) {
	const header = "apiVersion: resource.k8s.io/v1\n"
	class := Manifest{Name: "class.yaml", Text: []byte(header + `kind: DeviceClass
metadata: {name: team}
spec:
  selectors: [{cel: {expression: 'device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "fpga"'}}]
  config:
  - opaque: {driver: fettle.dev, parameters: {apiVersion: fettle.dev/v1alpha1, kind: FPGAConfig, policy: {allowedBitstreams: [team/other]}}}
`)}
	bitstream := Manifest{Name: "bitstream.yaml", Text: []byte(`apiVersion: fettle.dev/v1alpha1
kind: FPGABitstream
metadata: {name: nlb, namespace: team}
spec: {image: "registry.example/team/nlb:1"}
`)}
	claim := Manifest{Name: "claim.yaml", Text: []byte(header + `kind: ResourceClaim
metadata: {name: work, namespace: team}
spec:
  devices:
    requests: [{name: region, exactly: {deviceClassName: team}}]
    config:
    - opaque: {driver: fettle.dev, parameters: {apiVersion: fettle.dev/v1alpha1, kind: FPGAConfig, bitstream: {name: nlb}}}
    - opaque: {driver: gpu.nvidia.com, parameters: {kind: GpuConfig}}
`)}
	report := ValidateManifests([]Manifest{claim, bitstream, class})
	if len(report.Findings) != 2 || report.Faults() != 1 || report.Objects != 2 {
		t.Fatalf("report %+v", report)
	}
	if got := report.Findings[0].String(); !strings.HasPrefix(got, "claim.yaml:1: ResourceClaim team/work: "+
		"spec.devices.config[0].opaque.parameters.bitstream: Forbidden: FPGABitstream team/nlb is in neither") {
		t.Errorf("finding %q", got)
	}
	if got := report.Findings[1].String(); !strings.HasPrefix(got, "claim.yaml:1: warning: ResourceClaim team/work: "+
		"spec.devices.config[1].opaque: the parameters for driver gpu.nvidia.com") {
		t.Errorf("finding %q", got)
	}
	if report := ValidateManifests([]Manifest{claim}); len(report.Findings) != 0 {
		t.Errorf("without the class: %v", report.Findings)
	}
}
