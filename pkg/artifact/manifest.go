// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/types"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/jsonsize"
)

const (
	// MaxManifest is the largest manifest that is read, as registries have it.
	MaxManifest = 4 << 20
	// MaxSmall is the largest blob that is read into memory.
	MaxSmall = 1 << 20
	// maxSize keeps sums of sizes from overflowing.
	maxSize = 1 << 50
	// maxDescriptors is how many layers or entries a manifest may have; its size alone would allow some ten thousand.
	maxDescriptors = 1024
	// maxValues is how many values a manifest or a config may have, with all annotations: what they take in memory has little to do with its
	// bytes.
	maxValues = 64 << 10
)

var mediaTypeForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$`)

// Descriptor says what a blob or manifest is.
type Descriptor struct {
	MediaType string
	// ArtifactType is set by some of the entries of an index.
	ArtifactType string
	Digest       Digest
	Size         int64
	Annotations  map[string]string
	// Platform is OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT in an index for several platforms, and of the layers of an image.
	Platform string
}

// IsManifest says whether it is of an image or an index. An index may name anything, and what is neither is to be ignored (OCI image
// specification, "Image Index").
func (d Descriptor) IsManifest() bool {
	return slices.Contains([]string{manifestType, indexType, dockerManifestType, dockerListType}, d.MediaType)
}

// Check refuses what no descriptor may say.
func (d Descriptor) Check() error {
	if d.Digest.IsZero() || d.Size < 0 || d.Size > maxSize {
		return fmt.Errorf("the descriptor is %w: digest %s, size %d: expected a digest and a size", ErrInvalid, quote(d.Digest.String()), d.Size)
	}
	return nil
}

// Manifest is an image manifest or an index.
type Manifest struct {
	// Raw is the bytes that Digest is of.
	Raw       []byte
	Digest    Digest
	MediaType string
	// ArtifactType is the manifest's own or, as the specification says, its config's media type.
	ArtifactType string
	// Config and Layers are an image's. Config is zero for an index.
	Config Descriptor
	Layers []Descriptor
	// Manifests are the entries of an index.
	Manifests []Descriptor
	// Subject is the manifest that this one says to be about, zero where there is none.
	Subject     Descriptor
	Annotations map[string]string
}

// IsIndex says whether there are manifests and neither config nor layers.
func (m *Manifest) IsIndex() bool { return m.MediaType == indexType || m.MediaType == dockerListType }

const (
	manifestType       = string(types.OCIManifestSchema1)
	indexType          = string(types.OCIImageIndex)
	dockerManifestType = string(types.DockerManifestSchema2)
	dockerListType     = string(types.DockerManifestList)
)

type wirePlatform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

func (p *wirePlatform) String() string {
	if p.Variant == "" {
		return p.OS + "/" + p.Architecture
	}
	return p.OS + "/" + p.Architecture + "/" + p.Variant
}

type wireDescriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations"`
	Platform     *wirePlatform     `json:"platform"`
}

type wireManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *wireDescriptor   `json:"config"`
	Layers        []wireDescriptor  `json:"layers"`
	Manifests     []wireDescriptor  `json:"manifests"`
	Subject       *wireDescriptor   `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
	FSLayers      json.RawMessage   `json:"fsLayers"`
}

// ParseManifest reads an OCI or Docker image manifest or index. What two readers could understand differently (a key twice, an image
// and an index at once) is refused, since a signature is of the bytes.
func ParseManifest(data []byte) (*Manifest, error) {
	wire, err := readWire(data)
	if err != nil {
		return nil, err
	}
	m := &Manifest{
		Raw: bytes.Clone(data), Digest: DigestOf(data), MediaType: wire.MediaType, ArtifactType: wire.ArtifactType, Annotations: wire.Annotations,
	}
	if wire.Subject != nil {
		if m.Subject, err = wire.Subject.descriptor("subject"); err != nil {
			return nil, err
		}
	}
	if wire.Config == nil {
		m.setDefault(indexType)
		m.Manifests, err = descriptors("manifests", wire.Manifests)
		return m.orInvalid(err)
	}
	m.setDefault(manifestType)
	if m.Config, err = wire.Config.descriptor("config"); err != nil {
		return nil, err
	}
	if m.ArtifactType == "" {
		m.ArtifactType = m.Config.MediaType
	}
	m.Layers, err = descriptors("layers", wire.Layers)
	return m.orInvalid(err)
}

// ParseReferrers reads an index that lists what refers to a manifest. Anybody who may push adds to such a list, and can hide nothing of it:
// entries that cannot be read here, such as those with a digest of another algorithm, are left out.
func ParseReferrers(data []byte) ([]Descriptor, error) {
	wire, err := readWire(data)
	switch {
	case err != nil:
		return nil, err
	case wire.Config != nil:
		return nil, invalidManifest("an index, not an image")
	case len(wire.Manifests) > maxDescriptors:
		return nil, tooMany("manifests", len(wire.Manifests))
	}
	list := make([]Descriptor, 0, len(wire.Manifests))
	for i := range wire.Manifests {
		if d, err := wire.Manifests[i].descriptor("manifests"); err == nil {
			list = append(list, d)
		}
	}
	return list, nil
}

// readWire decodes a manifest.
func readWire(data []byte) (*wireManifest, error) {
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("the manifest is %w: %d bytes, expected at most %d", ErrTooLarge, len(data), MaxManifest)
	}
	var wire wireManifest
	if err := decode(data, &wire); err != nil {
		return nil, fmt.Errorf("the manifest is %w", err)
	}
	return &wire, wire.check()
}

// decode reads JSON with each key once, and with few enough values that they fit into memory.
func decode(data []byte, into any) error {
	if err := jsonsize.Check(data, maxValues); err != nil {
		return fmt.Errorf("%w: expected JSON within limits: %w", ErrInvalid, err)
	}
	repeated, err := kjson.UnmarshalStrict(data, into, kjson.DisallowDuplicateFields)
	if err == nil && len(repeated) > 0 {
		err = repeated[0]
	}
	if err != nil {
		return fmt.Errorf("%w: expected JSON with each key once: %s", ErrInvalid, clip(err.Error()))
	}
	return nil
}

func invalidManifest(expected string) error {
	return fmt.Errorf("the manifest is %w: expected %s", ErrInvalid, expected)
}

func (w *wireManifest) check() error {
	image, index := w.Config != nil || w.Layers != nil, w.Manifests != nil
	switch {
	case w.FSLayers != nil || w.SchemaVersion == 1:
		return invalidManifest("schema version 2; version 1 is obsolete, push the image anew with a current tool")
	case w.SchemaVersion != 2:
		return invalidManifest(fmt.Sprintf("schemaVersion 2, not %d", w.SchemaVersion))
	case image == index:
		return invalidManifest("either config and layers, or manifests")
	case image && w.Config == nil:
		return invalidManifest("a config")
	case image && !slices.Contains([]string{"", manifestType, dockerManifestType}, w.MediaType),
		index && !slices.Contains([]string{"", indexType, dockerListType}, w.MediaType):
		return invalidManifest("a media type for what it holds, not " + quote(w.MediaType))
	case w.ArtifactType != "" && !mediaTypeForm.MatchString(w.ArtifactType):
		return invalidManifest("a media type in artifactType, not " + quote(w.ArtifactType))
	}
	return nil
}

func (m *Manifest) setDefault(mediaType string) {
	if m.MediaType == "" {
		m.MediaType = mediaType
	}
}

func (m *Manifest) orInvalid(err error) (*Manifest, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

func descriptors(field string, wire []wireDescriptor) ([]Descriptor, error) {
	if len(wire) > maxDescriptors {
		return nil, tooMany(field, len(wire))
	}
	list := make([]Descriptor, 0, len(wire))
	for i := range wire {
		d, err := wire[i].descriptor(fmt.Sprintf("%s[%d]", field, i))
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func tooMany(field string, count int) error {
	return invalidManifest(fmt.Sprintf("at most %d %s, not %d", maxDescriptors, field, count))
}

func (w *wireDescriptor) descriptor(field string) (Descriptor, error) {
	digest, err := ParseDigest(w.Digest)
	if err != nil {
		return Descriptor{}, fmt.Errorf("%s.digest of the manifest: %w", field, err)
	}
	if w.Size < 0 || w.Size > maxSize {
		return Descriptor{}, invalidManifest(fmt.Sprintf("%s.size of 0 to %d, not %d", field, maxSize, w.Size))
	}
	if !mediaTypeForm.MatchString(w.MediaType) {
		return Descriptor{}, invalidManifest(fmt.Sprintf("a media type in %s.mediaType, not %s", field, quote(w.MediaType)))
	}
	d := Descriptor{MediaType: w.MediaType, ArtifactType: w.ArtifactType, Digest: digest, Size: w.Size, Annotations: w.Annotations}
	if p := w.Platform; p != nil {
		d.Platform = p.String()
	}
	return d, nil
}
