// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// TestLimits wants a run to fit into eight minutes, however slow each part is.
func TestLimits(t *testing.T) {
	var sum time.Duration
	for _, p := range parts() {
		sum += p.limit + grace
	}
	if sum >= 8*time.Minute {
		t.Errorf("the parts may take %s", sum)
	}
}

// TestNothingHere runs on a machine without a card, without a bundle: each part says why it cannot run, and nothing fails.
func TestNothingHere(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("this machine has NVIDIA's driver: test/gpu/run is for it")
	}
	out := t.TempDir()
	var stdout, stderr check.Buffer
	if code := run(t.Context(), []string{"-bundle", t.TempDir(), "-out", out}, &stdout, &stderr); code != 0 {
		t.Errorf("exit status %d\n%s", code, stderr.String())
	}
	r := readReport(t, out)
	if len(r.Parts) != len(parts()) {
		t.Errorf("%d parts, want %d", len(r.Parts), len(parts()))
	}
	for _, p := range r.Parts {
		if p.Name != "machine" && (!p.Impossible || p.Error == "") {
			t.Errorf("part %s: impossible %v, %q", p.Name, p.Impossible, p.Error)
		}
	}
}

func readReport(t *testing.T, dir string) report {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "gpu.json"))
	check.Must(t, err)
	var r report
	check.Must(t, json.Unmarshal(data, &r))
	page, err := os.ReadFile(filepath.Join(dir, "gpu.md"))
	check.Must(t, err)
	for _, p := range r.Parts {
		if !strings.Contains(string(page), "\n## "+p.Name+"\n") {
			t.Errorf("the page has nothing of part %s", p.Name)
		}
	}
	return r
}

// failures are what failed in a report.
func failures(r report) (out []string) {
	for _, p := range r.Parts {
		if p.Error != "" && !p.Impossible {
			out = append(out, p.Name+": "+p.Error)
		}
		for _, failed := range p.Findings.verdicts("fails") {
			out = append(out, p.Name+": "+failed)
		}
	}
	slices.Sort(out)
	return out
}

// TestHidden: what is written tells no card from another of its kind.
func TestHidden(t *testing.T) {
	const uuid, serial = "GPU-b7777c9f-d132-0551-1f94-e33a7bc65b7f", "1752524022234"
	f := &findings{}
	f.fact("report", map[string]string{"uuid": uuid, "serial": serial})
	f.fact("published", map[string]any{"serial": map[string]string{"string": serial}})
	f.check("nvidia-smi", errors.New("GPU 0 (UUID: "+uuid+") is not "+serial))
	dir := t.TempDir()
	check.Must(t, report{Parts: []result{{Name: "discovery", Findings: f}}}.write(dir))
	for _, name := range []string{"gpu.json", "gpu.md"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		check.Must(t, err)
		text := string(data)
		if strings.Contains(text, uuid) || strings.Contains(text, serial) || !strings.Contains(text, "GPU-00000000-0000-0000-0000-000000000001") {
			t.Errorf("%s has the card's identity, or no other in its place:\n%s", name, text)
		}
	}
}
