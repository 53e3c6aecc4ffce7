// SPDX-License-Identifier: Apache-2.0

package hostdirs

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// lender is the feature on a machine, and the records of its claims.
type lender struct {
	*Feature
	t       *testing.T
	records *record.Store
}

func newLender(t *testing.T, root string) *lender {
	t.Helper()
	records, err := record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	f := New(Config{
		Node: nodefixture.Node, HostRoot: root, Held: records.Held, Recorded: records.Recorded, Emptied: notify.New(),
		Errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"in"}),
	})
	return &lender{Feature: f, t: t, records: records}
}

// withDirectories is a lender on a machine that has SSDs of some names.
func withDirectories(t *testing.T, names ...string) *lender {
	t.Helper()
	l := newLender(t, t.TempDir())
	for _, name := range names {
		check.Must(t, os.MkdirAll(l.path(name), 0o750))
	}
	return l
}

// path is where the plugin sees the directory of an SSD.
func (l *lender) path(name string) string { return filepath.Join(l.HostRoot, "mnt", "disks", name) }

// leave puts what a claim left into a directory.
func leave(t *testing.T, dir string) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Join(dir, ".fettle-trash-u0-0", "old"), 0o755))
}

// reviewed is a snapshot of some SSDs after the feature's review.
func (l *lender) reviewed(names ...string) *inventory.Snapshot {
	l.t.Helper()
	s := nodefixture.SnapshotWith()
	for _, name := range names {
		s.Devices = append(s.Devices, nodefixture.SSD(name))
	}
	l.Review(l.t.Context(), s)
	return s
}

func (l *lender) wantEmptied(want bool) {
	l.t.Helper()
	l.Wait()
	select {
	case <-l.Emptied:
		if !want {
			l.t.Error("a directory was emptied")
		}
	default:
		if want {
			l.t.Error("no directory was emptied")
		}
	}
}

// TestDirtyDirectory is withheld, emptied in the background, and published again; one that a claim holds is left alone, whatever
// its files are called.
func TestDirtyDirectory(t *testing.T) {
	root := nodefixture.Expand(t, "4xlocalssd")
	l := newLender(t, root)
	look := func() *inventory.Snapshot {
		s := nodefixture.SnapshotOf(t, root)
		l.Review(t.Context(), s)
		return s
	}
	all := look()
	if len(all.Devices) != 4 || len(all.Withheld) != 0 {
		t.Fatalf("devices %v, withheld %v", all.Devices, all.Withheld)
	}
	dirty, held, stale := all.Devices[0], all.Devices[1], all.Devices[2]
	for _, d := range all.Devices[:3] {
		leave(t, filepath.Join(root, d.Edits.Mounts[0].HostPath))
	}
	holder := &record.Record{UID: "u1", Phase: record.Prepared, Devices: []record.Device{{Pool: nodefixture.Node + "/host", Name: held.Name}}}
	check.Must(t, l.records.Create(holder))
	check.Must(t, l.records.Acquire(holder))
	former := &record.Record{UID: "u2", Devices: []record.Device{{Pool: nodefixture.Node + "/host", Name: stale.Name}}}
	check.Must(t, l.records.Acquire(former)) // a link without a record, as an interrupted release leaves it

	v := look()
	if len(v.Withheld) != 2 || v.Withheld[dirty.Name] != reasonEmptying || v.Withheld[stale.Name] != reasonEmptying {
		t.Errorf("withheld %v, want %s and %s", v.Withheld, dirty.Name, stale.Name)
	}
	l.wantEmptied(true)
	if v := look(); len(v.Withheld) != 0 {
		t.Errorf("withheld %v after it was emptied", v.Withheld)
	}
	if _, err := os.Stat(filepath.Join(root, held.Edits.Mounts[0].HostPath, ".fettle-trash-u0-0", "old")); err != nil {
		t.Errorf("a holder's file was deleted: %v", err)
	}
}

