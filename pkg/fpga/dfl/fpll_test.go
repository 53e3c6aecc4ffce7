// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"fmt"
	"testing"
)

// TestCoefficients against settings that the vendor's software uses, for the ends of each range and fractions of all kinds.
func TestCoefficients(t *testing.T) {
	for _, tc := range []struct {
		kHz  int64
		want string // C0 C1 outputs M N K
	}{
		{25_000, "3c 78 30 1e 08 00000001"},
		{26_000, "3a 74 30 1e 08 28f5c28f"},
		{27_000, "38 70 30 1e 08 3d70a3d7"},
		{157_000, "0a 14 30 1f 08 66666666"},
		{166_000, "0a 14 30 21 08 33333333"},
		{167_000, "09 12 30 1e 08 0f5c28f5"},
		{175_000, "09 12 30 1f 08 80000000"},
		{499_000, "04 08 30 27 08 eb851eb8"},
		{500_000, "03 06 30 1e 08 00000001"},
		{600_000, "03 06 30 24 08 00000001"},
		{601_000, "ff 05 10 1e 08 0ccccccc"},
		{620_000, "ff 05 10 1f 08 00000001"},
		{999_000, "ff 04 10 27 08 f5c28f5c"},
		{1_000_000, "ff 03 10 1e 08 00000001"},
		{1_199_000, "ff 03 10 23 08 f851eb85"},
		{1_200_000, "ff 03 10 24 08 00000001"},
	} {
		r := map[uint16]byte{}
		for _, c := range coefficients(tc.kHz) {
			r[c.address] = c.value
		}
		got := fmt.Sprintf("%02x %02x %02x %02x %02x %02x%02x%02x%02x", r[0x10f], r[0x110], r[0x111], r[0x12b], r[0x12c],
			r[0x130], r[0x12f], r[0x12e], r[0x12d])
		if got != tc.want {
			t.Errorf("%d kHz: %s, want %s", tc.kHz, got, tc.want)
		}
		if r[0x12a] != 0xe4 || r[0x133] != 0x0a || r[0x134] != 0x10 || r[0x135] != 0x03 || r[0x142] != 0x04 {
			t.Errorf("%d kHz: the filter is %#v", tc.kHz, r)
		}
	}
}

// TestCoefficientsAll: every frequency comes out within a part in a million, with the VCO where the filter is right.
func TestCoefficientsAll(t *testing.T) {
	for kHz := int64(minClockKHz); kHz <= 2*maxClockKHz; kHz += 10 {
		r := map[uint16]uint64{}
		for _, c := range coefficients(kHz) {
			r[c.address] = uint64(c.value)
		}
		m := float64(r[0x12b]) + float64(r[0x12d]|r[0x12e]<<8|r[0x12f]<<16|r[0x130]<<24)/(1<<32)
		low := referenceKHz * m / 2 / float64(r[0x110])
		if want := float64(kHz) / 2; low < want*(1-1e-6) || low > want*(1+1e-6) || m < 30 || m > 40 {
			t.Fatalf("%d kHz: the low clock is %f, M.K %f", kHz, low, m)
		}
		if kHz <= maxClockKHz && r[0x110] != 2*r[0x10f] {
			t.Fatalf("%d kHz: the outputs' dividers are %d and %d", kHz, r[0x10f], r[0x110])
		}
	}
}

func TestTolerance(t *testing.T) {
	for _, tc := range []struct {
		got, want int64
		ok        bool
	}{
		{400_000, 400_000, true},
		{400_050, 400_000, true},
		{399_950, 400_000, true},
		{400_060, 400_000, false},
		{399_940, 400_000, false},
		{25_010, 25_000, true},
		{25_020, 25_000, false},
	} {
		if isClock(tc.got, tc.want) != tc.ok {
			t.Errorf("%d kHz for %d: %t", tc.got, tc.want, !tc.ok)
		}
	}
}
