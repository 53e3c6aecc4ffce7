// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Options describe a cache beside its files.
type Options struct {
	// Type is the expected type. Empty: Auto.
	Type Type
	// Labels are the labels of the image.
	Labels map[string]string
}

// The bounds of a cache.
const (
	maxFiles = 200_000
	maxDepth = 32
	// maxRead bounds the sum of the sizes of all metadata files that are read.
	maxRead = 512 << 20
	// maxPaths bounds the paths in all groups and indexes: each is looked up.
	maxPaths = 400_000
	// maxRoots bounds the directories of producers, with which each file is compared.
	maxRoots = 256
	// maxKept bounds the texts of a description: names, hashes and targets of all entries.
	maxKept = 32 << 20
)

// Inspect reads an extracted cache: an image's file system, or a bare cache directory. It opens the small metadata files and uses only the
// names and sizes of the others.
func Inspect(fsys fs.FS, opts Options) (Cache, error) {
	if opts.Type != "" && !slices.Contains(Types(), opts.Type) {
		return Cache{}, fmt.Errorf("%w: type: got %s, want one of %v", ErrInvalid, quote(string(opts.Type)), Types())
	}
	labels, err := ReadLabels(opts.Labels)
	if err != nil {
		return Cache{}, err
	}
	format, err := formatOf(fsys, labels.Format)
	if err != nil {
		return Cache{}, err
	}
	cache := Cache{Dir: ".", Labels: labels}
	if format != "" {
		cache.Dir = formatDir(format)
	}
	s := scanner{fsys: fsys, cache: &cache, roots: map[Root]*Root{}, layouts: map[string]bool{}, binaries: map[[3]string]int{}}
	s.key = keySeen{kept: map[string]int{}, others: map[string]int{}}
	cache.models = map[string]*manifestModel{}
	if err := s.dir("."); err != nil {
		return Cache{}, err
	}
	named := typeOf(format)
	if named == "" {
		named = labels.Type
	}
	if cache.Type, err = decideType(opts.Type, named, s.guessType()); err != nil {
		return Cache{}, err
	}
	return cache, s.finish(format)
}

// formatOf returns the format of a file system, or "" for a bare directory.
func formatOf(fsys fs.FS, labelled string) (string, error) {
	var found []string
	for _, format := range formats() {
		info, err := fs.Stat(fsys, formatDir(format))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", fmt.Errorf("look for %s: %w", formatDir(format), err)
		case info.IsDir():
			found = append(found, format)
		}
	}
	switch {
	case len(found) > 1:
		return "", fmt.Errorf("%w: %s and %s: want one cache an image", ErrInvalid, formatDir(found[0]), formatDir(found[1]))
	case len(found) == 0:
		return "", nil
	case labelled != "" && labelled != found[0]:
		return "", fmt.Errorf("%w: the labels say that the cache is one of %s, but there is %s", ErrInvalid, labelled, formatDir(found[0]))
	}
	return found[0], nil
}

// scanner walks a cache once.
type scanner struct {
	fsys    fs.FS
	cache   *Cache
	targets targetSet
	odd     targetSet
	roots   map[Root]*Root
	layouts map[string]bool
	// binaries are the places of directories HASH/rank_R_D/PREFIX in the lists of their models.
	binaries map[[3]string]int
	// entries counts files and directories, read the bytes of metadata, and paths those that files name.
	entries int
	read    int64
	paths   int
	// sources are the names of the first source files that Inductor wrote.
	sources []string
	key     keySeen
	// seen notes by which files and directories a type is recognized.
	seen struct{ triton, vllm, inductor, index, hexDir bool }
}

// at returns a file's name in the file system.
func (s *scanner) at(name string) string { return path.Join(s.cache.Dir, name) }

// dir scans one directory, whose name is relative to the cache.
func (s *scanner) dir(name string) error {
	if depth := strings.Count(name, "/"); depth >= maxDepth {
		return fmt.Errorf("%w: %s: deeper than %d directories", ErrInvalid, quote(name), maxDepth)
	}
	entries, err := fs.ReadDir(s.fsys, s.at(name))
	if err != nil {
		return fmt.Errorf("read the cache: %w", err)
	}
	if s.entries += len(entries); s.entries > maxFiles {
		return fmt.Errorf("%w: more than %d files and directories", ErrInvalid, maxFiles)
	}
	files := map[string]int64{}
	for _, entry := range entries {
		switch {
		case entry.IsDir():
			s.noteDir(name, entry.Name())
			if err := s.dir(path.Join(name, entry.Name())); err != nil {
				return err
			}
		case entry.Type().IsRegular():
			info, err := entry.Info()
			if err != nil {
				return fmt.Errorf("read the cache: %w", err)
			}
			files[entry.Name()] = info.Size()
			s.cache.Bytes += info.Size()
			s.cache.Files++
		default:
			return fmt.Errorf("%w: %s is neither a file nor a directory", ErrInvalid, quote(path.Join(name, entry.Name())))
		}
		if err := s.checkKept(); err != nil {
			return err
		}
	}
	return s.files(name, files)
}

