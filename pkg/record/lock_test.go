// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// lockHelper is set in a child process: it locks, in the store that it names, the claim and the devices that follow it, and holds
// them until its input ends.
const lockHelper = "FETTLE_TEST_LOCK"

func TestMain(m *testing.M) {
	if what := os.Getenv(lockHelper); what != "" {
		if err := holdLock(strings.Fields(what)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func holdLock(what []string) error {
	s, err := Open(disk.OS{}, what[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hold, err := s.LockClaim(ctx, what[1])
	if err != nil {
		return err
	}
	defer hold.Release()
	if err := hold.Devices(ctx, what[2:]); err != nil {
		return err
	}
	fmt.Println("locked")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// otherProcess locks a claim and devices in another process and returns what kills it.
func otherProcess(t *testing.T, s *Store, uid string, devices ...string) (kill func()) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), lockHelper+"="+strings.Join(append([]string{s.dir, uid}, devices...), " "))
	input, err := child.StdinPipe()
	check.Must(t, err)
	output, err := child.StdoutPipe()
	check.Must(t, err)
	check.Must(t, child.Start())
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "locked\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	return sync.OnceFunc(func() {
		check.Must(t, child.Process.Kill())
		_ = input.Close()
		_ = child.Wait()
	})
}

func busy(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), what) {
		t.Errorf("%s: %v, want ErrBusy that names it", what, err)
	}
}

// got releases a lock that must be free.
func got(t *testing.T, what string, hold *Hold, err error) {
	t.Helper()
	if err != nil || hold == nil {
		t.Errorf("%s: %v, %v, want it to be free", what, hold, err)
		return
	}
	if hold.Waited {
		t.Errorf("%s: waited although it was free", what)
	}
	hold.Release()
}

func TestLockBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		kill := otherProcess(t, s, "u1", pool+"/gpu-0", pool+"/gpu-1")
		defer kill()
		_, err := s.LockClaim(check.Passed(t), "u1")
		busy(t, "claim u1", err)
		if hold, err := s.TryLockClaim("u1"); hold != nil || err != nil {
			t.Errorf("tried: %v, %v, want neither", hold, err)
		}
		_, err = s.LockAll(check.Passed(t))
		busy(t, "state directory", err)
		hold, err := s.LockSpecs(t.Context(), true)
		got(t, "the CDI directory", hold, err)

		other, err := s.LockClaim(t.Context(), "u2")
		check.Must(t, err)
		check.Must(t, other.Devices(t.Context(), []string{pool + "/gpu-2"}))
		busy(t, "device node-1/gpu/gpu-1", other.Devices(check.Passed(t), []string{pool + "/gpu-1"}))

		// A process that dies gives its locks back, however it dies.
		waiting := make(chan error, 2)
		go func() { waiting <- other.Devices(t.Context(), []string{pool + "/gpu-1"}) }()
		go func() {
			hold, err := s.LockClaim(t.Context(), "u1")
			if err == nil && !hold.Waited {
				err = errors.New("did not wait")
			}
			waiting <- err
		}()
		<-time.After(5 * lockRetry) // both ask at least once while it is locked
		kill()
		for range 2 {
			if err := <-waiting; err != nil {
				t.Errorf("after the holder died: %v", err)
			}
		}
		if !other.Waited {
			t.Error("who waited for a device does not know it")
		}
		other.Release()
	})
}

// TestLockScopes: what keeps out what.
func TestLockScopes(t *testing.T) {
	s := open(t)
	locks := map[string]func(ctx context.Context) (*Hold, error){
		"u1":        func(ctx context.Context) (*Hold, error) { return s.LockClaim(ctx, "u1") },
		"u2":        func(ctx context.Context) (*Hold, error) { return s.LockClaim(ctx, "u2") },
		"shared":    func(ctx context.Context) (*Hold, error) { return s.LockSpecs(ctx, false) },
		"exclusive": func(ctx context.Context) (*Hold, error) { return s.LockSpecs(ctx, true) },
		"all":       s.LockAll,
	}
	excluded := map[[2]string]bool{
		{"u1", "u1"}: true, {"u2", "u2"}: true, {"all", "all"}: true,
		{"u1", "all"}: true, {"u2", "all"}: true, {"shared", "all"}: true, {"exclusive", "all"}: true,
		{"shared", "exclusive"}: true, {"exclusive", "exclusive"}: true,
	}
	for first, lock := range locks {
		held, err := lock(t.Context())
		check.Must(t, err)
		for second, lock := range locks {
			want := excluded[[2]string{first, second}] || excluded[[2]string{second, first}]
			hold, err := lock(check.Passed(t))
			if want {
				busy(t, "", err)
			} else {
				got(t, second+" beside "+first, hold, err)
			}
		}
		held.Release()
		again, err := lock(t.Context())
		got(t, first+" again", again, err)
	}
}

