// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	mi300x = "0000:05:00.0"
	// aerFatal is what Linux 6.8 prints for a function without errors.
	aerFatal = "Undefined 0\nDLP 0\nSDES 0\nTLP 0\nFCP 0\nCmpltTO 0\nCmpltAbrt 0\nUnxCmplt 0\nRxOF 0\nMalfTLP 0\nECRC 0\nUnsupReq 0\n" +
		"ACSViol 0\nUncorrIntErr 0\nBlockedTLP 0\nAtomicOpBlocked 0\nTLPBlockedErr 0\nPoisonTLPBlocked 0\nTOTAL_ERR_FATAL 0\n"
)

// expand writes a machine of test/machines and returns its root and a way to write the attributes of a PCI function.
func expand(t *testing.T, name, address string) (root string, write func(attribute, text string)) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "test", "machines", name+".txtar"))
	check.Must(t, err)
	m, err := sim.Parse(text)
	check.Must(t, err)
	root = filepath.Join(t.TempDir(), name)
	_, err = m.Expand(root, sim.Options{})
	check.Must(t, err)
	dir := filepath.Join(root, sysfs.PCIDevice(address))
	return root, func(attribute, text string) {
		t.Helper()
		check.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, attribute)), 0o755))
		check.Must(t, os.WriteFile(filepath.Join(dir, attribute), []byte(text), 0o644))
	}
}

func open(t *testing.T, root string) *sysfs.Tree {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

// text is readings as lines.
func text(readings []Reading) string {
	var b strings.Builder
	for _, r := range readings {
		fmt.Fprintf(&b, "%s %d\n", r.Code, r.Value)
	}
	return b.String()
}

func TestAER(t *testing.T) {
	root, write := expand(t, "8xmi300x", mi300x)
	tree := open(t, root)
	if got, err := AER(tree, mi300x); err != nil || len(got) > 0 {
		t.Errorf("without the files: %v, %v", got, err)
	}
	write("aer_dev_fatal", aerFatal)
	write("aer_dev_nonfatal", "Undefined 0\nCmpltTO 3\nTOTAL_ERR_NONFATAL 3\n")
	write("aer_dev_correctable", "Receiver Error 2\nBad TLP 0\nTOTAL_ERR_COR 2\n") // the names of Linux 4.19
	got, err := AER(tree, mi300x)
	if err != nil || len(got) != 18+2+2 {
		t.Errorf("%d readings, %v", len(got), err)
	}
	want := "nonfatal.Undefined 0\nnonfatal.CmpltTO 3\ncorrectable.ReceiverError 2\ncorrectable.BadTLP 0\n"
	if diff := cmp.Diff(want, text(got[18:])); diff != "" {
		t.Errorf("readings (-want +got):\n%s", diff)
	}
	write("aer_dev_nonfatal", "garbage\x00")
	got, err = AER(tree, mi300x)
	if len(got) != 20 || !errors.Is(err, sysfs.ErrMalformed) || !strings.Contains(err.Error(), "aer_dev_nonfatal") {
		t.Errorf("%d readings, %v; want the two other files and an error that names the third", len(got), err)
	}
}

func TestRAS(t *testing.T) {
	root, write := expand(t, "8xmi300x", mi300x)
	tree := open(t, root)
	if got, err := RAS(tree, mi300x); err != nil || len(got) > 0 {
		t.Errorf("without the directory: %v, %v", got, err)
	}
	write("ras/features", "feature mask: 0x1\n")
	write("ras/umc_err_count", "ue: 1\nce: 20\nde: 3\n")
	write("ras/gfx_err_count", "ue: 0\nce: 0\n")
	got, err := RAS(tree, mi300x)
	check.Must(t, err)
	if diff := cmp.Diff("gfx.ue 0\ngfx.ce 0\numc.ue 1\numc.ce 20\numc.de 3\n", text(got)); diff != "" {
		t.Errorf("readings (-want +got):\n%s", diff)
	}
	write("ras/gfx_err_count", "Query currently inaccessible\n") // what the driver prints while it cannot ask
	got, err = RAS(tree, mi300x)
	if diff := cmp.Diff("umc.ue 1\numc.ce 20\numc.de 3\n", text(got)); diff != "" {
		t.Errorf("the other file's readings (-want +got):\n%s", diff)
	}
	check.WantErr(t, err, nil, "gfx_err_count")
}

func TestReadInstance(t *testing.T) {
	root, _ := expand(t, "8xmi300x", mi300x)
	tree := open(t, root)
	first, err := Instance(tree, mi300x)
	if err != nil || first == "" {
		t.Fatalf("got %q, %v", first, err)
	}
	if again, err := Instance(tree, mi300x); err != nil || again != first {
		t.Errorf("got %q, then %q, %v", first, again, err)
	}
	driver := filepath.Join(root, sysfs.PCIDevice(mi300x), "driver")
	target, err := os.Readlink(driver)
	check.Must(t, err)
	check.Must(t, os.Symlink(target, driver+"2")) // so that the file system does not give the number again
	check.Must(t, os.Rename(driver+"2", driver))
	if again, err := Instance(tree, mi300x); err != nil || again == first {
		t.Errorf("got %q after it was bound anew, %v", again, err)
	}
	check.Must(t, os.Remove(driver))
	if got, err := Instance(tree, mi300x); err != nil || got != "" {
		t.Errorf("got %q without a driver, %v", got, err)
	}
}

func FuzzCounters(f *testing.F) {
	for _, seed := range []string{aerFatal, "ue: 1\nce: 20\nde: 3\n", "Data Link Protocol 0\n", "x", "9", " 9", "a 1e9", "ü 1", ": 1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		for _, parse := range []func(string, string) ([]Reading, error){parseAER, parseRAS} {
			readings, err := parse("block", content)
			if err != nil && len(readings) > 0 {
				t.Errorf("%q: both %v and %v", content, readings, err)
			}
			for _, r := range readings {
				if !strings.HasPrefix(r.Code, "block.") || len(r.Code) > 46 || Reason("aer", r.Code) == "" || len(r.Code) == len("block.") {
					t.Errorf("%q: code %q", content, r.Code)
				}
			}
		}
	})
}

