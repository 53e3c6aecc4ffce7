// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Link is a name beside a library that leads to it.
type Link struct {
	Name   string
	Target string
}

// Library is one file and the names that it is known by.
type Library struct {
	// Name is the file's own, without directories.
	Name string
	// HostPath is where it is below the root, through no link.
	HostPath string
	Soname   string
	// Links are for the soname, for each name that was asked for, and for the name that a linker asks for (libx.so), sorted.
	Links    []Link
	Identity Identity
}

// Libraries is the answer to a search.
type Libraries struct {
	// Found is sorted by name; no two have a name or a link in common.
	Found []Library
	// Missing are the patterns that matched nothing, in the order they were asked for.
	Missing []Missing
	// Skipped are files that matched and are no library of this machine, and configuration that could not be read.
	Skipped []Skipped
}

// Libraries finds what matches patterns: sonames, or globs over file names such as "libcuda.so.*". For each name the first place
// wins: the administrator's directories, and then as with the loader the cache and its directories. An error is of a pattern that may not
// be asked for.
func (h *Host) Libraries(patterns []string) (Libraries, error) {
	if err := checkNames("library", patterns); err != nil {
		return Libraries{}, err
	}
	s := &librarySearch{
		host: h, patterns: patterns, matched: make([]bool, len(patterns)), names: map[string]bool{}, files: map[string]*Library{},
	}
	for _, pattern := range patterns {
		s.patternBytes += len(pattern)
	}
	for _, dir := range h.config.LibraryDirs {
		s.searchDir(dir)
	}
	p := h.libraryPlaces(s.searchCache())
	for _, dir := range p.dirs {
		if !slices.Contains(h.config.LibraryDirs, dir) {
			s.searchDir(dir)
		}
	}
	result := Libraries{Found: s.found(), Skipped: append(p.skipped, s.skipped...)}
	if s.spent() {
		result.Skipped = append(result.Skipped, Skipped{
			Path: LoaderConf, Reason: fmt.Sprintf("more than %d files, %d that are no libraries, or names and patterns that are too long together; "+
				"what follows is left out", maxListed, maxFound),
		})
	}
	for i, pattern := range patterns {
		if !s.matched[i] {
			result.Missing = append(result.Missing, Missing{Name: pattern, Places: append([]string{LoaderCache}, p.dirs...)})
		}
	}
	return result, nil
}

// librarySearch collects the files that names lead to.
type librarySearch struct {
	host     *Host
	patterns []string
	matched  []bool
	// names are taken: by files, links, and files that were skipped only for the place they are in.
	names   map[string]bool
	files   map[string]*Library
	order   []*Library
	skipped []Skipped
	// listed counts the names that were compared with patterns, and unfit the files that matched and are no library.
	listed, unfit int
	// steps are those of comparing, patternBytes the length of all patterns.
	steps        steps
	patternBytes int
}

// spent reports whether enough was looked through. Below a root that tenants write to, a thousand directories may each be one with very
// many files.
func (s *librarySearch) spent() bool {
	return s.listed > maxListed || s.unfit > maxFound || s.steps.spent()
}

// wanted says whether any pattern matches a name. It says no where enough was looked through.
func (s *librarySearch) wanted(name string) bool {
	if !plain(name) || s.spent() {
		return false
	}
	s.steps.add(name, s.patternBytes)
	return slices.ContainsFunc(s.patterns, func(pattern string) bool { return matchName(pattern, name) })
}

func matchName(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok || pattern == name
}

// searchCache looks names up as the loader does. What is for some processors only comes after what is for all. It returns the directories
// of the latter.
func (s *librarySearch) searchCache() []string {
	data, err := s.host.root.ReadFile(LoaderCache, maxSearched)
	var entries []Entry
	if err == nil {
		entries, err = ParseCache(data)
	}
	if err != nil {
		if !absent(err) {
			s.skip(LoaderCache, err)
		}
		return nil
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(min(a.Hwcap, 1), min(b.Hwcap, 1)) })
	var dirs places
	for _, e := range entries {
		if !e.For(s.host.machine) {
			continue
		}
		if s.wanted(e.Name) || s.wanted(path.Base(e.Path)) {
			s.take(e.Path)
		}
		if e.Hwcap == 0 {
			dirs.add(path.Dir(path.Clean(e.Path)))
		}
	}
	return dirs.dirs
}

