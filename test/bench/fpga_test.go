// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestFPGACases finds the devices of the cases on the machine, with the interface that their images are made for.
func TestFPGACases(t *testing.T) {
	root := filepath.Join("..", "..")
	dir := filepath.Join(t.TempDir(), "host")
	must(t, expandFile(root, fpgaMachine, dir))
	tree, err := sysfs.Open(dir)
	must(t, err)
	defer tree.Close()
	found := map[string]*fpga.Region{}
	for _, d := range discover.Discover(t.Context(), tree, discover.Options{}).Devices {
		found[d.Name] = d.Region
	}
	text, err := os.ReadFile(filepath.Join(root, "test", "machines", fpgaMachine+".txtar"))
	must(t, err)
	parsed, err := sim.Parse(text)
	must(t, err)
	machine, err := fpgasim.FromTree(parsed)
	must(t, err)
	for _, c := range fpgaCases() {
		r, want := found[c.device], machine.Place(c.card, 0)
		if r == nil || r.DFL.Port != want.Name || r.InterfaceID != machine.Cards[c.card].Ports[0].Interface {
			t.Errorf("%s: device %s is %+v, want the region of %s", c.name, c.device, r, want.Name)
		}
		if clocked := machine.Cards[c.card].Ports[0].Revision == 0; clocked != (c.name == caseClocked) {
			t.Errorf("%s: the region has user clocks: %t", c.name, clocked)
		}
	}
}

func TestProgrammings(t *testing.T) {
	const text = `# HELP fettle_fpga_program_seconds Time that the kernel took to program a region.
# TYPE fettle_fpga_program_seconds histogram
fettle_fpga_program_seconds_bucket{le="0.01"} 2
fettle_fpga_program_seconds_sum 0.0305
fettle_fpga_program_seconds_count 3
fettle_discovery_duration_seconds_count 4
`
	got, err := parseProgrammings(strings.NewReader(text))
	must(t, err)
	if want := (programmings{count: 3, took: 30500 * time.Microsecond, looks: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, missing := range []string{"fettle_fpga_program_seconds_sum", "fettle_fpga_program_seconds_count"} {
		_, err := parseProgrammings(strings.NewReader(strings.ReplaceAll(text, missing, "other")))
		if err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// TestThroughputs feeds times whose throughputs are known.
func TestThroughputs(t *testing.T) {
	s := samples{}
	for name, d := range map[string]time.Duration{
		fpgaSeal: 3 * time.Millisecond, fpgaProgram: time.Millisecond, fpgaLoad: 4 * time.Millisecond,
		fpgaMemcpy: 500 * time.Microsecond, fpgaSHA256: 2 * time.Millisecond,
	} {
		s.add(name, d)
	}
	var out bytes.Buffer
	must(t, newReport(&out).throughputs(point{Machine: fpgaMachine, Bytes: 3_000_000}, s))
	got := map[string]float64{}
	for _, line := range lines(t, out.Bytes()) {
		got[line["name"].(string)] = line["value"].(float64)
		if line["bytes"] != 3e6 {
			t.Errorf("%v: want its size", line)
		}
	}
	want := map[string]float64{
		fpgaSeal: 1000, fpgaProgram: 3000, fpgaLoad: 750, fpgaMemcpy: 6000, fpgaSHA256: 1500, fpgaProgramRatio: 0.5, fpgaLoadRatio: 0.125,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNoFPGAs wants every figure with the reason that it has no value.
func TestNoFPGAs(t *testing.T) {
	var out bytes.Buffer
	b := &bench{report: newReport(&out)}
	must(t, b.reportNoFPGAs(&noFPGAs{errors.New("no FUSE")}))
	said := map[string]bool{}
	for _, line := range lines(t, out.Bytes()) {
		if line["value"] != nil || line["reason"] != "no FUSE" || line["unit"] == "" {
			t.Errorf("%v: want no value and the reason", line)
		}
		said[line["name"].(string)] = true
	}
	for name := range units() {
		if strings.HasPrefix(name, "fpga.") && !strings.HasSuffix(name, ".p99") && !strings.HasSuffix(name, ".max") && !said[name] {
			t.Errorf("nothing is said of %s", name)
		}
	}
}

func TestMore(t *testing.T) {
	now, before := time.Now(), time.Now().Add(-time.Hour)
	for _, tt := range []struct {
		name  string
		loads int
		n     int
		begin time.Time
		want  bool
	}{
		{"there is time", 20, leastLoads, now, true},
		{"enough", 20, 20, now, false},
		{"late, and too few", 20, leastLoads - 1, before, true},
		{"late", 20, leastLoads, before, false},
		{"late, and all that are wanted", 2, 2, before, false},
	} {
		if got := (form{loads: tt.loads, limit: time.Minute}).more(tt.n, tt.begin); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