func TestPoll(t *testing.T) {
	root, write := expand(t, "8xmi300x", mi300x)
	write("aer_dev_fatal", aerFatal)
	write("ras/umc_err_count", "ue: 0\n")
	other := Target{Name: "b", Address: "0000:26:00.0"}
	p := &Poller{Root: root, Patience: time.Minute}
	got := p.Poll([]Target{{Name: "a", Address: mi300x}, other, {Name: "c", Address: "0000:ff:00.0"}})
	if len(got) != 3 || got[0].Name != "a" || len(got[0].Reports) != 2 || got[0].Err != nil || got[0].Instance == "" {
		t.Errorf("got %+v", got)
	}
	if got[1].Target != other || len(got[1].Reports) != 0 || got[1].Err != nil || got[2].Err != nil {
		t.Errorf("got %+v", got[1:])
	}
	p.Disabled = []string{SourceRAS}
	if got := p.Poll([]Target{{Name: "a", Address: mi300x}}); len(got[0].Reports) != 1 || got[0].Reports[0].Source != SourceAER {
		t.Errorf("got %+v", got)
	}
	p.Root = "/nowhere"
	if got := p.Poll([]Target{other}); got[0].Err == nil {
		t.Error("no error without a host tree")
	}
}

// TestPollOfAStuckDevice: a device whose counters cannot be had holds up nobody, and is not asked twice at once.
func TestPollOfAStuckDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, asked := make(chan struct{}), make(chan string, 16)
		p := &Poller{Patience: time.Minute, reader: func(target Target) Polled {
			asked <- target.Name
			if target.Name == "stuck" {
				<-release
			}
			return Polled{Target: target, Instance: "1"}
		}}
		targets := []Target{{Name: "a"}, {Name: "stuck"}, {Name: "z"}}
		for range 3 {
			got := p.Poll(targets)
			if got[0].Err != nil || got[2].Err != nil || !errors.Is(got[1].Err, errBusy) {
				t.Errorf("got %+v", got)
			}
		}
		close(release)
		synctest.Wait()
		if got := p.Poll(targets); got[1].Err != nil {
			t.Errorf("it was not asked again: %v", got[1].Err)
		}
		times := 0
		for len(asked) > 0 {
			if <-asked == "stuck" {
				times++
			}
		}
		if times != 2 {
			t.Errorf("the stuck device was asked %d times, want once and once more", times)
		}
	})
}
