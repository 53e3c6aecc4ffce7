// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// State is what /proc/PID/status says of a process's rights.
type State struct {
	Effective, Permitted, Inheritable, Bounding, Ambient Capabilities
	NoNewPrivileges                                      bool
	// Seccomp is 2 if a filter decides on system calls.
	Seccomp int
}

// String writes one line for each part, capabilities by name.
func (s State) String() string {
	return fmt.Sprintf("CapEff: %s\nCapPrm: %s\nCapInh: %s\nCapBnd: %s\nCapAmb: %s\nNoNewPrivs: %t\nSeccomp: %d\n",
		s.Effective.list(), s.Permitted.list(), s.Inheritable.list(), s.Bounding.list(), s.Ambient.list(), s.NoNewPrivileges, s.Seccomp)
}

// ReadState reads the state of the calling thread.
func ReadState() (State, error) {
	f, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return State{}, fmt.Errorf("read the rights of this process: %w", err)
	}
	defer f.Close()
	return ParseState(f)
}

// ParseState reads the content of a /proc/PID/status.
func ParseState(r io.Reader) (State, error) {
	var s State
	sets := map[string]*Capabilities{
		"CapEff": &s.Effective, "CapPrm": &s.Permitted, "CapInh": &s.Inheritable, "CapBnd": &s.Bounding, "CapAmb": &s.Ambient,
	}
	found := 0
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), ":")
		text = strings.TrimSpace(text)
		var err error
		switch {
		case sets[name] != nil:
			var set uint64
			set, err = strconv.ParseUint(text, 16, 64)
			*sets[name] = Capabilities(set)
		case name == "NoNewPrivs":
			s.NoNewPrivileges, err = strconv.ParseBool(text)
		case name == "Seccomp":
			s.Seccomp, err = strconv.Atoi(text)
		default:
			continue
		}
		if err != nil {
			return State{}, fmt.Errorf("line %q of a process's status: %w", lines.Text(), err)
		}
		found++
	}
	if err := lines.Err(); err != nil {
		return State{}, fmt.Errorf("read the rights of this process: %w", err)
	}
	if want := len(sets) + 2; found != want {
		return State{}, fmt.Errorf("a process's status has %d of the %d lines on its rights", found, want)
	}
	return s, nil
}

// drop leaves the calling thread, and what it executes, some of its capabilities, and no way to others. at are those that it keeps until
// it executes a program. Without CAP_SETPCAP the bounding set stays as it is, which no_new_privs makes harmless: a program of root then
// gets none that the thread does not have.
func drop(keep, now Capabilities) error {
	s, err := ReadState()
	if err != nil {
		return err
	}
	if s.Effective.Has(Set(unix.CAP_SETPCAP)) {
		if err := dropBounding(keep); err != nil {
			return fmt.Errorf("drop capabilities of programs to come: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	left := s.Permitted & (keep | now)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(left), Permitted: uint32(left)},
		{Effective: uint32(left >> 32), Permitted: uint32(left >> 32)},
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new rights: %w", err)
	}
	return nil
}

func dropBounding(keep Capabilities) error {
	for capability := range 64 {
		if keep.Has(Set(capability)) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // beyond the last that this kernel knows
		}
		if err != nil {
			return err
		}
	}
	return nil
}
