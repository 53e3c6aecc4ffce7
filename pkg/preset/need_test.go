// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestNeedOf: each vendor's devices need what the shipped preset of the vendor gives, and only NVIDIA's need it from the node.
func TestNeedOf(t *testing.T) {
	for _, test := range []struct {
		words    []string
		shipped  string
		fromNode bool
	}{
		{[]string{"vendor=nvidia", "type=gpu"}, "nvidia.fettle.dev", true},
		{[]string{"vendor=nvidia", "type=mig"}, "nvidia.fettle.dev", true},
		{[]string{"vendor=nvidia", "type=vfio"}, "", false},
		{[]string{"vendor=amd", "type=gpu"}, "amd.fettle.dev", false},
		{[]string{"vendor=amd", "type=partition"}, "amd.fettle.dev", false},
		{[]string{"vendor=amd", "type=vf"}, "amd.fettle.dev", false},
		{[]string{"vendor=amd", "type=vfio"}, "", false},
		{[]string{"vendor=intel", "type=gpu"}, "intel.fettle.dev", false},
		{[]string{"vendor=intel", "type=vf"}, "intel.fettle.dev", false},
		{[]string{"vendor=amd", "type=fpga", "backend=xrt"}, "xrt.fettle.dev", false},
		{[]string{"vendor=silicom", "type=fpga", "backend=dfl"}, "opae.fettle.dev", false},
		{[]string{"vendor=amd", "type=fpga", "backend=fpga_manager"}, "", false},
		{[]string{"vendor=host", "type=host"}, "", false},
		{nil, "", false},
	} {
		d := device("r", gpu, test.words...)
		need, needed := preset.NeedOf(&d)
		if needed != (test.shipped != "") || need.Shipped != test.shipped || need.FromNode != test.fromNode {
			t.Errorf("%v: %+v, %v", test.words, need, needed)
		}
	}
}
