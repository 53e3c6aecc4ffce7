// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Cause is a fault that several checks may run into. Its text says what the plugin does.
type Cause string

// The causes that are told apart. A failure without one is a finding of its check alone.
const (
	CauseHeldGiven      Cause = "a device that a claim holds is given to another claim"
	CauseNotFreed       Cause = "a device is not given to the next claim after its claim was unprepared"
	CauseUnresolved     Cause = "CDI ids of an answer do not resolve"
	CauseAnswerChanges  Cause = "the answer for a prepared claim changes"
	CauseMeaningChanges Cause = "what a CDI id means changes"
	CauseIncomplete     Cause = "a call is not answered for exactly the claims that it names"
	CauseWrongDevices   Cause = "an answer has other devices than the claim's allocation"
	CauseSilent         Cause = "a call is not answered"
	CauseNotPublished   Cause = "no complete pool is published for the node"
)

// causeError is an error whose cause is known. Its text is that of the error.
type causeError struct {
	cause Cause
	err   error
}

func (e causeError) Error() string { return e.err.Error() }

func (e causeError) Unwrap() error { return e.err }

// caused adds a cause to an error. Without an error there is none.
func caused(cause Cause, err error) error {
	if err == nil {
		return nil
	}
	return causeError{cause, err}
}

// causesOf returns the causes in a tree of errors, each once and in its order. Below a cause it looks for no other.
func causesOf(err error) []Cause {
	var found []Cause
	switch e := err.(type) { //nolint:errorlint // It walks the tree itself.
	case causeError:
		return []Cause{e.cause}
	case interface{ Unwrap() error }:
		return causesOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			for _, cause := range causesOf(part) {
				if !slices.Contains(found, cause) {
					found = append(found, cause)
				}
			}
		}
	}
	return found
}

// Finding is one thing that is wrong with a plugin.
type Finding struct {
	// Cause is empty where only the check says what is wrong.
	Cause Cause
	// Checks are the names of the checks that ran into it.
	Checks []string
	// Message is the first line of what the first of the checks said.
	Message string
}

// String returns the finding as a line of text.
func (f Finding) String() string {
	if f.Cause == "" {
		return fmt.Sprintf("%s: %s", f.Checks[0], f.Message)
	}
	return fmt.Sprintf("%s: %s", f.Cause, strings.Join(f.Checks, ", "))
}

// Findings groups the failures of a run by their causes, in the order in which they were seen. A check with several causes is in each of
// their groups.
func Findings(results []Result) []Finding {
	var all []Finding
	at := map[Cause]int{}
	for _, r := range results {
		if r.Status != Failed {
			continue
		}
		first, _, _ := strings.Cut(r.Message, "\n")
		if len(r.Causes) == 0 {
			all = append(all, Finding{Checks: []string{r.Check.Name}, Message: first})
		}
		for _, cause := range r.Causes {
			i, known := at[cause]
			if !known {
				i, at[cause] = len(all), len(all)
				all = append(all, Finding{Cause: cause, Message: first})
			}
			all[i].Checks = append(all[i].Checks, r.Check.Name)
		}
	}
	return all
}
