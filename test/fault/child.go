// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// planVariable hands the plan to the child.
const planVariable = "FETTLE_FAULT_PLAN"

// Plan is what a child process is to do.
type Plan struct {
	Faults []Fault `json:"faults,omitempty"`
	// Quick is for Injector.Quick.
	Quick bool `json:"quick,omitempty"`
	// Log is the file for Injector.LogTo. Child.Run takes a temporary one where it is empty. Give one file to several children in a
	// row, and it is the log of all of them.
	Log string `json:"log,omitempty"`
	// Data is the test's own: directories, claims, which phase to run.
	Data json.RawMessage `json:"data,omitempty"`
}

// Injector does what the plan says.
func (p Plan) Injector() (*Injector, error) {
	i := New(p.Faults...)
	i.Quick = p.Quick
	return i, i.LogTo(p.Log)
}

// Planned is the plan of this process, if it is a child. The test that plays the child begins with it:
//
//	func TestChild(t *testing.T) {
//		plan, ok := fault.Planned()
//		if !ok {
//			t.Skip("only as a child process")
//		}
func Planned() (Plan, bool) {
	text, ok := os.LookupEnv(planVariable)
	if !ok {
		return Plan{}, false
	}
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(fmt.Sprintf("%s is not a plan: %v", planVariable, err))
	}
	return p, true
}

// Child runs this test binary once more.
type Child struct {
	// Test is the test function that plays the child, TestChild where it is empty.
	Test string
	// Env is added to this process's own.
	Env []string
}

// Result is how a child ended.
type Result struct {
	// Killed is the operation before which, or in the middle of which, the plan killed it. It is nil where the child finished.
	Killed *Op
	// Log is what it did, after what Plan.Log held before.
	Log Log
	// Output is what it printed, both streams.
	Output string
}

// Run waits for the child. An error is any other end than the planned kill or success, with the output.
func (c Child) Run(ctx context.Context, plan Plan) (result Result, err error) {
	if plan.Log == "" {
		dir, err := os.MkdirTemp("", "fault-child-")
		if err != nil {
			return Result{}, fmt.Errorf("make a place for the child's log: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		plan.Log = filepath.Join(dir, "log")
	}
	earlier, err := ReadLog(plan.Log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Result{}, err
	}
	output, ended, err := c.start(ctx, plan)
	if err != nil {
		return Result{}, err
	}
	result.Output = string(output)
	if result.Log, err = ReadLog(plan.Log); err != nil {
		return result, fmt.Errorf("the child made no injector from its plan: %w\n%s", errors.Join(err, ended, ctx.Err()), output)
	}
	if ended == nil {
		return result, nil
	}
	result.Killed = killedAt(result.Log[len(earlier):])
	if result.Killed == nil || !killed(ended) {
		return result, fmt.Errorf("the child failed: %w\n%s", errors.Join(ended, ctx.Err()), output)
	}
	return result, nil
}

// start returns how the child ended, or why it could not be started.
func (c Child) start(ctx context.Context, plan Plan) (output []byte, ended, err error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the child's plan: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find the test binary: %w", err)
	}
	command := exec.CommandContext(ctx, exe, "-test.run=^"+cmp.Or(c.Test, "TestChild")+"$", "-test.count=1")
	// The race detector of a process that is about to end would wait a second for reports.
	command.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), c.Env...)
	command.Env = append(command.Env, planVariable+"="+string(text))
	command.WaitDelay = 5 * time.Second // for a process that the child left behind with its output
	output, ended = command.CombinedOutput()
	return output, ended, nil
}

// killedAt is the operation at which the log says that the process ended itself.
func killedAt(log Log) *Op {
	if len(log) == 0 {
		return nil
	}
	last := &log[len(log)-1]
	if last.Fault != string(ActKill) && last.Fault != string(ActTear) {
		return nil
	}
	return last
}

func killed(ended error) bool {
	exit, ok := errors.AsType[*exec.ExitError](ended)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
