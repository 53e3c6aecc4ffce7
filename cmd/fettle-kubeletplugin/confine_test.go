// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// unconfined keeps the test's own process as it is.
func unconfined(*nodeconfig.File) error { return nil }

func TestRights(t *testing.T) {
	var stdout, stderr strings.Builder
	c := &command{args: []string{"rights"}, stdout: &stdout, stderr: &stderr, confine: unconfined}
	if code := c.run(t.Context()); code != 0 || stderr.Len() > 0 || !strings.HasPrefix(stdout.String(), "features: nvidia\nCapEff: ") {
		t.Errorf("status %d, %s%s", code, stdout.String(), stderr.String())
	}
	c.args = append(c.args, "--config=/nowhere")
	if code := c.run(t.Context()); code != 1 {
		t.Errorf("status %d of a file that is not there", code)
	}
}

func TestFeatures(t *testing.T) {
	const head = "apiVersion: config.fettle.dev/v1alpha1\nkind: KubeletPluginConfiguration\n"
	const noNVML = "nvml: {disabled: true}\n"
	for _, tc := range []struct {
		name, config string
		want         []confine.Feature
	}{
		{"defaults", "", []confine.Feature{confine.NVIDIA}},
		{"nothing", noNVML, nil},
		{"directories", noNVML + "hostDevices: [{name: a, directories: [/mnt/a]}]", []confine.Feature{confine.HostDirectories}},
		{"host devices without directories", noNVML + "hostDevices: [{name: a, charDevices: [/dev/a]}]", nil},
		{"presets", noNVML + "presets: {hostDirectories: [/usr]}", nil},
		{"scratch of presets", noNVML + "presets: {scratch: true}", []confine.Feature{confine.PresetMounts}},
		{"paths of presets", noNVML + "presets: {allowedHostPaths: [{path: /mnt/a}]}", []confine.Feature{confine.PresetMounts}},
		{"caches", noNVML + "kernelCaches: {enabled: true}", []confine.Feature{confine.KernelCaches}},
		{"strategies", "partitions: {strategies: true}", []confine.Feature{confine.NVIDIA, confine.Sharing}},
		{
			"MPS", "partitions: {strategies: true, mpsSupervisor: /run/fettle-mps}",
			[]confine.Feature{confine.NVIDIA, confine.Sharing, confine.MPSMemory},
		},
		{"strategies without NVIDIA's library", noNVML + "partitions: {strategies: true}", nil},
		{"FPGAs", noNVML + "fpga: {programming: true, backends: [dfl, fpga_manager]}", nil},
		{"XRT's FPGAs", noNVML + "fpga: {programming: true, backends: [xrt]}", []confine.Feature{confine.XRT}},
		{"XRT's FPGAs as they are", noNVML + "fpga: {backends: [xrt]}", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, err := nodeconfig.Parse([]byte(head + tc.config))
			if err != nil {
				t.Fatal(err)
			}
			if got := features(&file); !slices.Equal(got, tc.want) {
				t.Errorf("features %v, want %v", got, tc.want)
			}
		})
	}
}
