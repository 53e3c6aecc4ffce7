// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	sigsjson "sigs.k8s.io/json"
)

// A bitstream is published as an OCI artifact: an image manifest of ArtifactType with a config of ConfigType and one layer, which is
// the file as it is. The layer is not compressed, so it has the digest of the file. An index may hold one such manifest for each interface.
const (
	ArtifactType = "application/vnd.fettle.fpga.bitstream.v1"
	ConfigType   = "application/vnd.fettle.fpga.bitstream.config.v1+json"
	// LayerTypeDTBO is the type of a device tree overlay. Fettle does not load overlays.
	LayerTypeDTBO = layerType + "dtbo"

	layerType = "application/vnd.fettle.fpga.bitstream.layer.v1."
)

const (
	// MaxConfig limits the length of the config.
	MaxConfig = 16 << 10
	// MaxFile limits the length of a bitstream's file.
	MaxFile = 512 << 20
	// MaxImages limits how many manifests an index may hold.
	MaxImages = 64
)

// LayerType returns the media type of a layer with a file of this format.
func (f Format) LayerType() string { return layerType + string(f) }

// FormatOfLayer returns the format that a media type of a layer stands for, or "" for other media types.
func FormatOfLayer(mediaType string) Format {
	for _, f := range []Format{GBS, AOCX, Xclbin, RBF, BIN} {
		if mediaType == f.LayerType() {
			return f
		}
	}
	return ""
}

// IsRaw reports whether files of the format hold only the image and do not describe themselves.
func (f Format) IsRaw() bool { return f == RBF || f == BIN }

// Config is the config of a bitstream's artifact. It may leave out fields that the file states itself. Where both state a field, they must
// agree.
type Config struct {
	// Format is the format of the layer.
	Format      Format `json:"format,omitempty"`
	ID          string `json:"id,omitempty"`
	InterfaceID string `json:"interfaceID,omitempty"`
	Name        string `json:"name,omitempty"`
	Platform    string `json:"platform,omitempty"`
	Size        *int64 `json:"size,omitempty"`
	Clock       Clocks `json:"clock,omitzero"`
	// Power is in watts.
	Power *float64 `json:"power,omitempty"`
	// MinDriver is the oldest version of the region's kernel driver that can load the image.
	MinDriver string `json:"minDriver,omitempty"`
	// BlankFor lists the interface ids of the regions that this image wipes.
	BlankFor []string `json:"blankFor,omitempty"`
}

// DecodeConfig reads the config blob of an artifact. It refuses unknown fields and repeated ones, and returns ids in the form that
// Bitstream uses.
func DecodeConfig(data []byte) (Config, error) {
	if len(data) > MaxConfig {
		return Config{}, fmt.Errorf("config: %d bytes, want at most %d", len(data), MaxConfig)
	}
	var c Config
	strict, err := sigsjson.UnmarshalStrict(data, &c)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return Config{}, fmt.Errorf("config: want JSON with the fields of a bitstream's config: %w", err)
	}
	if err := c.canonicalise(); err != nil {
		return Config{}, fmt.Errorf("config: %w", err)
	}
	return c, nil
}

// canonicalise checks each field that is set and brings ids into their canonical form.
func (c *Config) canonicalise() error {
	if c.Format != "" && FormatOfLayer(c.Format.LayerType()) == "" {
		return fmt.Errorf("format: got %.40q, want gbs, aocx, xclbin, rbf or bin", c.Format)
	}
	if c.Power != nil && *c.Power < 0 {
		return fmt.Errorf("power: got %g, want no negative number", *c.Power)
	}
	if len(c.BlankFor) > MaxImages {
		return fmt.Errorf("blankFor: got %d ids, want at most %d", len(c.BlankFor), MaxImages)
	}
	var idErr, ifaceErr, blankErr error
	c.ID, idErr = optional(c.ID, imageID)
	c.InterfaceID, ifaceErr = optional(c.InterfaceID, interfaceID)
	for i := range c.BlankFor {
		if c.BlankFor[i], blankErr = interfaceID(c.BlankFor[i]); blankErr != nil {
			break
		}
	}
	return firstFault(
		fault{"id", idErr}, fault{"interfaceID", ifaceErr}, fault{"blankFor", blankErr}, fault{"name", CheckText(c.Name)},
		fault{"platform", CheckText(c.Platform)}, fault{"minDriver", CheckText(c.MinDriver)},
	)
}

