// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// Tool is an executable.
type Tool struct {
	// Name is the file's where it was found, without directories.
	Name string
	// HostPath is where it is below the root, through no link.
	HostPath string
	// Interpreter is what must be in the container too for it to run: the loader of a program that is linked dynamically, or the
	// program that a script names. Empty: it runs alone.
	Interpreter string
	Script      bool
	Identity    Identity
}

// Tools is the answer to a search.
type Tools struct {
	// Found is sorted by name.
	Found   []Tool
	Missing []Missing
	Skipped []Skipped
}

// Tools finds executables by name, or by a glob over names such as "nvidia-cuda-mps-*", in the administrator's directories and the usual
// ones, the first wins. An error is of a name that may not be asked for.
func (h *Host) Tools(patterns []string) (Tools, error) {
	if err := checkNames("tool", patterns); err != nil {
		return Tools{}, err
	}
	var p places
	p.add(h.config.ToolDirs...)
	p.add("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	s := &toolSearch{host: h, dirs: p.dirs, listings: map[string][]string{}}
	seen := map[string]bool{}
	for _, pattern := range patterns {
		missing := true
		for _, name := range s.names(pattern) {
			if seen[name] {
				missing = false
				continue
			}
			if tool, ok := s.find(name); ok {
				seen[name], missing = true, false
				s.Found = append(s.Found, tool)
			}
		}
		if missing && !slices.ContainsFunc(s.Missing, func(m Missing) bool { return m.Name == pattern }) {
			s.Missing = append(s.Missing, Missing{Name: pattern, Places: p.dirs})
		}
	}
	if s.spent() {
		s.Skipped = append(s.Skipped, Skipped{
			Path: "/", Reason: fmt.Sprintf("more than %d files, %d that are no programs, or names and patterns that are too long together; "+
				"what follows is left out", maxListed, maxFound),
		})
	}
	slices.SortFunc(s.Found, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return s.Tools, nil
}

// toolSearch looks through directories, each of which may be one with very many files: below a root that tenants write to, they all may be
// the same.
type toolSearch struct {
	Tools

	host *Host
	dirs []string
	// listings are the names of the directories, and listed counts them. steps are those of comparing them.
	listings map[string][]string
	listed   int
	steps    steps
}

// spent reports whether enough was looked at.
func (s *toolSearch) spent() bool {
	return len(s.Skipped) >= maxFound || s.listed > maxListed || s.steps.spent()
}

// names are the names that a pattern stands for, in order.
func (s *toolSearch) names(pattern string) []string {
	if !isGlob(pattern) {
		return []string{pattern}
	}
	found := map[string]bool{}
	for _, dir := range s.dirs {
		for _, name := range s.listing(dir) {
			if s.steps.spent() {
				break
			}
			s.steps.add(name, len(pattern))
			if len(found) < maxFound && plain(name) && matchName(pattern, name) {
				found[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// listing lists a directory once. One that cannot be listed is noted.
func (s *toolSearch) listing(dir string) []string {
	names, listed := s.listings[dir]
	if listed || s.listed > maxListed {
		return names
	}
	names, err := s.host.root.ReadDir(dir)
	if err != nil && !absent(err) {
		s.skip(dir, err)
	}
	s.listings[dir] = names
	s.listed += len(names)
	return names
}

func (s *toolSearch) skip(name string, err error) {
	s.Skipped = append(s.Skipped, Skipped{Path: name, Reason: err.Error()})
}

func (s *toolSearch) find(name string) (Tool, bool) {
	for _, dir := range s.dirs {
		if s.spent() {
			break
		}
		tool, err := s.host.tool(path.Join(dir, name))
		if err == nil {
			return tool, true
		}
		if !absent(err) {
			s.skip(path.Join(dir, name), err)
		}
	}
	return Tool{}, false
}

// tool reads one executable: an ELF program of this machine, or a script.
func (h *Host) tool(name string) (Tool, error) {
	resolved, object, stat, err := h.object(name)
	tool := Tool{Name: path.Base(name), HostPath: resolved, Interpreter: object.Interpreter}
	if errors.Is(err, ErrNotELF) {
		tool.Script = true
		tool.Interpreter, err = h.script(resolved)
	}
	switch {
	case err != nil:
		return Tool{}, err
	case stat.Mode&0o111 == 0:
		return Tool{}, fmt.Errorf("is not executable: its mode is %#o", stat.Mode&0o7777)
	case !tool.Script && object.Type != elf.ET_EXEC && object.Type != elf.ET_DYN:
		return Tool{}, errors.New("is no program")
	}
	tool.Identity = identityOf(&stat)
	return tool, nil
}

// script reads who runs a script from its first line: "#!/bin/sh".
func (h *Host) script(resolved string) (string, error) {
	f, _, err := h.root.Open(resolved)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return "", err
	}
	line, _, _ := bytes.Cut(head, []byte{'\n'})
	rest, ok := strings.CutPrefix(string(line), "#!")
	words := strings.Fields(rest)
	if !ok || len(words) == 0 {
		return "", errors.New("is neither a 64-bit ELF program nor a script")
	}
	return words[0], nil
}
