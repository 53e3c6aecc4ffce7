// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/message"
)

// The backends whose architectures are recognized. A cache for another one, such as hpu, fits no device.
const (
	CUDA = "cuda"
	HIP  = "hip"
)

// Backend normalizes the name of a backend: MCV and vLLM call AMD's rocm, and Triton calls it hip.
func Backend(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	switch name {
	case "rocm", "amd":
		return HIP
	case "nvidia":
		return CUDA
	}
	return name
}

// Arch is an architecture without its features: "90", for compute capability 9.0, or "gfx942".
type Arch string

var (
	cudaArch = regexp.MustCompile(`^(?:sm_|compute_)?([1-9][0-9]{1,2})([af]?)$`)
	hipArch  = regexp.MustCompile(`^(gfx[1-9][0-9a-f]{2,5})((?::[a-z]+[0-9a-z]*[+-])*)$`)
	dotted   = regexp.MustCompile(`^(?:sm_)?[0-9]+\.[0-9]+$`)
)

// ParseArch reads an architecture in the forms that Triton, its PTX, MCV and AMD's tools write: 90, sm_90, sm_90a, gfx942,
// gfx942:sramecc+:xnack-. The second result has the features: "a", or ":sramecc+:xnack-".
func ParseArch(backend, text string) (Arch, string, error) {
	text = strings.TrimSpace(text)
	if len(text) > longestWord {
		return "", "", fmt.Errorf("arch %s: want at most %d characters", quote(text), longestWord)
	}
	switch backend {
	case CUDA:
		if parts := cudaArch.FindStringSubmatch(text); parts != nil {
			return Arch(parts[1]), parts[2], nil
		}
		if dotted.MatchString(text) {
			return "", "", fmt.Errorf("arch %s is a version of CUDA, as MCV wrote it for caches of vLLM: want one such as 90 or sm_90", quote(text))
		}
		return "", "", fmt.Errorf("arch %s: want one such as 90, sm_90 or sm_90a", quote(text))
	case HIP:
		if parts := hipArch.FindStringSubmatch(text); parts != nil {
			return Arch(parts[1]), parts[2], nil
		}
		return "", "", fmt.Errorf("arch %s: want one such as gfx942 or gfx942:sramecc+:xnack-", quote(text))
	}
	return "", "", fmt.Errorf("arch %s of backend %s, which has no architectures that are known here", quote(text), quote(backend))
}

// words returns the architecture as its vendor prints it.
func (a Arch) words(backend string) string {
	if backend == CUDA && a != "" {
		return "sm_" + string(a)
	}
	return string(a)
}

// warpSize returns the default for an architecture: 32 threads for NVIDIA, and for AMD 64 up to gfx9 and 32 from gfx10 on.
func (a Arch) warpSize(backend string) int {
	switch {
	case backend == CUDA:
		return 32
	case backend == HIP && len(a) == len("gfx90a"):
		return 64
	case backend == HIP && len(a) > len("gfx90a"):
		return 32
	}
	return 0
}

// Code is the kind of code of a target's kernels.
type Code string

// The kinds of code. Empty means unknown, and is judged as Binary.
const (
	// Binary is a cubin or hsaco: it runs on its architecture.
	Binary Code = "binary"
	// PTX is NVIDIA's portable code without a binary. The driver compiles it.
	PTX Code = "ptx"
)

// Source names where a fact comes from.
type Source string

// The sources, the most trusted first.
const (
	FromFiles    Source = "file"
	FromManifest Source = "manifest"
	FromLabels   Source = "label"
)

// Target is one kind of device that a cache has kernels for.
type Target struct {
	Backend string `json:"backend"`
	// Arch is empty if only the backend is known.
	Arch     Arch   `json:"arch,omitempty"`
	Features string `json:"features,omitempty"`
	// WarpSize is 0 if it is unknown.
	WarpSize int  `json:"warpSize,omitempty"`
	Code     Code `json:"code,omitempty"`
	// PTXVersion is the version of the PTX instruction set times 10: 87 is 8.7. 0: unknown.
	PTXVersion int `json:"ptxVersion,omitempty"`
	// Source and Where name the origin: a label's name, the manifest's path, or the first of several files.
	Source  Source `json:"source"`
	Where   string `json:"where"`
	Kernels int    `json:"kernels,omitempty"`
}

