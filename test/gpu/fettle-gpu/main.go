// SPDX-License-Identifier: Apache-2.0

// Command fettle-gpu looks at a machine with an NVIDIA GPU by everything of Fettle that touches a card, and compares what it sees with
// what NVIDIA's own tools say. It changes no setting of the card and leaves nothing behind. test/gpu/bundle packs it with what it needs,
// and test/gpu/run starts it on the machine.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit status: 0 if each check of each part held or said why it could not be made, 1 if one failed, 2 for a wrong
// command line or where the results cannot be written.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fettle-gpu", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bundle := flags.String("bundle", ".", "directory with the programs and files of test/gpu/bundle")
	out := flags.String("out", ".", "directory for gpu.json, gpu.md and machine.txtar")
	root := flags.String("root", "/", "host tree: / or that of a simulated machine")
	child := flags.String("nvml", "", "fettle-nvml (default: the bundle's); the simulator's for a simulated machine")
	driver := flags.String("driver-root", "/", "directory that NVIDIA's driver is installed below; the simulator has its state there")
	only := flags.String("parts", "", "parts to run, as a,b (default: all)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	s, err := newSite(*bundle, *out, *root, *driver, *child)
	if err != nil {
		fmt.Fprintln(stderr, "fettle-gpu:", err)
		return 2
	}
	defer s.close()
	report := report{Started: time.Now().UTC().Truncate(time.Second), Parts: s.parts(ctx, strings.FieldsFunc(*only, comma), stderr)}
	if err := report.write(*out); err != nil {
		fmt.Fprintln(stderr, "fettle-gpu:", err)
		return 2
	}
	fmt.Fprintln(stdout, filepath.Join(*out, "gpu.md"))
	if report.failed() {
		return 1
	}
	return 0
}

func comma(r rune) bool { return r == ',' }

// site is the machine, and where the run has its files.
type site struct {
	// bundle has the programs, work is scratch, and out is for results. Root is the host tree, driver where NVIDIA's is installed.
	bundle, work, out, root, driver string
	// child is fettle-nvml.
	child string
	// running is the plugin, once it has been started.
	running *running
}

func newSite(bundle, out, root, driver, child string) (*site, error) {
	s := &site{}
	for _, dir := range []struct {
		path string
		into *string
	}{{bundle, &s.bundle}, {out, &s.out}, {root, &s.root}, {driver, &s.driver}} {
		var err error
		if *dir.into, err = filepath.Abs(dir.path); err != nil {
			return nil, err
		}
	}
	s.child = cmp.Or(child, s.program("fettle-nvml"))
	// Short, because sockets are below it, and open to the users of containers.
	var err error
	if s.work, err = os.MkdirTemp("", "fg"); err != nil {
		return nil, err
	}
	return s, os.Chmod(s.work, 0o755)
}

// simulated says that there is no card behind the machine.
func (s *site) simulated() bool { return s.root != "/" }

func (s *site) close() {
	if s.running != nil {
		s.running.stop()
	}
	_ = os.RemoveAll(s.work)
}

// program is the path of one of the bundle's programs.
func (s *site) program(name string) string { return filepath.Join(s.bundle, "bin", name) }

// part is one thing to look at.
type part struct {
	name, what string
	// limit bounds it. The sum of all is below eight minutes.
	limit time.Duration
	// do says in f what it found. An error is of the part as a whole: what came before it stays.
	do func(s *site, ctx context.Context, f *findings) error
}

func parts() []part {
	return []part{
		{"machine", "the machine as text", 10 * time.Second, (*site).machine},
		{"discovery", "what is discovered, beside what nvidia-smi says", 20 * time.Second, (*site).discovery},
		{"calls", "how long each call of the library takes, alone and with three others", 35 * time.Second, (*site).calls},
		{"plugin", "the plugin against an API server", 150 * time.Second, (*site).plugin},
		{"container", "a container with the claim's CDI devices", 60 * time.Second, (*site).container},
		{"health", "events and counters, for a minute", 65 * time.Second, (*site).health},
		{"caches", "a kernel's cache, packed, signed, extracted and mounted", 90 * time.Second, (*site).caches},
	}
}

// parts runs the parts one after another. A part that fails, panics or takes too long is said to have, and the next is run.
func (s *site) parts(ctx context.Context, only []string, progress io.Writer) []result {
	var out []result
	for _, p := range parts() {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		fmt.Fprintf(progress, "%s: %s (at most %s)\n", p.name, p.what, p.limit)
		r := p.run(ctx, s)
		fmt.Fprintf(progress, "%s: %s after %.1f s\n", p.name, r.verdict(), r.Seconds)
		out = append(out, r)
	}
	return out
}
