// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// errImpossible is of a part or a check that this machine has not what it takes for. It is no failure.
var errImpossible = errors.New("not possible here")

// impossible says why something cannot be done on this machine.
func impossible(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errImpossible, fmt.Errorf(format, args...))
}

// findings are what a part found. Several may be noted at once.
type findings struct {
	mu sync.Mutex
	// Checks are what was expected, in the order in which it was looked at.
	Checks []verdict `json:"checks,omitempty"`
	// Facts are what was read or measured, by name.
	Facts map[string]any `json:"facts,omitempty"`
}

// verdict is one expectation.
type verdict struct {
	Name string `json:"name"`
	// Result is "holds", "fails" or "not possible here".
	Result string `json:"result"`
	// Text says what was seen instead, or why it was not possible.
	Text string `json:"text,omitempty"`
}

// check notes whether an expectation held: nil, or what was seen instead.
func (f *findings) check(name string, err error) {
	v := verdict{Name: name, Result: "holds"}
	if err != nil {
		v.Result, v.Text = "fails", err.Error()
	}
	if errors.Is(err, errImpossible) {
		v.Result = errImpossible.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Checks = append(f.Checks, v)
}

// same notes whether two readings agree.
func (f *findings) same(name, ours, theirs string) {
	if ours == theirs {
		f.check(name, nil)
		return
	}
	f.check(name, fmt.Errorf("we say %q, NVIDIA says %q", ours, theirs))
}

// fact notes what was read or measured, as JSON.
func (f *findings) fact(name string, value any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Facts == nil {
		f.Facts = map[string]any{}
	}
	f.Facts[name] = value
}

// result is what became of a part.
type result struct {
	Name    string  `json:"name"`
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
	// Error is why the part ended early.
	Error string `json:"error,omitempty"`
	// Impossible says that it could not begin here, for the reason in Error.
	Impossible bool      `json:"impossible,omitempty"`
	Findings   *findings `json:"findings"`
}

// run does a part within its limit. One that hangs is left behind: what it has noted until then counts.
func (p part) run(ctx context.Context, s *site) result {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	begin := time.Now()
	f := &findings{}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		done <- p.do(s, ctx, f)
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(p.limit + grace):
		err = fmt.Errorf("did not end within %s", p.limit+grace)
	}
	r := result{Name: p.name, What: p.what, Seconds: time.Since(begin).Seconds()}
	if err != nil {
		r.Error, r.Impossible = err.Error(), errors.Is(err, errImpossible)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Findings = &findings{Checks: slices.Clone(f.Checks), Facts: maps.Clone(f.Facts)}
	return r
}

// grace is how long a part has to end after its context has.
const grace = 5 * time.Second

func (r result) failed() bool {
	return r.Error != "" && !r.Impossible || slices.ContainsFunc(r.Findings.Checks, func(v verdict) bool { return v.Result == "fails" })
}

func (r result) verdict() string {
	switch {
	case r.Impossible:
		return errImpossible.Error()
	case r.failed():
		return "FAILED"
	}
	return "held"
}

// report is the whole run.
type report struct {
	Started time.Time `json:"started"`
	Parts   []result  `json:"parts"`
}

func (r report) failed() bool { return slices.ContainsFunc(r.Parts, result.failed) }

// write makes gpu.json and gpu.md in a directory.
func (r report) write(dir string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	hide := hider(data)
	if err := os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(hide.Replace(string(data)+"\n")), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "gpu.md"), []byte(hide.Replace(r.page())), 0o644)
}

var (
	uuidText   = regexp.MustCompile(`GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	serialText = regexp.MustCompile(`"serial":\s*(?:\{\s*"string":\s*)?"([^"]+)"`)
)

// hider replaces the UUIDs and serial numbers of a result's GPUs by others of the same form, as the machine's text does.
func hider(data []byte) *strings.Replacer {
	ids := map[string]bool{}
	for _, id := range uuidText.FindAllString(string(data), -1) {
		ids[id] = true
	}
	var pairs []string
	for i, id := range slices.Sorted(maps.Keys(ids)) {
		pairs = append(pairs, id, fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i+1))
	}
	serials := map[string]bool{}
	for _, found := range serialText.FindAllStringSubmatch(string(data), -1) {
		serials[found[1]] = true
	}
	for i, serial := range slices.Sorted(maps.Keys(serials)) {
		pairs = append(pairs, serial, fmt.Sprintf("%0*d", len(serial), i+1))
	}
	return strings.NewReplacer(pairs...)
}

// page is the report for people: what failed first, then each part.
func (r report) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Fettle on a card, %s\n\n| part | | s |\n|---|---|---|\n", r.Started.Format(time.RFC3339))
	for _, p := range r.Parts {
		fmt.Fprintf(&b, "| %s: %s | %s | %.1f |\n", p.Name, p.What, p.verdict(), p.Seconds)
	}
	for _, p := range r.Parts {
		fmt.Fprintf(&b, "\n## %s\n\n", p.Name)
		if p.Error != "" {
			fmt.Fprintf(&b, "%s\n\n", p.Error)
		}
		for _, result := range []string{"fails", errImpossible.Error(), "holds"} {
			for _, v := range p.Findings.Checks {
				if v.Result == result {
					fmt.Fprintf(&b, "- **%s**: %s%s\n", v.Result, v.Name, prefixed(": ", v.Text))
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.Findings.Facts)) {
			fmt.Fprintf(&b, "- %s: %s\n", name, short(p.Findings.Facts[name]))
		}
	}
	return b.String()
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// short is a fact on one line of the page. The JSON has all of it.
func short(value any) string {
	const most = 300
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	if len(data) > most {
		return fmt.Sprintf("%s… (%d bytes, see gpu.json)", data[:most], len(data))
	}
	return string(data)
}
