// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// plantedFile is where the planted examples pretend to be.
const plantedFile = "pkg/planted/planted_test.go"

// chancePlanted lists what is found in the body of a test, with what the examples share above it.
func chancePlanted(t *testing.T, imports *ownImporter, body string) []string {
	t.Helper()
	const before = `package planted

import (
	"context"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

const patience, limit = time.Minute, 3 * time.Second

type options struct{ Timeout, MaxWait time.Duration; Clock any }

func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, func(t *testing.T) { f(t) }) }

func await(t *testing.T, within time.Duration, is func() bool) {}

func onlyInBubbles() { time.Sleep(time.Second) }

func TestBubble(t *testing.T) { inBubble(t, func(t *testing.T) { onlyInBubbles() }) }

func use(...any) {}

func TestPlanted(t *testing.T) {
	done, ready, ctx := make(chan bool), func() bool { return true }, t.Context()
	use(done, ready, ctx, rand.NewPCG, net.Listen)
`
	content := before + body + "\n}\n"
	syntax, err := parser.ParseFile(imports.fset, plantedFile, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	f := goFile{path: plantedFile, dir: "pkg/planted", test: true, content: content, syntax: syntax, fileSet: imports.fset}
	return chanceIn(imports.check([]goFile{f}), f)
}

// TestPlantedChance plants examples of each kind of chance, and beside each what is as good as it looks.
func TestPlantedChance(t *testing.T) {
	imports := newOwnImporter(t, token.NewFileSet(), nil)
	for _, planted := range []struct{ kind, bad, good string }{
		{
			shortDeadline,
			`short, stop := context.WithTimeout(ctx, 50*time.Millisecond); use(short, stop)`,
			`long, stop := context.WithTimeout(ctx, patience); use(long, stop)`,
		},
		{
			shortDeadline,
			`short, stop := context.WithTimeoutCause(ctx, limit, nil); use(short, stop)`,
			`synctest.Test(t, func(t *testing.T) { short, stop := context.WithTimeout(ctx, limit); use(short, stop) })`,
		},
		{
			shortDeadline,
			`short, stop := context.WithDeadline(ctx, time.Now().Add(limit)); use(short, stop)`,
			`past, stop := context.WithDeadline(ctx, time.Now().Add(-limit)); use(past, stop)`,
		},
		{
			shortDeadline,
			`select { case <-done: case <-time.After(limit): t.Fatal("not done") }`,
			`select { case <-done: case <-time.After(patience): t.Fatal("not done") }`,
		},
		{ // An interval goes on with the loop, a deadline ends it.
			shortDeadline,
			`for { select { case <-done: return; case <-time.After(limit): t.Fatal("not done") } }`,
			`for { select { case <-done: return; case <-ctx.Done(): t.Fatal("not done"); case <-time.After(time.Millisecond): } }`,
		},
		{ // So many tries are a deadline.
			shortDeadline,
			`for i := 0; i < 100; i++ { select { case <-done: return; case <-time.After(time.Millisecond): } }`,
			`for !ready() { select { case <-ctx.Done(): return; case <-time.After(time.Millisecond): } }`,
		},
		{
			shortDeadline,
			`timer := time.NewTimer(time.Second); use(timer)`,
			`timer := time.NewTimer(patience); use(timer)`,
		},
		{
			shortDeadline,
			`time.AfterFunc(20*time.Millisecond, func() {})`,
			`inBubble(t, func(t *testing.T) { time.AfterFunc(20*time.Millisecond, func() {}) })`,
		},
		{
			shortDeadline,
			`for end := time.Now().Add(limit); !ready() && time.Now().Before(end); { use() }`,
			`for end := time.Now().Add(patience); !ready() && time.Now().Before(end); { use() }`,
		},
		{
			shortDeadline,
			`begin := time.Now(); for !ready() { if time.Since(begin) > limit { t.Fatal("late") } }`,
			`begin := time.Now(); for !ready() { if time.Since(begin) > patience { t.Fatal("late") } }`,
		},
		{
			shortDeadline,
			`for begin := time.Now(); time.Since(begin) < limit && !ready(); { use() }`,
			`for begin := time.Now(); time.Since(begin) < patience && !ready(); { use() }`,
		},
		{
			shortDeadline,
			`await(t, limit, ready)`,
			`await(t, patience, ready)`,
		},
		{
			shortDeadline,
			`Eventually(ctx, ready).WithTimeout(limit).Should(BeTrue())`,
			`Eventually(ctx, ready).WithTimeout(patience).Should(BeTrue())`,
		},
		{
			shortDeadline,
			`Eventually(ready, limit).Should(BeTrue())`,
			`Eventually(ready, patience, time.Second).Should(BeTrue())`,
		},
		{
			shortDeadline,
			`It("works", func() {}, NodeTimeout(limit))`,
			`It("works", func() {}, SpecTimeout(patience))`,
		},
		{
			shortDeadline,
			`use(h.Poll(ctx, h.Patient(limit))); use(SpecTimeout(h.Patient(limit)))`,
			`use(SpecTimeout(h.Patient(patience)))`,
		},
		{
			shortDeadline,
			`use(options{Timeout: 50 * time.Millisecond})`,
			`use(options{Timeout: 50 * time.Millisecond, Clock: 1}, options{MaxWait: time.Millisecond})`,
		},
		{
			shortDeadline,
			`var o options; o.Timeout = time.Second; use(o)`,
			`var o options; o.MaxWait = time.Second; use(o)`,
		},
		{
			wallClock,
			`begin := time.Now(); use(); if time.Since(begin) > patience { t.Error("slow") }`,
			`begin := time.Now(); use(); if time.Since(begin) < patience { t.Error("early") }`,
		},
		{
			wallClock,
			`begin := time.Now(); use(); if took := time.Since(begin); took > 2*patience || !ready() { t.Fatalf("%s", took) }`,
			`begin := time.Now(); use(); if took := time.Since(begin); took > 2*patience { t.Logf("%s", took) }`,
		},
		{
			wallClock,
			`begin := time.Now(); use(); if took := max(0, time.Now().Sub(begin)); 2*patience < took { t.Fatal("slow") }`,
			`inBubble(t, func(t *testing.T) { begin := time.Now(); use(); if time.Since(begin) > limit { t.Error("slow") } })`,
		},
		{
			wallClock,
			`begin := time.Now(); use(); took := time.Since(begin); Expect(took).To(BeNumerically("<", patience))`,
			`begin := time.Now(); use(); took := time.Since(begin); Expect(took).To(BeNumerically(">", limit))`,
		},
		{
			sleeps,
			`for !ready() { time.Sleep(time.Millisecond) }`,
			`inBubble(t, func(t *testing.T) { time.Sleep(time.Hour) })`,
		},
		{
			sleeps,
			`<-time.After(patience)`,
			`for !ready() { <-time.After(time.Millisecond) }`,
		},
		{
			unseeded,
			`use(rand.IntN(7))`,
			`use(rand.New(rand.NewPCG(1, 2)).IntN(7))`,
		},
		{
			unseeded,
			`rand.Shuffle(7, func(int, int) {})`,
			`seed := rand.Uint64(); t.Logf("seed %d", seed); use(rand.New(rand.NewPCG(seed, 2)))`,
		},
		{
			unseeded,
			`use(rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2)))`,
			`use(rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 2)))`,
		},
		{
			closeThenListen,
			`use(func() any { l, err := net.Listen("tcp", "127.0.0.1:0"); use(err); defer l.Close(); return l.Addr() })`,
			`l, err := net.Listen("tcp", "127.0.0.1:0"); use(err); defer l.Close(); use(l.Addr())`,
		},
		{
			closeThenListen,
			`l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":0"); use(err); use(l.Addr().String(), l.Close())`,
			`l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":0"); use(err); go use(l); use(l.Addr().String(), l.Close())`,
		},
		{
			setLater,
			`var o options; go func() { use(o) }(); o = options{}`,
			`var o options; go func() { use(o); close(done) }(); <-done; o = options{}`,
		},
		{ // The value of an argument is copied, what it points to is not.
			setLater,
			`o := &options{}; go use(o); o.Clock = 1`,
			`o := &options{}; go use(o, o.Clock); o = nil; p := &options{}; go use(p.Clock); p.Timeout = patience`,
		},
		{
			setLater,
			`synctest.Test(t, func(t *testing.T) { n := 1; go func() { use(n) }(); n++ })`,
			`synctest.Test(t, func(t *testing.T) { n := 1; go func() { use(n) }(); synctest.Wait(); n++ })`,
		},
		{
			setLater,
			`var g sync.WaitGroup; all := map[int]int{}; g.Go(func() { use(all) }); if ready() { all[1] = 2 }; g.Wait()`,
			`var g sync.WaitGroup; all := map[int]int{}; g.Go(func() { use(all) }); if ready() { g.Wait(); all[1] = 2 }`,
		},
		{ // When another function runs is not known.
			setLater,
			`var o options; go o.begin(); for ready() { o.Clock = 1 }`,
			`var o options; go o.begin(); use(func() { o.Clock = 1 })`,
		},
	} {
		if found := chancePlanted(t, imports, planted.bad); len(found) != 1 || !strings.HasSuffix(found[0], ": "+planted.kind) {
			t.Errorf("%s\n\twas found: %q, want one: %s", planted.bad, found, planted.kind)
		}
		if found := chancePlanted(t, imports, planted.good); len(found) > 0 {
			t.Errorf("%s\n\twas found: %q, want nothing", planted.good, found)
		}
	}
}

// TestPlantedExcuses: a reason excuses what is at the end of its line or below it. A reason without a place, or one of a word or two, is
// refused.
func TestPlantedExcuses(t *testing.T) {
	imports := newOwnImporter(t, token.NewFileSet(), nil)
	for body, want := range map[string]string{
		"\ttime.Sleep(1) // fragile: a program that hangs for ever":                                 "",
		"\t// fragile: a program that hangs for ever,\n\t// until it is killed\n\ttime.Sleep(1)":    "",
		"\ttime.Sleep(1) // fragile: hangs":                                                         "gives no reason",
		"\t// fragile: a program that hangs for ever\n\tuse(1)":                                     "excuses nothing",
		"\t// fragile: a program that hangs for ever\n\tuse(1)\n\ttime.Sleep(1)":                    "excuses nothing, " + sleeps,
		"\ttime.Sleep(1) // it hangs for ever, which is fragile: a program may":                     sleeps,
		"\ttime.Sleep(1) // fragile: a program that hangs for ever\n\tawait(t, time.Second, ready)": shortDeadline,
	} {
		found := chancePlanted(t, imports, body)
		got := fmt.Sprint(found)
		for part := range strings.SplitSeq(want, ", ") {
			if !strings.Contains(got, part) || want == "" && len(found) > 0 {
				t.Errorf("%s\n\twas found: %q, want %q", body, found, want)
			}
		}
	}
}
