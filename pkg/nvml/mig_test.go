// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestDecodeMIG(t *testing.T) {
	const device = `{"driverVersion":"580.95.05","devices":[{"pciBusID":"00000000:1B:00.0","mig":{"current":true,"pending":true,%s}}]}`
	good := fmt.Sprintf(device, `"profiles":[{"id":19,"name":"1g.10gb","placements":[{"start":6,"size":1}],"slices":1,"memoryMB":9728,`+
		`"multiprocessors":16,"maxInstances":7}],"instances":[{"id":9,"profileID":19,"placement":{"start":6,"size":1}}]`)
	report, err := Decode(strings.NewReader(good))
	if err != nil || report.Devices[0].MIG.Profiles[0].Placements[0] != (MIGPlacement{Start: 6, Size: 1}) {
		t.Errorf("%+v, %v", report, err)
	}
	for name, bad := range map[string]string{
		"no name":           `"profiles":[{"id":1,"name":"","placements":[]}]`,
		"no size":           `"profiles":[{"id":1,"name":"x","placements":[{"start":0,"size":0}]}]`,
		"too far":           `"instances":[{"id":1,"profileID":1,"placement":{"start":64,"size":1}}]`,
		"beyond all number": fmt.Sprintf(`"instances":[{"id":1,"profileID":1,"placement":{"start":%d,"size":%d}}]`, math.MaxUint32, 2),
	} {
		if _, err := Decode(strings.NewReader(fmt.Sprintf(device, bad))); err == nil || !strings.Contains(err.Error(), "devices[0].mig.") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, test := range []struct {
		a, b MIGPlacement
		want bool
	}{
		{MIGPlacement{0, 4}, MIGPlacement{4, 4}, false},
		{MIGPlacement{0, 4}, MIGPlacement{3, 1}, true},
		{MIGPlacement{2, 1}, MIGPlacement{0, 8}, true},
	} {
		if test.a.Overlaps(test.b) != test.want || test.b.Overlaps(test.a) != test.want {
			t.Errorf("%v and %v: want %t", test.a, test.b, test.want)
		}
	}
}
