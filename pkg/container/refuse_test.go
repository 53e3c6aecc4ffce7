// SPDX-License-Identifier: Apache-2.0

package container

import "testing"

func TestCheckNode(t *testing.T) {
	for _, tt := range []struct {
		name         string
		major, minor int64
		allowed      bool
	}{
		{"/dev/mem", 1, 1, false},
		{"/dev/innocent", 1, 1, false},
		{"/dev/kmem", 1, 2, false},
		{"/dev/port", 1, 4, false},
		{"/dev/kmsg", 1, 11, false},
		{"/dev/oldmem", 1, 12, false},
		{"/dev/cpu/0/msr", 202, 0, false},
		{"/dev/snapshot", 10, 231, false},
		{"/dev/mapper/control", 10, 236, false},
		{"/dev/sg0", 21, 0, false},
		{"/dev/raw/raw1", 162, 1, false},
		{"/dev/nvme0", 240, 0, false},
		{"/dev/ng0n1", 241, 0, false},
		{"/dev/bsg/0:0:0:0", 242, 0, false},
		{"/dev/nvme-fabrics", 10, 122, true},
		{"/dev/ngx", 250, 0, true},
		{"/dev/fuse", 10, 229, true},
		{"/dev/dfl-fme.0", 240, 0, false},
		{"/dev/intel-fpga-fme.1", 240, 1, false},
		{"/dev/xclmgmt9216", 241, 0, false},
		{"/dev/null", 1, 3, true},
		{"/dev/zero", 1, 5, true},
		{"/dev/dfl-port.0", 240, 0, true},
		{"/dev/nvidia0", 195, 0, true},
		{"/dev/dri/renderD128", 226, 128, true},
		{"/dev/ttyUSB0", 188, 0, true},
		{"/dev/xclmgmtx/other", 1, 3, true},
	} {
		if err := CheckNode(tt.name, tt.major, tt.minor); (err == nil) != tt.allowed {
			t.Errorf("%s (%d:%d): %v", tt.name, tt.major, tt.minor, err)
		}
	}
}
