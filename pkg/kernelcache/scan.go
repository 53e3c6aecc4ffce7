// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// binaries returns the suffixes of code that a device runs. ptxCode is the suffix of code that the driver compiles first.
func binaries() []string { return []string{".cubin", ".hsaco"} }

const ptxCode = ".ptx"

// hasCode reports whether a directory has code of a kernel of this name or its group file. Without one, NAME.json is not Triton's.
func hasCode(files map[string]int64, name string) bool {
	for _, ending := range append(binaries(), ptxCode, ".ttir", ".amdgcn") {
		if _, ok := files[name+ending]; ok {
			return true
		}
	}
	_, ok := files[groupPrefix+name+".json"]
	return ok
}

// codeOf returns the kind of code that a kernel has, or nothing.
func codeOf(files map[string]int64, name string) Code {
	for _, ending := range binaries() {
		if _, ok := files[name+ending]; ok {
			return Binary
		}
	}
	if _, ok := files[name+ptxCode]; ok {
		return PTX
	}
	return ""
}

// subPath returns the part of the cache that a file is in. A part is a directory: a label that names the file itself makes none.
func (s *scanner) subPath(name string) string {
	for _, m := range s.cache.Labels.Mounts {
		if name != m.SubPath && below(name, m.SubPath) {
			return m.SubPath
		}
	}
	return "."
}

// load reads a metadata file of the cache.
func (s *scanner) load(name string) ([]byte, error) {
	data, err := readFile(s.fsys, s.at(name))
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", quote(name), err)
	}
	if s.read += int64(len(data)); s.read > maxRead {
		return nil, fmt.Errorf("%w: more than %d bytes of metadata", ErrInvalid, maxRead)
	}
	return data, nil
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	data, err := readHead(fsys, name, MaxText+1)
	if err == nil && len(data) > MaxText {
		return nil, fmt.Errorf("%w: want at most %d bytes", ErrInvalid, MaxText)
	}
	return data, err
}

func readHead(fsys fs.FS, name string, length int64) ([]byte, error) {
	file, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // It was only read.
	return io.ReadAll(io.LimitReader(file, length))
}

// bind notes a file that contains absolute paths.
func (s *scanner) bind(bound BoundFile, root string) error {
	name := bound.Name
	bound.SubPath = s.subPath(name)
	s.keep(len(name) + keptFact)
	if root == "" {
		s.odd.note(fmt.Sprintf("file %s: its paths lead out of the cache: its entry is found only if it is rewritten", quote(name)))
		s.cache.Bound = append(s.cache.Bound, bound)
		return nil
	}
	key := Root{SubPath: bound.SubPath, Path: root}
	known, ok := s.roots[key]
	if !ok {
		if len(s.roots) >= maxRoots {
			return fmt.Errorf("file %s: %w: its producer had the cache in yet another directory: want at most %d", quote(name), ErrInvalid, maxRoots)
		}
		key.Path = strings.Clone(root) // without the rest of the file
		known = &Root{SubPath: key.SubPath, Path: key.Path, First: name}
		s.roots[key] = known
	}
	known.First = min(known.First, name)
	known.Files++
	bound.Root = known.Path
	s.cache.Bound = append(s.cache.Bound, bound)
	return nil
}

// countPaths adds to the number of paths in files, each of which is looked up.
func (s *scanner) countPaths(n int) error {
	if s.paths += n; s.paths > maxPaths {
		return fmt.Errorf("%w: more than %d paths in all groups and indexes", ErrInvalid, maxPaths)
	}
	return nil
}

// keptFact is what a fact takes beside its texts, about.
const keptFact = 256

// keep counts what the cache's description takes in memory. checkKept refuses too much of it.
func (s *scanner) keep(n int) { s.cache.kept += int64(n) }

func (s *scanner) checkKept() error {
	if s.cache.kept > maxKept {
		return fmt.Errorf("%w: the names and targets of its entries have more than %d bytes", ErrInvalid, maxKept)
	}
	return nil
}

