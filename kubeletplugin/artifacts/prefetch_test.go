// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/test/nodefixture"

	"github.com/fettle-dev/fettle/test/check"
)

// scout is a shelf's node that fetches what a test's objects want, with a clock that the test winds.
type scout struct {
	*shelf
	*Prefetcher
	clock *clocktesting.FakeClock
	told  int

	mu sync.Mutex
	// wanted are the files by the names of their objects.
	wanted map[string]*pin.Params
}

func newScout(t *testing.T) *scout {
	t.Helper()
	s := &scout{shelf: newShelf(t), clock: clocktesting.NewFakeClock(time.Now()), wanted: map[string]*pin.Params{}}
	s.Prefetcher = NewPrefetcher(PrefetchConfig{
		Node: nodefixture.Node, Holder: inventory.NewHolder(), Retirement: retirement.New(), Clock: s.clock, Fetched: func() { s.told++ },
	}, Source{
		What: "bitstream", Needed: func(v *inventory.Snapshot) bool { return len(v.Devices) > 0 }, Jobs: s.jobs,
		Watch: func(context.Context, func()) (func(), error) { return func() {}, nil },
	})
	s.Holder.Set(nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0)))
	return s
}

func (s *scout) jobs(*inventory.Snapshot) (out []Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.wanted {
		out = append(out, Job{
			Key: fmt.Sprint(*p), Reference: p.Reference, Digest: p.Digest,
			Fetch: func(ctx context.Context) error { return s.EnsureOpportunistic(ctx, p) },
		})
	}
	return out
}

// know has an object want an image.
func (s *scout) know(name string, image v1alpha1.BitstreamImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted[name] = s.file("team/"+name, image)
}

func (s *scout) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.wanted, name)
}

// pass winds the clock from one thing that is due to the next, for as long as there are some. It returns the times of the steps.
func (s *scout) pass() (waits []time.Duration) {
	s.t.Helper()
	for range 100 {
		wait, ok := s.next(s.t.Context())
		if !ok {
			return waits
		}
		if wait > 0 {
			waits = append(waits, wait)
			s.clock.Step(wait)
		}
	}
	s.t.Fatalf("it never ends: %v", waits)
	return nil
}

// held are the digests of the files that the node holds.
func (s *scout) held() []string {
	s.t.Helper()
	held, err := s.Held()
	check.Must(s.t, err)
	return held
}

func (s *scout) wantHeld(want ...v1alpha1.BitstreamImage) {
	s.t.Helper()
	var layers []string
	for i := range want {
		layers = append(layers, want[i].Layer)
	}
	slices.Sort(layers)
	if diff := cmp.Diff(layers, s.held()); diff != "" {
		s.t.Errorf("in the store (-want +got):\n%s", diff)
	}
}

// TestPrefetch: what is wanted comes, once. It is not pinned, and the one who is to tell of it is told.
func TestPrefetch(t *testing.T) {
	s := newScout(t)
	mine, blank := s.Image(t, "team/mine", shell, nlb0), s.Image(t, "team/blank", shell, nlb3)
	s.know("mine", mine)
	s.know("blank", blank)
	s.wantHeld()
	s.pass()
	s.wantHeld(mine, blank)
	s.wantPins(mine.Layer)
	if s.told != 2 {
		t.Errorf("told %d times, want 2", s.told)
	}
	reads := s.Reads.Load()
	s.pass()
	if s.Reads.Load() != reads || s.told != 2 {
		t.Error("what is here was fetched again")
	}
}