// TestHangingDirectory: the review, a plan and a leftover of a directory whose disk or server does not answer end in time: claims of other
// devices wait for the review, and those that share another device of the claim for the others.
func TestHangingDirectory(t *testing.T) {
	l := withDirectories(t, "ssd0", "ssd1")
	clock := testingclock.NewFakeClock(time.Unix(0, 0))
	check.HangingMount(t, l.path("ssd1"))
	ends := func(what string, f func()) {
		l.reads = sysfs.NewReads(clock, patience)
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		check.Wind(t, what+" ends", clock, patience, check.Received(done))
	}
	ends("the review", func() {
		if s := l.reviewed("ssd1"); len(s.Withheld) != 1 {
			t.Errorf("withheld %v, want ssd1", s.Withheld)
		}
	})
	ssd1 := nodefixture.SSD("ssd1")
	ends("the undoing of a leftover", func() {
		_, err := l.Leftovers(t.Context(), "u1", ssd1)
		check.WantErr(t, err, sysfs.ErrNoAnswer)
	})
	ends("the plan", func() {
		c, a := borrowed(t, v1alpha1.OnReleaseEmpty, ssdResult("a", "ssd1"))
		_, err := l.plan(c, a)
		check.WantErr(t, err, sysfs.ErrNoAnswer)
	})
	if s := l.reviewed("ssd0"); len(s.Withheld) != 0 {
		t.Errorf("withheld %v", s.Withheld)
	}
}

// TestPurgeFails: a directory that cannot be emptied is tried again at the interval, not at once and for ever.
func TestPurgeFails(t *testing.T) {
	l := newLender(t, t.TempDir())
	l.purger.start(t.Context(), filepath.Join(t.TempDir(), "missing"))
	l.wantEmptied(false) // the next look would start over at once
	if got := testutil.ToFloat64(l.Errors.WithLabelValues("purge")); got != 1 {
		t.Errorf("counted %v errors, want 1", got)
	}
}

// TestReview: only directories are looked at, and one that cannot be used says why.
func TestReview(t *testing.T) {
	l := withDirectories(t, "clean", "dirty", "file")
	leave(t, l.path("dirty"))
	check.Must(t, os.Remove(l.path("file")))
	check.Must(t, os.WriteFile(l.path("file"), nil, 0o600))
	s := nodefixture.SnapshotWith(
		nodefixture.GPU("gpu0", 0), nodefixture.SSD("clean"), nodefixture.SSD("dirty"), nodefixture.SSD("file"), nodefixture.SSD("gone"),
		device.Device{Kind: device.KindHost, Name: "node"}, // a device node of the host is no directory
	)
	s.Withheld["clean"] = "another reason"
	l.Review(t.Context(), s)
	var withheld []string
	for _, d := range s.Devices {
		if s.Withheld[d.Name] != "" {
			withheld = append(withheld, d.Name)
		}
	}
	if diff := cmp.Diff([]string{"clean", "dirty", "file", "gone"}, withheld); diff != "" {
		t.Errorf("withheld (-want +got):\n%s", diff)
	}
	if s.Withheld["clean"] != "another reason" || s.Withheld["dirty"] != reasonEmptying {
		t.Errorf("withheld %v", s.Withheld)
	}
	var problems []string
	for _, p := range s.Problems {
		problems = append(problems, p.Reason+" "+p.Subject)
	}
	want := []string{discover.ReasonHostPathUnusable + " /mnt/disks/file", discover.ReasonHostPathUnusable + " /mnt/disks/gone"}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	l.wantEmptied(true)
	if got := testutil.ToFloat64(l.Errors.WithLabelValues("purge")); got != 0 {
		t.Errorf("counted %v errors", got)
	}
}

