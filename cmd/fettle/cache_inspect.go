// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/image"
)

const cacheInspectHelp = `
Shows what the image of a kernel cache is for: what its labels say and, with --files, what its files say, which are believed first. With
--files the layers are read as strictly as when they are extracted, and nothing of them is kept. REF is REGISTRY/REPOSITORY:TAG, with
@DIGEST instead of the tag, or oci:DIR[:TAG|@DIGEST]. No signature is checked.`

// cacheInspected is the result.
type cacheInspected struct {
	Reference string `json:"reference"`
	// Digest is what the reference means, Image the image's own where that is an index.
	Digest artifact.Digest    `json:"digest"`
	Image  artifact.Digest    `json:"image"`
	Size   int64              `json:"size"`
	Layers []cacheLayer       `json:"layers"`
	Labels kernelcache.Labels `json:"labels"`
	// Cache is what the files say.
	Cache *kernelcache.Cache `json:"cache,omitempty"`
	// Plan is where it would be mounted; NoPlan says why it is nowhere.
	Plan   *kernelcache.Plan `json:"plan,omitempty"`
	NoPlan string            `json:"noPlan,omitempty"`
}

type cacheLayer struct {
	MediaType string          `json:"mediaType"`
	Digest    artifact.Digest `json:"digest"`
	Size      int64           `json:"size"`
}

const cacheInspectExamples = `
fettle cache inspect registry.example/team/kernels:v1 --files
fettle cache inspect oci:kernels:v1 -o jsonpath='{.labels.type}'`

func cacheInspect(flags *arguments) action {
	access := flags.cacheAccess()
	files := flags.Bool("files", false, "read the files too; the default for oci:DIR")
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, _ io.Writer) error {
		place, err := parsePlace(operands[0])
		if err != nil {
			return flags.misused(err)
		}
		result, err := inspectCache(ctx, access, place, *files || place.dir != "" && !flags.given("files"))
		if err != nil {
			return fmt.Errorf("cache inspect: %w", err)
		}
		return show(*format, result, stdout, result.table)
	}
}

func inspectCache(ctx context.Context, access *access, place artifactPlace, files bool) (*cacheInspected, error) {
	found, err := access.find(ctx, place)
	if err != nil {
		return nil, err
	}
	result := &cacheInspected{
		Reference: place.named(found.resolved.Digest), Digest: found.resolved.Digest, Image: found.image.Digest, Size: found.image.Size(),
	}
	for _, l := range found.image.Layers {
		result.Layers = append(result.Layers, cacheLayer{l.MediaType, l.Digest, l.Size})
	}
	if result.Labels, err = kernelcache.ReadLabels(found.image.Labels); err != nil || !files {
		return result, err
	}
	cache, err := found.inspect(ctx)
	if err != nil {
		return nil, err
	}
	result.Cache = &cache
	plan, err := cache.Plan("")
	if err != nil {
		result.NoPlan = err.Error()
		return result, nil //nolint:nilerr // that it wants to be nowhere is a fact of the cache
	}
	result.Plan = &plan
	return result, nil
}

// inspect reads the facts of the cache in the image.
func (f *foundImage) inspect(ctx context.Context) (kernelcache.Cache, error) {
	return readTwice(f.source, func(source imageSource) (kernelcache.Cache, error) {
		return image.Inspect(ctx, source, f.image, unpack.Limits{})
	})
}

// table shows a line a fact.
func (r *cacheInspected) table(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(table)
	line("DIGEST", r.Digest.String())
	if r.Image != r.Digest {
		line("IMAGE", r.Image.String())
	}
	for _, l := range r.Layers {
		line("LAYER", fmt.Sprintf("%s %d bytes %s", l.Digest, l.Size, l.MediaType))
	}
	if r.Cache == nil {
		r.labelLines(line)
	} else {
		r.fileLines(line)
	}
	return table.Flush()
}

func (r *cacheInspected) labelLines(line func(name, value string)) {
	line("TYPE", orDash(string(r.Labels.Type))+" (by its labels)")
	if r.Labels.Entries >= 0 {
		line("ENTRIES", fmt.Sprint(r.Labels.Entries))
	}
	if r.Labels.Size >= 0 {
		line("SIZE", fmt.Sprintf("%d bytes", r.Labels.Size))
	}
	targetLines(r.Labels.Targets, line)
	line("ROOT", r.Labels.Root)
	for _, note := range r.Labels.Notes {
		line("NOTE", note)
	}
}

func (r *cacheInspected) fileLines(line func(name, value string)) {
	c := r.Cache
	line("TYPE", string(c.Type))
	line("ENTRIES", fmt.Sprint(c.Entries))
	line("SIZE", fmt.Sprintf("%d bytes in %d files", c.Bytes, c.Files))
	targetLines(c.Targets, line)
	for _, root := range c.Roots {
		line("ROOT", fmt.Sprintf("%s by %d files such as %s", root.Path, root.Files, root.First))
	}
	if len(c.Bound) > 0 {
		line("BOUND", fmt.Sprintf("%d files name their place", len(c.Bound)))
	}
	if r.Plan != nil {
		for _, m := range r.Plan.Mounts {
			line("MOUNT", fmt.Sprintf("%s at %s", m.Source, m.Target))
		}
		for _, e := range r.Plan.Env {
			line("ENV", e.Name+"="+e.Value)
		}
	}
	line("MOUNT", r.NoPlan)
	keyLines(c, line)
	for _, note := range c.Notes {
		line("NOTE", note)
	}
}

// keyLines shows what a pod must share with the producer of the cache, or its program finds no entry.
func keyLines(c *kernelcache.Cache, line func(name, value string)) {
	for _, v := range c.KeyOfPod(true).Variables {
		line("SHARE", fmt.Sprintf("%s=%s by the file %s", v.Name, v.Value, v.File))
	}
	for _, version := range c.Key.Triton {
		line("SHARE", "Triton "+version)
	}
}

func targetLines(targets []kernelcache.Target, line func(name, value string)) {
	for _, t := range targets {
		line("TARGET", fmt.Sprintf("%s by the %s %s", t, t.Source, t.Where))
	}
}