// noteDir uses the name of a directory.
func (s *scanner) noteDir(dir, name string) {
	switch {
	case name == vllmCompile || name == vllmAOT:
		s.seen.vllm = true
		s.cache.compileDir = s.cache.compileDir || dir == "." && name == vllmCompile
	case dir == "." && (name == "fxgraph" || name == "aotautograd"):
		s.seen.inductor = true
	case dir == "." && len(name) == 1 && strings.Trim(name, "0123456789abcdef") == "":
		s.seen.hexDir = true
	}
	parts := strings.Split(path.Join(dir, name), "/")
	if at := rankIndex(parts); at > 0 && at+3 == len(parts) && strings.HasPrefix(name, vllmArtifact) {
		s.artifact(parts, at, "unpacked")
	}
}

// files scans the files of one directory in the order of their names.
func (s *scanner) files(dir string, files map[string]int64) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		full := path.Join(dir, name)
		var err error
		switch {
		case isGroup(name):
			err = s.group(full, files)
		case strings.HasSuffix(name, ".json") && hasCode(files, strings.TrimSuffix(name, ".json")):
			err = s.kernel(full, files)
		case name == vllmIndex:
			err = s.index(full)
		case name == vllmFactors:
			err = s.factors(full)
		default:
			s.noteFile(full, files[name])
		}
		if err == nil {
			err = s.checkKept()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noteFile uses the name of a file that is not read.
func (s *scanner) noteFile(name string, size int64) {
	parts := strings.Split(name, "/")
	base := parts[len(parts)-1]
	switch at := rankIndex(parts); {
	case at > 0 && at+2 == len(parts) && base == "model":
		s.seen.vllm = true
		s.layouts[LayoutAOT] = true
		model := s.model(parts[at-1], LayoutAOT)
		s.keep(len(name) + keptFact)
		model.AOT = append(model.AOT, manifestAOT{Hash: parts[at-1], Rank: parts[at], ModelFile: base, FileSize: size})
		s.cache.Entries++
	case at > 0 && at+3 == len(parts) && strings.HasPrefix(base, vllmArtifact):
		s.artifact(parts, at, "binary")
	case len(parts) == 1 && base == cudaIndex:
		s.seen.index = true
	case strings.HasSuffix(base, ".py") && len(base) > 20 && len(parts) > 1 && strings.HasPrefix(base, "c"+parts[len(parts)-2]):
		// cxy....py in the directory xy is a source file that Inductor wrote, named by its hash.
		if len(parts) == 2 {
			s.seen.inductor = true
		}
		if len(s.sources) < maxSources {
			s.sources = append(s.sources, name)
		}
	}
}

// guessType returns the type that the files look like.
func (s *scanner) guessType() Type {
	switch {
	case s.seen.vllm:
		return VLLM
	case s.seen.inductor:
		return Inductor
	case s.seen.triton:
		return Triton
	case s.seen.index && s.seen.hexDir:
		return CUDACompute
	}
	return Generic
}

// finish merges what the scan found with the manifest and the labels.
func (s *scanner) finish(format string) error {
	if err := s.readSources(); err != nil {
		return err
	}
	targets, notes, err := s.targets.result()
	if err != nil {
		return err
	}
	_, odd, _ := s.odd.result() // It has only notes.
	c := s.cache
	c.Targets = slices.Concat(targets, c.Labels.Targets)
	c.Notes = slices.Concat(notes, odd, c.Labels.Notes)
	if err := s.manifest(format); err != nil {
		return err
	}
	slices.SortFunc(c.Targets, compareTargets)
	for layout := range s.layouts {
		c.Layouts = append(c.Layouts, layout)
	}
	slices.Sort(c.Layouts)
	for _, root := range s.roots {
		c.Roots = append(c.Roots, *root)
	}
	slices.SortFunc(c.Roots, compareRoots)
	c.Key.finish(&s.key)
	slices.SortFunc(c.Bound, func(a, b BoundFile) int { return strings.Compare(a.Name, b.Name) })
	s.noteSize()
	return nil
}

func (s *scanner) noteSize() {
	c := s.cache
	if said := c.Labels.Size; said >= 0 && said != c.Bytes {
		c.Notes = append(c.Notes, fmt.Sprintf("label %s%s%s: got %d, but the files have %d bytes",
			labelPrefix, c.Labels.Format, labelSize, said, c.Bytes))
	}
}

func (s *scanner) manifest(format string) error {
	if format == "" || format == "habana" {
		return nil
	}
	name := formatManifest(format)
	data, err := readFile(s.fsys, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.cache.Notes = append(s.cache.Notes, "there is no "+name)
		return nil
	case err != nil:
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	m, err := ReadManifest(data, name)
	if err != nil {
		return err
	}
	if m.Format != format {
		return fmt.Errorf("manifest %s: %w: it is one of %s", name, ErrInvalid, m.Format)
	}
	if m.Type != s.cache.Type {
		s.cache.Notes = append(s.cache.Notes, fmt.Sprintf("manifest %s: it says that the cache is one of %s", name, m.Type))
	}
	s.cache.Targets = append(s.cache.Targets, m.Targets...)
	s.cache.Notes = append(s.cache.Notes, m.Notes...)
	return nil
}