// TestReviewAsksWhoHolds: a directory is asked for by its pool and name.
func TestReviewAsksWhoHolds(t *testing.T) {
	l := withDirectories(t, "d0")
	leave(t, l.path("d0"))
	var asked []string
	l.Held = func(pool, name string) bool {
		asked = append(asked, pool+" "+name)
		return true
	}
	if s := l.reviewed("d0"); len(s.Withheld) > 0 {
		t.Errorf("withheld from its own claim: %v", s.Withheld)
	}
	if diff := cmp.Diff([]string{nodefixture.Node + "/host d0"}, asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	l.wantEmptied(false)
}

// TestWhatIsLeft: a directory that is marked as scratch space of a claim is withheld and given to no other, unless there is a record of
// that claim, which says more.
func TestWhatIsLeft(t *testing.T) {
	l := withDirectories(t, "left")
	if err := unix.Setxattr(l.path("left"), "trusted.fettle.scratch", []byte("u0"), 0); err != nil {
		t.Skipf("nobody marks directories here: %v", err)
	}
	for _, recorded := range []bool{false, true} {
		if recorded {
			check.Must(t, l.records.Create(&record.Record{UID: "u0", Phase: record.Prepared}))
		}
		s := l.reviewed("left")
		if withheld := s.Withheld["left"] != ""; withheld == recorded || len(s.Problems) > 0 == recorded {
			t.Errorf("recorded %v: withheld %v, problems %v", recorded, s.Withheld, s.Problems)
		}
		for _, release := range []v1alpha1.OnRelease{v1alpha1.OnReleaseEmpty, v1alpha1.OnReleaseKeep} {
			c, a := borrowed(t, release, ssdResult("a", "left"))
			if _, err := l.plan(c, a); errors.Is(err, hostdir.ErrLeft) == recorded {
				t.Errorf("recorded %v, %s: %v", recorded, release, err)
			}
		}
	}
	l.wantEmptied(false)
}

// borrowed is a claim whose requests have an SSD each, by name, with what is to become of it.
func borrowed(t *testing.T, release v1alpha1.OnRelease, results ...nodefixture.APIResult) (*resourceapi.ResourceClaim, claim.Allocation) {
	t.Helper()
	c := nodefixture.Allocated("u1", results...)
	if release != "" {
		nodefixture.Configured(c, resourceapi.AllocationConfigSourceClass,
			`{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"onRelease":"`+string(release)+`"}}`)
	}
	a, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	check.Must(t, err)
	return c, a
}

func ssdResult(request, name string) nodefixture.APIResult {
	return nodefixture.Result(request, device.KindHost, name)
}

// plan asks for the steps of a claim that had some steps before the reboot.
func (l *lender) plan(c *resourceapi.ResourceClaim, a claim.Allocation, earlier ...step.Step) ([]step.Step, error) {
	l.t.Helper()
	got, err := l.Plan(l.t.Context(), prepare.Request{
		Claim: c, Allocation: a, Earlier: earlier, AfterReboot: len(earlier) > 0, Find: func(r *claim.Result) (device.Device, bool) {
			if r.Kind == device.KindHost {
				return nodefixture.SSD(r.Device), true
			}
			return nodefixture.GPU(r.Device, 0), true
		},
	})
	if len(got.Edits) > 0 || got.Decision != nil {
		l.t.Errorf("planned edits %v, decided %s", got.Edits, got.Decision)
	}
	return got.Steps, err
}

func targets(steps []step.Step) (out []string) {
	for _, s := range steps {
		out = append(out, s.Kind+" "+s.Target)
	}
	return out
}

// TestPlan: a claim borrows the directories that are emptied afterwards, in the order of its allocation, and nothing else.
func TestPlan(t *testing.T) {
	const lend = hostdir.StepKind + " /mnt/disks/"
	for _, tc := range []struct {
		name    string
		release v1alpha1.OnRelease
		results []nodefixture.APIResult
		want    []string
	}{
		{"one", v1alpha1.OnReleaseEmpty, []nodefixture.APIResult{ssdResult("a", "d0")}, []string{lend + "d0"}},
		{"two", v1alpha1.OnReleaseEmpty, []nodefixture.APIResult{ssdResult("a", "d1"), ssdResult("b", "d0")}, []string{lend + "d1", lend + "d0"}},
		{"kept", v1alpha1.OnReleaseKeep, []nodefixture.APIResult{ssdResult("a", "d0")}, nil},
		{"as usual", "", []nodefixture.APIResult{ssdResult("a", "d0")}, []string{lend + "d0"}},
		{"a look", v1alpha1.OnReleaseEmpty, []nodefixture.APIResult{nodefixture.Look(ssdResult("a", "d0"))}, nil},
		{"no directory", "", []nodefixture.APIResult{nodefixture.Result("a", device.KindGPU, "gpu0")}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := withDirectories(t, "d0", "d1")
			c, a := borrowed(t, tc.release, tc.results...)
			steps, err := l.plan(c, a)
			check.Must(t, err)
			if diff := cmp.Diff(tc.want, targets(steps)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			kinds := l.Kinds()
			for _, s := range steps {
				check.Must(t, kinds.Apply(t.Context(), s))
				check.Must(t, os.WriteFile(filepath.Join(l.HostRoot, s.Target, "data"), nil, 0o600))
			}
			for _, s := range steps {
				check.Must(t, kinds.Undo(t.Context(), s))
				check.Must(t, kinds.Finish(t.Context(), s))
				left, err := os.ReadDir(filepath.Join(l.HostRoot, s.Target))
				if err != nil || len(left) > 0 {
					t.Errorf("left in %s: %v (%v)", s.Target, left, err)
				}
			}
		})
	}
}

// TestPlanRefused: a directory that is not there, or not yet empty, is not lent, whatever becomes of it later: a claim would see what the
// one before left.
func TestPlanRefused(t *testing.T) {
	l := withDirectories(t, "dirty")
	leave(t, l.path("dirty"))
	for _, release := range []v1alpha1.OnRelease{v1alpha1.OnReleaseEmpty, v1alpha1.OnReleaseKeep} {
		for name, want := range map[string]error{"dirty": hostdir.ErrDirty, "gone": fs.ErrNotExist} {
			c, a := borrowed(t, release, ssdResult("a", name))
			if steps, err := l.plan(c, a); !errors.Is(err, want) || len(steps) > 0 {
				t.Errorf("%s, %s: got %v, %v, want %v", release, name, steps, err, want)
			}
		}
	}
}

// TestPlanAfterReboot: the step stays as it was recorded, since it remembers the mode from before the claim, which is the claim's own now.
// The directory may look dirty: its files are the claim's.
func TestPlanAfterReboot(t *testing.T) {
	l := withDirectories(t, "d0", "d1")
	c, a := borrowed(t, v1alpha1.OnReleaseEmpty, ssdResult("a", "d0"), ssdResult("b", "d1"))
	before, err := l.plan(c, a)
	check.Must(t, err)
	for _, s := range before {
		check.Must(t, l.Kinds().Apply(t.Context(), s))
	}
	leave(t, l.path("d0"))
	after, err := l.plan(c, a, before...)
	check.Must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("steps after the reboot (-before +after):\n%s", diff)
	}
	// One that it did not have in that boot is planned as any other.
	after, err = l.plan(c, a, before[0])
	check.Must(t, err)
	if len(after) != 2 || after[1].Target != "/mnt/disks/d1" || cmp.Equal(before[1], after[1]) {
		t.Errorf("steps %v", after)
	}
}

