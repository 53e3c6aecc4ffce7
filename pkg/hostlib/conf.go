// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// LoaderConf is the file that glibc's ldconfig reads.
const LoaderConf = "/etc/ld.so.conf"

// Bounds of a configuration with all that it includes.
const (
	// MaxConf is the largest single file.
	MaxConf      = 1 << 20
	maxConfs     = 1024
	maxConfDepth = 8
	maxConfTotal = 4 << 20
	maxDirs      = 1024
	// maxNames bounds the names that patterns are compared with.
	maxNames = 1 << 17
)

// Conf is what an ld.so.conf says with everything that it includes.
type Conf struct {
	// Dirs are the directories in order, each once.
	Dirs []string
	// Includes are the patterns of the include lines of the first file, made absolute.
	Includes []string
	// Skipped are included files that could not be read, and lines that say nothing.
	Skipped []Skipped
}

// Skipped is something that was passed over, and why.
type Skipped struct {
	Path   string
	Reason string
}

// confReader goes through the files.
type confReader struct {
	root *rootfs.Root
	conf Conf
	dirs map[string]bool
	// files, bytes and names are what was read so far.
	files, bytes, names int
	// steps are those of comparing names.
	steps steps
}

// ReadConf reads an ld.so.conf and what it includes. A file that is not there is empty. What is wrong with an included file is noted;
// what is wrong with the first is an error.
func ReadConf(root *rootfs.Root, name string) (Conf, error) {
	data, err := root.ReadFile(name, MaxConf)
	if errors.Is(err, fs.ErrNotExist) {
		return Conf{}, nil
	}
	if err != nil {
		return Conf{}, fmt.Errorf("read the loader's configuration: %w", err)
	}
	r := &confReader{root: root, dirs: map[string]bool{}}
	r.parse(name, data, 1)
	return r.conf, nil
}

func (r *confReader) skip(name, format string, args ...any) {
	if len(r.conf.Skipped) < maxDirs {
		r.conf.Skipped = append(r.conf.Skipped, Skipped{Path: name, Reason: fmt.Sprintf(format, args...)})
	}
}

// parse reads the lines of one file as ldconfig does (elf/ldconfig.c, parse_conf).
func (r *confReader) parse(name string, data []byte, depth int) {
	for raw := range bytes.Lines(data) {
		if r.spent() {
			return
		}
		line, _, _ := strings.Cut(string(raw), "#")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "hwcap" {
			continue
		}
		if words[0] != "include" {
			r.dir(name, strings.TrimSpace(line))
			continue
		}
		for _, pattern := range words[1:] {
			if !path.IsAbs(pattern) {
				pattern = path.Join(path.Dir(name), pattern)
			}
			if depth == 1 {
				r.conf.Includes = append(r.conf.Includes, pattern)
			}
			r.include(name, pattern, depth+1)
		}
	}
}

// spent says that enough was read.
func (r *confReader) spent() bool {
	return r.files > maxConfs || r.bytes > maxConfTotal || r.names > maxNames || r.steps.spent()
}

// dir adds a directory, which may end in the type of the libraries in it: "/usr/lib=libc6".
func (r *confReader) dir(name, line string) {
	dir, _, _ := strings.Cut(line, "=")
	dir = path.Clean(strings.TrimSpace(dir))
	switch {
	case !path.IsAbs(dir) || strings.ContainsRune(dir, 0):
		r.skip(name, "%q is no absolute path", message.Clip(line, longestQuote))
	case r.dirs[dir]:
	case len(r.conf.Dirs) >= maxDirs:
		r.skip(name, "more than %d directories", maxDirs)
	default:
		r.dirs[dir] = true
		r.conf.Dirs = append(r.conf.Dirs, dir)
	}
}

func (r *confReader) include(from, pattern string, depth int) {
	if depth > maxConfDepth {
		r.skip(from, "includes more than %d files deep", maxConfDepth)
		return
	}
	names, err := r.glob(pattern)
	if err != nil {
		r.skip(pattern, "%v", err)
	}
	for _, name := range names {
		if r.spent() {
			r.skip(from, "more than %d files, %d bytes or %d names to look at; what follows is left out", maxConfs, maxConfTotal, maxNames)
			return
		}
		r.files++
		data, err := r.root.ReadFile(name, MaxConf)
		if err != nil {
			r.skip(name, "%v", err)
			continue
		}
		r.bytes += len(data)
		r.parse(name, data, depth)
	}
}

// glob lists the names that match an absolute pattern, sorted. A directory that cannot be listed matches nothing.
func (r *confReader) glob(pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", message.Clip(pattern, longestQuote), err)
	}
	found := []string{"/"}
	for element := range strings.SplitSeq(strings.Trim(path.Clean(pattern), "/"), "/") {
		if len(element) > longestPattern {
			return nil, fmt.Errorf("pattern %q is longer than any name", message.Clip(element, longestQuote))
		}
		var next []string
		for _, dir := range found {
			if r.spent() {
				break
			}
			next = append(next, r.matching(dir, element)...)
		}
		found = next
	}
	return found, nil
}

// matching are the paths of the entries of a directory that match one element of a pattern.
func (r *confReader) matching(dir, element string) []string {
	r.names++
	if !isGlob(element) {
		name := path.Join(dir, element)
		if _, err := r.root.Lstat(name); err != nil {
			return nil
		}
		return []string{name}
	}
	names, err := r.root.ReadDir(dir)
	if err != nil {
		return nil
	}
	r.names += len(names)
	var found []string
	for _, name := range names {
		if r.spent() {
			break
		}
		r.steps.add(name, len(element))
		// A leading dot is matched only by a dot, as in glob(3).
		if ok, _ := path.Match(element, name); ok && (name[0] != '.' || element[0] == '.') {
			found = append(found, path.Join(dir, name))
		}
	}
	return found
}

// longestQuote keeps a message short whatever is quoted in it.
const longestQuote = 80
