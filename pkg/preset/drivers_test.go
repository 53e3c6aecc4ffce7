// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestDrivers: requests that containers use together get one driver, the latest, and others are left alone.
func TestDrivers(t *testing.T) {
	driver := func(name, class, fields string) preset.Preset {
		return ofCluster(t, name, "deviceSelector: {deviceClassNames: ["+class+"]}\ndriver: {vendor: NVIDIA"+fields+"}")
	}
	in := input(pod(container("main", "a", "b"), container("side", "c")),
		[]preset.Preset{
			driver("p", gpu, ", root: /run/driver"), driver("q", fpga, ""),
			driver("r", "c", ", optional: true"), driver("s", "c", ", optional: true"),
		},
		claim("a", device("r", gpu)), claim("b", device("r", fpga)), claim("c", device("r", "c")))
	got := []string{}
	var overrides []string
	for _, request := range resolve(t, in).Requests {
		for _, d := range request.Drivers {
			line := request.Claim + " " + string(d.Vendor) + " in " + d.Root + " of " + d.From.Name
			for _, o := range d.Overrode {
				line += " over " + o.Name
			}
			got = append(got, line)
		}
		overrides = append(overrides, request.Overrides()...)
	}
	want := []string{"a NVIDIA in  of q over p", "b NVIDIA in  of q over p", "c NVIDIA in  of s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("drivers (-want +got):\n%s", diff)
	}
	told := "the driver of NVIDIA of ClusterDevicePreset q overrides that of ClusterDevicePreset p"
	if diff := cmp.Diff([]string{told, told}, overrides); diff != "" {
		t.Errorf("overrides (-want +got):\n%s", diff)
	}
}
