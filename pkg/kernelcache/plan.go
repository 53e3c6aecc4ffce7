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

// ErrNoPath is about a cache that does not say where it wants to be, or in two ways.
var ErrNoPath = errors.New("no path to mount at")

// ReadOnly says what a program does with a cache that it cannot write to.
type ReadOnly string

// The ways. They are about Mount.ReadOnly.
const (
	// ReadOnlyWorks: entries are found, and without one the program goes on.
	ReadOnlyWorks ReadOnly = "Works"
	// ReadOnlyMissFails: entries are found, and without one the program ends with an error.
	ReadOnlyMissFails ReadOnly = "MissFails"
	// ReadOnlyFails: the program writes in any case.
	ReadOnlyFails ReadOnly = "Fails"
)

// Env is a variable that tells a program where its cache is.
type Env struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Plan is how a cache has to be mounted.
type Plan struct {
	Mounts []Mount  `json:"mounts"`
	Env    []Env    `json:"env,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// Mount is one directory of a cache and its place in the container. It must not be mounted noexec: Triton's launchers are libraries.
type Mount struct {
	// Source is relative to the file system that was inspected.
	Source     string      `json:"source"`
	Target     string      `json:"target"`
	ReadOnly   ReadOnly    `json:"readOnly"`
	Relocation *Relocation `json:"relocation,omitempty"`
}

// Relocation is what has to be another there. All files that it does not name stay as they are.
type Relocation struct {
	// From are the producer's directories, sorted. One that no file of the cache is in is not among them.
	From []string `json:"from,omitempty"`
	// Files are those to rewrite, sorted, relative to Source; Bytes is their size together.
	Files []string `json:"files"`
	Bytes int64    `json:"bytes"`
}

// Plan says how the cache is mounted at a path, or where it wants to be where none is given. It is an error if it wants to be nowhere or,
// by two of its files, in two places. Parts of the cache that a label gives a place of their own go there.
func (c *Cache) Plan(want string) (Plan, error) {
	target, err := c.target(want)
	if err != nil {
		return Plan{}, err
	}
	if err := mountpath.Check(target); err != nil {
		return Plan{}, fmt.Errorf("mount the cache at %s: %w", quote(target), err)
	}
	plan := Plan{Mounts: []Mount{c.mount(".", target, c.readOnly())}}
	if name := c.env(); name != "" {
		plan.Env = append(plan.Env, Env{name, target})
	}
	for _, m := range c.Labels.Mounts {
		if below(m.AbsPath, target) || below(target, m.AbsPath) {
			return Plan{}, fmt.Errorf("%w: the cache at %s and its part %s at %s would cover each other: mount the cache elsewhere",
				ErrInvalid, target, m.SubPath, m.AbsPath)
		}
		access := ReadOnlyMissFails
		if m.RequiresWritable {
			access = ReadOnlyFails
		}
		plan.Mounts = append(plan.Mounts, c.mount(m.SubPath, m.AbsPath, access))
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

// target is the path of the cache itself.
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

func (c *Cache) mount(subPath, target string, access ReadOnly) Mount {
	m := Mount{Source: path.Join(c.Dir, subPath), Target: target, ReadOnly: access}
	if c.allAt(subPath, target) {
		return m
	}
	for _, file := range c.Bound {
		if file.SubPath != subPath || file.Root == target {
			continue
		}
		if m.Relocation == nil {
			m.Relocation = &Relocation{}
		}
		name := file.Name
		if subPath != "." {
			name = strings.TrimPrefix(name, subPath+"/")
		}
		m.Relocation.Files = append(m.Relocation.Files, name)
		m.Relocation.Bytes += file.Bytes
		if file.Root != "" && !slices.Contains(m.Relocation.From, file.Root) {
			m.Relocation.From = append(m.Relocation.From, file.Root)
		}
	}
	if m.Relocation != nil {
		slices.Sort(m.Relocation.From)
	}
	return m
}

// allAt says, without a look at each of them, whether all files of a part that name a place name this one.
func (c *Cache) allAt(subPath, target string) bool {
	named := 0
	for _, root := range c.Roots {
		if root.SubPath == subPath && root.Path != target {
			return false
		}
		named += root.Files
	}
	return named == len(c.Bound) // else the paths of some lead out of the cache
}

// Rewrite gives a file of the relocation the content that it has to have at the mount's target. It may be applied to its own result.
func (m Mount) Rewrite(name string, data []byte) ([]byte, error) {
	if m.Relocation == nil || !slices.Contains(m.Relocation.Files, name) {
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

// env is the variable by which a program of the cache's type finds it.
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

// WritesInPlace says whether programs open a file of the cache for writing where it is, so that a link to what nobody may write to would
// not do. They put nearly all of their files there by a rename, which replaces a link as well. The name's last part tells.
func (c *Cache) WritesInPlace(name string) bool {
	base := path.Base(name)
	if base == "lock" || strings.HasSuffix(base, ".lock") { // opened to be locked, by all of them
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
