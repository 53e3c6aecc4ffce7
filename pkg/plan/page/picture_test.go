// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// checkContrast looks at the blocks without colours, as a person who sees none and a printer without colour do. What is written in a block
// can be read, and what is held is far darker or lighter than what is free or new.
func checkContrast(t *testing.T, b *browser, got seen) {
	t.Helper()
	b.call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "achromatopsia"}, nil)
	defer b.call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "none"}, nil)
	whole, err := png.Decode(bytes.NewReader(b.screenshot(rect{0, 0, got.Width, got.Height})))
	check.Must(t, err)
	ground := map[string]float64{}
	for _, card := range got.Cards {
		for _, block := range card.Blocks {
			darkest, lightest, common := luminances(whole, block.Box)
			if c := contrast(darkest, lightest); c < 4.5 {
				t.Errorf("card %s: block %q %q has a contrast of %.1f, want 4.5", card.Name, block.Text, block.Mark, c)
			}
			ground[block.Mark] = common
		}
	}
	held, ok := ground["held"]
	if !ok {
		t.Fatal("no block is held")
	}
	for _, other := range []string{"", "new"} {
		if l, ok := ground[other]; ok && contrast(held, l) < 3 {
			t.Errorf("what is held and what is %q have a contrast of %.1f, want 3", cmp.Or(other, "free"), contrast(held, l))
		}
	}
}

// luminances returns the least, the greatest and the most frequent luminance within a block, whose border is left out.
func luminances(picture image.Image, r rect) (least, greatest, common float64) {
	counts := map[float64]int{}
	least = math.Inf(1)
	for y := int(r.Y) + 4; y < int(r.Y+r.H)-4; y++ {
		for x := int(r.X) + 4; x < int(r.X+r.W)-4; x++ {
			l := luminance(picture.At(x, y))
			counts[l]++
			least, greatest = min(least, l), max(greatest, l)
		}
	}
	most := 0
	for _, l := range slices.Sorted(maps.Keys(counts)) {
		if counts[l] > most {
			most, common = counts[l], l
		}
	}
	return least, greatest, common
}

// luminance is the relative luminance of WCAG 2.
func luminance(c color.Color) float64 {
	r, g, b, _ := c.RGBA()
	linear := func(v uint32) float64 {
		s := float64(v) / 0xffff
		if s <= 0.04045 {
			return s / 12.92
		}
		return math.Pow((s+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b)
}

// contrast is the contrast ratio of WCAG 2.
func contrast(a, b float64) float64 { return (max(a, b) + 0.05) / (min(a, b) + 0.05) }

// picture writes a screenshot for the documents, in at most 128 colours.
func picture(t *testing.T, b *browser, file string) {
	t.Helper()
	b.show(look{1200, 900, "screen", "light"})
	got := b.measured()
	decoded, err := png.Decode(bytes.NewReader(b.screenshot(rect{0, 0, got.Width, got.Height})))
	check.Must(t, err)
	counts := map[color.Color]int{}
	for y := range decoded.Bounds().Dy() {
		for x := range decoded.Bounds().Dx() {
			counts[decoded.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(luminance(a), luminance(b)))
	})
	small := image.NewPaletted(decoded.Bounds(), color.Palette(colours[:min(len(colours), 128)]))
	draw.Draw(small, small.Bounds(), decoded, image.Point{}, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	check.Must(t, encoder.Encode(&out, small))
	check.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	check.Must(t, os.WriteFile(file, out.Bytes(), 0o644))
	t.Logf("%s: %d bytes, %d colours", file, out.Len(), len(colours))
}
