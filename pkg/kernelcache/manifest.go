// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"encoding/json"
	"fmt"
	"slices"
)

// manifest is MCV's manifest. It lists the content of the image, in one list for its format.
type manifest struct {
	Triton []manifestKernel `json:"triton,omitempty"`
	VLLM   []manifestModel  `json:"vllm,omitempty"`
	Fettle *manifestOwn     `json:"fettle,omitempty"`
}

// manifestOwn is Fettle's part, for caches that MCV does not know. Its kernels are those of Triton below an Inductor cache.
type manifestOwn struct {
	Type    Type             `json:"type"`
	Entries int              `json:"entries"`
	Files   int              `json:"files"`
	Triton  []manifestKernel `json:"triton,omitempty"`
}

// manifestKernel is an entry of a Triton cache. MCV's dummy_key is made by a Python program with Triton and cannot be made here.
type manifestKernel struct {
	Hash       string          `json:"hash"`
	DummyKey   string          `json:"dummy_key,omitempty"`
	PTXVersion *int            `json:"ptx_version,omitempty"`
	NumStages  int             `json:"num_stages,omitempty"`
	NumWarps   int             `json:"num_warps,omitempty"`
	Debug      bool            `json:"debug,omitempty"`
	Backend    string          `json:"backend"`
	Arch       json.RawMessage `json:"arch"`
	WarpSize   int             `json:"warp_size"`
}

func (k manifestKernel) foreign() foreignTarget {
	return foreignTarget{Backend: k.Backend, Arch: k.Arch, WarpSize: k.WarpSize, PTXVersion: k.PTXVersion}
}

// manifestModel is a directory of a vLLM cache that is named by a hash.
type manifestModel struct {
	Hash   string           `json:"vllmHash"`
	Format string           `json:"cacheFormat"`
	Triton []manifestKernel `json:"triton,omitempty"`
	Binary []manifestBinary `json:"binary,omitempty"`
	AOT    []manifestAOT    `json:"aot_compile,omitempty"`
}

