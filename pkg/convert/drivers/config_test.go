// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

func TestConvertConfig(t *testing.T) {
	const nv = `"apiVersion":"resource.nvidia.com/v1beta1",`
	for _, tc := range []struct{ driver, raw, note, fault string }{
		{NVIDIA, `{` + nv + `"kind":"GpuConfig"}`, "the empty GpuConfig is left out", ""},
		{NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing"}}`, "it is what a GPU does", ""},
		{
			NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Tiny"}}}`, "",
			`interval: Unsupported value: "Tiny"`,
		},
		{
			NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":` +
				`{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","1":"2Gi"}}}}`,
			"", "one limit for all devices",
		},
		{NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0}}}`, "", "sharing"},
		{ // all but device 1 have half of it
			NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":` +
				`{"defaultPinnedDeviceMemoryLimit":"4Gi","defaultPerDevicePinnedMemoryLimit":{"1":"8Gi"}}}}`,
			"", "differs from defaultPinnedDeviceMemoryLimit",
		},
		{ // as NVIDIA's driver refuses them
			NVIDIA, `{` + nv + `"kind":"GpuConfig","sharing":{"strategy":"MPS","timeSlicingConfig":{"interval":"Long"}}}`,
			"", `sharing.timeSlicingConfig: it is of strategy TimeSlicing, and sharing.strategy is "MPS"`,
		},
		{NVIDIA, `{` + nv + `"kind":"VfioDeviceConfig","iommu":{"backendPolicy":"LegacyOnly","enableAPIDevice":true}}`, "iommu is left out", ""},
		{NVIDIA, `{` + nv + `"kind":"VfioDeviceConfig","iommu":{"backendPolicy":"PreferIommuFD"}}`, "", "never iommufd"},
		{NVIDIA, `{` + nv + `"kind":"ComputeDomainChannelConfig"}`, "", `kind "ComputeDomainChannelConfig": Fettle has nothing for it`},
		{NVIDIA, `{` + nv + `"kind":"GpuConfig","shraing":{}}`, "", `unknown field "shraing"`},
		{AMD, `{"apiVersion":"gpu.resource.amd.com/v1alpha1","kind":"GpuConfig"}`, "left out", ""},
		{Intel, `{"kind":"GpuConfig"}`, "", "Fettle has nothing for it"},
		{
			Example, `{"kind":"GpuConfig","sharing":{"strategy":"SpacePartitioning","spacePartitioningConfig":{"partitionCount":2}}}`, "",
			`sharing.strategy "SpacePartitioning"`,
		},
	} {
		got, err := ConvertConfig(tc.driver, []byte(tc.raw))
		if tc.fault != "" {
			check.WantErr(t, err, nil, tc.fault)
			continue
		}
		if err != nil || got.Parameters != nil || !strings.Contains(strings.Join(got.Notes, "\n"), tc.note) {
			t.Errorf("%s: got %+v, %v, want nothing left and the note %q", tc.raw, got, err, tc.note)
		}
	}
}

// TestConvertStrategies converts NVIDIA's strategies with all of their fields.
func TestConvertStrategies(t *testing.T) {
	const head = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`
	const all = `{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi","multiUser":true}`
	const perDevice = `{"defaultPerDevicePinnedMemoryLimit":{"0":"2Gi","1":"2Gi"}}`
	for from, want := range map[string]string{
		`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`: `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`,
		`{"strategy":"MPS"}`: `{"strategy":"MPS"}`,
		`{"strategy":"MPS","mpsConfig":` + all + `}`: `{"strategy":"MPS",` +
			`"mps":{"activeThreadPercentage":50,"pinnedMemoryLimit":"10Gi","multiUser":true}}`,
		`{"strategy":"MPS","mpsConfig":` + perDevice + `}`: `{"strategy":"MPS","mps":{"pinnedMemoryLimit":"2Gi"}}`,
	} {
		got, err := ConvertConfig(NVIDIA, []byte(head+from+"}"))
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		text, err := json.Marshal(got.Parameters.Sharing)
		if err != nil || string(text) != want || !strings.Contains(got.Notes[0], "spec.devices.sharing.strategies") {
			t.Errorf("%s: got %s, %v, %v, want %s", from, text, got.Notes, err, want)
		}
		if strings.Contains(from, "PerDevice") != strings.Contains(strings.Join(got.Notes, "\n"), "MemoryLimit of 0, 1 is the limit of all") {
			t.Errorf("%s: notes %q", from, got.Notes)
		}
	}
}

func TestConvertConstraint(t *testing.T) {
	for in, want := range map[string]string{
		"gpu.nvidia.com/parentUUID":        "fettle.dev/parentUUID",
		"gpu.amd.com/deviceID":             "fettle.dev/pciDeviceID", // cards of one model are equal in both
		"gpu.intel.com/pciId":              "fettle.dev/pciDeviceID",
		"gpu.nvidia.com/deviceID":          "fettle.dev/pciDeviceID",
		"gpu.amd.com/parentDeviceID":       "",
		"gpu.amd.com/parentPciAddr":        "resource.kubernetes.io/pciBusID",
		"gpu.amd.com/numaNode":             "resource.kubernetes.io/numaNode",
		"dra.net/numaNode":                 "resource.kubernetes.io/numaNode",
		"dra.net/rdma":                     "dra.net/rdma",
		"gpu.intel.com/pciRoot":            "resource.kubernetes.io/pcieRoot",
		"resource.kubernetes.io/pcieRoot":  "resource.kubernetes.io/pcieRoot",
		"gpu.nvidia.com/partition2":        "",
		"gpu.nvidia.com/nothing":           "",
		"gpu.intel.com/model":              "",
		"gpu.nvidia.com/productName":       "fettle.dev/productName",
		"gpu.example.com/driverVersion":    "fettle.dev/driverVersion",
		"other.example.com/productName":    "other.example.com/productName",
		"gpu.nvidia.com/cudaDriverVersion": "fettle.dev/cudaDriverVersion",
	} {
		got, err := ConvertConstraint(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestConvertLabel(t *testing.T) {
	for label, want := range map[string]string{
		"nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3": `.productName.replace(" ", "-") == "NVIDIA-H100-80GB-HBM3"`,
		"nvidia.com/gpu.product=NVIDIA-A100-SHARED":    "error",
		"nvidia.com/gpu.family=ada-lovelace":           `.architecture.lowerAscii().replace(" ", "-") == "ada-lovelace"`,
		"nvidia.com/gpu.memory=81559":                  `compareTo(quantity("81560Mi")) < 0`,
		"nvidia.com/gpu.compute.major=9":               `.computeCapability.major() == 9`,
		"amd.com/gpu.vram=64G":                         `compareTo(quantity("65024Mi")) >= 0`,
		"amd.com/gpu.device-id=74a1":                   `.pciDeviceID == "74a1"`,
		"gpu.intel.com/product=Max_1550":               `.productName.endsWith(" Max 1550")`,
		"nvidia.com/gpu.memory=much":                   "error",
		"nvidia.com/mig.strategy=single":               "",
	} {
		key, value, _ := strings.Cut(label, "=")
		got, ok, err := ConvertLabel(key, value)
		if ok != (want != "") || (err != nil) != (want == "error") || want != "error" && !strings.Contains(got, want) {
			t.Errorf("%s: got %q, %t, %v, want %q", label, got, ok, err, want)
		}
	}
}
