// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
)

// sampleMIG has the child's arguments as the words of the activation.
func sampleMIG(args ...string) nvml.MIGAnswer {
	minor := 3
	return nvml.MIGAnswer{Minor: &minor, Current: true, Activation: strings.Join(args, " "), Instance: &nvml.MIGInstance{
		ID: 1, ProfileID: 19, Placement: nvml.MIGPlacement{Start: 4, Size: 1}, Compute: []nvml.MIGCompute{{UUID: "MIG-1"}},
	}}
}

func playMIG(mode string) int {
	answer := sampleMIG(os.Args[1:]...)
	switch mode {
	case "mig locked": // the lock is file 3
		if _, err := os.Stat("/proc/self/fd/3"); err != nil {
			return 1
		}
		_ = os.WriteFile(os.Getenv("RUNNING"), nil, 0o600)
		check.Hang()
	case "mig overlong":
		answer.Instance.Placement.Size = 1 << 30
	case "mig silent":
		return 5
	}
	_ = json.NewEncoder(os.Stdout).Encode(answer)
	var status int
	_, _ = fmt.Sscanf(mode, "mig exit %d", &status)
	return status
}

func place() nvml.MIGPlace {
	return nvml.MIGPlace{PCIBusID: "0000:41:00.0", Parent: "GPU-1", ProfileID: 19, Start: 4}
}

func TestProberMIG(t *testing.T) {
	p := nvml.NewProber(command(t, "mig", time.Minute))
	const gpu = " -device 0000:41:00.0 -parent GPU-1"
	for want, ask := range map[string]func(context.Context) (nvml.MIGAnswer, error){
		"mig list" + gpu + " -profile 19 -start 4": func(ctx context.Context) (nvml.MIGAnswer, error) { return p.ListMIG(ctx, nil, place()) },
		"mig create" + gpu + " -profile 19 -start 4": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.CreateMIG(ctx, nil, place(), false)
		},
		"mig create" + gpu + " -profile 19 -start 4 -finish": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.CreateMIG(ctx, nil, place(), true)
		},
		"mig destroy" + gpu + " -profile 19 -start 4": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.DestroyMIG(ctx, nil, place(), nil)
		},
		"mig destroy" + gpu + " -profile 19 -start 4 -id 7 -uuid MIG-7": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.DestroyMIG(ctx, nil, place(), &nvml.MIGIdentity{ID: 7, UUID: "MIG-7"})
		},
		"mig mode" + gpu + " -on": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.SetMIGMode(ctx, nil, place(), true, false)
		},
		"mig mode" + gpu + " -off -pending": func(ctx context.Context) (nvml.MIGAnswer, error) {
			return p.SetMIGMode(ctx, nil, place(), false, true)
		},
	} {
		got, err := ask(t.Context())
		if diff := cmp.Diff(sampleMIG(want), got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", want, err, diff)
		}
	}
}

// TestProberMIGFails: an exit status is an error that a caller can tell, and the answer is there beside it.
func TestProberMIGFails(t *testing.T) {
	all := []error{nvml.ErrInUse, nvml.ErrOccupied, nvml.ErrNeedsReset, nvml.ErrMIGOff, nvml.ErrGone, nvml.ErrNoLibrary}
	for _, want := range all {
		status := nvml.ExitStatus(fmt.Errorf("about it: %w", want))
		got, err := nvml.NewProber(command(t, fmt.Sprintf("mig exit %d", status), time.Minute)).ListMIG(t.Context(), nil, place())
		for _, other := range all {
			if errors.Is(err, other) != errors.Is(want, other) {
				t.Errorf("status %d: %v", status, err)
			}
		}
		if got.Minor == nil || *got.Minor != 3 {
			t.Errorf("status %d: answer %+v", status, got)
		}
	}
	if nvml.ExitStatus(nil) != 0 || nvml.ExitStatus(os.ErrClosed) != 1 {
		t.Error("wrong status of no error, or of any")
	}
	for mode, want := range map[string]string{"mig exit 1": "exit status 1", "mig overlong": "placement", "mig silent": "in use"} {
		if _, err := nvml.NewProber(command(t, mode, time.Minute)).ListMIG(t.Context(), nil, place()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestProberMIGLock: the child has the lock as long as it lives, also without its parent's file.
func TestProberMIGLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	lock, other := open(), open()
	defer lock.Close()
	defer other.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	number := int(lock.Fd())
	if err := filelock.Flock(lock, filelock.Exclusive); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	running := filepath.Join(t.TempDir(), "running")
	t.Setenv("RUNNING", running)
	prober := nvml.NewProber(command(t, "mig locked", time.Minute))
	go func() {
		_, err := prober.ListMIG(ctx, lock, place())
		done <- err
	}()
	check.Eventually(t, "the child runs", func() bool {
		_, err := os.Stat(running)
		return err == nil
	})
	// The number stays open, since the race detector cannot know that the child was started before.
	if err := unix.Dup3(int(null.Fd()), number, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if locked, err := filelock.TryFlock(other, filelock.Exclusive); locked || err != nil {
		t.Errorf("locked beside the child: %t, %v", locked, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	check.Eventually(t, "the lock is free", func() bool {
		locked, err := filelock.TryFlock(other, filelock.Exclusive)
		return locked && err == nil
	})
}

// TestProberTakesTurns: a question waits for the one before, and both are answered.
func TestProberTakesTurns(t *testing.T) {
	p := nvml.NewProber(command(t, "mig", time.Minute))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := p.ListMIG(t.Context(), nil, place()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func FuzzDecodeMIGAnswer(f *testing.F) {
	text, err := json.Marshal(sampleMIG("SUCCESS"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"instances":[{"placement":{"start":4294967295,"size":2}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		answer, err := nvml.DecodeMIGAnswer(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, one := range answer.Instances {
			if one.Placement.Start+one.Placement.Size > 64 || one.Placement.Size == 0 {
				t.Errorf("took %+v", one)
			}
		}
	})
}
