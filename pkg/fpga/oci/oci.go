// SPDX-License-Identifier: Apache-2.0

// Package oci packs bitstreams as OCI artifacts, pushes them, and finds the bitstreams of an artifact: their layers, manifests and configs.
// It does not read the layers that it finds. Call [fpga.Config.Inspect] with the bytes to learn what a file is for.
package oci

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/fpga"
)

// ErrNotBitstream means that the artifact is something else, or not in the form of a bitstream's.
var ErrNotBitstream = errors.New("not a bitstream")

// emptyType is the media type of an empty config. Artifacts of files that describe themselves may have it.
const emptyType = "application/vnd.oci.empty.v1+json"

// Source reads manifests and small blobs and compares them with their digests. A *registry.Source is one.
type Source interface {
	Manifest(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error)
	ReadBlob(ctx context.Context, d artifact.Descriptor) ([]byte, error)
}

// Image is one bitstream of an artifact.
type Image struct {
	// Manifest is the digest of the image manifest.
	Manifest artifact.Digest
	// Layer is the file of the bitstream.
	Layer artifact.Descriptor
	// Config always has the format. In an index it also has an interface id, different for each image.
	Config fpga.Config
}

// List finds the bitstreams of a manifest or index, in the order of the index.
func List(ctx context.Context, src Source, d artifact.Descriptor) ([]Image, error) {
	m, err := src.Manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	if !m.IsIndex() {
		image, err := read(ctx, src, m)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
		}
		return []Image{image}, nil
	}
	if n := len(m.Manifests); n < 1 || n > fpga.MaxImages {
		return nil, fmt.Errorf("index %s is %w's: it has %d manifests, expected 1 to %d", m.Digest, ErrNotBitstream, n, fpga.MaxImages)
	}
	images := make([]Image, 0, len(m.Manifests))
	by := map[string]int{}
	for i, entry := range m.Manifests {
		image, err := readEntry(ctx, src, entry)
		if err != nil {
			return nil, fmt.Errorf("manifests[%d] of index %s: %w", i, m.Digest, err)
		}
		id := image.Config.InterfaceID
		if other, twice := by[id]; twice || id == "" {
			return nil, fmt.Errorf("manifests[%d] of index %s is %w: %s", i, m.Digest, ErrNotBitstream, interfaceFault(id, other))
		}
		by[id] = i
		images = append(images, image)
	}
	return images, nil
}

func interfaceFault(id string, other int) string {
	if id == "" {
		return "its config has no interfaceID, which each of an index needs"
	}
	return fmt.Sprintf("it is for interface %s, which manifests[%d] is for already", id, other)
}

func readEntry(ctx context.Context, src Source, entry artifact.Descriptor) (Image, error) {
	if t := entry.ArtifactType; t != "" && t != fpga.ArtifactType {
		return Image{}, fmt.Errorf("%w: artifactType %s, expected %s", ErrNotBitstream, t, fpga.ArtifactType)
	}
	m, err := src.Manifest(ctx, entry)
	if err != nil {
		return Image{}, err
	}
	if m.IsIndex() {
		return Image{}, fmt.Errorf("%w: it is an index itself, expected an image manifest", ErrNotBitstream)
	}
	return read(ctx, src, m)
}

// read decodes one image manifest.
func read(ctx context.Context, src Source, m *artifact.Manifest) (Image, error) {
	// A manifest without an artifactType has the media type of its config.
	if m.ArtifactType != fpga.ArtifactType && m.ArtifactType != fpga.ConfigType {
		return Image{}, fmt.Errorf("%w: artifactType %s, expected %s", ErrNotBitstream, m.ArtifactType, fpga.ArtifactType)
	}
	layer, format, err := layerOf(m)
	if err != nil {
		return Image{}, err
	}
	config, err := configOf(ctx, src, m.Config)
	if err != nil {
		return Image{}, err
	}
	if config.Format != "" && config.Format != format {
		return Image{}, fmt.Errorf("%w: format is %s in the config and %s in the layer's media type", ErrNotBitstream, config.Format, format)
	}
	config.Format = format
	return Image{Manifest: m.Digest, Layer: layer, Config: config}, nil
}

// layerOf returns the only layer, and the format by its media type.
func layerOf(m *artifact.Manifest) (artifact.Descriptor, fpga.Format, error) {
	for _, l := range m.Layers {
		if l.MediaType == fpga.LayerTypeDTBO {
			return artifact.Descriptor{}, "", fmt.Errorf("%w that this release can load: it has a device tree overlay", ErrNotBitstream)
		}
	}
	if len(m.Layers) != 1 {
		return artifact.Descriptor{}, "", fmt.Errorf("%w: it has %d layers, expected 1", ErrNotBitstream, len(m.Layers))
	}
	layer := m.Layers[0]
	format := fpga.FormatOfLayer(layer.MediaType)
	if format == "" {
		return artifact.Descriptor{}, "", fmt.Errorf("%w: its layer is %s, expected the file as it is, such as %s",
			ErrNotBitstream, layer.MediaType, fpga.GBS.LayerType())
	}
	if layer.Size > fpga.MaxFile {
		return artifact.Descriptor{}, "",
			fmt.Errorf("the file is %w: %d bytes, expected at most %d", artifact.ErrTooLarge, layer.Size, fpga.MaxFile)
	}
	return layer, format, nil
}

func configOf(ctx context.Context, src Source, d artifact.Descriptor) (fpga.Config, error) {
	switch {
	case d.MediaType == emptyType:
		return fpga.Config{}, nil
	case d.MediaType != fpga.ConfigType:
		return fpga.Config{}, fmt.Errorf("%w: its config is %s, expected %s", ErrNotBitstream, d.MediaType, fpga.ConfigType)
	case d.Size > fpga.MaxConfig:
		return fpga.Config{}, fmt.Errorf("the config is %w: %d bytes, expected at most %d", artifact.ErrTooLarge, d.Size, fpga.MaxConfig)
	}
	data, err := src.ReadBlob(ctx, d)
	if err != nil {
		return fpga.Config{}, err
	}
	config, err := fpga.DecodeConfig(data)
	if err != nil {
		return fpga.Config{}, fmt.Errorf("%w: %w", ErrNotBitstream, err)
	}
	return config, nil
}

// Push writes the artifact to a registry or a layout: first the blobs, then the manifests, and last the root with the tag, so a tag never
// names a missing blob. If the error is push.ErrRefused, try again with About.Untyped.
func (a *Artifact) Push(ctx context.Context, to push.Target, tag string) error {
	for _, b := range a.Blobs {
		err := to.Blob(ctx, b.Descriptor, func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(b.Content, 0, b.Size)), nil
		})
		if err != nil {
			return err
		}
	}
	for _, m := range a.Manifests {
		manifest := &artifact.Manifest{Raw: m.Raw, Digest: m.Digest, MediaType: m.MediaType}
		if m.Digest == a.Root.Digest {
			return to.Tag(ctx, manifest, tag)
		}
		if err := to.PutManifest(ctx, manifest); err != nil {
			return err
		}
	}
	return nil
}
