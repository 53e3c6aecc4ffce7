// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
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
	var result Tools
	seen := map[string]bool{}
	for _, pattern := range patterns {
		missing := true
		for _, name := range h.toolNames(pattern, p.dirs, &result) {
			if seen[name] {
				missing = false
				continue
			}
			tool, skipped, ok := h.findTool(name, p.dirs)
			result.Skipped = append(result.Skipped, skipped...)
			if ok {
				seen[name], missing = true, false
				result.Found = append(result.Found, tool)
			}
		}
		if missing && !slices.ContainsFunc(result.Missing, func(m Missing) bool { return m.Name == pattern }) {
			result.Missing = append(result.Missing, Missing{Name: pattern, Places: p.dirs})
		}
	}
	slices.SortFunc(result.Found, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return result, nil
}

// toolNames are the names that a pattern stands for, in order. A directory that cannot be listed is noted.
func (h *Host) toolNames(pattern string, dirs []string, result *Tools) []string {
	if !isGlob(pattern) {
		return []string{pattern}
	}
	var names []string
	for _, dir := range dirs {
		all, err := h.root.ReadDir(dir)
		if err != nil && !absent(err) {
			result.Skipped = append(result.Skipped, Skipped{Path: dir, Reason: err.Error()})
		}
		for _, name := range all {
			if plain(name) && matchName(pattern, name) && !slices.Contains(names, name) && len(names) < maxFound {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (h *Host) findTool(name string, dirs []string) (_ Tool, skipped []Skipped, _ bool) {
	for _, dir := range dirs {
		tool, err := h.tool(path.Join(dir, name))
		if err == nil {
			return tool, skipped, true
		}
		if !absent(err) {
			skipped = append(skipped, Skipped{Path: path.Join(dir, name), Reason: err.Error()})
		}
	}
	return Tool{}, skipped, false
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
