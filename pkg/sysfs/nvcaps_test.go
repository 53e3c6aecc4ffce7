// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

func TestMIGCapability(t *testing.T) {
	const caps = "proc/driver/nvidia/capabilities/gpu1/mig/"
	long := strings.Repeat("gpu9/gi9/access 9\n", 5000) // more than other files may have
	tree, _ := newTree(t, map[string]string{
		caps + "gi2/access":     "DeviceFileMinor: 156\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		caps + "gi2/ci0/access": "DeviceFileMinor: 157\n",
		caps + "gi3/access":     "DeviceFileMinor: -1\n",
		caps + "gi4/access":     "DeviceFileMode: 256\n",
		sysfs.ProcNVIDIAMIGMinors: "config 1\nmonitor 2\n" + long + "gpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\ngpu1/gi2/access 1\n" +
			"gpu1/gi6/access x\n",
	})
	for _, tc := range []struct {
		gi   uint32
		ci   int
		want int64
		err  error
	}{
		{gi: 2, ci: -1, want: 156},
		{gi: 2, ci: 0, want: 157},
		{gi: 1, ci: -1, want: 147},
		{gi: 1, ci: 0, want: 148},
		{gi: 3, ci: -1, err: sysfs.ErrMalformed},
		{gi: 4, ci: -1, err: sysfs.ErrMalformed},
		{gi: 5, ci: -1, err: fs.ErrNotExist},
		{gi: 6, ci: -1, err: sysfs.ErrMalformed},
	} {
		if got, err := tree.MIGCapability(1, tc.gi, tc.ci); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("GPU instance %d, compute instance %d: %d, %v; want %d, %v", tc.gi, tc.ci, got, err, tc.want, tc.err)
		}
	}
	if ids, err := tree.MIGInstances(1); !slices.Equal(ids, []uint32{2, 3, 4}) || err != nil {
		t.Errorf("GPU instances %v, %v", ids, err)
	}
	odd, _ := newTree(t, map[string]string{caps + "giant/access": ""})
	if _, err := odd.MIGInstances(1); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("an instance without a number: %v", err)
	}
	none, _ := newTree(t, map[string]string{"proc/x": ""})
	if ids, err := none.MIGInstances(0); len(ids) > 0 || err != nil {
		t.Errorf("without a driver: %v, %v", ids, err)
	}
	if _, err := none.MIGCapability(0, 0, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a driver: %v", err)
	}
}
