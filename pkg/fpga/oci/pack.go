// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
)

// File is a bitstream to pack.
type File struct {
	// Name identifies the file in errors.
	Name string
	// Content has as many bytes as Bitstream.Size.
	Content io.ReaderAt
	// Bitstream was read from the file or, for a raw image, from its sidecar.
	Bitstream fpga.Bitstream
}

// About has values for fields that the files do not have.
type About struct {
	Name     string
	Platform string
	// BlankFor lists the interface ids whose regions the image wipes. Each must be the id of one of the files.
	BlankFor []string
	// Untyped leaves artifactType out, for registries that refuse it. The media type of the config has the same meaning.
	Untyped bool
}

// Artifact is a packed artifact. The same files in any order give the same bytes.
type Artifact struct {
	// Root is the only manifest, or the index.
	Root artifact.Descriptor
	// Images are sorted by interface id.
	Images []Image
	// Blobs has the files and configs, each once.
	Blobs []Blob
	// Manifests has the root last.
	Manifests []Manifest
}

// Blob is content with its descriptor.
type Blob struct {
	artifact.Descriptor
	Content io.ReaderAt
}

// Manifest is a manifest or index with its descriptor.
type Manifest struct {
	artifact.Descriptor
	Raw []byte
}

// The wire forms are declared here because digests depend on their bytes, which must not change with a library.
type (
	wireDescriptor struct {
		MediaType    string          `json:"mediaType"`
		Digest       artifact.Digest `json:"digest"`
		Size         int64           `json:"size"`
		ArtifactType string          `json:"artifactType,omitempty"`
	}
	wireImage struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		ArtifactType  string           `json:"artifactType,omitempty"`
		Config        wireDescriptor   `json:"config"`
		Layers        []wireDescriptor `json:"layers"`
	}
	wireIndex struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		Manifests     []wireDescriptor `json:"manifests"`
	}
)

func wire(d artifact.Descriptor) wireDescriptor {
	return wireDescriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, ArtifactType: d.ArtifactType}
}

// Pack packs one file as an image manifest. Several files, each for another interface, become an index of image manifests. Pack reads each
// file at most twice and keeps none in memory.
func Pack(files []File, about About) (*Artifact, error) {
	if n := len(files); n < 1 || n > fpga.MaxImages {
		return nil, fmt.Errorf("got %d files, expected 1 to %d", n, fpga.MaxImages)
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return cmp.Compare(a.Bitstream.InterfaceID, b.Bitstream.InterfaceID) })
	if err := checkInterfaces(files, about.BlankFor); err != nil {
		return nil, err
	}
	a := &Artifact{}
	for _, f := range files {
		if err := a.add(f, about); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if len(files) == 1 {
		return a, nil
	}
	index := wireIndex{SchemaVersion: 2, MediaType: string(types.OCIImageIndex)}
	for _, m := range a.Manifests {
		index.Manifests = append(index.Manifests, wire(m.Descriptor))
	}
	return a, a.manifest(index.MediaType, "", index)
}

// checkInterfaces checks that the files are for different interfaces, and that a file is for each interface of blankFor.
func checkInterfaces(files []File, blankFor []string) error {
	by := map[string]string{}
	for _, f := range files {
		id := f.Bitstream.InterfaceID
		if id == "" && len(files) > 1 {
			return fmt.Errorf("%s says no interface id, which each of several files needs: push it alone", f.Name)
		}
		if other, twice := by[id]; twice {
			return fmt.Errorf("%s and %s are both for interface %s: a region could not tell which it gets; push them to two tags", other, f.Name, id)
		}
		by[id] = f.Name
	}
	for _, id := range blankFor {
		if _, ok := by[id]; !ok {
			return fmt.Errorf("no file is for interface %s, so none can wipe its regions", id)
		}
	}
	return nil
}

// add packs one file into the artifact.
func (a *Artifact) add(f File, about About) error {
	b := f.Bitstream
	switch {
	case b.Payload == nil:
		return errors.New("it is not known which of its bytes the device wants, so it could never be programmed: " +
			"push the file without the blocks before its header")
	case b.Size > fpga.MaxFile:
		return fmt.Errorf("the file is %w: %d bytes, expected at most %d", artifact.ErrTooLarge, b.Size, fpga.MaxFile)
	}
	config := configFor(b, about)
	if _, err := config.Inspect(f.Content, b.Size); err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode the config: %w", err)
	}
	if _, err := fpga.DecodeConfig(text); err != nil {
		return err
	}
	digest, err := digestOf(f.Content, b.Size)
	if err != nil {
		return err
	}
	layer := artifact.Descriptor{MediaType: b.Format.LayerType(), Digest: digest, Size: b.Size}
	described := artifact.Descriptor{MediaType: fpga.ConfigType, Digest: artifact.DigestOf(text), Size: int64(len(text))}
	a.blob(described, bytes.NewReader(text))
	a.blob(layer, f.Content)
	artifactType := fpga.ArtifactType
	if about.Untyped {
		artifactType = ""
	}
	manifest := wireImage{
		SchemaVersion: 2, MediaType: string(types.OCIManifestSchema1), ArtifactType: artifactType,
		Config: wire(described), Layers: []wireDescriptor{wire(layer)},
	}
	if err := a.manifest(manifest.MediaType, artifactType, manifest); err != nil {
		return err
	}
	a.Images = append(a.Images, Image{Manifest: a.Root.Digest, Layer: layer, Config: config})
	return nil
}

// configFor repeats the fields of the file, so that the config alone tells what the artifact is for.
func configFor(b fpga.Bitstream, about About) fpga.Config {
	c := fpga.Config{
		Format: b.Format, ID: b.ID, InterfaceID: b.InterfaceID, Size: &b.Size, Clock: b.Clocks, Power: b.Power,
		Name: cmp.Or(about.Name, b.Name), Platform: cmp.Or(about.Platform, b.Platform),
	}
	if slices.Contains(about.BlankFor, b.InterfaceID) {
		c.BlankFor = []string{b.InterfaceID}
	}
	return c
}

func digestOf(content io.ReaderAt, size int64) (artifact.Digest, error) {
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(content, 0, size))
	if err != nil {
		return artifact.Digest{}, fmt.Errorf("read the file: %w", err)
	}
	if n != size {
		return artifact.Digest{}, fmt.Errorf("the file has become shorter, %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
	}
	return artifact.Digest(h.Sum(nil)), nil
}

func (a *Artifact) blob(d artifact.Descriptor, content io.ReaderAt) {
	if !slices.ContainsFunc(a.Blobs, func(b Blob) bool { return b.Digest == d.Digest }) {
		a.Blobs = append(a.Blobs, Blob{Descriptor: d, Content: content})
	}
}

// manifest appends a manifest and makes it the root.
func (a *Artifact) manifest(mediaType, artifactType string, content any) error {
	raw, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode the manifest: %w", err)
	}
	a.Root = artifact.Descriptor{MediaType: mediaType, ArtifactType: artifactType, Digest: artifact.DigestOf(raw), Size: int64(len(raw))}
	a.Manifests = append(a.Manifests, Manifest{Descriptor: a.Root, Raw: raw})
	return nil
}
