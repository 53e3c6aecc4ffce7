// SPDX-License-Identifier: Apache-2.0

package migparted_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/test/check"
)

// example has all that a document can say. It has the form of the files that come with mig-parted.
const example = `version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}
  all-balanced:
  # H100-80GB
  - device-filter: ["0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.10gb": 2
      "2g.20gb": 1
      "3g.40gb": 1
  # A100-40GB
  - device-filter: "0x20B010DE:0x134F10DE"
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 2
      "2g.10gb": 1
      "3g.20gb": 1
      "7g.40gb": 0
  some:
  - devices: [0, 2]
    mig-enabled: true
    mig-devices: {"1g.10gb+me": 1}
  - devices: [1, 3]
    mig-enabled: false
`

func TestParse(t *testing.T) {
	d, err := migparted.Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	h100, h200, a100 := migparted.Model{Device: 0x233010de}, migparted.Model{Device: 0x233510de}, migparted.Model{
		Device: 0x20b010de, Subsystem: 0x134f10de,
	}
	otherBoard := migparted.Model{Device: 0x20b010de, Subsystem: 1}
	balanced := &migparted.Entry{
		Models: []migparted.Model{h100, {Device: 0x233110de}}, All: true, Enabled: true,
		Profiles: map[string]int{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
	}
	for _, tc := range []struct {
		name, config string
		gpu          migparted.GPU
		want         *migparted.Entry
	}{
		{"disabled", "all-disabled", migparted.GPU{Model: h100}, &migparted.Entry{All: true}},
		{"mode alone", "all-enabled", migparted.GPU{Model: h100}, &migparted.Entry{All: true, Enabled: true, Profiles: map[string]int{}}},
		{"by model", "all-balanced", migparted.GPU{Index: 7, Model: h100}, balanced},
		{"by model and board", "all-balanced", migparted.GPU{Model: a100}, &migparted.Entry{
			Models: []migparted.Model{a100}, All: true, Enabled: true, Profiles: map[string]int{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
		}},
		{"another board", "all-balanced", migparted.GPU{Model: otherBoard}, nil},
		{"another model", "all-balanced", migparted.GPU{Model: h200}, nil},
		{"by number", "some", migparted.GPU{Index: 2, Model: h100}, &migparted.Entry{
			Indices: []int{0, 2}, Enabled: true, Profiles: map[string]int{"1g.10gb+me": 1},
		}},
		{"by number, disabled", "some", migparted.GPU{Index: 3, Model: h100}, &migparted.Entry{Indices: []int{1, 3}}},
		{"another number", "some", migparted.GPU{Index: 4, Model: h100}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := d.For(tc.config, tc.gpu)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, err := d.For("balanced", migparted.GPU{}); err == nil ||
		err.Error() != `no configuration "balanced": there are all-balanced, all-disabled, all-enabled, some` {
		t.Errorf("got %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	entry := func(fields string) string { return "{version: v1, mig-configs: {c: [{" + fields + "}]}}" }
	const at = "mig-configs.c[0]: "
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", `version "": want v1`},
		{"no map", "[]", "want a mig-parted configuration"},
		{"no version", "{mig-configs: {c: [{devices: all, mig-enabled: false}]}}", `version "": want v1`},
		{"another version", "{version: v2, mig-configs: {c: [{devices: all, mig-enabled: false}]}}", `version "v2": want v1`},
		{"no configurations", "{version: v1}", "mig-configs: want at least one configuration"},
		{"no entries", "{version: v1, mig-configs: {c: []}}", "mig-configs.c: want at least one entry"},
		{
			"unknown field at the top", "{version: v1, mig-config: {}, mig-configs: {c: [{devices: all, mig-enabled: false}]}}",
			`unknown field "mig-config"`,
		},
		{"unknown field", entry("devices: all, mig-enabled: false, mig-device: {}"), `unknown field "mig-configs.c[0].mig-device"`},
		{"case", entry("devices: all, MIG-enabled: false"), `unknown field "mig-configs.c[0].MIG-enabled"`},
		{"key twice", entry("devices: all, devices: all, mig-enabled: false"), "want YAML with each key once"},
		{"no devices", entry("mig-enabled: false"), at + "devices: want all, or a list"},
		{"another word", entry("devices: some, mig-enabled: false"), at + "devices: want all, or a list"},
		{"null", entry("devices: null, mig-enabled: false"), at + "devices: want all, or a list"},
		{"one number", entry("devices: 0, mig-enabled: false"), at + "devices: want all, or a list"},
		{"negative", entry("devices: [-1], mig-enabled: false"), at + "devices: want all, or a list"},
		{"fraction", entry("devices: [0.5], mig-enabled: false"), at + "devices: want all, or a list"},
		{"no mode", entry("devices: all"), at + "mig-enabled: want true or false"},
		{"mode that is text", entry("devices: all, mig-enabled: 'yes'"), "want a mig-parted configuration"},
		{"no instances", entry("devices: all, mig-enabled: true"), at + "mig-devices: want a count for each profile, or {} for MIG mode alone"},
		{"null instances", entry("devices: all, mig-enabled: true, mig-devices: null"), at + "mig-devices: want a count"},
		{"instances without the mode", entry("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"), at + "mig-devices: want none"},
		{"no profile", entry("devices: all, mig-enabled: true, mig-devices: {1gb: 1}"), at + `mig-devices: "1gb": want a profile`},
		{
			"compute instance", entry("devices: all, mig-enabled: true, mig-devices: {1c.2g.20gb: 1}"),
			at + `mig-devices: "1c.2g.20gb": want a profile`,
		},
		{
			"fewer than none", entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"),
			at + "mig-devices: 1g.5gb: count -1, want 0 to 64",
		},
		{"too many", entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 65}"), at + "mig-devices: 1g.5gb: count 65, want 0 to 64"},
		{"none of all", entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}"), at + "mig-devices: all counts are 0: write {}"},
		{"model", entry("device-filter: H100, devices: all, mig-enabled: false"), at + `device-filter: model "H100": want 0x`},
		{"short model", entry("device-filter: [0x2330], devices: all, mig-enabled: false"), at + "device-filter: want a model"},
		{"board", entry("device-filter: '0x233010DE:x', devices: all, mig-enabled: false"), at + "device-filter: model"},
		{"null filter", entry("device-filter: null, devices: all, mig-enabled: false"), at + "device-filter: want a model"},
		{"too long", strings.Repeat("#", migparted.MaxSize+1), "65537 bytes: want at most 65536"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := migparted.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestAmbiguous: two entries for one GPU have to say the same.
func TestAmbiguous(t *testing.T) {
	const text = `{version: v1, mig-configs: {c: [{devices: all, mig-enabled: false}, {devices: [1], mig-enabled: true, mig-devices: {}},
		{devices: [0, 2], mig-enabled: false}]}}`
	d, err := migparted.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const want = "two entries for GPU 1 (0x00000000) that differ"
	if _, err := d.For("c", migparted.GPU{Index: 1}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if e, err := d.For("c", migparted.GPU{Index: 2}); err != nil || e == nil || e.Enabled {
		t.Errorf("got %v, %v", e, err)
	}
}

// FuzzParse: what is parsed names profiles, counts and GPUs within the limits, whatever was written.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"version":"v1","mig-configs":{"c":[{"devices":"all","mig-enabled":false,"device-filter":[]}]}}`))
	f.Add([]byte("version: v1\nmig-configs: &a {c: [*a]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := migparted.Parse(text)
		if err != nil {
			return
		}
		if len(d.Configs) == 0 || len(d.Names()) == 0 {
			t.Error("no configurations")
		}
		for name, entries := range d.Configs {
			if len(entries) == 0 {
				t.Errorf("%s has no entries", name)
			}
			for _, e := range entries {
				for profile, n := range e.Profiles {
					if !migparted.IsProfile(profile) || n < 1 || n > 64 || !e.Enabled {
						t.Errorf("%s: %d x %q", name, n, profile)
					}
				}
				for _, i := range e.Indices {
					if i < 0 || i > 1024 || e.All {
						t.Errorf("%s: GPU %d", name, i)
					}
				}
			}
			_, _ = d.For(name, migparted.GPU{Index: 1, Model: migparted.Model{Device: 0x233010de}})
		}
	})
}

// TestExpanded: a short text may stand for a long one, which the plugin and the controller have no memory for.
func TestExpanded(t *testing.T) {
	text := "version: v1\nx: &x " + strings.Repeat("a", 30<<10) + "\nmig-configs: {a: [" + strings.Repeat("*x,", 8000) + "]}\n"
	var err error
	allocated := check.Allocated(func() { _, err = migparted.Parse([]byte(text)) })
	if err == nil || allocated > 64<<20 {
		t.Errorf("%d bytes took %d MiB: %.200v", len(text), allocated>>20, err)
	}
}
