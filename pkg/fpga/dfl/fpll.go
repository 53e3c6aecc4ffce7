// SPDX-License-Identifier: Apache-2.0

package dfl

// The PLL behind the user clocks of ports of header revision 0 is the fPLL of an Arria 10, on a reference of 100 MHz. Its VCO runs at
// 2*reference*M.K/N; C0 divides a quarter of that to the high clock, and C1 to the low one. These are the limits within which the
// vendor's settings of filter and charge pump are the same for all frequencies, M.K from 30 to 40, and within which they are used here.
const (
	referenceKHz = 100_000
	lowestVCO    = 30 * referenceKHz // half the VCO's frequency, as M.K makes it
	// minClockKHz to maxClockKHz is the range of the high clock. The low one, always half of it, goes on to maxClockKHz itself: the high
	// clock is off then.
	minClockKHz, maxClockKHz = 25_000, 600_000
)

// coefficient is what the bits of mask of one register of the PLL become.
type coefficient struct {
	address     uint16
	mask, value byte
}

// coefficients are those for a high clock of so many kHz, or, above maxClockKHz, for a low clock of half of that.
func coefficients(kHz int64) []coefficient {
	const (
		bothOutputs, lowOnly = 0x30, 0x10
		off                  = 0xff
	)
	high, low, outputs := int64(off), ceil(lowestVCO, kHz), byte(lowOnly)
	if kHz <= maxClockKHz {
		high = ceil(lowestVCO, 2*kHz) // The smallest divider that keeps the VCO above its lower limit.
		low, outputs = 2*high, bothOutputs
	}
	vco := kHz * low
	fraction := uint32(vco % referenceKHz << 32 / referenceKHz)
	fraction = max(fraction, 1) // The modulator stays on for whole numbers too.
	return []coefficient{
		{0x10f, 0xff, byte(high)},
		{0x110, 0xff, byte(low)},
		{0x111, 0xff, outputs},
		{0x12a, 0xfc, 0xe4}, // modulator
		{0x12b, 0xff, byte(vco / referenceKHz)},
		{0x12c, 0xff, 1 << 3}, // N
		{0x12d, 0xff, byte(fraction)},
		{0x12e, 0xff, byte(fraction >> 8)},
		{0x12f, 0xff, byte(fraction >> 16)},
		{0x130, 0xff, byte(fraction >> 24)},
		{0x133, 0x7f, 0x0a}, // loop filter
		{0x134, 0x7c, 0x10}, // charge pump, low bits
		{0x135, 0xff, 0x03}, // charge pump, high bits
		{0x142, 0x7f, 0x04},
	}
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