// compareRoots orders the most frequent directory first.
func compareRoots(a, b Root) int {
	return cmp.Or(cmp.Compare(a.SubPath, b.SubPath), cmp.Compare(b.Files, a.Files), cmp.Compare(a.Path, b.Path))
}

func (s *scanner) group(name string, files map[string]int64) error {
	data, err := s.load(name)
	if err != nil {
		return err
	}
	g, err := parseGroup(data)
	if err != nil {
		return fmt.Errorf("file %s: %w", quote(name), err)
	}
	s.seen.triton = true
	if err := s.countPaths(len(g.names)); err != nil {
		return err
	}
	for _, child := range g.names {
		if _, ok := files[child]; !ok {
			s.odd.note(fmt.Sprintf("file %s: %s is not in the cache", quote(name), quote(child)))
		}
	}
	if g.children == nil {
		s.cache.Portable++
		return nil
	}
	rest, err := g.in("")
	if err != nil {
		return fmt.Errorf("file %s: %w", quote(name), err)
	}
	return s.bind(BoundFile{Name: name, Bytes: int64(len(data)), Paths: int64(len(g.children)), Rest: int64(len(rest))},
		g.root(dirOf(name, s.subPath(name))))
}

func (s *scanner) kernel(name string, files map[string]int64) error {
	data, err := s.load(name)
	if err != nil {
		return err
	}
	k, err := parseKernel(data)
	if err != nil {
		return fmt.Errorf("file %s: %w", quote(name), err)
	}
	s.seen.triton = true
	if k.Backend == "" {
		s.odd.note(fmt.Sprintf("file %s: it does not say its target", quote(name)))
		return nil
	}
	stem := strings.TrimSuffix(path.Base(name), ".json")
	if k.code = codeOf(files, stem); k.code == "" {
		s.odd.note(fmt.Sprintf("file %s: there is no code of this kernel", quote(name)))
		return nil
	}
	target, err := k.foreign().target(FromFiles, name)
	if err != nil {
		s.odd.note(err.Error())
	}
	// Longer words are no backend and no architecture. They are not kept.
	if len(k.Backend) > longestWord {
		k.Backend = ""
	}
	if len(k.Arch) > longestArch {
		k.Arch = nil
	}
	s.keyTriton(k.version)
	s.keep(2*len(name) + len(k.Hash) + 2*keptFact)
	s.cache.kernels = append(s.cache.kernels, foundKernel{name: name, kernel: k})
	s.cache.Entries++
	parts := strings.Split(name, "/")
	if at := slices.Index(parts, "triton_cache"); at > 1 && rankDir.MatchString(parts[at-1]) {
		s.layouts[LayoutTriton], s.seen.vllm = true, true
		model := s.model(parts[at-2], LayoutTriton)
		model.Triton = append(model.Triton, k.manifestKernel)
	}
	if target.Backend == "" || len(target.Backend) > longestWord {
		return nil
	}
	target.Code = k.code
	if k.code == PTX {
		return s.ptx(path.Join(path.Dir(name), stem+ptxCode), target)
	}
	// The PTX version of which a binary was made does not matter.
	target.PTXVersion = 0
	s.targets.add(target)
	return nil
}

// ptx reads which PTX version and architecture the driver must support for a kernel without a binary.
func (s *scanner) ptx(name string, target Target) error {
	head, err := readHead(s.fsys, s.at(name), longestPTXHead)
	if err != nil {
		return fmt.Errorf("file %s: %w", quote(name), err)
	}
	version, arch, err := parsePTX(head)
	if err != nil {
		s.odd.note(fmt.Sprintf("file %s: %v", quote(name), err))
	} else {
		target.PTXVersion = version
		target.Arch, target.Features, err = ParseArch(CUDA, arch)
		if err != nil {
			s.odd.note(fmt.Sprintf("file %s: %v", quote(name), err))
		}
	}
	s.targets.add(target)
	return nil
}