// TestLeftovers: a claim whose record is lost gives its directory back: emptied, also where it looks dirty, and closed where its mode from
// before is not known.
func TestLeftovers(t *testing.T) {
	l := withDirectories(t, "d0")
	c, a := borrowed(t, v1alpha1.OnReleaseEmpty, ssdResult("a", "d0"))
	steps, err := l.plan(c, a)
	check.Must(t, err)
	kinds := l.Kinds()
	check.Must(t, kinds.Apply(t.Context(), steps[0]))
	leave(t, l.path("d0"))
	check.Must(t, os.WriteFile(filepath.Join(l.path("d0"), "data"), nil, 0o600))

	left, err := l.Leftovers(t.Context(), "u1", nodefixture.SSD("d0"))
	check.Must(t, err)
	if len(left) != 1 || !left[0].Same(steps[0]) {
		t.Fatalf("leftovers %v, want %v", left, steps)
	}
	var p hostdir.Params
	check.Must(t, json.Unmarshal(left[0].Params, &p))
	if p.Claim != "u1" {
		t.Errorf("leftovers of claim %q", p.Claim)
	}
	for range 2 { // undoing twice is undoing once
		check.Must(t, kinds.Undo(t.Context(), left[0]))
	}
	check.Must(t, kinds.Finish(t.Context(), left[0]))
	info, err := os.Stat(l.path("d0"))
	check.Must(t, err)
	if entries, err := os.ReadDir(l.path("d0")); err != nil || len(entries) > 0 || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("left %v (%v), mode %v", entries, err, info.Mode())
	}

	for name, d := range map[string]device.Device{
		"a directory that left with its disk": nodefixture.SSD("gone"), "a GPU": nodefixture.GPU("gpu0", 0), "a device that left": {},
	} {
		if left, err := l.Leftovers(t.Context(), "u1", d); err != nil || len(left) > 0 {
			t.Errorf("%s: leftovers %v, %v", name, left, err)
		}
	}
	check.Must(t, os.WriteFile(l.path("file"), nil, 0o600))
	if _, err := l.Leftovers(t.Context(), "u1", nodefixture.SSD("file")); err == nil {
		t.Error("what is no directory is passed over")
	}
}

