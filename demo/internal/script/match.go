// SPDX-License-Identifier: Apache-2.0

package script

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// variable is ${name} in a step.
var variable = regexp.MustCompile(`\$\{([A-Za-z]\w*)\}`)

// plain leaves a value as it is.
func plain(value string) string { return value }

// expand replaces each ${name} by its value, quoted as the text needs.
func expand(text string, vars map[string]string, quote func(string) string) (string, error) {
	var unset error
	out := variable.ReplaceAllStringFunc(text, func(match string) string {
		name := variable.FindStringSubmatch(match)[1]
		value, ok := vars[name]
		if !ok {
			unset = fmt.Errorf("%s is set by no (?P<%s>...) before", match, name)
		}
		return quote(value)
	})
	return out, unset
}

// Expand fills the variables of the step's words and text in. The result is a step of its own.
func (s Step) Expand(vars map[string]string) (Step, error) {
	var err error
	out := s
	out.Args = make([]string, len(s.Args))
	for i, arg := range s.Args {
		if out.Args[i], err = expand(arg, vars, plain); err != nil {
			return s, err
		}
	}
	out.Text, err = expand(s.Text, vars, plain)
	return out, err
}

// Match compares what was seen with what the step expects, line by line and to the end. It returns the variables with those added
// that the expected lines set, and an error that shows both where they differ.
func (s Step) Match(seen string, vars map[string]string) (map[string]string, error) {
	if len(s.Want) == 0 {
		return vars, nil
	}
	lines := []string{}
	if seen = strings.TrimRight(seen, "\n"); seen != "" {
		lines = strings.Split(seen, "\n")
	}
	if found, ok := match(s.Want, lines, vars); ok {
		return found, nil
	}
	return vars, &MismatchError{Want: s.Want, Seen: lines}
}

// match tries the lengths that Any can stand for, shortest first.
func match(want, lines []string, vars map[string]string) (map[string]string, bool) {
	switch {
	case len(want) == 0:
		return vars, len(lines) == 0
	case want[0] == Any:
		for i := range len(lines) + 1 {
			if found, ok := match(want[1:], lines[i:], vars); ok {
				return found, true
			}
		}
		return nil, false
	case len(lines) == 0:
		return nil, false
	}
	pattern, err := compile(want[0], vars)
	if err != nil {
		return nil, false // Parse has compiled it with other values, and quoted values change nothing.
	}
	groups := pattern.FindStringSubmatch(lines[0])
	if groups == nil {
		return nil, false
	}
	found := map[string]string{}
	maps.Copy(found, vars)
	for i, name := range pattern.SubexpNames() {
		if name != "" {
			found[name] = groups[i]
		}
	}
	return match(want[1:], lines[1:], found)
}

// MismatchError is output that is not as expected.
type MismatchError struct {
	Want, Seen []string
}

// Error shows what was seen, and below it what was to be seen.
func (e *MismatchError) Error() string {
	seen := e.Seen
	if len(seen) == 0 {
		seen = []string{"(nothing)"}
	}
	return fmt.Sprintf("saw\n    %s\n  want\n    %s", strings.Join(seen, "\n    "), strings.Join(e.Want, "\n    "))
}