type manifestBinary struct {
	Rank          string            `json:"rank"`
	Prefix        string            `json:"prefix"`
	ArtifactCount int               `json:"artifact_count"`
	ArtifactNames []string          `json:"artifact_names,omitempty"`
	CodeHash      string            `json:"code_hash,omitempty"`
	ConfigHash    string            `json:"config_hash,omitempty"`
	CompilerHash  string            `json:"compiler_hash,omitempty"`
	SaveFormat    string            `json:"cache_save_format,omitempty"`
	TargetDevice  string            `json:"target_device,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
}

type manifestAOT struct {
	Hash      string `json:"hash"`
	Rank      string `json:"rank"`
	ModelFile string `json:"model_file"`
	FileSize  int64  `json:"file_size"`
}

// Manifest has the facts from an image's manifest.json.
type Manifest struct {
	// Format is MCV's name, triton or vllm, or fettle.
	Format  string   `json:"format"`
	Type    Type     `json:"type"`
	Entries int      `json:"entries"`
	Layouts []string `json:"layouts,omitempty"`
	Targets []Target `json:"targets,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// foreignManifest has the fields of a manifest that are read. The others are for users.
type foreignManifest struct {
	Triton *[]manifestKernel `json:"triton"`
	VLLM   *[]struct {
		Format string           `json:"cacheFormat"`
		Triton []manifestKernel `json:"triton"`
		Binary []struct {
			SaveFormat   string `json:"cache_save_format"`
			TargetDevice string `json:"target_device"`
		} `json:"binary"`
	} `json:"vllm"`
	Fettle *manifestOwn `json:"fettle"`
}

// format returns the format for which the manifest has a list or an object.
func (f *foreignManifest) format() (string, error) {
	var found []string
	for format, has := range map[string]bool{"triton": f.Triton != nil, "vllm": f.VLLM != nil, formatFettle: f.Fettle != nil} {
		if has {
			found = append(found, format)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("%w: want a list triton or vllm, or fettle", ErrInvalid)
	case len(found) > 1:
		return "", fmt.Errorf("%w: %s and %s: want one of them", ErrInvalid, found[0], found[1])
	case f.Fettle != nil && (!slices.Contains(ownTypes(), f.Fettle.Type) || f.Fettle.Entries < 0):
		return "", fmt.Errorf("%w: fettle.type: got %s with %d entries, want one of %v",
			ErrInvalid, quote(string(f.Fettle.Type)), f.Fettle.Entries, ownTypes())
	}
	return found[0], nil
}

// ReadManifest reads a manifest.json. where is its path for messages.
func ReadManifest(data []byte, where string) (Manifest, error) {
	var foreign foreignManifest
	if err := decode(data, &foreign); err != nil {
		return Manifest{}, fmt.Errorf("manifest %s: %w", where, err)
	}
	format, err := foreign.format()
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest %s: %w", where, err)
	}
	m := Manifest{Format: format, Type: typeOf(format)}
	var targets targetSet
	switch {
	case foreign.Triton != nil:
		m.Entries = len(*foreign.Triton)
		targets.addKernels(*foreign.Triton, where)
	case foreign.Fettle != nil:
		m.Type, m.Entries = foreign.Fettle.Type, foreign.Fettle.Entries
		targets.addKernels(foreign.Fettle.Triton, where)
	case foreign.VLLM != nil:
		m.Entries = len(*foreign.VLLM)
		for _, model := range *foreign.VLLM {
			m.Layouts = append(m.Layouts, list(model.Format)...)
			targets.addKernels(model.Triton, where)
			for _, binary := range model.Binary {
				targets.addForeign(foreignTarget{Backend: binary.TargetDevice}, FromManifest, where)
			}
		}
	}
	slices.Sort(m.Layouts)
	m.Layouts = slices.Compact(m.Layouts)
	if m.Targets, m.Notes, err = targets.result(); err != nil {
		return Manifest{}, fmt.Errorf("manifest %s: %w", where, err)
	}
	return m, nil
}

// targetSet counts the kernels of each target, and keeps the first file that names the target.
type targetSet struct {
	targets map[Target]*Target
	notes   []string
	hidden  int
}

// maxNotes bounds the notes of one kind: a thousand files may be wrong in the same way.
const maxNotes = 8

func (s *targetSet) note(text string) {
	if slices.Contains(s.notes, text) {
		return
	}
	if len(s.notes) >= maxNotes {
		s.hidden++
		return
	}
	s.notes = append(s.notes, text)
}

func (s *targetSet) addKernels(kernels []manifestKernel, where string) {
	for _, kernel := range kernels {
		s.addForeign(kernel.foreign(), FromManifest, where)
	}
}

func (s *targetSet) addForeign(foreign foreignTarget, source Source, where string) {
	if foreign.Backend == "" {
		return
	}
	target, err := foreign.target(source, where)
	if err != nil {
		s.note(err.Error())
	}
	if target.Backend != "" && len(target.Backend) <= longestWord {
		s.add(target)
	}
}

func (s *targetSet) add(t Target) {
	key := t
	key.Where, key.Kernels = "", 0
	if s.targets == nil {
		s.targets = map[Target]*Target{}
	}
	known, ok := s.targets[key]
	if !ok && len(s.targets) > maxTargets {
		return // result refuses them
	}
	if !ok {
		known = new(t)
		known.Kernels = 0
		s.targets[key] = known
	}
	known.Where = min(known.Where, t.Where)
	known.Kernels++
}

func (s *targetSet) result() ([]Target, []string, error) {
	if len(s.targets) > maxTargets {
		return nil, nil, fmt.Errorf("%w: %d kinds of device, want at most %d", ErrInvalid, len(s.targets), maxTargets)
	}
	var targets []Target
	for _, t := range s.targets {
		targets = append(targets, *t)
	}
	notes := slices.Clone(s.notes)
	slices.Sort(notes)
	if s.hidden > 0 {
		notes = append(notes, fmt.Sprintf("and %d more of this kind", s.hidden))
	}
	return distinct(targets), notes, nil
}
