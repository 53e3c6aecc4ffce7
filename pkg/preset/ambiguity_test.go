// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestAmbiguities: what a container has by its pod's claim and otherwise by one that pods share is told of, and nothing else is.
func TestAmbiguities(t *testing.T) {
	const forFPGA = "deviceSelector: {deviceClassNames: [fpga.fettle.dev]}\n"
	both := func(a, b string) []preset.Preset {
		return []preset.Preset{ofCluster(t, "gpus", forGPU+a), ofCluster(t, "fpgas", forFPGA+b)}
	}
	one := pod(container("other", "b"), container("main", "a", "b"))
	for name, tc := range map[string]struct {
		presets []preset.Preset
		apart   bool
		want    []string
	}{
		"variable": {presets: both("env: [{name: X, value: '1'}]", "env: [{name: X, value: '2'}]"), want: []string{
			"a/gpu: variable X is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas in claim b, which pods share; " +
				"container main uses both",
		}},
		"mount": {
			presets: both("mounts: [{hostPath: /opt/1, containerPath: /x}]", "mounts: [{hostPath: /opt/2, containerPath: /x}]"),
			want:    []string{"a/gpu: the mount at /x is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas"},
		},
		"device node": {
			presets: both("deviceNodes: [{path: /dev/x}]", "deviceNodes: [{path: /dev/x, readOnly: true}]"),
			want:    []string{"a/gpu: device node /dev/x is of ClusterDevicePreset gpus here"},
		},
		"driver": {
			presets: both("driver: {vendor: NVIDIA, root: /run/1}", "driver: {vendor: NVIDIA, root: /run/2}"),
			want:    []string{"a/gpu: the driver of NVIDIA is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas"},
		},
		"library": {
			presets: both("libraries: [{names: [libx.so, liba.so], root: /opt/1}]", "libraries: [{names: [libb.so, libx.so], root: /opt/2}]"),
			want:    []string{"a/gpu: library libx.so is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas"},
		},
		"tool": {
			presets: both("tools: [{names: [x]}]", "tools: [{names: [x], directories: [/opt/2]}]"),
			want:    []string{"a/gpu: tool x is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas"},
		},
		"link": {
			presets: both("hooks: [{name: links, links: [{path: /x/l, target: a}]}]", "hooks: [{name: links, links: [{path: /x/l, target: b}]}]"),
			want:    []string{"a/gpu: the link /x/l is of ClusterDevicePreset gpus here, and another of ClusterDevicePreset fpgas"},
		},
		"the same library":   {presets: both("libraries: [{names: [libx.so]}]", "libraries: [{names: [libx.so]}]")},
		"the same value":     {presets: both("env: [{name: X, value: '1'}]", "env: [{name: X, value: '1'}]")},
		"other variables":    {presets: both("env: [{name: X, value: '1'}]", "env: [{name: OTHER, value: '2'}]")},
		"another container":  {presets: both("env: [{name: X, value: '1'}]", "env: [{name: X, value: '2'}]"), apart: true},
		"one preset for all": {presets: []preset.Preset{ofCluster(t, "all", forAll+"env: [{name: X, value: '1'}]")}},
		"joined to the pod's, which the shared claim hides": {
			presets: []preset.Preset{ofCluster(t, "all", forAll+"env: [{name: POD, value: x, mode: append}]")},
			want:    []string{"a/gpu: variable POD is of ClusterDevicePreset all here, and another of ClusterDevicePreset all"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := one.DeepCopy()
			p.Spec.Containers[1] = with(p.Spec.Containers[1], "POD=own")
			if tc.apart {
				p.Spec.Containers[1].Resources.Claims = p.Spec.Containers[1].Resources.Claims[:1]
			}
			in := input(p, tc.presets, claim("a", device("gpu", gpu)))
			in.Shared = []preset.Claim{shared(claim("b", device("fpga", fpga)))}
			resolution := resolve(t, in)
			var got []string
			for _, a := range preset.Ambiguities(t.Context(), in, &resolution, &preset.Conditions{}) {
				got = append(got, a.Claim+"/"+a.Request+": "+a.Message)
			}
			wantLines(t, "told", got, tc.want...)
			for _, line := range got {
				if !strings.HasSuffix(line, "let one preset decide it for both claims") {
					t.Errorf("%q does not say what to do", line)
				}
			}
		})
	}
}
