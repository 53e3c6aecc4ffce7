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
	// Name is what was asked for.
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

// Tools finds executables by name in the usual directories, the first wins. An error is of a name that may not be asked for.
func (h *Host) Tools(names []string) (Tools, error) {
	if err := checkNames("tool", names); err != nil {
		return Tools{}, err
	}
	var p places
	p.add("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	p.add(h.config.ToolDirs...)
	var result Tools
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		tool, skipped, ok := h.findTool(name, p.dirs)
		result.Skipped = append(result.Skipped, skipped...)
		if !ok {
			result.Missing = append(result.Missing, Missing{Name: name, Places: p.dirs})
			continue
		}
		result.Found = append(result.Found, tool)
	}
	slices.SortFunc(result.Found, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return result, nil
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
