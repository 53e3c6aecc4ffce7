// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// source says where the binaries are and what the images are labelled with.
type source struct {
	// Bin has one directory an architecture: BIN/linux_amd64, BIN/linux_arm64.
	Bin string
	// Version becomes the tag and a label, Revision (a commit) a label when it is known.
	Version, Revision string
	// Created is the only time in the image: of every file, layer and label.
	Created time.Time
}

// dir is where the binaries of one architecture lie.
func (s source) dir(arch string) string { return filepath.Join(s.Bin, "linux_"+arch) }

// complete checks that every binary of the image was built for an architecture, so that half a build is never published.
func (s source) complete(spec imageSpec, arch string) error {
	for _, name := range slices.Concat(spec.Static, spec.Dynamic) {
		if _, err := os.Stat(filepath.Join(s.dir(arch), name)); err != nil {
			return fmt.Errorf("image %s for %s: %w: run make build (make build-cross for all architectures)", spec.Name, arch, err)
		}
	}
	return nil
}

// image assembles one image for one architecture: the C library's files first, since they change least, then the binaries.
func (s source) image(spec imageSpec, arch string) (v1.Image, error) {
	libraries, binaries, err := s.files(spec, arch)
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: %w", spec.Name, arch, err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range [][]file{libraries, binaries} {
		if len(files) == 0 {
			continue
		}
		content, err := layer(files, s.Created)
		if err != nil {
			return nil, fmt.Errorf("image %s for %s: %w", spec.Name, arch, err)
		}
		add := mutate.Addendum{Layer: content, History: v1.History{Created: v1.Time{Time: s.Created}, CreatedBy: "fettle image assembly"}}
		if img, err = mutate.Append(img, add); err != nil {
			return nil, fmt.Errorf("image %s for %s: %w", spec.Name, arch, err)
		}
	}
	return s.configure(img, spec, arch)
}

// files lists what goes into the image: the libraries of its dynamic binaries, and all its binaries at the root.
func (s source) files(spec imageSpec, arch string) (libraries, binaries []file, err error) {
	byPath := map[string]file{}
	for _, name := range spec.Static {
		source := filepath.Join(s.dir(arch), name)
		if err := checkStatic(source, arch); err != nil {
			return nil, nil, err
		}
		binaries = append(binaries, file{path: "/" + name, source: source, mode: 0o755})
	}
	for _, name := range spec.Dynamic {
		source := filepath.Join(s.dir(arch), name)
		needed, err := closure(source, arch, spec.Libraries)
		if err != nil {
			return nil, nil, err
		}
		for _, library := range needed {
			byPath[library.path] = library
		}
		binaries = append(binaries, file{path: "/" + name, source: source, mode: 0o755})
	}
	for _, library := range byPath {
		libraries = append(libraries, library)
	}
	return sortFiles(libraries), sortFiles(binaries), nil
}

// configure sets what the runtime reads: user, entrypoint, platform and labels.
func (s source) configure(img v1.Image, spec imageSpec, arch string) (v1.Image, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: read its config: %w", spec.Name, arch, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Created = v1.Time{Time: s.Created}
	config.Config.User = spec.User
	config.Config.WorkingDir = "/"
	config.Config.Entrypoint = []string{"/" + spec.Entrypoint}
	config.Config.Env = []string{"PATH=/"}
	config.Config.Labels = s.labels(spec)
	return mutate.ConfigFile(img, config)
}

// labels are the keys of the OCI image spec, annotations.md, that are known at build time.
func (s source) labels(spec imageSpec) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       spec.Title,
		"org.opencontainers.image.description": spec.Description,
		"org.opencontainers.image.source":      "https://github.com/fettle-dev/fettle",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.Version,
		"org.opencontainers.image.created":     s.Created.UTC().Format(time.RFC3339),
	}
	if s.Revision != "" {
		labels["org.opencontainers.image.revision"] = s.Revision
	}
	return labels
}

// assembled is one image for all its architectures.
type assembled struct {
	spec   imageSpec
	images map[string]v1.Image
	index  v1.ImageIndex
}

// assemble builds an image for each of the architectures, and the index over them.
func (s source) assemble(spec imageSpec, architectures []string) (assembled, error) {
	result := assembled{spec: spec, images: map[string]v1.Image{}, index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	for _, arch := range architectures {
		if err := s.complete(spec, arch); err != nil {
			return assembled{}, err
		}
		img, err := s.image(spec, arch)
		if err != nil {
			return assembled{}, err
		}
		result.images[arch] = img
		result.index = mutate.AppendManifests(result.index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return result, nil
}
