// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Action is what a fault does.
type Action string

// The actions.
const (
	// Fail answers with Fault.Return instead of doing anything, or after it was done.
	Fail Action = "fail"
	// Kill ends the process that calls.
	Kill Action = "kill"
	// Wait makes a file, Fault.File with ".waiting", and lets the call go on once Fault.File is there.
	Wait Action = "wait"
)

// Fault is one thing that goes wrong.
type Fault struct {
	// Function is the name of a function of go-nvml's interface, such as "Device.CreateGpuInstanceWithPlacement". Empty: any.
	Function string
	// Nth counts the calls of the function since the script was set, from 1. Zero: each.
	Nth int
	// After says that the call was done.
	After bool
	Do    Action
	// Return is what Fail answers.
	Return Return
	// File is what Wait waits for.
	File string
}

// Call does one call of the library in the name of this process: it counts it, does what the script says before it, does it, and does what
// the script says after it. A call that changes something names its argument.
func (m Machine) Call(function, change string, do func(*State) Return) Return {
	var before, after Fault
	var result Return
	done := false
	finish := func(s *State) {
		result, done = do(s), true
		if change != "" && result != Success {
			s.Refused = append(s.Refused, fmt.Sprintf("%s %s: %d", function, change, result))
		}
		after = s.scripted(function, true)
	}
	err := m.Change(func(s *State) error {
		if s.Calls == nil {
			s.Calls = map[string]int{}
		}
		s.Total++
		s.Calls[function]++
		if strings.HasPrefix(function, "DeviceGetHandleByPci") || function == "DeviceGetCount" ||
			strings.HasPrefix(function, "Smi.") {
			s.followDrivers() // a process begins with one of these, and reading links through FUSE takes milliseconds
		}
		if change != "" {
			s.Changes, s.LastChange = append(s.Changes, function+" "+change), s.Total
		}
		if before = s.scripted(function, false); before.Do == "" {
			finish(s)
		}
		return nil
	})
	if err != nil {
		return Unknown
	}
	if before.Do == Fail {
		return before.Return
	}
	before.happen()
	if !done {
		err = m.Change(func(s *State) error {
			finish(s)
			return nil
		})
	}
	switch {
	case err != nil:
		return Unknown
	case after.Do == Fail:
		return after.Return
	}
	after.happen()
	return result
}

// happen does what the fault does to the process.
func (f Fault) happen() {
	switch f.Do {
	case Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case Wait:
		_ = os.WriteFile(f.File+".waiting", nil, 0o600)
		for {
			if _, err := os.Stat(f.File); err == nil {
				return
			}
			<-time.After(time.Millisecond)
		}
	case Fail:
	}
}

// scripted is the fault that the script has for the present call of a function, if any.
func (s *State) scripted(function string, after bool) Fault {
	for _, f := range s.Faults {
		count := s.Total
		if f.Function != "" {
			count = s.Calls[function]
		}
		if (f.Function == "" || f.Function == function) && f.After == after && (f.Nth == 0 || f.Nth == count) {
			return f
		}
	}
	return Fault{}
}
