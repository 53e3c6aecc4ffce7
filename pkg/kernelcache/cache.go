// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"path"
	"slices"
)

// Type is the program that a cache is for.
type Type string

// The types. Auto is not a type but asks for the one that the cache has.
const (
	Auto        Type = "Auto"
	Triton      Type = "Triton"
	VLLM        Type = "VLLM"
	Inductor    Type = "Inductor"
	CUDACompute Type = "CUDACompute"
	Generic     Type = "Generic"
)

// Types returns all types, the default first.
func Types() []Type { return []Type{Auto, Triton, VLLM, Inductor, CUDACompute, Generic} }

// cudaIndex is the file in which CUDA's driver lists the entries of its cache.
const cudaIndex = "index"

// Cache describes an extracted cache.
type Cache struct {
	Type Type `json:"type"`
	// Dir is the directory of the cache in the file system: "io.triton.cache", or "." for a bare one.
	Dir string `json:"dir"`
	// Layouts are the layouts that a vLLM cache has.
	Layouts []string `json:"layouts,omitempty"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	// Entries counts what a program looks up: kernels of Triton, artifacts and models of vLLM. 0: unknown for this type.
	Entries int `json:"entries"`
	// Targets are sorted, the most trusted first.
	Targets []Target `json:"targets,omitempty"`
	// Roots are the producer's directories of the cache according to its files, for each SubPath the most frequent first.
	Roots []Root `json:"roots,omitempty"`
	// Bound are the files that contain absolute paths, sorted.
	Bound []BoundFile `json:"bound,omitempty"`
	// Portable counts the group files without absolute paths.
	Portable int    `json:"portable,omitempty"`
	Key      Key    `json:"key,omitzero"`
	Labels   Labels `json:"labels"`
	// Notes are findings that are odd but no reason to refuse the cache.
	Notes []string `json:"notes,omitempty"`

	kernels []foundKernel
	models  map[string]*manifestModel
	// compileDir is true if vLLM's directory for torch.compile is at the top.
	compileDir bool
	// kept is what the entries of the cache take in memory.
	kept int64
}

// Memory returns about how many bytes the description takes in memory.
func (c *Cache) Memory() int64 {
	memory := c.kept + keptFact*int64(len(c.Layouts)+len(c.Labels.Layouts)+len(c.Targets)+len(c.Labels.Targets)+len(c.Roots))
	for i := range c.Roots {
		memory += int64(len(c.Roots[i].Path) + len(c.Roots[i].First))
	}
	for _, note := range slices.Concat(c.Notes, c.Labels.Notes) {
		memory += int64(len(note))
	}
	return memory
}

// Root is the producer's directory of the cache, or of a part of it.
type Root struct {
	// SubPath is the part, a directory for which a label has a mount of its own, or "." for the whole cache.
	SubPath string `json:"subPath"`
	Path    string `json:"path"`
	// Files counts the files that name this directory. First is the first of them.
	Files int    `json:"files"`
	First string `json:"first"`
}

// BoundFile is a file of the cache with absolute paths in it.
type BoundFile struct {
	// Name is relative to Dir.
	Name string `json:"name"`
	// SubPath is the part of the cache that the file is in.
	SubPath string `json:"subPath"`
	// Root is the directory of that part according to the file's paths. Empty: they lead elsewhere, so programs do not find its entry unless
	// the file is rewritten.
	Root  string `json:"root,omitempty"`
	Bytes int64  `json:"bytes"`
	// Paths counts the paths in the file that are rewritten. Rest is what the rewritten file has beside the directory in each of them.
	Paths int64 `json:"-"`
	Rest  int64 `json:"-"`
}

// rewritten returns how many bytes the file has when its paths lead below another directory.
func (f *BoundFile) rewritten(target string) int64 {
	if path.Base(f.Name) == vllmIndex {
		return f.Rest + f.Paths*int64(len(target))
	}
	return f.Rest + f.Paths*int64(jsonLength(childPrefix(path.Join(target, dirOf(f.Name, f.SubPath)))))
}

// foundKernel is a kernel and the name of its metadata file.
type foundKernel struct {
	name string
	kernel
}

// dirOf returns the directory of a file within its part of the cache.
func dirOf(name, subPath string) string {
	dir := path.Dir(name)
	switch {
	case subPath == ".":
		return dir
	case dir == subPath:
		return "."
	}
	return dir[len(subPath)+1:]
}

// formatDir and formatManifest return the paths of a format's cache and of its manifest in an image.
func formatDir(format string) string { return "io." + format + ".cache" }

func formatManifest(format string) string { return "io." + format + ".manifest/manifest.json" }

// ImagePaths returns the paths that an image of a cache may hold: directories, which end in a slash, and files.
func ImagePaths() []string {
	var paths []string
	for _, format := range formats() {
		paths = append(paths, formatDir(format)+"/", formatManifest(format))
	}
	return paths
}

// ownTypes returns the types that share Fettle's own format.
func ownTypes() []Type { return []Type{Inductor, CUDACompute, Generic} }

// typeOf returns the type of one of MCV's formats, or nothing for Fettle's own format and for none.
func typeOf(format string) Type {
	switch format {
	case "", formatFettle:
		return ""
	case "triton":
		return Triton
	case "vllm":
		return VLLM
	}
	return Generic
}

// decideType decides the type from the one that was asked for, the one that the image names, and the one that its files look like. The
// first two must not contradict each other.
func decideType(asked, named, guessed Type) (Type, error) {
	switch {
	case asked == "" || asked == Auto:
		if named != "" {
			return named, nil
		}
		return guessed, nil
	case named != "" && asked != named && asked != Generic:
		return "", fmt.Errorf("%w: type: got %s, but the image says that its cache is one of %s: use %s or %s",
			ErrInvalid, asked, named, named, Auto)
	}
	return asked, nil
}
