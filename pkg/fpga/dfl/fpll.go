// SPDX-License-Identifier: Apache-2.0

package dfl

// The PLL behind the user clocks of ports of header revision 0 is the fPLL of an Arria 10, on a reference of 100 MHz. Its VCO runs at
// 2*reference*M.K/N; C0 divides a quarter of that to the high clock, and C1 to the low one. M.K stays between 30 and 40: within these
// limits the vendor's settings of filter and charge pump are the same for all frequencies.
const (
	referenceKHz = 100_000
	lowestVCO    = 30 * referenceKHz // half the VCO's frequency, as M.K makes it
	// minClockKHz and maxClockKHz limit the high clock. The low clock is always half of it. The low clock alone may go up to maxClockKHz; the
	// high clock is off then.
	minClockKHz, maxClockKHz = 25_000, 600_000
)

// coefficient gives the new value for the bits in mask of one register of the PLL.
type coefficient struct {
	address     uint16
	mask, value byte
}

// coefficients returns the coefficients for a high clock of kHz. Above maxClockKHz they are for a low clock of half of that.
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
