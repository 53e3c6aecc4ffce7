// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

func TestInspectRaw(t *testing.T) {
	json := `{"format":"bin","id":"` + nlb0 + `","interfaceID":"` + shell + `"}`
	for _, test := range []struct {
		name, sidecar string
		image         []byte
		want          Bitstream
	}{
		{"yaml", rawSidecar, rbf(100), nlb(func(b *Bitstream) {
			b.Format, b.Contexts, b.Clocks = RBF, 0, Clocks{High: &Clock{MHz: 312.5}, Low: &Clock{Auto: true}}
		})},
		{"json", json, rbf(1), Bitstream{Format: BIN, ID: nlb0, AFUID: nlb0, InterfaceID: shell}},
		{"a document that begins", "# a comment\n---\n" + json, rbf(1), Bitstream{Format: BIN, ID: nlb0, AFUID: nlb0, InterfaceID: shell}},
		{
			"lines of another system", "format: bin\r\nid: " + nlb0 + "\r\ninterfaceID: " + shell + "\r\n", rbf(1),
			Bitstream{Format: BIN, ID: nlb0, AFUID: nlb0, InterfaceID: shell},
		},
		{"blocks and an image", json, concat(buildBlocks(), rbf(1)), Bitstream{
			Format: BIN, ID: nlb0, AFUID: nlb0, InterfaceID: shell, Signature: &Signature{Length: blocks},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := InspectRaw(bytes.NewReader(test.image), int64(len(test.image)), []byte(test.sidecar))
			if err != nil {
				t.Fatal(err)
			}
			test.want.Size, test.want.Payload = int64(len(test.image)), &Payload{Length: int64(len(test.image))}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if image := open(t, got, test.image); !bytes.Equal(image, test.image) {
				t.Errorf("the payload is %x, want all of the file", image)
			}
		})
	}
}

// vivado makes a .bit: a header and an image.
func vivado(design, sync string) []byte {
	return concat([]byte(vivadoMagic+"\x00"+string(rune(len(design)))+design), bytes.Repeat([]byte{0xff}, 33), []byte(sync))
}

// TestOrderOfBytes: an image in the order that the kernel wants is taken, whatever comes later in it, and so is one that says nothing.
func TestOrderOfBytes(t *testing.T) {
	sidecar := []byte("format: bin\nid: " + nlb0 + "\ninterfaceID: " + shell + "\n")
	for name, image := range map[string][]byte{
		"swapped":   []byte("\xff\xff\xff\xff" + syncWord + "\x20\x00\x00\x00" + vivadoSync),
		"encrypted": bytes.Repeat([]byte{0x5a}, 9000),
		"far away":  concat(make([]byte, 5000), []byte(vivadoSync)),
	} {
		if _, err := InspectRaw(bytes.NewReader(image), int64(len(image)), sidecar); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Inspect(bytes.NewReader(vivado("d", vivadoSync)), int64(len(vivado("d", vivadoSync))))
	check.WantErr(t, err, nil, "this is a .bit of Vivado, whose header no kernel takes")
}

func TestInspectRawRefuses(t *testing.T) {
	minimal := "format: rbf\nid: " + nlb0 + "\ninterfaceID: " + shell + "\n"
	for _, test := range []struct {
		name, sidecar string
		image         []byte
		want          string
	}{
		{"no image", minimal, nil, "rbf: 0x0: want an image, but the file ends"},
		{
			"an image that describes itself",
			minimal, buildGBS(nlb0Metadata, rbf(1)), "rbf: 0x0: the file is not a raw image but describes itself (gbs)",
		},
		{"a .bit of Vivado", minimal, vivado("design;Version=2022.2", vivadoSync), "rbf: 0x0: this is a .bit of Vivado"},
		{
			"a .bin of Vivado", strings.Replace(minimal, "rbf", "bin", 1), concat(bytes.Repeat([]byte{0xff}, 48), []byte(vivadoSync)),
			"bin: 0x30: the sync word aa995566 stands in the order of a programming cable",
		},
		{"a number", strings.Replace(minimal, nlb0, strings.Repeat("1", 32), 1), rbf(1), "sidecar: id: got a number, want text: put the"},
		{"no object", minimal + "clocks: 4\n", rbf(1), "sidecar: clocks: got a number, want an object"},
		{"legacy header", minimal, concat([]byte(legacyMagic), rbf(100)), "before release 6.4"},
		{"blocks without an image", minimal, buildBlocks(), "want 1024 bytes of signature and then an image"},
		{"nothing", "", rbf(1), "sidecar: want an object"},
		{"a list", "[]", rbf(1), "sidecar: want an object"},
		{"no text", "format: \x00", rbf(1), "sidecar: want printable text"},
		{"too much text", minimal + strings.Repeat("#", MaxSidecar), rbf(1), "want at most 4096"},
		{"unknown field", minimal + "path: /etc\n", rbf(1), `unknown field "path"`},
		{"unknown field deeper", minimal + "clocks: {middle: 1}\n", rbf(1), `unknown field "clocks.middle"`},
		{"other case", strings.Replace(minimal, "format", "Format", 1), rbf(1), `unknown field "Format"`},
		{"a key twice", minimal + "id: " + nlb0 + "\n", rbf(1), `key "id" already set`},
		{"a key twice in JSON", `{"format":"rbf","format":"bin"}`, rbf(1), `key "format" already set`},
		{"second document", minimal + "---\n" + minimal, rbf(1), "want one document"},
		{"second document after a line's other end", minimal + "#\r---\n" + minimal, rbf(1), "want printable text"},
		{"empty first document", "---\n---\n" + minimal, rbf(1), "want one document"},
		{"aliases", minimal + "name: &a x\nplatform: *a\n", rbf(1), "without anchors and aliases"},
		{"wrong type", minimal + "name: [a]\n", rbf(1), "name"},
		{"other format", strings.Replace(minimal, "rbf", "gbs", 1), rbf(1), `format: got "gbs", want rbf or bin`},
		{"no format", "id: " + nlb0, rbf(1), `format: got "", want rbf or bin`},
		{"no id", "format: rbf\ninterfaceID: " + shell, rbf(1), "sidecar: id: "},
		{"no interface", "format: rbf\nid: " + nlb0, rbf(1), "sidecar: interfaceID: "},
		{"id of f", strings.Replace(minimal, nlb0, strings.Repeat("f", 32), 1), rbf(1), "sidecar: id: want an id, got all f"},
		{"interface of 0", strings.Replace(minimal, shell, `"`+strings.Repeat("0", 32)+`"`, 1), rbf(1), "got all 0"},
		{"name for a terminal", minimal + `name: "\e[2J"`, rbf(1), "sidecar: name: "},
		{"clock of text", minimal + "clocks: {high: fast}\n", rbf(1), `want a frequency in MHz or "auto"`},
		{"negative power", minimal + "power: -1\n", rbf(1), "power: got -1"},
		{"another size", minimal + "size: 2\n", rbf(1), "sidecar: size: got 2, but the image has 1 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := InspectRaw(bytes.NewReader(test.image), int64(len(test.image)), []byte(test.sidecar))
			check.WantErr(t, err, nil, test.want)
		})
	}
}
