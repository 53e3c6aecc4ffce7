// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// maxLabels is how many bytes the labels of an image may have together. A tree keeps them beside its files.
const maxLabels = 128 << 10

// attestationType marks the entries of an index that say something of the others, as builders add them.
const attestationType = "vnd.docker.reference.type"

// ImageSource is what an image is read from: a Source, or a layout on the disk.
type ImageSource interface {
	Manifest(ctx context.Context, d Descriptor) (*Manifest, error)
	ReadBlob(ctx context.Context, d Descriptor) ([]byte, error)
}

// Image is an image of file systems: what its manifest and config say.
type Image struct {
	// Digest is that of its manifest.
	Digest Digest
	// Labels are the config's.
	Labels map[string]string
	// Layers are put on each other, the lowest first. Their platform is the image's, for which its producer made them.
	Layers []TreeLayer
}

// Size is how many bytes the layers have as they are fetched.
func (i *Image) Size() int64 {
	var n int64
	for _, l := range i.Layers {
		n += l.Size
	}
	return n
}

// ReadImage reads the manifest and config of what d is of: an image, or an index of which the one entry that is an image counts, or among
// several the one for the platform, OS/ARCHITECTURE. Its layers are only named.
func ReadImage(ctx context.Context, src ImageSource, d Descriptor, platform string) (*Image, error) {
	m, err := src.Manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	var entry Descriptor
	if m.IsIndex() {
		entry, err = choose(m, platform)
		if err != nil {
			return nil, err
		}
		if m, err = src.Manifest(ctx, entry); err != nil {
			return nil, err
		}
		if m.IsIndex() {
			return nil, invalidManifest("an image in the index, not another index")
		}
	}
	config, err := src.ReadBlob(ctx, m.Config)
	if err != nil {
		return nil, fmt.Errorf("config of the image: %w", err)
	}
	return parseImage(m, config, entry.Platform)
}

// choose finds the image that an index has for a platform.
func choose(index *Manifest, platform string) (Descriptor, error) {
	images := slices.DeleteFunc(slices.Clone(index.Manifests), func(d Descriptor) bool {
		return !d.IsManifest() || d.Annotations[attestationType] != "" || strings.HasPrefix(d.Platform, "unknown/")
	})
	if len(images) == 1 {
		return images[0], nil
	}
	var has []string
	for _, d := range images {
		if d.Platform == platform || strings.HasPrefix(d.Platform, platform+"/") {
			return d, nil
		}
		has = append(has, d.Platform)
	}
	return Descriptor{}, invalidManifest(fmt.Sprintf("an image for %s in the index, which has %q", platform, has))
}

// wireConfig is what counts of an image's config.
type wireConfig struct {
	wirePlatform
	Config struct {
		Labels map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// parseImage reads a config. The platform of the index's entry counts if the config has none.
func parseImage(m *Manifest, config []byte, platform string) (*Image, error) {
	var wire wireConfig
	if err := decode(config, &wire); err != nil {
		return nil, fmt.Errorf("the config of the image is %w", err)
	}
	labels := 0
	for name, value := range wire.Config.Labels {
		if labels += len(name) + len(value); labels > maxLabels {
			return nil, fmt.Errorf("the config of the image is %w: its labels: expected at most %d bytes together", ErrTooLarge, maxLabels)
		}
	}
	if len(m.Layers) == 0 || len(m.Layers) != len(wire.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the config of the image is %w: it has %d diffIDs for %d layers: expected one for each, and a layer at least",
			ErrInvalid, len(wire.RootFS.DiffIDs), len(m.Layers))
	}
	if wire.Architecture != "" {
		platform = wire.String()
	}
	image := &Image{Digest: m.Digest, Labels: wire.Config.Labels}
	for i, layer := range m.Layers {
		layer.Platform = platform
		id, err := ParseDigest(wire.RootFS.DiffIDs[i])
		if err != nil {
			return nil, fmt.Errorf("the config of the image is %w: rootfs.diff_ids[%d]: %w", ErrInvalid, i, err)
		}
		image.Layers = append(image.Layers, TreeLayer{Descriptor: layer, DiffID: id})
	}
	return image, nil
}
