// SPDX-License-Identifier: Apache-2.0

// Package script is the form of the demo's expect files: what a scenario does, line by line, and what must be seen. demo/README.md
// describes it. It only reads and compares; package play acts.
package script

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Script is one expect file.
type Script struct {
	// Since is the Kubernetes minor version, as "1.36", before which the scenario cannot work; Because says why. Both are empty
	// where every version that Fettle supports will do.
	Since, Because string
	Steps          []Step
}

// Step is one line that acts, with the lines below it that say what must be seen.
type Step struct {
	// Line is where the step stands, counted from 1.
	Line int
	Verb string
	// Fails is set where the step must be refused.
	Fails bool
	// Args are the verb's words, and Text is the rest of the line where the verb has one.
	Args []string
	Text string
	// Want are regular expressions, one a line of output, and Any for any number of lines. None: the output does not matter.
	Want []string
}

// Any stands for any number of lines of output.
const Any = "..."

// String is the step as it was written.
func (s Step) String() string {
	words := slices.Concat([]string{s.Verb}, s.Args)
	if s.Fails {
		words = slices.Concat([]string{"!"}, words)
	}
	if s.Text != "" {
		words = append(words, s.Text)
	}
	return strings.Join(words, " ")
}

// form is what may follow a verb.
type form struct {
	// min and max bound the number of words; with text, the rest of the line comes after exactly min of them.
	min, max int
	text     bool
	// mayFail allows a "!" before the verb.
	mayFail bool
	// mustSee asks for at least one line of expected output.
	mustSee bool
}

const many = 100

// verbs is the table of all that a script can do.
func verbs() map[string]form {
	return map[string]form{
		"apply":     {min: 1, max: many, mayFail: true},
		"convert":   {min: 1, max: many},
		"node":      {min: 1, max: 1, text: true},
		"delete":    {min: 1, max: many},
		"running":   {min: 1, max: many},
		"gone":      {min: 1, max: many},
		"pending":   {min: 1, max: 1, mustSee: true},
		"look":      {min: 2, max: 2, mustSee: true},
		"exec":      {min: 2, max: 2, text: true},
		"get":       {min: 1, max: 1, text: true, mustSee: true},
		"fettle":    {min: 1, max: many, mustSee: true},
		"helm-test": {mustSee: true},
		"walk":      {min: 1, max: 1},
	}
}

// Parse reads an expect file. The error joins everything that is wrong with it.
func Parse(data []byte) (Script, error) {
	var s Script
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		if err := s.add(n, strings.TrimRight(lines.Text(), " \t")); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, err)
	}
	return s, errors.Join(append(errs, s.check())...)
}

// add takes in one line.
func (s *Script) add(n int, line string) error {
	want, isWant := strings.CutPrefix(line, "> ")
	switch {
	case line == "" || strings.HasPrefix(line, "#"):
		return nil
	case line == Any || isWant || line == ">":
		if len(s.Steps) == 0 {
			return errors.New("expected output belongs below a step")
		}
		if line == Any {
			want = Any
		} else if !isWant {
			want = ""
		}
		step := &s.Steps[len(s.Steps)-1]
		step.Want = append(step.Want, want)
		return nil
	case strings.HasPrefix(line, "since "):
		words := strings.SplitN(line, " ", 3)
		if len(words) < 3 || len(s.Steps) > 0 {
			return errors.New("want: since VERSION REASON, before all steps")
		}
		s.Since, s.Because = words[1], words[2]
		return nil
	}
	step, err := parseStep(n, line)
	if err != nil {
		return err
	}
	s.Steps = append(s.Steps, step)
	return nil
}

func parseStep(n int, line string) (Step, error) {
	step := Step{Line: n}
	line, step.Fails = strings.CutPrefix(line, "! ")
	var rest string
	step.Verb, rest, _ = strings.Cut(line, " ")
	form, known := verbs()[step.Verb]
	if !known {
		return step, fmt.Errorf("there is no step %q", step.Verb)
	}
	if form.text {
		words := strings.SplitN(rest, " ", form.min+1)
		if len(words) <= form.min || words[form.min] == "" {
			return step, fmt.Errorf("%s needs %d words and then the rest of the line", step.Verb, form.min)
		}
		step.Args, step.Text = words[:form.min], strings.TrimPrefix(words[form.min], "-- ")
	} else {
		step.Args = strings.Fields(rest)
	}
	switch {
	case len(step.Args) < form.min || !form.text && len(step.Args) > form.max:
		return step, fmt.Errorf("%s has %d words, want %d to %d", step.Verb, len(step.Args), form.min, form.max)
	case step.Fails && !form.mayFail:
		return step, fmt.Errorf("%s cannot be expected to fail", step.Verb)
	}
	return step, nil
}

// check finds what only shows when all lines are there: variables that nothing sets, regular expressions that are none, and steps
// that look and expect nothing.
func (s *Script) check() error {
	var errs []error
	set := map[string]string{}
	for _, step := range s.Steps {
		if len(step.Want) == 0 && (verbs()[step.Verb].mustSee || step.Fails) {
			errs = append(errs, fmt.Errorf("line %d: %s: say what must be seen, in lines that begin with >", step.Line, step))
		}
		for _, text := range append(slices.Clone(step.Args), step.Text) {
			if _, err := expand(text, set, plain); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", step.Line, err))
			}
		}
		for _, want := range step.Want {
			pattern, err := compile(want, set)
			if err != nil {
				errs = append(errs, fmt.Errorf("line %d: expected output: %w", step.Line, err))
				continue
			}
			for _, name := range pattern.SubexpNames() {
				set[name] = ""
			}
		}
	}
	return errors.Join(errs...)
}

// compile makes a regular expression that matches a whole line.
func compile(want string, vars map[string]string) (*regexp.Regexp, error) {
	text, err := expand(want, vars, regexp.QuoteMeta)
	if err != nil {
		return nil, err
	}
	return regexp.Compile("^(?:" + text + ")$")
}
