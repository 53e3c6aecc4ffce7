// SPDX-License-Identifier: Apache-2.0

package f2

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// State is what a slot holds.
type State struct {
	// Status is loaded, cleared, busy, not-programmed or load-failed.
	Status string
	// Image is the name of what is loaded; empty if nothing is.
	Image string
	// Fault is the program's word for what went wrong; empty if nothing did.
	Fault string
	// Shell is the version of Amazon's part of the chip.
	Shell string
}

// What the programs call the states that are asked for here.
const (
	loaded  = "loaded"
	cleared = "cleared"
	busy    = "busy"
)

func (s State) String() string {
	if s.Image == "" {
		return s.Status
	}
	return s.Status + " with " + s.Image
}

// imageLine is the line for a slot: its number, the image or one of two words for none, the status and the error, each as a name and a
// number, and the shell's version.
var imageLine = regexp.MustCompile(
	`^AFI\s+([0-9]{1,3})\s+(none|No AFI|agfi-[0-9a-f]{17})\s+([a-z-]{1,40})\s+[0-9]{1,5}` +
		`\s+([a-z-]{1,60})\s+-?[0-9]{1,5}\s+(0x[0-9a-f]{1,8})\s*$`)

// parse reads what fpga-describe-local-image prints of a slot. There is one line for the image, and others that do not matter here.
func parse(output string, slot int) (State, error) {
	var found []State
	for line := range strings.Lines(output) {
		match := imageLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			continue
		}
		if number, err := strconv.Atoi(match[1]); err != nil || number != slot {
			return State{}, fmt.Errorf("it speaks of slot %s, want %d", match[1], slot)
		}
		s := State{Status: match[3], Image: match[2], Fault: match[4], Shell: match[5]}
		if !ValidImage(s.Image) {
			s.Image = ""
		}
		if s.Fault == "ok" {
			s.Fault = ""
		}
		found = append(found, s)
	}
	switch {
	case len(found) == 0:
		return State{}, fmt.Errorf("no line of the slot's image in what it prints: %.60q", output)
	case len(found) > 1:
		return State{}, errors.New("several lines of the slot's image in what it prints")
	case found[0].Status == loaded && found[0].Image == "":
		return State{}, errors.New("the slot is loaded without an image")
	}
	return found[0], nil
}
