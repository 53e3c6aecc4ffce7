// SPDX-License-Identifier: Apache-2.0

// Package migparted reads the configuration files of NVIDIA's mig-parted, which say in counts how the GPUs of a node are divided
// (github.com/NVIDIA/mig-parted, api/spec/v1).
package migparted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/manifest"
)

// MaxSize is the longest document in bytes: NVIDIA's own, with a configuration for each model, has 30 KiB.
const MaxSize = 64 << 10

// maxExpanded is the longest document with what its aliases stand for.
const maxExpanded = 1 << 20

// The limits of what a document may name.
const (
	maxIndex = 1 << 10
	maxCount = 64
)

// Document is a file: named configurations of a node, of which one holds.
type Document struct {
	Configs map[string][]Entry
}

// Entry is what becomes of some of a node's GPUs.
type Entry struct {
	// Models are those of the GPUs; none: all.
	Models []Model
	// All says that the entry is for all GPUs, Indices which they are else, counted from 0 in the order of PCI addresses.
	All     bool
	Indices []int
	// Enabled says that the GPUs are in MIG mode, Profiles how many instances of each they have. None are MIG mode and nothing more.
	Enabled  bool
	Profiles map[string]int
}

// Model is a model of GPUs by its PCI identifiers: the device's in the upper half and the vendor's in the lower, as NVML has them.
type Model struct {
	Device uint32
	// Subsystem is that of the board; 0: any.
	Subsystem uint32
}

// GPU is a GPU of a node.
type GPU struct {
	// Index is its number among the node's NVIDIA GPUs in the order of PCI addresses.
	Index int
	Model Model
}