// TestPrefetchIsSpread: each node begins with each file at a time of its own, always the same, within half a minute; and with one at a
// time.
// TestSlowPrefetchHoldsUpOthersShortly: files are fetched one after the other, and a registry may be as slow as it likes.
func TestSlowPrefetchHoldsUpOthersShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetched, jobs := time.Time{}, []Job{}
		for i := range 3 {
			jobs = append(jobs, Job{Key: fmt.Sprint("slow", i), Fetch: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}})
		}
		jobs = append(jobs, Job{Key: "quick", Reference: "last", Fetch: func(context.Context) error {
			fetched = time.Now()
			return nil
		}})
		p := NewPrefetcher(PrefetchConfig{
			Node: nodefixture.Node, Holder: inventory.NewHolder(), Retirement: retirement.New(), Clock: clock.RealClock{}, Fetched: func() {},
		}, Source{What: "file", Jobs: func(*inventory.Snapshot) []Job { return jobs }})
		begun := time.Now()
		for {
			wait, more := p.next(t.Context())
			if !more {
				break
			}
			time.Sleep(wait) // in the bubble's time
		}
		if took := fetched.Sub(begun); took > 3*prefetchQuick+prefetchSpread {
			t.Errorf("the quick file came after %s", took)
		}
		for _, e := range p.tasks {
			if !e.done {
				t.Errorf("%s was tried %d times", e.Key, e.tries)
			}
		}
	})
}

func TestPrefetchIsSpread(t *testing.T) {
	s := newScout(t)
	var images []v1alpha1.BitstreamImage
	var due []time.Duration
	for i := range 8 {
		name := fmt.Sprintf("b%d", i)
		image := s.Image(t, "team/"+name, shell, fmt.Sprintf("%032x", i+1))
		images = append(images, image)
		due = append(due, prefetchDelay(nodefixture.Node, image.Layer))
		s.know(name, image)
	}
	slices.Sort(due)
	begin := s.clock.Now()
	for i, want := range due {
		wait, ok := s.next(t.Context())
		if got := s.clock.Now().Add(wait).Sub(begin); !ok || got != want {
			t.Fatalf("file %d is due after %v, want %v", i, got, want)
		}
		if got := len(s.held()); got != i {
			t.Fatalf("%d files are here before file %d is due", got, i)
		}
		s.clock.Step(wait)
		s.next(t.Context())
	}
	s.wantHeld(images...)
	if due[7]-due[0] < 5*time.Second || due[7] >= prefetchSpread {
		t.Errorf("not spread: %v", due)
	}
	if prefetchDelay("node-1", images[0].Layer) == prefetchDelay("node-2", images[0].Layer) {
		t.Error("all nodes begin at the same time")
	}
}

