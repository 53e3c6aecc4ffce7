// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/api/mountpath"
)

// Image has what an image contains beside the cache, in the form that MCV's tools and this package read.
type Image struct {
	// CacheDir and ManifestPath are the paths of the cache and of the manifest in the image's file system.
	CacheDir     string            `json:"cacheDir"`
	ManifestPath string            `json:"manifestPath"`
	Labels       map[string]string `json:"labels"`
	Manifest     []byte            `json:"manifest"`
}

// Describe makes the labels and the manifest of an image for a cache that was inspected. The caller may give architectures that the cache
// does not name. They must not contradict the ones that it names.
func (c *Cache) Describe(given ...Target) (Image, error) {
	format := c.format()
	targets, err := c.summary(given)
	if err != nil {
		return Image{}, err
	}
	summary, err := encode(map[string]any{"targets": targets})
	if err != nil {
		return Image{}, fmt.Errorf("summary: %w", err)
	}
	m, entries := c.manifest(format)
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Image{}, fmt.Errorf("manifest: %w", err)
	}
	image := Image{
		CacheDir: formatDir(format), ManifestPath: formatManifest(format), Manifest: append(text, '\n'),
		Labels: map[string]string{
			labelPrefix + format + labelEntries: strconv.Itoa(entries),
			labelPrefix + format + labelSize:    strconv.FormatInt(c.Bytes, 10),
			labelPrefix + format + labelSummary: string(summary),
		},
	}
	own, err := c.ownLabels(format)
	if err != nil {
		return Image{}, err
	}
	maps.Copy(image.Labels, own)
	// An image that cannot be read back must not be pushed.
	if _, err := ReadLabels(image.Labels); err != nil {
		return Image{}, err
	}
	if _, err := ReadManifest(image.Manifest, image.ManifestPath); err != nil {
		return Image{}, err
	}
	return image, nil
}

// ProducedAt sets the producer's directory for Describe, for a cache whose files do not name it. It must not contradict them.
func (c *Cache) ProducedAt(root string) error {
	if err := mountpath.Check(root); err != nil {
		return fmt.Errorf("%w: the producer's directory: %w", ErrInvalid, plain(err))
	}
	for _, r := range c.Roots {
		if r.SubPath == "." && r.Path != root {
			return fmt.Errorf("%w: the producer is said to have had the cache at %s, but %s says %s",
				ErrInvalid, quote(root), quote(r.First), quote(r.Path))
		}
	}
	c.Labels.Root, c.Labels.RootEnv = root, ""
	return nil
}

// format returns MCV's name of the cache's type, or Fettle's.
func (c *Cache) format() string {
	switch c.Type {
	case Triton:
		return "triton"
	case VLLM:
		return "vllm"
	default:
		return formatFettle
	}
}

// ownLabels returns the labels beside the summary and the numbers.
func (c *Cache) ownLabels(format string) (map[string]string, error) {
	if format == "vllm" {
		return c.vllmLabels()
	}
	labels := map[string]string{}
	if format == formatFettle {
		labels[labelType] = string(c.Type)
	}
	if root := c.Labels.Root; root != "" && len(c.Roots) == 0 {
		labels[labelRoot] = root
	}
	return labels, nil
}

// summaryTarget is a target in the form of MCV's summary. It has no ptx_version, since MCV would compare it with a driver's major version.
type summaryTarget struct {
	Backend  string `json:"backend"`
	Arch     string `json:"arch"`
	WarpSize int    `json:"warp_size"`
}

func (c *Cache) summary(given []Target) ([]summaryTarget, error) {
	precise, vague := c.evidence()
	for _, g := range given {
		known := append(slices.Clone(precise), vague...)
		fits := func(t Target) bool { return t.Backend == g.Backend && (t.Arch == "" || t.Arch == g.Arch) }
		if g.Arch == "" {
			return nil, fmt.Errorf("%w: target %q: want an architecture too", ErrInvalid, g.String())
		}
		if len(known) > 0 && !slices.ContainsFunc(known, fits) {
			return nil, fmt.Errorf("%w: the cache is said to be for %q, but %s says %s", ErrInvalid, g.String(), known[0].where(), known[0])
		}
	}
	if len(precise) == 0 {
		precise = given
	}
	targets := []summaryTarget{}
	for _, t := range precise {
		warp := t.WarpSize
		if warp == 0 {
			warp = t.Arch.warpSize(t.Backend)
		}
		if one := (summaryTarget{t.Backend, string(t.Arch), warp}); !slices.Contains(targets, one) {
			targets = append(targets, one)
		}
	}
	if len(targets) == 0 && c.Type != CUDACompute && c.Type != Generic {
		return nil, fmt.Errorf("%w: the cache does not tell for which GPU it is: name its backend and architecture", ErrInvalid)
	}
	return targets, nil
}

// manifest lists the entries and counts them as MCV does: kernels, or directories that are named by a hash.
func (c *Cache) manifest(format string) (manifest, int) {
	var m manifest
	if format != "vllm" {
		kernels := []manifestKernel{}
		for _, k := range c.kernels {
			kernels = append(kernels, k.forManifest())
		}
		if format == "triton" {
			m.Triton = kernels
			return m, len(kernels)
		}
		entries := cmp.Or(c.Entries, c.Files)
		m.Fettle = &manifestOwn{Type: c.Type, Entries: entries, Files: c.Files, Triton: kernels}
		return m, entries
	}
	hashes := map[string]bool{}
	m.VLLM = []manifestModel{}
	for _, key := range slices.Sorted(maps.Keys(c.models)) {
		model := *c.models[key]
		model.Triton = slices.Clone(model.Triton)
		for i, k := range model.Triton {
			model.Triton[i] = k.forManifest()
		}
		model.Binary = slices.DeleteFunc(slices.Clone(model.Binary), func(b manifestBinary) bool { return b.ArtifactCount == 0 })
		if len(model.Triton)+len(model.Binary)+len(model.AOT) == 0 {
			continue
		}
		m.VLLM = append(m.VLLM, model)
		hashes[model.Hash] = true
	}
	return m, len(hashes)
}

// forManifest writes the architecture as text, as MCV does, and leaves out fields that MCV would compare wrongly.
func (k manifestKernel) forManifest() manifestKernel {
	k.PTXVersion, k.DummyKey = nil, ""
	arch, err := k.foreign().archText()
	if err == nil {
		k.Arch, _ = json.Marshal(arch) // Text is always JSON.
	}
	return k
}

func (c *Cache) vllmLabels() (map[string]string, error) {
	layouts := slices.Clone(c.Layouts)
	slices.Sort(layouts)
	labels := map[string]string{
		labelVLLMFormat: strings.Join(layouts, ","), labelFramework: "vllm", labelCacheType: typeTorchCompile,
	}
	if c.compileDir {
		labels[labelSubPath] = vllmCompile
	}
	if len(c.Labels.Mounts) > 0 {
		text, err := encode(c.Labels.Mounts)
		if err != nil {
			return nil, fmt.Errorf("mounts: %w", err)
		}
		labels[labelMounts], labels[labelSplit] = string(text), "true"
	}
	roots := slices.DeleteFunc(slices.Clone(c.Roots), func(r Root) bool { return r.SubPath != "." })
	switch {
	case len(roots) == 1:
		labels[labelRootEnv] = envVLLM + "=" + roots[0].Path
	case len(roots) == 0 && c.Labels.Root != "":
		labels[labelRootEnv] = envVLLM + "=" + c.Labels.Root
	}
	return labels, nil
}
