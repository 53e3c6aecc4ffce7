// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"path"
)

// Type is the program that a cache is for.
type Type string

// The types. Auto is none, but asks for the one that the cache has.
const (
	Auto        Type = "Auto"
	Triton      Type = "Triton"
	VLLM        Type = "VLLM"
	Inductor    Type = "Inductor"
	CUDACompute Type = "CUDACompute"
	Generic     Type = "Generic"
)

// Types are all of them, the default first.
func Types() []Type { return []Type{Auto, Triton, VLLM, Inductor, CUDACompute, Generic} }

// cudaIndex is the list of entries that CUDA's driver keeps beside them.
const cudaIndex = "index"

// Cache is what an extracted cache is.
type Cache struct {
	Type Type `json:"type"`
	// Dir is the directory of the cache in the file system: "io.triton.cache", or "." for a bare one.
	Dir string `json:"dir"`
	// Layouts are those of a vLLM cache.
	Layouts []string `json:"layouts,omitempty"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	// Entries counts what a program looks up: kernels of Triton, artifacts and models of vLLM. 0: that is not known of the type.
	Entries int `json:"entries"`
	// Targets are sorted, the most believed first.
	Targets []Target `json:"targets,omitempty"`
	// Roots are where the producer had the cache, by what its files say, the most frequent first for each directory.
	Roots []Root `json:"roots,omitempty"`
	// Bound are the files that name a place, sorted.
	Bound []BoundFile `json:"bound,omitempty"`
	// Portable counts the group files that name none.
	Portable int    `json:"portable,omitempty"`
	Labels   Labels `json:"labels"`
	// Notes are what is odd and no reason to refuse the cache.
	Notes []string `json:"notes,omitempty"`

	kernels []foundKernel
	models  map[string]*manifestModel
	// compileDir: there is vLLM's directory at the top.
	compileDir bool
}

// Root is a directory that the producer had the cache in, or a part of the cache.
type Root struct {
	// SubPath is that part, a directory that a label gives a place of its own; "." for the cache.
	SubPath string `json:"subPath"`
	Path    string `json:"path"`
	// Files counts those that say so; First is one of them.
	Files int    `json:"files"`
	First string `json:"first"`
}

// BoundFile is a file of the cache with absolute paths in it.
type BoundFile struct {
	// Name is relative to Dir.
	Name string `json:"name"`
	// SubPath is that of the part of the cache that it is in.
	SubPath string `json:"subPath"`
	// Root is where its paths want that part. Empty: they lead elsewhere, so its entry is found nowhere unless it is rewritten.
	Root  string `json:"root,omitempty"`
	Bytes int64  `json:"bytes"`
}

// foundKernel is a kernel with the place of its metadata.
type foundKernel struct {
	name string
	kernel
}

// dirOf is the directory of a file within its part of the cache.
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

// formatDir and formatManifest are where a format's cache and its manifest are.
func formatDir(format string) string { return "io." + format + ".cache" }

func formatManifest(format string) string { return "io." + format + ".manifest/manifest.json" }

// ImagePaths are what an image of a cache may hold: directories, which end in a slash, and files.
func ImagePaths() []string {
	var paths []string
	for _, format := range formats() {
		paths = append(paths, formatDir(format)+"/", formatManifest(format))
	}
	return paths
}

// ownTypes are those that share our own format.
func ownTypes() []Type { return []Type{Inductor, CUDACompute, Generic} }

// typeOf is the type of one of MCV's formats, and empty for ours and for none.
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

// settle decides the type: what was asked for, what the image says it is, and what its files look like. The first two must not
// contradict each other.
func settle(asked, said, looks Type) (Type, error) {
	switch {
	case asked == "" || asked == Auto:
		if said != "" {
			return said, nil
		}
		return looks, nil
	case said != "" && asked != said && asked != Generic:
		return "", fmt.Errorf("%w: type: got %s, but the image says that its cache is one of %s: use %s or %s",
			ErrInvalid, asked, said, said, Auto)
	}
	return asked, nil
}
