// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLayerTypes(t *testing.T) {
	for _, f := range []Format{GBS, AOCX, Xclbin, RBF, BIN} {
		if got := FormatOfLayer(f.LayerType()); got != f {
			t.Errorf("%s: got %q back", f, got)
		}
	}
	for _, other := range []string{"", LayerTypeDTBO, GBS.LayerType() + "+gzip", strings.ToUpper(GBS.LayerType()), ConfigType} {
		if got := FormatOfLayer(other); got != "" {
			t.Errorf("%q: got format %q, want none", other, got)
		}
	}
}

func TestDecodeConfig(t *testing.T) {
	full := `{"format":"gbs","id":"D8424DC4-A4A3-C413-F89E-433683F9040B","interfaceID":"9926AB6D-6C92-5A68-AABC-A7D84C545738",` +
		`"name":"nlb_400","platform":"DCP","size":439,"clock":{"high":"auto","low":200},"power":50,"minDriver":"2.0.1",` +
		`"blankFor":["9926AB6D-6C92-5A68-AABC-A7D84C545738"]}`
	want := Config{
		Format: GBS, ID: nlb0, InterfaceID: shell, Name: "nlb_400", Platform: "DCP", Size: new(int64(439)),
		Clock: Clocks{High: &Clock{Auto: true}, Low: &Clock{MHz: 200}}, Power: new(50.0), MinDriver: "2.0.1", BlankFor: []string{shell},
	}
	got, err := DecodeConfig([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err = DecodeConfig([]byte(`{"id":"` + strings.ToUpper(vectorHash) + `"}`)); err != nil || got.ID != vectorHash {
		t.Errorf("id of an AOCX: got %q, %v", got.ID, err)
	}
	for _, test := range []struct{ name, config, want string }{
		{"no JSON", `{`, "config: want JSON"},
		{"a list", `[]`, "config: want JSON"},
		{"unknown field", `{"afuID":"x"}`, `unknown field "afuID"`},
		{"other case", `{"Format":"gbs"}`, `unknown field "Format"`},
		{"repeated field", `{"name":"a","name":"b"}`, `duplicate field "name"`},
		{"format", `{"format":"dtbo"}`, `config: format: got "dtbo"`},
		{"id", `{"id":"../x"}`, "config: id: "},
		{"interface", `{"interfaceID":"` + strings.Repeat("f", 32) + `"}`, "config: interfaceID: want an id, got all f"},
		{"name", `{"name":"a\u001b[2J"}`, "config: name: "},
		{"platform", `{"platform":"\n"}`, "config: platform: "},
		{"driver", `{"minDriver":"` + strings.Repeat("1", 257) + `"}`, "config: minDriver: "},
		{"clock", `{"clock":{"high":"fast"}}`, `want a frequency in MHz or "auto"`},
		{"power", `{"power":-1}`, "config: power: got -1"},
		{"blank", `{"blankFor":["x"]}`, "config: blankFor: "},
		{"many", `{"blankFor":[` + strings.Repeat(`"x",`, 64) + `"x"]}`, "config: blankFor: got 65 ids, want at most 64"},
		{"long", `{"name":"` + strings.Repeat("a", MaxConfig) + `"}`, "want at most 16384"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := DecodeConfig([]byte(test.config)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestConfigInspect: what the bytes say is not overridden, and what they do not say is added.
func TestConfigInspect(t *testing.T) {
	gbs := buildGBS(nlb0Metadata, rbf(100))
	bare := buildGBS(strings.ReplaceAll(edited(t, `"name":"nlb_400",`, ``), `"platform-name":"DCP",`, ``), rbf(100))
	for _, test := range []struct {
		name   string
		config Config
		file   []byte
		want   func(Bitstream) Bitstream // of what the file says alone
		err    []string
	}{
		{name: "nothing to add", file: gbs},
		{name: "the same", file: gbs, config: Config{
			Format: GBS, ID: nlb0, InterfaceID: shell, Name: "nlb_400", Platform: "DCP", Size: new(int64(len(gbs))),
			Clock: Clocks{High: &Clock{Auto: true}, Low: &Clock{MHz: 200}}, Power: new(50.0), BlankFor: []string{shell}, MinDriver: "9",
		}},
		{
			name: "silent file", file: bare, config: Config{Name: "loop", Platform: "PAC"},
			want: func(b Bitstream) Bitstream {
				b.Name, b.Platform = "loop", "PAC"
				return b
			},
		},
		{
			name: "everything else", file: gbs, config: Config{
				Format: Xclbin, ID: openCLAFU, InterfaceID: helloUUID, Name: "nlb_0", Platform: "PAC", Size: new(int64(1)),
				Clock: Clocks{High: &Clock{MHz: 1}, Low: &Clock{Auto: true}}, Power: new(51.0), BlankFor: []string{shell, helloUUID},
			},
			err: []string{
				"format is xclbin in the config and gbs in the file", "id is " + openCLAFU,
				"interfaceID is " + helloUUID + " in the config and " + shell, "name is nlb_0", "platform is PAC",
				"size is 1 in the config", "power is 51 in the config and 50", "clock.high is 1 in the config and auto",
				"clock.low is auto in the config and 200", "blankFor names other interfaces",
			},
		},
		{
			name: "an id that the file lacks", file: noInterface(t), config: Config{InterfaceID: shell},
			err: []string{"interfaceID is " + shell + " in the config and none"},
		},
		{
			name: "raw", file: rbf(7), config: Config{Format: RBF, ID: nlb0, InterfaceID: shell, Name: "a*&b", Clock: Clocks{High: &Clock{MHz: 3}}},
			want: func(Bitstream) Bitstream {
				return Bitstream{
					Format: RBF, ID: nlb0, AFUID: nlb0, InterfaceID: shell, Name: "a*&b", Clocks: Clocks{High: &Clock{MHz: 3}},
					Size: 7, Payload: &Payload{Length: 7},
				}
			},
		},
		{
			name: "raw of another size", file: rbf(7), config: Config{Format: BIN, ID: nlb0, InterfaceID: shell, Size: new(int64(8))},
			err: []string{"size is 8 in the config and 7"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.config.Inspect(bytes.NewReader(test.file), int64(len(test.file)))
			if len(test.err) > 0 {
				if !errors.Is(err, ErrContradiction) {
					t.Fatalf("got %v, want a contradiction", err)
				}
				for _, part := range test.err {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("error %q lacks %q", err, part)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, _ := Inspect(bytes.NewReader(test.file), int64(len(test.file)))
			if test.want != nil {
				want = test.want(want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, config := range []Config{{Format: RBF, ID: nlb0}, {Format: BIN, InterfaceID: shell}} {
		_, err := config.Inspect(bytes.NewReader(rbf(7)), 7)
		if err == nil || !strings.Contains(err.Error(), "a raw image needs id and interfaceID") {
			t.Errorf("%+v: got %v", config, err)
		}
	}
}

// noInterface is an xclbin that fits no shell in particular.
func noInterface(t *testing.T) []byte {
	data := helloXclbin(t)
	copy(data[xclbinInterface:], make([]byte, 16))
	return data
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte(`{"format":"gbs","id":"` + nlb0 + `","clock":{"high":"auto"},"size":1,"blankFor":["` + shell + `"]}`))
	f.Add([]byte(`{"format":"rbf","id":"` + vectorHash + `","interfaceID":"` + shell + `","power":1e3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := DecodeConfig(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeConfig(written)
		if err != nil && len(written) <= MaxConfig {
			t.Fatalf("read back %s: %v", written, err)
		}
		if diff := cmp.Diff(config, again); err == nil && diff != "" {
			t.Errorf("not stable (-first +second):\n%s", diff)
		}
		_, _ = config.Inspect(bytes.NewReader(data), int64(len(data)))
	})
}
