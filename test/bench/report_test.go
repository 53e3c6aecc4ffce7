// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

func TestQuantile(t *testing.T) {
	hundred := make(series, 100)
	for i := range hundred {
		hundred[len(hundred)-1-i] = float64(i + 1)
	}
	for _, tt := range []struct {
		name string
		s    series
		q    float64
		want float64
	}{
		{"median of 100", hundred, 0.5, 50},
		{"p99 of 100", hundred, 0.99, 99},
		{"max of 100", hundred, 1, 100},
		{"p99 of 3 is the worst", series{3, 9, 1}, 0.99, 9},
		{"median of 3", series{3, 9, 1}, 0.5, 3},
		{"one", series{7}, 0.5, 7},
	} {
		if got := tt.s.quantile(tt.q); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := (series{}).median(); !math.IsNaN(got) {
		t.Errorf("the median of nothing is %v", got)
	}
	if hundred[0] != 100 {
		t.Error("the series was sorted in place")
	}
}

// TestLines pins the schema: programs read it.
func TestLines(t *testing.T) {
	at := point{Machine: "gpus", Held: 0, Devices: 1, Parallel: 1, Case: casePlain}
	for _, tt := range []struct {
		name  string
		write func(*report) error
		want  string
	}{
		{
			"value", func(r *report) error { return r.value("prepare.p50", &at, 192, 1.23456) },
			`{"name":"prepare.p50","machine":"gpus","held":0,"devices":1,"parallel":1,"case":"plain",` +
				`"samples":192,"unit":"ms","value":1.235}`,
		},
		{
			"no point", func(r *report) error { return r.value("rss", nil, 1, 50) },
			`{"name":"rss","samples":1,"unit":"MiB","value":50}`,
		},
		{
			"met", func(r *report) error {
				return r.against(1.15, "prepare.flatness", &point{Machine: "gpus"}, 9, 1.15)
			},
			`{"name":"prepare.flatness","machine":"gpus","held":0,"samples":9,"unit":"ratio","value":1.15,` +
				`"target":1.15,"met":true}`,
		},
		{
			"missed", func(r *report) error { return r.against(2, "prepare.burst64_over_floor", nil, 8, 2.1) },
			`{"name":"prepare.burst64_over_floor","samples":8,"unit":"ratio","value":2.1,"target":2,"met":false}`,
		},
		{
			"no target here", func(r *report) error { return r.against(targetIf(false, 2), "prepare.burst64_over_floor", nil, 8, 2.1) },
			`{"name":"prepare.burst64_over_floor","samples":8,"unit":"ratio","value":2.1}`,
		},
		{
			"not measured", func(r *report) error { return r.nothing(cacheColdCTR, nil, errors.New("no containerd")) },
			`{"name":"cache.cold.ctr_ratio","unit":"ratio","value":null,"reason":"no containerd"}`,
		},
		{
			"no number", func(r *report) error { return r.against(2, "prepare.own_over_floor", nil, 0, math.NaN()) },
			`{"name":"prepare.own_over_floor","unit":"ratio","value":null,"reason":"nothing was measured to compute it from",` +
				`"target":2,"met":false}`,
		},
	} {
		var out bytes.Buffer
		check.Must(t, tt.write(newReport(&out)))
		if diff := cmp.Diff(tt.want+"\n", out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if err := newReport(io.Discard).value("prepare.mean", nil, 1, 1); err == nil {
		t.Error("a figure that is in no table was written")
	}
}

// TestTargets feeds a cell whose ratios are known.
func TestTargets(t *testing.T) {
	s := samples{}
	for name, d := range map[string]time.Duration{
		prepare: 3400 * time.Microsecond, get: time.Millisecond, floorCreate: 600 * time.Microsecond, floorAppend: 200 * time.Microsecond,
		floorUnlink: 500 * time.Microsecond, unprepare: 1500 * time.Microsecond, again: time.Millisecond, rpc: time.Millisecond,
	} {
		s.add(name, d)
	}
	at := point{Machine: gpuMachine, Held: 100, Devices: 1, Parallel: 1, Case: casePlain}
	r := newReport(io.Discard)
	check.Must(t, r.single(at, s))
	got := map[string]float64{}
	for _, f := range r.targeted {
		got[f.Name] = *f.Value
	}
	if diff := cmp.Diff(map[string]float64{"unprepare.p50": 1.5, "prepare.own_over_floor": 3}, got); diff != "" {
		t.Errorf("figures with a target (-want +got):\n%s", diff)
	}
	missed := r.missed()
	if len(missed) != 1 || !strings.Contains(missed[0].String(), "MISSED prepare.own_over_floor") {
		t.Errorf("missed %v", missed)
	}
	at.Held = 1000
	if got := missed[0].String(); !strings.Contains(got, "100 held") {
		t.Errorf("%s: the figure changed with its point", got)
	}
}

func TestBurstTarget(t *testing.T) {
	s := samples{}
	for _, wall := range []time.Duration{30, 60, 90} {
		s.add(prepareWall, wall*time.Millisecond)
		s.add(floorWall, 40*time.Millisecond)
		s.add(getWall, 20*time.Millisecond)
	}
	for _, tt := range []struct {
		name   string
		at     point
		figure bool
		target bool
	}{
		{"64 plain", point{Devices: 1, Parallel: 64, Case: casePlain}, true, true},
		{"64 wide", point{Devices: wide, Parallel: 64, Case: casePlain}, true, false},
		{"64 with an effect", point{Devices: 1, Parallel: 64, Case: caseEffect}, true, false},
		{"16", point{Devices: 1, Parallel: 16, Case: casePlain}, false, false},
	} {
		var out bytes.Buffer
		r := newReport(&out)
		check.Must(t, r.burst(tt.at, s))
		for figure, value := range map[string]string{"floor.burst64": "2", "prepare.burst64": "3", "prepare.burst64_over_floor": "1.5"} {
			line := regexp.MustCompile(`"name":"` + figure + `",.*"unit":"ratio","value":` + value + `[,}]`)
			if has := line.MatchString(out.String()); has != tt.figure {
				t.Errorf("%s: %s is %s: %t, want %t:\n%s", tt.name, figure, value, has, tt.figure, out.String())
			}
		}
		var targeted []string
		for _, f := range r.targeted {
			targeted = append(targeted, fmt.Sprint(f.Name, " ", f.Target, " ", *f.Met))
		}
		var want []string
		if tt.target {
			want = []string{"prepare.burst64_over_floor 2 true"}
		}
		if diff := cmp.Diff(want, targeted); diff != "" {
			t.Errorf("%s: figures with a target (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestMemoryTarget: the target is about memory that the kernel cannot take back, on the machine that is like a node, at 1,000 claims.
func TestMemoryTarget(t *testing.T) {
	used := memory{resident: 60, anon: 25.5, peak: 70}
	for _, tt := range []struct {
		name string
		at   point
		want []string
	}{
		{"1,000 held", point{Machine: diskMachine, Held: 1000}, []string{"rss.anon 25 false"}},
		{"more held", point{Machine: diskMachine, Held: 5000}, nil},
		{"nothing held", point{Machine: diskMachine}, nil},
		{"hundreds of GPUs", point{Machine: gpuMachine, Held: 1000}, nil},
	} {
		r := newReport(io.Discard)
		check.Must(t, r.memory(tt.at, used))
		var got []string
		for _, f := range r.targeted {
			got = append(got, fmt.Sprint(f.Name, " ", f.Target, " ", *f.Met))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: figures with a target (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestColdTarget(t *testing.T) {
	for _, tt := range []struct {
		compression string
		form        artifact.TreeForm
		want        float64
		applies     bool
	}{
		{"gzip", artifact.TreeImage, 1.5, true},
		{"zstd", artifact.TreeImage, 2, true},
		{"gzip", artifact.TreeDirectory, 1.5, false},
		{"zstd", artifact.TreeDirectory, 2, false},
	} {
		if got, applies := coldTarget(tt.compression, tt.form); got != tt.want || applies != tt.applies {
			t.Errorf("%s, %s: %v, %t, want %v, %t", tt.compression, tt.form, got, applies, tt.want, tt.applies)
		}
	}
}

// TestCheck: a missed target is an error where that was asked for, and names how many there are.
func TestCheck(t *testing.T) {
	r := newReport(io.Discard)
	check.Must(t, errors.Join(
		r.against(2, "prepare.burst64_over_floor", nil, 8, 2),
		r.against(25, "rss.anon", nil, 1, 25.1),
		r.nothing(cacheColdCTR, nil, errors.New("no containerd")),
	))
	for check, want := range map[bool]string{false: "", true: "1 of 2 targets are missed"} {
		var progress bytes.Buffer
		got := ""
		if err := r.verdict(&progress, check); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("-check %t: %q, want %q", check, got, want)
		}
		if text := progress.String(); !strings.Contains(text, "MISSED rss.anon") || !strings.Contains(text, "met    prepare.burst64_over_floor") {
			t.Errorf("-check %t: %s", check, text)
		}
	}
}

// TestDocumented wants every name in the README's table.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("README.md")
	check.Must(t, err)
	for name := range units() {
		short := name
		for _, suffix := range []string{".p50", ".p99", ".max"} {
			short = strings.TrimSuffix(short, suffix)
		}
		if !strings.Contains(string(text), "`"+short+"`") {
			t.Errorf("README.md does not explain %s", short)
		}
	}
}

// lines decodes what a run wrote.
func lines(t testing.TB, out []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var line map[string]any
		err := decoder.Decode(&line)
		if errors.Is(err, io.EOF) {
			return all
		}
		check.Must(t, err)
		all = append(all, line)
	}
}