func (s *librarySearch) searchDir(dir string) {
	if s.spent() {
		return
	}
	if slices.ContainsFunc(s.patterns, isGlob) {
		names, err := s.host.root.ReadDir(dir)
		if err != nil && !absent(err) {
			s.skip(dir, err)
		}
		s.listed += len(names)
		for _, name := range names {
			if s.wanted(name) {
				s.take(path.Join(dir, name))
			}
		}
		return
	}
	for _, name := range s.patterns {
		if _, err := s.host.root.Stat(path.Join(dir, name)); err == nil {
			s.take(path.Join(dir, name))
		}
	}
}

func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

func (s *librarySearch) skip(name string, err error) {
	if skipped := (Skipped{Path: name, Reason: err.Error()}); len(s.skipped) < maxFound && !slices.Contains(s.skipped, skipped) {
		s.skipped = append(s.skipped, skipped)
	}
}

// take adds the file that a path leads to, unless its name was found before.
func (s *librarySearch) take(name string) {
	base := path.Base(name)
	if s.names[base] || !plain(base) {
		return
	}
	library, err := s.host.library(name)
	switch {
	case absent(err):
		// A cache may be older than the disk, and a link may dangle: the loader goes on as well.
		return
	case err != nil:
		s.unfit++
		s.skip(name, err)
		return
	}
	known := s.files[library.HostPath]
	if known == nil {
		if len(s.order) >= maxFound {
			s.skip(name, fmt.Errorf("more than %d libraries match", maxFound))
			return
		}
		if s.names[library.Name] {
			s.skip(name, fmt.Errorf("leads to %s, and another %s was found first", library.HostPath, library.Name))
			return
		}
		known = &library
		s.add(known)
	}
	s.link(known, base)
}

// add notes a new file with the links that belong to it: its soname and its linker name, unless these lead elsewhere.
func (s *librarySearch) add(l *Library) {
	s.files[l.HostPath] = l
	s.order = append(s.order, l)
	s.names[l.Name] = true
	s.match(l.Name)
	stem, _, _ := strings.Cut(l.Name, ".so.")
	for _, name := range []string{l.Soname, stem + ".so"} {
		if !plain(name) || s.names[name] {
			continue
		}
		beside, err := s.host.Identity(path.Join(path.Dir(l.HostPath), name))
		if err == nil && beside.HostPath == l.HostPath || absent(err) && name == l.Soname {
			s.link(l, name)
		}
	}
}

// link gives a library one more name.
func (s *librarySearch) link(l *Library, name string) {
	if !s.names[name] {
		s.names[name] = true
		l.Links = append(l.Links, Link{Name: name, Target: l.Name})
	}
	s.match(name)
}

// match notes which patterns need not be looked for any more.
func (s *librarySearch) match(name string) {
	s.steps.add(name, s.patternBytes)
	for i, pattern := range s.patterns {
		s.matched[i] = s.matched[i] || matchName(pattern, name)
	}
}

func (s *librarySearch) found() []Library {
	libraries := make([]Library, 0, len(s.order))
	for _, l := range s.order {
		slices.SortFunc(l.Links, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
		libraries = append(libraries, *l)
	}
	slices.SortFunc(libraries, func(a, b Library) int { return cmp.Compare(a.Name, b.Name) })
	return libraries
}

// library reads one file. A linker script, another machine's library or a pipe is an error.
func (h *Host) library(name string) (Library, error) {
	resolved, object, stat, err := h.object(name)
	if err != nil {
		return Library{}, err
	}
	if object.Type != elf.ET_DYN || !object.Dynamic {
		return Library{}, errors.New("is no shared library")
	}
	return Library{Name: path.Base(resolved), HostPath: resolved, Soname: object.Soname, Identity: identityOf(&stat)}, nil
}

// object reads an ELF file of this machine. Where it went is told with ErrNotELF as well.
func (h *Host) object(name string) (string, Object, unix.Stat_t, error) {
	resolved, _, err := h.root.Resolve(name)
	if err != nil {
		return "", Object{}, unix.Stat_t{}, err
	}
	f, stat, err := h.root.Open(resolved)
	if err != nil {
		return "", Object{}, stat, err
	}
	defer f.Close()
	object, err := ReadObject(f)
	if err != nil {
		return resolved, object, stat, err
	}
	if object.Machine != h.machine {
		return "", object, stat, fmt.Errorf("is for %s, this machine is %s", object.Machine, h.machine)
	}
	return resolved, object, stat, nil
}