// TestLockEndsWithItsContext says why.
func TestLockEndsWithItsContext(t *testing.T) {
	s := open(t)
	hold, err := s.LockClaim(t.Context(), "u1")
	check.Must(t, err)
	defer hold.Release()
	errTired := errors.New("tired of waiting")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.LockClaim(ctx, "u1")
		result <- err
	}()
	select {
	case err := <-result:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(5 * lockRetry): // fragile: nothing fails by it, a shorter time only sees less
	}
	cancel(errTired)
	if err := <-result; !errors.Is(err, ErrBusy) || !errors.Is(err, errTired) {
		t.Errorf("error %v, want ErrBusy and the cause", err)
	}
	// What is free is got even then: there is nothing to wait for.
	free, err := s.LockClaim(ctx, "u2")
	got(t, "a free claim", free, err)
}

func TestDevicesOfNothing(t *testing.T) {
	s := open(t)
	hold, err := s.LockClaim(t.Context(), "u1")
	check.Must(t, err)
	check.Must(t, hold.Devices(t.Context(), nil))
	check.Must(t, hold.Devices(t.Context(), []string{pool + "/gpu-0", pool + "/gpu-0"}))
	check.Must(t, hold.Devices(t.Context(), []string{pool + "/gpu-0"})) // held already
	got(t, "its own devices", hold, nil)
}

// inside counts who is in a section that only one may be in. It is atomic, since the race detector does not know what locks on
// files order.
type inside struct{ now, ever atomic.Int32 }

func (i *inside) enter(t *testing.T, what string) {
	if i.now.Add(1) != 1 {
		t.Errorf("two are in %s", what)
	}
	i.ever.Add(1)
}

func (i *inside) leave() { i.now.Add(-1) }

// TestManyClaimsAndDevices: sixteen claims take the same devices, each in an order of its own, and none waits for ever.
func TestManyClaimsAndDevices(t *testing.T) {
	const callers, rounds, devices, each = 16, 6, 8, 5
	s := open(t)
	var claims [callers / 2]inside // two callers a claim
	var taken [devices]inside
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	random := seed.New(t)
	var orders [callers][rounds][]int
	for caller := range orders {
		for i := range orders[caller] {
			orders[caller][i] = random.Perm(devices)[:each]
		}
	}
	round := func(caller, i int) error {
		claim := caller / 2
		hold, err := s.LockClaim(ctx, fmt.Sprintf("u%d", claim))
		if err != nil {
			return err
		}
		defer hold.Release()
		claims[claim].enter(t, "a claim")
		defer claims[claim].leave()
		order := orders[caller][i]
		var names []string
		for _, d := range order {
			names = append(names, fmt.Sprintf("%s/gpu-%d", pool, d))
		}
		if err := hold.Devices(ctx, names); err != nil {
			return err
		}
		for _, d := range order {
			taken[d].enter(t, "a device")
			defer taken[d].leave()
		}
		return nil
	}
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range rounds {
				if err := round(caller, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var sum int32
	for i := range taken {
		sum += taken[i].ever.Load()
	}
	if want := int32(callers * rounds * each); sum != want {
		t.Errorf("devices were taken %d times, want %d", sum, want)
	}
}

// TestLockAfterDestroy: who waited for a lock file that was removed must not believe that it locked anything.
func TestLockAfterDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		all, err := s.LockAll(t.Context())
		check.Must(t, err)
		waiting := make(chan *Hold)
		go func() {
			hold, err := s.LockClaim(t.Context(), "u1")
			if err != nil || !hold.Waited {
				t.Errorf("waited %v, %v", hold, err)
			}
			waiting <- hold
		}()
		<-time.After(5 * lockRetry)
		check.Must(t, s.Destroy())
		all.Release()
		hold := <-waiting
		_, err = s.LockClaim(check.Passed(t), "u1")
		busy(t, "claim u1", err)
		hold.Release()
		again, err := s.LockClaim(t.Context(), "u1")
		got(t, "claim u1", again, err)
	})
}

// TestLocksWhileDestroying: who locks a file that is removed in the same moment has locked nothing, and knows it.
func TestLocksWhileDestroying(t *testing.T) {
	s := open(t)
	var stop atomic.Bool
	var locked atomic.Int32
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for !stop.Load() {
				hold, err := s.TryLockClaim(fmt.Sprintf("u%d", i))
				if err != nil {
					t.Error(err)
					return
				}
				if hold == nil {
					continue
				}
				held, heldErr := hold.file.Stat()
				there, err := os.Stat(s.path)
				if heldErr != nil || err != nil || !os.SameFile(held, there) {
					t.Errorf("locked a file that is not there: %v, %v", heldErr, err)
				}
				locked.Add(1)
				hold.Release()
			}
		})
	}
	for range 300 {
		var all *os.File
		for all == nil && !t.Failed() { // without the pauses of LockAll, in which the others would always be first
			var err error
			all, err = filelock.Range{}.TryAt(s.path, filelock.Exclusive)
			check.Must(t, err)
		}
		if all == nil {
			break
		}
		check.Must(t, s.Destroy())
		check.Must(t, all.Close())
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("locked %d times", locked.Load())
}