// TestPrefetchGivesUp: a registry that is away is asked ever more seldom, six times; what it has not got is fetched once the object means
// something else.
func TestPrefetchGivesUp(t *testing.T) {
	s := newScout(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	s.know("nlb0", image)
	var asked int
	s.Intercept(image.Layer, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	waits := s.pass()
	const second = time.Second
	least := []time.Duration{prefetchDelay(nodefixture.Node, image.Layer), 30 * second, 60 * second, 120 * second, 240 * second, 480 * second}
	if len(waits) != len(least) || waits[0] != least[0] {
		t.Fatalf("waits %v, want %v", waits, least)
	}
	for i, wait := range waits[1:] {
		if wait < least[i+1] || wait > least[i+1]*3/2 {
			t.Errorf("wait %d is %s, want %s and up to half more", i+1, wait, least[i+1])
		}
	}
	if slices.Equal(waits, least) {
		t.Errorf("waits %v: all nodes try again at the same time", waits)
	}
	if asked != prefetchTries {
		t.Errorf("asked %d times, want %d", asked, prefetchTries)
	}
	s.wantHeld()
	s.Intercept(image.Layer, nil)
	if waits := s.pass(); len(waits) > 0 {
		t.Errorf("tried again after %v", waits)
	}
	next := s.Image(t, "team/nlb0", shell, nlb3)
	s.know("nlb0", next)
	s.pass()
	s.wantHeld(next)
}

// TestPrefetchComesLate: a try that fails is made good, and an object that goes meanwhile ends it.
func TestPrefetchComesLate(t *testing.T) {
	s := newScout(t)
	image, gone := s.Image(t, "team/nlb0", shell, nlb0), s.Image(t, "team/gone", shell, nlb3)
	s.know("nlb0", image)
	s.know("gone", gone)
	s.Down.Store(true)
	for range 4 {
		wait, ok := s.next(t.Context())
		if !ok {
			t.Fatal("given up")
		}
		s.clock.Step(wait)
	}
	s.wantHeld()
	s.Down.Store(false)
	s.forget("gone")
	s.pass()
	s.wantHeld(image)
}

// TestPrefetchMakesNoRoom: a store that is full stays as it is, and nobody is asked for what does not fit.
func TestPrefetchMakesNoRoom(t *testing.T) {
	s := newScout(t)
	first, second := s.Image(t, "team/first", shell, nlb0), s.Image(t, "team/second", shell, nlb3)
	s.Limits = artifact.StoreConfig{MaxBytes: first.Size + second.Size - 1}
	s.know("first", first)
	s.pass()
	reads := s.Reads.Load()
	s.know("second", second)
	s.pass()
	s.wantHeld(first)
	if s.Reads.Load() != reads {
		t.Error("the registry was asked for what does not fit")
	}
	check.Must(t, s.Ensure(t.Context(), s.file("team/second", second))) // a claim gets it
	s.wantHeld(second)
}

// TestPrefetchRetires: a node that is emptied fetches nothing, also what it has begun; and all of it if it comes back.
func TestPrefetchRetires(t *testing.T) {
	s := newScout(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	s.know("nlb0", image)
	arrived, gone := make(chan struct{}), make(chan struct{})
	s.Intercept(image.Layer, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	wait, _ := s.next(t.Context())
	s.clock.Step(wait)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.next(t.Context())
	}()
	<-arrived
	s.Retirement.Set(v1alpha1.RetireByAdmin)
	check.Must(t, s.Destroy()) // which waits for it
	<-done
	<-gone
	if waits := s.pass(); len(waits) > 0 {
		t.Errorf("went on after %v", waits)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("there is a store: %v", err)
	}
	fetch := func(ctx context.Context) error { return s.EnsureOpportunistic(ctx, &pin.Params{}) }
	check.WantErr(t, s.fetch(t.Context(), &task{Job: Job{Fetch: fetch}}), nil, retirement.ErrRetired.Error())
	s.Intercept(image.Layer, nil)
	s.Retirement.Set("")
	s.pass()
	s.wantHeld(image)
}

// TestPrefetchRun: a node without a use for anything watches nothing. Run goes on where an object or the machine changed, and ends with its
// context.
func TestPrefetchRun(t *testing.T) {
	s := newScout(t)
	image, later := s.Image(t, "team/nlb0", shell, nlb0), s.Image(t, "team/later", shell, nlb3)
	s.know("nlb0", image)
	watched, stopped, arrived := make(chan func(), 1), make(chan struct{}), make(chan struct{}, 1)
	s.source.Watch = func(_ context.Context, wake func()) (func(), error) {
		watched <- wake
		return func() { close(stopped) }, nil
	}
	s.Fetched = func() { arrived <- struct{}{} }
	s.Holder = inventory.NewHolder()
	s.Holder.Set(nodefixture.SnapshotWith())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	select {
	case <-watched:
		t.Error("watched without a use for it")
	case <-time.After(10 * time.Millisecond): // fragile: nothing fails by it, a shorter time only sees less
	}
	s.Holder.Set(nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0)))
	wake := <-watched
	check.Wind(t, "something arrives", s.clock, time.Second, check.Received(arrived))
	s.know("later", later)
	wake()
	check.Wind(t, "something arrives", s.clock, time.Second, check.Received(arrived))
	cancel()
	<-done
	<-stopped
	s.wantHeld(image, later)
}

// TestPrefetchCannotWatch: where objects cannot be followed claims fetch their files themselves, and Run ends.
func TestPrefetchCannotWatch(t *testing.T) {
	s := newScout(t)
	s.know("nlb0", s.Image(t, "team/nlb0", shell, nlb0))
	s.source.Watch = func(context.Context, func()) (func(), error) { return nil, os.ErrPermission }
	s.Run(t.Context())
	s.wantHeld()
}