func (s *scanner) index(name string) error {
	data, err := s.load(name)
	if err != nil {
		return err
	}
	literals, err := parseIndex(data)
	if err != nil {
		return fmt.Errorf("file %s: %w", quote(name), err)
	}
	s.seen.vllm = true
	subPath := s.subPath(name)
	root, rests, rest := indexRoot(data, literals, dirOf(name, subPath))
	if len(rests) == 0 {
		return nil
	}
	if err := s.countPaths(len(rests)); err != nil {
		return err
	}
	for _, rest := range rests {
		if _, err := fs.Stat(s.fsys, s.at(path.Join(subPath, rest))); err != nil {
			s.odd.note(fmt.Sprintf("file %s: %s is not in the cache", quote(name), quote(rest)))
		}
	}
	return s.bind(BoundFile{Name: name, Bytes: int64(len(data)), Paths: int64(len(rests)), Rest: int64(rest)}, root)
}

// factors reads the device from vLLM's factors. vLLM itself only writes this file, so one that cannot be read becomes a note.
func (s *scanner) factors(name string) error {
	data, err := s.load(name)
	if err != nil {
		return err
	}
	s.key.files++
	f, err := parseFactors(data)
	if err != nil {
		s.odd.note(fmt.Sprintf("file %s: %v", quote(name), err))
		return nil
	}
	s.targets.addForeign(foreignTarget{Backend: f.device()}, FromFiles, name)
	s.keyVariables(name, &f)
	parts := strings.Split(name, "/")
	if at := rankIndex(parts); at > 0 && at+3 == len(parts) {
		binary := s.binary(parts, at)
		binary.CodeHash, binary.ConfigHash, binary.CompilerHash = f.CodeHash, f.ConfigHash, f.CompilerHash
		binary.TargetDevice = f.device()
		for variable, value := range f.Env {
			if binary.Env == nil {
				binary.Env = map[string]string{}
			}
			binary.Env[variable] = value
		}
		s.keep(len(f.CodeHash) + len(f.ConfigHash) + len(f.CompilerHash) + keptFact)
	}
	return nil
}

// model returns the manifest's entry of a hash and layout.
func (s *scanner) model(hash, layout string) *manifestModel {
	key := hash + "/" + layout
	if s.cache.models[key] == nil {
		s.keep(2*len(hash) + keptFact)
		s.cache.models[key] = &manifestModel{Hash: hash, Format: layout}
	}
	return s.cache.models[key]
}

// binary returns the manifest's entry of a directory HASH/rank_R_D/PREFIX. An image may have very many.
func (s *scanner) binary(parts []string, at int) *manifestBinary {
	model, key := s.model(parts[at-1], LayoutBinary), [3]string(parts[at-1:at+2])
	index, known := s.binaries[key]
	if !known {
		s.keep(len(parts[at]) + len(parts[at+1]) + keptFact)
		index = len(model.Binary)
		s.binaries[key] = index
		model.Binary = append(model.Binary, manifestBinary{Rank: parts[at], Prefix: parts[at+1]})
	}
	return &model.Binary[index]
}

func (s *scanner) artifact(parts []string, at int, saved string) {
	s.seen.vllm = true
	s.layouts[LayoutBinary] = true
	binary := s.binary(parts, at)
	binary.SaveFormat = saved
	binary.ArtifactNames = append(binary.ArtifactNames, parts[at+2])
	binary.ArtifactCount++
	s.keep(len(strings.Join(parts, "/")) + 32)
	s.cache.Entries++
}

// readSources reads the device from Inductor's source files if no kernel's metadata names it.
func (s *scanner) readSources() error {
	for t := range s.targets.targets {
		if t.Arch != "" {
			return nil
		}
	}
	for _, name := range s.sources {
		head, err := readHead(s.fsys, s.at(name), longestSource)
		if err != nil {
			return fmt.Errorf("file %s: %w", quote(name), err)
		}
		if foreign, ok := parseSource(head); ok {
			s.targets.addForeign(foreign, FromFiles, name)
		}
	}
	return nil
}
