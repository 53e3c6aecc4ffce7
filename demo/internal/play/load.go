// SPDX-License-Identifier: Apache-2.0

package play

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/fettle-dev/fettle/demo/internal/script"
)

// Load reads the scenarios of a directory whose names match, in the order of their names.
func Load(dir string, names *regexp.Regexp) ([]Scenario, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "[0-9][0-9]-*"))
	if err != nil {
		return nil, fmt.Errorf("list scenarios: %w", err)
	}
	var scenarios []Scenario
	var errs []error
	for _, path := range paths {
		if !names.MatchString(filepath.Base(path)) {
			continue
		}
		s, err := load(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", filepath.Base(path), err))
		}
		scenarios = append(scenarios, s)
	}
	if len(scenarios) == 0 {
		errs = append(errs, fmt.Errorf("%s has no scenario that matches %q", dir, names))
	}
	return scenarios, errors.Join(errs...)
}

func load(dir string) (Scenario, error) {
	s := Scenario{Name: filepath.Base(dir), Dir: dir}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return s, err
	}
	heading, _, _ := bytes.Cut(readme, []byte("\n"))
	s.Title = string(bytes.TrimPrefix(heading, []byte("# ")))
	text, err := os.ReadFile(filepath.Join(dir, "expect"))
	if err != nil {
		return s, err
	}
	if s.Script, err = script.Parse(text); err != nil {
		return s, fmt.Errorf("expect: %w", err)
	}
	return s, nil
}
