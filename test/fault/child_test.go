// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// job is what the child of these tests does, in Dir.
type job struct{ Do, Dir string }

func plan(t *testing.T, do, dir string, faults ...fault.Fault) fault.Plan {
	t.Helper()
	data, err := json.Marshal(job{do, dir})
	check.Must(t, err)
	return fault.Plan{Faults: faults, Data: data}
}

func TestChild(t *testing.T) {
	p, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var j job
	check.Must(t, json.Unmarshal(p.Data, &j))
	if j.Do == "no injector" {
		return
	}
	in, err := p.Injector()
	check.Must(t, err)
	switch j.Do {
	case "everything":
		err := everything(in.FS(disk.OS{}), j.Dir)
		t.Logf("the child's own words: %v", err)
	case "fail":
		t.Fatal("this child fails")
	case "die":
		check.Must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	case "hang":
		check.Must(t, os.WriteFile(filepath.Join(j.Dir, "hangs"), nil, 0o600))
		select {}
	}
}

// TestKillEach: the child dies before each operation, and its log and the disk have those before it and no more.
func TestKillEach(t *testing.T) {
	for n := 1; ; n++ {
		dir := t.TempDir()
		start, err := fault.Snapshot(dir)
		check.Must(t, err)
		result, err := fault.Child{}.Run(t.Context(), plan(t, "everything", dir, fault.Kill(n)))
		check.Must(t, err)
		if result.Killed == nil {
			if n != 13 || result.Log.Changes() != 12 || !strings.Contains(result.Output, "PASS") {
				t.Errorf("finished at %d with %d changes:\n%s", n, result.Log.Changes(), result.Output)
			}
			return
		}
		if result.Killed.N != n || result.Killed.Done || len(result.Log) != n {
			t.Errorf("killed at %d: %+v, %d operations", n, result.Killed, len(result.Log))
		}
		if diff := survived(t, start, result.Log, dir); diff != "" {
			t.Errorf("killed at %d (-disk +log):\n%s", n, diff)
		}
	}
}

// survived compares what the log says with the disk.
func survived(t *testing.T, start *fault.Tree, log fault.Log, dir string) string {
	t.Helper()
	for _, s := range all(t, start, log, fault.Options{}) {
		if s.Lost == "" {
			return diffLines(look(t, dir), materialised(t, s))
		}
	}
	return "no state in which everything survives"
}

func diffLines(want, got []string) string {
	if a, b := strings.Join(want, "\n"), strings.Join(got, "\n"); a != b {
		return a + "\nbut\n" + b
	}
	return ""
}

func TestTear(t *testing.T) {
	dir := t.TempDir()
	result, err := fault.Child{}.Run(t.Context(), plan(t, "everything", dir, fault.Tear(2)))
	check.Must(t, err)
	if k := result.Killed; k == nil || k.N != 2 || !k.Done || string(k.Data) != "ab" {
		t.Errorf("killed %+v, want the write, half done", result.Killed)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "ab" {
		t.Errorf("content %q (%v), want half", data, err)
	}
	result, err = fault.Child{}.Run(t.Context(), plan(t, "everything", t.TempDir(), fault.Tear(3)))
	check.Must(t, err)
	if k := result.Killed; k == nil || k.N != 3 || k.Done {
		t.Errorf("killed %+v, want before the truncation, which cannot be torn", result.Killed)
	}
}

// TestChildGoesOn with an error that it was given.
func TestChildGoesOn(t *testing.T) {
	result, err := fault.Child{}.Run(t.Context(), plan(t, "everything", t.TempDir(), fault.Fail(5, syscall.EIO)))
	check.Must(t, err)
	if result.Killed != nil || result.Log[4].Fault != "fail" || result.Log.Changes() != 12 {
		t.Errorf("killed %+v, log:\n%s", result.Killed, result.Log)
	}
}

// TestOneLog for two children: the handles of the second are its own.
func TestOneLog(t *testing.T) {
	dir := t.TempDir()
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	first := plan(t, "everything", dir, fault.Kill(6))
	first.Log = filepath.Join(t.TempDir(), "log")
	result, err := fault.Child{}.Run(t.Context(), first)
	check.Must(t, err)
	if result.Killed == nil {
		t.Fatal("the first was not killed")
	}
	third := plan(t, "die", dir)
	third.Log = first.Log
	if result, err := (fault.Child{}).Run(t.Context(), third); err == nil || result.Killed != nil {
		t.Errorf("killed by another after a planned kill: %+v, %v", result.Killed, err)
	}
	second := first
	second.Faults = nil
	result, err = fault.Child{}.Run(t.Context(), second)
	check.Must(t, err)
	if result.Killed != nil || len(result.Log) != 6+17 {
		t.Errorf("killed %+v after %d operations, want 6 of the first and all 17 of the second", result.Killed, len(result.Log))
	}
	if diff := survived(t, start, result.Log, dir); diff != "" {
		t.Errorf("(-disk +log):\n%s", diff)
	}
}

func TestOtherEnds(t *testing.T) {
	for do, want := range map[string]string{
		"fail":        "this child fails",
		"die":         "signal: killed",
		"no injector": "made no injector",
	} {
		_, err := fault.Child{}.Run(t.Context(), plan(t, do, t.TempDir(), fault.Kill(1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", do, err, want)
		}
	}
	ctx, pass := check.Deadline(t)
	dir, ended := t.TempDir(), make(chan error, 1)
	go func() {
		_, err := fault.Child{}.Run(ctx, plan(t, "hang", dir))
		ended <- err
	}()
	check.Eventually(t, "the child hangs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "hangs"))
		return err == nil
	})
	pass()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a child that hangs: %v", err)
	}
	if _, err := (fault.Child{Test: "TestNothing"}).Run(t.Context(), plan(t, "", "")); err == nil {
		t.Error("a child without a test succeeded")
	}
}

// TestTornLog: the last line of a log may be cut where the process was killed from outside.
func TestTornLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	in := fault.New()
	check.Must(t, in.LogTo(path))
	check.Must(t, everything(in.FS(disk.OS{}), t.TempDir()))
	whole, err := os.ReadFile(path)
	check.Must(t, err)
	for cut := len(whole) - 500; cut < len(whole); cut++ {
		check.Must(t, os.WriteFile(path, whole[:cut], 0o600))
		log, err := fault.ReadLog(path)
		if err != nil || len(log) != strings.Count(string(whole[:cut]), "\n") {
			t.Fatalf("cut at %d: %d operations, %v", cut, len(log), err)
		}
	}
	check.Must(t, os.WriteFile(path, append([]byte("nonsense\n"), whole...), 0o600))
	if _, err := fault.ReadLog(path); err == nil {
		t.Error("nonsense was read")
	}
}
