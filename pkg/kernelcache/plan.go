// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/mountpath"
)

// ErrNoPath: a cache names no directory for its mount, or two.
var ErrNoPath = errors.New("no path to mount at")

// ReadOnly describes what a program does with a cache that it cannot write to.
type ReadOnly string

// The values of Mount.ReadOnly.
const (
	// ReadOnlyWorks: the program finds entries, and continues if one is missing.
	ReadOnlyWorks ReadOnly = "Works"
	// ReadOnlyMissFails: the program finds entries, and fails if one is missing.
	ReadOnlyMissFails ReadOnly = "MissFails"
	// ReadOnlyFails: the program writes in any case.
	ReadOnlyFails ReadOnly = "Fails"
)

// Env is a variable with the path of a program's cache, or with a path that is in the key of the cache's entries.
type Env struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Plan describes how a cache has to be mounted.
type Plan struct {
	Mounts []Mount  `json:"mounts"`
	Env    []Env    `json:"env,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// Mount is one directory of a cache and its path in the container. It must not be mounted noexec: Triton's launchers are libraries.
type Mount struct {
	// Source is relative to the file system that was inspected.
	Source     string      `json:"source"`
	Target     string      `json:"target"`
	ReadOnly   ReadOnly    `json:"readOnly"`
	Relocation *Relocation `json:"relocation,omitempty"`
}

// Relocation lists the files that need another content at the mount's path. All other files stay as they are.
type Relocation struct {
	// From are the producer's directories, sorted, without those in which the cache has no file.
	From []string `json:"from,omitempty"`
	// Files are the files to rewrite, sorted, relative to Source. Bytes is what they have together when they are rewritten.
	Files []string `json:"files"`
	Bytes int64    `json:"bytes"`
}

// Plan returns how to mount the cache at a path, or at the producer's path if none is given. It is an error if the cache names no
// producer's path, or two. Parts of the cache for which a label has another path are mounted there.
func (c *Cache) Plan(want string) (Plan, error) {
	target, err := c.target(want)
	if err != nil {
		return Plan{}, err
	}
	if err := mountpath.Check(target); err != nil {
		return Plan{}, fmt.Errorf("mount the cache at %s: %w", quote(target), err)
	}
	whole, err := c.mount(".", target, c.readOnly())
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Mounts: []Mount{whole}}
	if name := c.env(); name != "" {
		plan.Env = append(plan.Env, Env{name, target})
	}
	plan.Env = append(plan.Env, c.keyEnv()...)
	for _, m := range c.Labels.Mounts {
		if below(m.AbsPath, target) || below(target, m.AbsPath) {
			return Plan{}, fmt.Errorf("%w: the cache at %s and its part %s at %s would cover each other: mount the cache elsewhere",
				ErrInvalid, target, m.SubPath, m.AbsPath)
		}
		access := ReadOnlyMissFails
		if m.RequiresWritable {
			access = ReadOnlyFails
		}
		part, err := c.mount(m.SubPath, m.AbsPath, access)
		if err != nil {
			return Plan{}, err
		}
		plan.Mounts = append(plan.Mounts, part)
		if m.Env == "" {
			continue
		}
		if slices.ContainsFunc(plan.Env, func(e Env) bool { return e.Name == m.Env }) {
			return Plan{}, fmt.Errorf("label %s: %w: variable %s would have two values", labelMounts, ErrInvalid, m.Env)
		}
		plan.Env = append(plan.Env, Env{m.Env, m.AbsPath})
	}
	slices.SortFunc(plan.Env, func(a, b Env) int { return strings.Compare(a.Name, b.Name) })
	if root := c.Labels.Root; root != "" && root != target {
		plan.Notes = append(plan.Notes, "the labels want the cache at "+root)
	}
	return plan, nil
}

// target returns the path of the cache itself.
func (c *Cache) target(want string) (string, error) {
	if want != "" {
		return want, nil
	}
	roots := slices.DeleteFunc(slices.Clone(c.Roots), func(r Root) bool { return r.SubPath != "." })
	switch {
	case len(roots) == 1:
		return roots[0].Path, nil
	case len(roots) > 1:
		return "", fmt.Errorf("%w: the producer had the cache at %s, by %d files such as %s, and at %s, by %d such as %s: say where to mount it",
			ErrNoPath, quote(roots[0].Path), roots[0].Files, quote(roots[0].First), quote(roots[1].Path), roots[1].Files, quote(roots[1].First))
	case c.Labels.Root != "":
		return c.Labels.Root, nil
	}
	return "", fmt.Errorf("%w: neither the files of the cache nor label %s or %s tell where its producer had it: say where to mount it",
		ErrNoPath, labelRootEnv, labelRoot)
}

func (c *Cache) mount(subPath, target string, access ReadOnly) (Mount, error) {
	m := Mount{Source: path.Join(c.Dir, subPath), Target: target, ReadOnly: access}
	if c.allAt(subPath, target) {
		return m, nil
	}
	for i := range c.Bound {
		file := &c.Bound[i]
		if file.SubPath != subPath || file.Root == target {
			continue
		}
		if path.Base(file.Name) == vllmIndex {
			if err := checkIndexRoot(target); err != nil {
				return Mount{}, err
			}
		}
		if m.Relocation == nil {
			m.Relocation = &Relocation{}
		}
		name := file.Name
		if subPath != "." {
			name = strings.TrimPrefix(name, subPath+"/")
		}
		size := file.rewritten(target)
		if size > MaxText {
			return Mount{}, fmt.Errorf("%w: file %s names so many paths that it would have %d bytes for %s, want at most %d bytes: "+
				"mount the cache where its producer had it", ErrInvalid, quote(file.Name), size, target, MaxText)
		}
		m.Relocation.Files = append(m.Relocation.Files, name)
		m.Relocation.Bytes += size
		if file.Root != "" && !slices.Contains(m.Relocation.From, file.Root) {
			m.Relocation.From = append(m.Relocation.From, file.Root)
		}
	}
	if m.Relocation != nil {
		slices.Sort(m.Relocation.From)
	}
	return m, nil
}

// allAt reports whether all files of a part that contain absolute paths contain this one. It does not look at each file.
func (c *Cache) allAt(subPath, target string) bool {
	named := 0
	for _, root := range c.Roots {
		if root.SubPath == subPath && root.Path != target {
			return false
		}
		named += root.Files
	}
	return named == len(c.Bound) // otherwise the paths of some lead out of the cache
}

// contains reports whether sorted names have a name. It is asked for each file of a cache, of which there may be a hundred thousand.
func contains(sorted []string, name string, compare func(a, b string) int) bool {
	_, found := slices.BinarySearchFunc(sorted, name, compare)
	return found
}

// Rewrite returns the content of a file of the relocation for the mount's target. It may be applied to its own result.
func (m Mount) Rewrite(name string, data []byte) ([]byte, error) {
	if m.Relocation == nil || !contains(m.Relocation.Files, name, strings.Compare) {
		return nil, fmt.Errorf("file %s is not one that is rewritten for %s", quote(name), m.Target)
	}
	var out []byte
	var err error
	if path.Base(name) == vllmIndex {
		out, err = RewriteIndex(data, path.Dir(name), m.Target)
	} else {
		out, err = RewriteGroup(data, path.Join(m.Target, path.Dir(name)))
	}
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", quote(name), err)
	}
	return out, nil
}

// env returns the variable by which a program of the cache's type finds it.
func (c *Cache) env() string {
	switch c.Type {
	case Triton:
		return envTriton
	case VLLM:
		return envVLLM
	case Inductor:
		return envInductor
	case CUDACompute:
		return envCUDA
	default:
		return c.Labels.RootEnv
	}
}

func (c *Cache) readOnly() ReadOnly {
	switch c.Type {
	case CUDACompute:
		return ReadOnlyWorks
	case Inductor:
		return ReadOnlyFails
	default:
		return ReadOnlyMissFails
	}
}

// WritesInPlace reports whether programs open a file of the cache for writing, so that a link to a read-only file would fail. They write
// nearly all of their files by a rename, which replaces a link as well. The last part of the name decides.
func (c *Cache) WritesInPlace(name string) bool {
	base := path.Base(name)
	if base == "lock" || strings.HasSuffix(base, ".lock") { // all programs open it to lock it
		return true
	}
	switch c.Type {
	case VLLM:
		return slices.Contains(vllmWritten(), base) || strings.HasSuffix(base, inductorBest)
	case Inductor:
		return strings.HasSuffix(base, inductorBest)
	case CUDACompute:
		return base == cudaIndex
	default:
		return false
	}
}
