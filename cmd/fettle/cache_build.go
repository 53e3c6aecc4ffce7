// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/cmd/fettle/internal/terminal"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/image"
)

const cacheBuildHelp = `
Makes an image of a directory of compiled kernels and writes it to REF: REGISTRY/REPOSITORY:TAG, or oci:DIR[:TAG] for a directory in the
OCI image layout. What the cache is for is read in its files; no GPU and no Python are needed. MCV's tools read the image of a Triton or
vLLM cache. The same files give the same digest. Prints the reference by digest; notes go to stderr. Look at vLLM's
cache_key_factors.json before you push it: it has the variables that vLLM was started with.`

// platformForm is that of --platform.
var platformForm = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9]+$`)

// building is what the flags say of the image.
type building struct {
	to           string
	kind         string
	archs        list
	producerRoot string
	compression  string
	platform     string
	access       *access
}

// built is the result.
type built struct {
	Reference string            `json:"reference"`
	Digest    artifact.Digest   `json:"digest"`
	Layer     artifact.Digest   `json:"layer"`
	Size      int64             `json:"size"`
	Type      kernelcache.Type  `json:"type"`
	Files     int               `json:"files"`
	Bytes     int64             `json:"bytes"`
	Labels    map[string]string `json:"labels"`
	Notes     []string          `json:"notes,omitempty"`
}

const cacheBuildExamples = `
fettle cache build triton-cache -t registry.example/team/kernels:v1
fettle cache build triton-cache -t oci:kernels:v1 --type Triton --arch gfx942`

func cacheBuild(flags *arguments) action {
	b := building{access: flags.cacheAccess()}
	flags.StringVarP(&b.to, "tag", "t", "", "`REF` to write the image to")
	flags.where("tag", unless(func(text string) error {
		_, err := writable(text)
		return err
	}))
	flags.StringVar(&b.kind, "type", string(kernelcache.Auto), fmt.Sprintf("`type` of the cache, one of %v", kernelcache.Types()))
	flags.Var(&b.archs, "arch", "`architecture` that the cache is for where its files do not tell, such as sm_90 or gfx942; may be repeated")
	flags.StringVar(&b.producerRoot, "producer-root", "", "`path` where the cache was when it was made, where its files do not tell")
	flags.StringVar(&b.compression, "compression", string(image.Gzip), "gzip, zstd or none; MCV's tools read gzip alone")
	flags.StringVar(&b.platform, "platform", "linux/amd64", "OS/ARCHITECTURE of the machines that are to use the cache")
	compressions := []string{string(image.Gzip), string(image.Zstd), string(image.None)}
	flags.completeFlag("compression", compressions...)
	flags.where("compression", oneOf(compressions...))
	var types []string
	for _, t := range kernelcache.Types() {
		types = append(types, string(t))
	}
	flags.where("type", oneOf(types...))
	flags.where("arch", func(text string) error {
		_, err := targetOf(text)
		return err
	})
	flags.where("producer-root", unless(mountpath.Check))
	flags.where("platform", unless(func(text string) error {
		if !platformForm.MatchString(text) {
			return errors.New("want OS/ARCHITECTURE, such as linux/arm64")
		}
		return nil
	}))
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) error {
		if b.to == "" {
			return flags.misused(errors.New("want -t REF"))
		}
		place, err := writable(b.to)
		if err != nil {
			return flags.misused(err)
		}
		result, err := b.build(ctx, operands[0], place)
		if err != nil {
			return fmt.Errorf("cache build: %w", err)
		}
		for _, note := range result.Notes {
			fmt.Fprintf(stderr, "note: %s\n", note)
		}
		return show(*format, result, stdout, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, result.Reference)
			return err
		})
	}
}

func (b *building) build(ctx context.Context, dir string, place artifactPlace) (result *built, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	cache, described, err := b.describe(root.FS())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	layer, err := os.CreateTemp("", "fettle-layer-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	progress := terminal.FromContext(ctx)
	progress.Step("packing", 0)
	packed, err := image.Pack(root.FS(), &cache, described, progress.Counter(layer),
		image.Options{Compression: image.Compression(b.compression), Platform: b.platform})
	if err != nil {
		return nil, err
	}
	content := packedLayer{layer}
	if err := image.Check(ctx, content, &packed.Image); err != nil {
		return nil, fmt.Errorf("what was made could not be extracted: %w", err)
	}
	to, err := b.access.target(place)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return content.Open(ctx, packed.Image.Layers[0].Descriptor)
	}
	if err := packed.Push(ctx, to, tagOf(place), open); err != nil {
		return nil, err
	}
	made := packed.Image
	return &built{
		Reference: place.named(made.Digest), Digest: made.Digest, Layer: made.Layers[0].Digest, Size: made.Size(),
		Type: cache.Type, Files: cache.Files, Bytes: cache.Bytes, Labels: made.Labels, Notes: cache.Notes,
	}, nil
}

// packedLayer is the layer that was just made.
type packedLayer struct{ io.ReaderAt }

func (p packedLayer) Open(_ context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(p.ReaderAt, 0, d.Size)), nil
}

// describe reads the cache and says what its image has.
func (b *building) describe(fsys fs.FS) (kernelcache.Cache, kernelcache.Image, error) {
	cache, err := kernelcache.Inspect(fsys, kernelcache.Options{Type: kernelcache.Type(b.kind)})
	if err != nil {
		return cache, kernelcache.Image{}, err
	}
	if cache.Files == 0 {
		return cache, kernelcache.Image{}, errors.New("there are no files in it")
	}
	if b.producerRoot != "" {
		if err := cache.ProducedAt(b.producerRoot); err != nil {
			return cache, kernelcache.Image{}, err
		}
	}
	given, err := b.targets()
	if err != nil {
		return cache, kernelcache.Image{}, err
	}
	described, err := cache.Describe(given...)
	if _, planned := cache.Plan(""); err == nil && planned != nil {
		cache.Notes = append(cache.Notes, planned.Error()+", or build the image with --producer-root")
	}
	return cache, described, err
}

// targets are those of --arch.
func (b *building) targets() ([]kernelcache.Target, error) {
	var given []kernelcache.Target
	for _, text := range b.archs {
		one, err := targetOf(text)
		if err != nil {
			return nil, err
		}
		given = append(given, one)
	}
	return given, nil
}

func targetOf(text string) (kernelcache.Target, error) {
	backend := kernelcache.CUDA
	if strings.HasPrefix(text, "gfx") {
		backend = kernelcache.HIP
	}
	arch, features, err := kernelcache.ParseArch(backend, text)
	return kernelcache.Target{Backend: backend, Arch: arch, Features: features}, err
}
