// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/manifest"
)

// MaxSidecar limits the length of a sidecar.
const MaxSidecar = 4096

// sidecar holds what a raw image's file does not state itself, as JSON or YAML. Its keys are those of Bitstream.
type sidecar struct {
	Format      Format   `json:"format"`
	ID          string   `json:"id"`
	InterfaceID string   `json:"interfaceID"`
	Name        string   `json:"name"`
	Platform    string   `json:"platform"`
	Clocks      Clocks   `json:"clocks"`
	Power       *float64 `json:"power"`
	Size        *int64   `json:"size"`
}

// InspectRaw reads an RBF or BIN image with its sidecar. All of the file goes to the device. Blocks of authentication at the start are
// reported and belong to the image.
func InspectRaw(r io.ReaderAt, size int64, sidecar []byte) (Bitstream, error) {
	described, err := decodeSidecar(sidecar)
	if err != nil {
		return Bitstream{}, fmt.Errorf("sidecar: %w", err)
	}
	if stated := described.Size; stated != nil && *stated != size {
		return Bitstream{}, fmt.Errorf("sidecar: size: got %d, but the image has %d bytes", *stated, size)
	}
	b, err := described.bitstream()
	if err != nil {
		return Bitstream{}, fmt.Errorf("sidecar: %w", err)
	}
	w := window{r: r, format: b.Format, size: size}
	format, err := recognise(w)
	if err != nil {
		return Bitstream{}, err
	}
	if format != "" {
		return Bitstream{}, w.errorf(0, "the file is not a raw image but describes itself (%s): want it without a sidecar", format)
	}
	if _, err := w.read(max(0, size-1), min(1, size), "the last byte"); err != nil {
		return Bitstream{}, err
	}
	if err := checkOrder(w); err != nil {
		return Bitstream{}, err
	}
	b.Size, b.Payload = size, &Payload{Length: size}
	if err := b.checkPayload(w); err != nil {
		return Bitstream{}, err
	}
	return b, b.findBlocks(w, false)
}

// What a file of Vivado begins with, and the word after which the device reads commands (UG570, table "Sync Word").
const (
	vivadoMagic  = "\x00\x09\x0f\xf0\x0f\xf0\x0f\xf0\x0f\xf0\x00\x00\x01a"
	syncWord     = "\x66\x55\x99\xaa"
	vivadoSync   = "\xaa\x99\x55\x66"
	makeBootable = "make it with bootgen -process_bitstream bin"
)

// checkOrder refuses images that Vivado writes for a programming cable, with the bytes of each word in the other order. The kernel finds no
// sync word in them when the region has been taken from its user already (zynq_fpga_ops_write_init in drivers/fpga/zynq-fpga.c). An image
// without either word, such as an encrypted one, is not judged.
func checkOrder(w window) error {
	const first = 4096
	head, err := w.read(0, min(first, w.size), "the first bytes")
	if err != nil {
		return err
	}
	if bytes.HasPrefix(head, []byte(vivadoMagic)) {
		return w.errorf(0, "this is a .bit of Vivado, whose header no kernel takes: %s", makeBootable)
	}
	wrong, right := bytes.Index(head, []byte(vivadoSync)), bytes.Index(head, []byte(syncWord))
	if w.format != BIN || wrong < 0 || right >= 0 && right < wrong {
		return nil
	}
	return w.errorf(int64(wrong), "the sync word aa995566 stands in the order of a programming cable, and the kernel wants 665599aa: %s",
		makeBootable)
}

func decodeSidecar(text []byte) (sidecar, error) {
	if len(text) > MaxSidecar {
		return sidecar{}, fmt.Errorf("%d bytes, want at most %d", len(text), MaxSidecar)
	}
	if err := checkYAML(text); err != nil {
		return sidecar{}, err
	}
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return sidecar{}, fmt.Errorf("want JSON or YAML: %w", err)
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return sidecar{}, errors.New("want an object with format, id and interfaceID")
	}
	var s sidecar
	strict, err := sigsjson.UnmarshalStrict(data, &s)
	if field, message, ok := manifest.WrongType(err); ok {
		err = fmt.Errorf("%s: %s", field, message)
	}
	return s, errors.Join(append(strict, err)...)
}

// nextDocument matches a line that ends a YAML document. Only comments may come before the first such line.
var nextDocument = regexp.MustCompile(`(?m)^(---|\.\.\.)(\s|$)`)

// preamble matches what may come before the document.
var preamble = regexp.MustCompile(`^(([ \t]*(#.*)?\n)*---\s)?`)

// checkYAML refuses a second document, and everything by which a short text becomes a long one.
func checkYAML(text []byte) error {
	if bytes.ContainsRune(text, '&') && bytes.ContainsRune(text, '*') {
		return errors.New("want YAML without anchors and aliases, so not both & and *")
	}
	// The decoder knows more ends of lines than this function, and reads one document only.
	lines := strings.ReplaceAll(string(text), "\r\n", "\n")
	if !utf8.ValidString(lines) || strings.ContainsFunc(lines, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }) {
		return errors.New("want printable text")
	}
	if nextDocument.MatchString(lines[len(preamble.FindString(lines)):]) {
		return errors.New("want one document")
	}
	return nil
}

// bitstream checks the fields of a sidecar and returns them.
func (s sidecar) bitstream() (Bitstream, error) {
	if s.Format != RBF && s.Format != BIN {
		return Bitstream{}, fmt.Errorf("format: got %q, want rbf or bin", s.Format)
	}
	if s.Power != nil && *s.Power < 0 {
		return Bitstream{}, fmt.Errorf("power: got %g, want no negative number", *s.Power)
	}
	id, idErr := afuID(s.ID)
	iface, ifaceErr := interfaceID(s.InterfaceID)
	if err := firstFault(fault{"id", idErr}, fault{"interfaceID", ifaceErr}, fault{"name", CheckText(s.Name)},
		fault{"platform", CheckText(s.Platform)}); err != nil {
		return Bitstream{}, err
	}
	return Bitstream{
		Format: s.Format, ID: id, AFUID: id, InterfaceID: iface, Name: s.Name, Platform: s.Platform, Clocks: s.Clocks, Power: s.Power,
	}, nil
}
