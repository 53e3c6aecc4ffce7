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
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lockHelper is set in a child process that holds the lock of the named store until its input ends.
const lockHelper = "FETTLE_TEST_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(lockHelper); dir != "" {
		os.Exit(holdLock(dir))
	}
	os.Exit(m.Run())
}

func holdLock(dir string) int {
	s, err := Open(dir)
	if err == nil {
		_, err = s.Lock(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("locked")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

func TestLockBetweenProcesses(t *testing.T) {
	s := open(t)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), lockHelper+"="+s.dir)
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "locked\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice, or another error: %v", err)
	}
	// A process that dies gives its lock back, however it dies.
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = input.Close()
	_ = child.Wait()
	long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock, err := s.Lock(long)
	if err != nil {
		t.Fatalf("after the holder died: %v", err)
	}
	unlock()
}

func TestLockBetweenGoroutines(t *testing.T) {
	s := open(t)
	// Atomic, since the race detector does not know what flock orders.
	var inside, entered atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				unlock, err := s.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				entered.Add(1)
				inside.Add(-1)
				unlock()
			}
		})
	}
	wg.Wait()
	if got := entered.Load(); got != 16*20 {
		t.Errorf("entered %d times", got)
	}
}

// TestLockAfterDestroy: who waited for a lock file that was removed must not believe that it locked the store.
func TestLockAfterDestroy(t *testing.T) {
	s := open(t)
	unlockOld, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(); err != nil {
		t.Fatal(err)
	}
	unlockNew, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlockOld()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("two hold the lock: %v", err)
	}
	unlockNew()
}