// fault is what is wrong with a field. err is nil if nothing is.
type fault struct {
	field string
	err   error
}

func firstFault(all ...fault) error {
	for _, f := range all {
		if f.err != nil {
			return fmt.Errorf("%s: %w", f.field, f.err)
		}
	}
	return nil
}

// imageID reads the id of an image of any format. The id of an AOCX has 40 digits.
func imageID(s string) (string, error) {
	if hash := strings.ToLower(s); randomHash.MatchString(hash) {
		return hash, nil
	}
	return afuID(s)
}

func optional(s string, read func(string) (string, error)) (string, error) {
	if s == "" {
		return "", nil
	}
	return read(s)
}

// Inspect reads the config's file. The bytes of the file decide: the config cannot override what they state, and the error names each field
// in which the two differ. The config only fills in what the file does not state. For a raw image that is everything.
func (c Config) Inspect(file io.ReaderAt, size int64) (Bitstream, error) {
	var b Bitstream
	var err error
	if c.Format.IsRaw() {
		b, err = c.inspectRaw(file, size)
	} else {
		b, err = Inspect(file, size)
	}
	if err != nil {
		return Bitstream{}, err
	}
	if err := c.contradiction(b); err != nil {
		return Bitstream{}, err
	}
	return c.complete(b), nil
}

// inspectRaw reads a raw image with the config as its sidecar.
func (c Config) inspectRaw(file io.ReaderAt, size int64) (Bitstream, error) {
	if c.ID == "" || c.InterfaceID == "" {
		return Bitstream{}, errors.New("config: a raw image needs id and interfaceID, since the file does not say them")
	}
	text, err := json.Marshal(map[string]any{"format": c.Format, "id": c.ID, "interfaceID": c.InterfaceID})
	if err != nil {
		return Bitstream{}, fmt.Errorf("config: %w", err)
	}
	return InspectRaw(file, size, text)
}

// ErrContradiction says that the config and the bytes of the file differ.
var ErrContradiction = errors.New("the config is not of this file")

func (c Config) contradiction(b Bitstream) error {
	var faults []string
	differs := func(field, configured, found string) {
		if configured != "" && configured != found {
			faults = append(faults, fmt.Sprintf("%s is %s in the config and %s in the file", field, configured, orNone(found)))
		}
	}
	differs("format", string(c.Format), string(b.Format))
	differs("id", c.ID, b.ID)
	differs("interfaceID", c.InterfaceID, b.InterfaceID)
	if b.Name != "" {
		differs("name", c.Name, b.Name)
	}
	if b.Platform != "" {
		differs("platform", c.Platform, b.Platform)
	}
	if c.Size != nil {
		differs("size", fmt.Sprint(*c.Size), fmt.Sprint(b.Size))
	}
	if c.Power != nil && b.Power != nil {
		differs("power", fmt.Sprint(*c.Power), fmt.Sprint(*b.Power))
	}
	if c.Clock.High != nil && b.Clocks.High != nil {
		differs("clock.high", c.Clock.High.String(), b.Clocks.High.String())
	}
	if c.Clock.Low != nil && b.Clocks.Low != nil {
		differs("clock.low", c.Clock.Low.String(), b.Clocks.Low.String())
	}
	if b.InterfaceID != "" && slices.ContainsFunc(c.BlankFor, func(id string) bool { return id != b.InterfaceID }) {
		faults = append(faults, fmt.Sprintf("blankFor names other interfaces than the file's, %s", b.InterfaceID))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s", ErrContradiction, strings.Join(faults, "; "))
	}
	return nil
}

func orNone(s string) string { return cmp.Or(s, "none") }

// complete fills in what the file does not state.
func (c Config) complete(b Bitstream) Bitstream {
	b.Name = cmp.Or(b.Name, c.Name)
	b.Platform = cmp.Or(b.Platform, c.Platform)
	b.Power = cmp.Or(b.Power, c.Power)
	b.Clocks.High = cmp.Or(b.Clocks.High, c.Clock.High)
	b.Clocks.Low = cmp.Or(b.Clocks.Low, c.Clock.Low)
	return b
}