// String returns a text for messages: "cuda sm_90".
func (t Target) String() string {
	text := strings.TrimSpace(t.Backend + " " + t.Arch.words(t.Backend) + t.Features)
	if t.Code == PTX {
		text += " (PTX)"
	}
	return text
}

// where returns the origin for messages: `label cache.triton.image/summary`.
func (t Target) where() string { return string(t.Source) + " " + t.Where }

// compareTargets orders targets by the trust in their source, then by their content.
func compareTargets(a, b Target) int {
	return cmp.Or(
		cmp.Compare(a.Source.order(), b.Source.order()), cmp.Compare(a.Backend, b.Backend), cmp.Compare(len(a.Arch), len(b.Arch)),
		cmp.Compare(a.Arch, b.Arch), cmp.Compare(a.Features, b.Features), cmp.Compare(a.WarpSize, b.WarpSize), cmp.Compare(a.Code, b.Code),
		cmp.Compare(a.PTXVersion, b.PTXVersion), cmp.Compare(a.Where, b.Where),
	)
}

func (s Source) order() int {
	switch s {
	case FromFiles:
		return 0
	case FromManifest:
		return 1
	case FromLabels:
		return 2
	}
	return 3
}

// foreignTarget is a target in the form of Triton's metadata, MCV's manifest and its summaries.
type foreignTarget struct {
	Backend  string          `json:"backend"`
	Arch     json.RawMessage `json:"arch"`
	WarpSize int             `json:"warp_size"`
	// PTXVersion is the driver's major version if MCV wrote it (590), and the version of the instruction set or null if Triton did.
	PTXVersion *int `json:"ptx_version"`
}

// driverMajor is the least "PTX version" that is a version of NVIDIA's driver: instruction sets are at 9.x.
const driverMajor = 200

// target normalizes a target. If the architecture cannot be read, Arch is empty and the error is returned as well.
func (f foreignTarget) target(source Source, where string) (Target, error) {
	t := Target{Backend: Backend(f.Backend), WarpSize: f.WarpSize, Source: source, Where: message.Line(where, longestWhere)}
	if t.Backend == "" || len(t.Backend) > longestWord {
		return t, fmt.Errorf("%s: backend %s: want one such as cuda or hip", t.where(), quote(f.Backend))
	}
	if t.WarpSize < 0 || t.WarpSize > 1024 {
		return t, fmt.Errorf("%s: warp_size %d: want 32 or 64", t.where(), t.WarpSize)
	}
	if f.PTXVersion != nil && *f.PTXVersion > 0 && *f.PTXVersion < driverMajor {
		t.PTXVersion = *f.PTXVersion
	}
	text, err := f.archText()
	if err == nil && text != "" && (t.Backend == CUDA || t.Backend == HIP) {
		t.Arch, t.Features, err = ParseArch(t.Backend, text)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", t.where(), err)
	}
	return t, err
}

const (
	longestWord = 64
	// longestArch is the longest architecture as JSON, in which each character may take six.
	longestArch = 6*longestWord + 2
	// longestWhere bounds the name of a file in messages, of which there may be one for each target.
	longestWhere = 200
)

// archText returns the architecture as text. Triton writes a number for NVIDIA and text for AMD. MCV's words for a missing one give none.
func (f foreignTarget) archText() (string, error) {
	raw := bytes.TrimSpace(f.Arch)
	switch {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return "", nil
	case len(raw) > longestArch:
		return "", fmt.Errorf("arch %s: want at most %d characters", quote(string(raw)), longestWord)
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		switch text = strings.TrimSpace(text); strings.ToLower(text) {
		case "unknown", "unknownbackend":
			return "", nil
		}
		return text, nil
	}
	var number json.Number
	if err := json.Unmarshal(raw, &number); err != nil {
		return "", fmt.Errorf("arch %s: want a number or text", quote(string(raw)))
	}
	// Some JSON libraries turn the number 90 into 90.0.
	if value, err := number.Float64(); err == nil && value == float64(int(value)) {
		return strconv.Itoa(int(value)), nil
	}
	return number.String(), nil
}