// TestLeftoversOfKeep: what claims with onRelease Keep left stays although the record of one is lost, whatever mode the administrator gave
// the directory, and although it was scratch space before.
func TestLeftoversOfKeep(t *testing.T) {
	for _, mode := range []os.FileMode{0o755, 0o777 | os.ModeSticky} {
		l := withDirectories(t, "d0")
		check.Must(t, os.Chmod(l.path("d0"), mode))
		c, a := borrowed(t, v1alpha1.OnReleaseEmpty, ssdResult("a", "d0"))
		steps, err := l.plan(c, a)
		check.Must(t, err)
		check.Must(t, l.Kinds().Apply(t.Context(), steps[0]))
		check.Must(t, l.Kinds().Undo(t.Context(), steps[0]))
		check.Must(t, os.WriteFile(filepath.Join(l.path("d0"), "kept"), nil, 0o600))
		if left, err := l.Leftovers(t.Context(), "u1", nodefixture.SSD("d0")); err != nil || len(left) > 0 {
			t.Errorf("mode %v: leftovers %v, %v", mode, left, err)
		}
	}
}

// TestWait: nothing is deleted once it returned, and what was not finished is found by the next look.
func TestWait(t *testing.T) {
	l := withDirectories(t, "d0")
	leave(t, l.path("d0"))
	for range 3 { // one deleter a directory
		l.purger.start(t.Context(), l.path("d0"))
	}
	done := make(chan struct{})
	go func() { defer close(done); l.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it waits for ever")
	}
	l.purger.running.Range(func(path, _ any) bool {
		t.Errorf("still running: %v", path)
		return true
	})
}

// TestWaitForHangingDirectory: a disk or server that does not answer while a directory is emptied does not keep the plugin from ending.
func TestWaitForHangingDirectory(t *testing.T) {
	l := withDirectories(t, "d0")
	leave(t, l.path("d0"))
	check.HangingMount(t, l.path("d0"))
	clock := testingclock.NewFakeClock(time.Unix(0, 0))
	l.purger.clock = clock
	l.purger.start(t.Context(), l.path("d0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Wait()
	}()
	check.Wind(t, "Wait ends", clock, endPatience, check.Received(done))
}