// Parse reads a document in YAML or JSON. Unknown fields, keys that are set twice and values of other types are errors, all of them
// reported with their path.
func Parse(text []byte) (*Document, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(text), MaxSize)
	}
	if err := manifest.CheckAliases(text, maxExpanded); err != nil {
		return nil, err
	}
	raw, err := manifest.JSON(text)
	if err != nil {
		return nil, fmt.Errorf("want YAML with each key once: %w", err)
	}
	var read struct {
		Version string             `json:"version"`
		Configs map[string][]entry `json:"mig-configs"`
	}
	strict, err := strictjson.UnmarshalStrict(raw, &read)
	if err != nil {
		return nil, fmt.Errorf("want a mig-parted configuration: %w", manifest.WithoutTypes(err))
	}
	faults := slices.Clone(strict)
	if read.Version != "v1" {
		faults = append(faults, fmt.Errorf("version %.32q: want v1", read.Version))
	}
	if len(read.Configs) == 0 {
		faults = append(faults, errors.New("mig-configs: want at least one configuration"))
	}
	doc := &Document{Configs: map[string][]Entry{}}
	for _, name := range slices.Sorted(maps.Keys(read.Configs)) {
		if len(read.Configs[name]) == 0 {
			faults = append(faults, fmt.Errorf("mig-configs.%.64s: want at least one entry", name))
		}
		for i, e := range read.Configs[name] {
			checked, err := e.check()
			if err != nil {
				faults = append(faults, fmt.Errorf("mig-configs.%.64s[%d]: %w", name, i, err))
			}
			doc.Configs[name] = append(doc.Configs[name], checked)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return doc, nil
}

// entry is an Entry as it is written. Pointers tell what is absent.
type entry struct {
	Filter  json.RawMessage `json:"device-filter"`
	Devices json.RawMessage `json:"devices"`
	Enabled *bool           `json:"mig-enabled"`
	Counts  *map[string]int `json:"mig-devices"`
}

func (e entry) check() (Entry, error) {
	var out Entry
	var faults []error
	var err error
	if out.Models, err = readFilter(e.Filter); err != nil {
		faults = append(faults, fmt.Errorf("device-filter: %w", err))
	}
	if out.All, out.Indices, err = readDevices(e.Devices); err != nil {
		faults = append(faults, fmt.Errorf("devices: %w", err))
	}
	switch {
	case e.Enabled == nil:
		faults = append(faults, errors.New("mig-enabled: want true or false"))
	case *e.Enabled && (e.Counts == nil || *e.Counts == nil):
		faults = append(faults, errors.New("mig-devices: want a count for each profile, or {} for MIG mode alone"))
	case !*e.Enabled && e.Counts != nil && len(*e.Counts) > 0:
		faults = append(faults, errors.New("mig-devices: want none where mig-enabled is false"))
	case *e.Enabled:
		out.Enabled = true
		if out.Profiles, err = readCounts(*e.Counts); err != nil {
			faults = append(faults, fmt.Errorf("mig-devices: %w", err))
		}
	}
	return out, errors.Join(faults...)
}

// readFilter reads a model or a list of them.
func readFilter(raw json.RawMessage) ([]Model, error) {
	if raw == nil {
		return nil, nil
	}
	var texts []string
	if one := ""; json.Unmarshal(raw, &one) == nil && !isNull(raw) {
		if one == "" {
			return nil, nil
		}
		texts = []string{one}
	} else if json.Unmarshal(raw, &texts) != nil || isNull(raw) {
		return nil, errors.New("want a model such as \"0x233010DE\", or a list of them")
	}
	var models []Model
	for _, text := range texts {
		model, err := ParseModel(text)
		if err != nil {
			return nil, err
		}
		models = append(models, model)
	}
	return models, nil
}

// ParseModel reads 0x233010DE, or 0x233010DE:0x16C110DE with the subsystem.
func ParseModel(text string) (Model, error) {
	device, subsystem, both := strings.Cut(text, ":")
	var m Model
	var err error
	if m.Device, err = identifiers(device); err == nil && both {
		m.Subsystem, err = identifiers(subsystem)
	}
	if err != nil {
		return Model{}, fmt.Errorf("model %.32q: want 0x, the device's four hexadecimal digits and the vendor's, such as 0x233010DE", text)
	}
	return m, nil
}

func identifiers(text string) (uint32, error) {
	if !isIdentifiers.MatchString(text) {
		return 0, errors.New("want 0x and eight hexadecimal digits")
	}
	n, err := strconv.ParseUint(text[2:], 16, 32)
	return uint32(n), err
}

//nolint:gochecknoglobals // a constant that Go cannot express as one
var isIdentifiers = regexp.MustCompile(`^0[xX][0-9a-fA-F]{8}$`)

// readDevices reads all, or a list of indices.
func readDevices(raw json.RawMessage) (all bool, indices []int, err error) {
	want := fmt.Errorf("want all, or a list of the numbers of GPUs, 0 to %d", maxIndex)
	if raw == nil || isNull(raw) {
		return false, nil, want
	}
	if text := ""; json.Unmarshal(raw, &text) == nil {
		if text != "all" {
			return false, nil, want
		}
		return true, nil, nil
	}
	if json.Unmarshal(raw, &indices) != nil {
		return false, nil, want
	}
	for _, i := range indices {
		if i < 0 || i > maxIndex {
			return false, nil, want
		}
	}
	return false, indices, nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

// readCounts drops profiles of which there are none. That all are 0 is an error, as it is in mig-parted.
func readCounts(counts map[string]int) (map[string]int, error) {
	out := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		switch n := counts[name]; {
		case !IsProfile(name):
			return nil, fmt.Errorf("%.64q: want a profile of GPU instances such as 1g.10gb or 1g.10gb+me; compute instances of less than their GPU "+
				"instance (1c.2g.20gb) are not supported", name)
		case n < 0 || n > maxCount:
			return nil, fmt.Errorf("%s: count %d, want 0 to %d", name, n, maxCount)
		case n > 0:
			out[name] = n
		}
	}
	if len(counts) > 0 && len(out) == 0 {
		return nil, errors.New("all counts are 0: write {} for MIG mode alone")
	}
	return out, nil
}

// IsProfile says whether a text is the name of a profile of GPU instances.
func IsProfile(name string) bool { return len(name) <= 32 && profile.MatchString(name) }

//nolint:gochecknoglobals // a constant that Go cannot express as one
var profile = regexp.MustCompile(`^[1-9][0-9]?g\.[1-9][0-9]{0,3}gb([+-][a-z][a-z.,]*)*$`)

// For returns what a configuration wants of a GPU, nil if it has no entry for it. Two entries for one GPU that differ are an error:
// mig-parted would apply one after the other.
func (d *Document) For(config string, gpu GPU) (*Entry, error) {
	entries, ok := d.Configs[config]
	if !ok {
		return nil, fmt.Errorf("no configuration %.64q: there are %s", config, strings.Join(d.Names(), ", "))
	}
	var found *Entry
	for i := range entries {
		e := &entries[i]
		if !e.selects(gpu) {
			continue
		}
		if found != nil && (found.Enabled != e.Enabled || !maps.Equal(found.Profiles, e.Profiles)) {
			return nil, fmt.Errorf("configuration %.64q has two entries for GPU %d (%#08x) that differ: keep one", config, gpu.Index,
				gpu.Model.Device)
		}
		found = e
	}
	return found, nil
}

// selects says whether the entry is for a GPU.
func (e *Entry) selects(gpu GPU) bool {
	model := len(e.Models) == 0 || slices.ContainsFunc(e.Models, func(m Model) bool {
		return m.Device == gpu.Model.Device && (m.Subsystem == 0 || m.Subsystem == gpu.Model.Subsystem)
	})
	return model && (e.All || slices.Contains(e.Indices, gpu.Index))
}

// Names are the configurations, sorted: at most 16 of them, and how many more there are.
func (d *Document) Names() []string {
	const most = 16
	names := slices.Sorted(maps.Keys(d.Configs))
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", more))
	}
	return names
}
