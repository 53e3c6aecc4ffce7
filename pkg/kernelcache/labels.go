// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/api/mountpath"
)

// The labels that MCV puts on an image. Labels of a format begin with labelPrefix and its name.
const (
	labelPrefix     = "cache."
	labelSummary    = ".image/summary"
	labelEntries    = ".image/entry-count"
	labelSize       = ".image/cache-size-bytes"
	labelVLLMFormat = "cache.vllm.image/format"

	labelFramework = "io.kserve.km/framework"
	labelCacheType = "io.kserve.km/cache-type"
	labelCacheHash = "io.kserve.km/cache-hash"
	labelSubPath   = "io.kserve.km/cache-mount-subpath"
	labelRootEnv   = "io.kserve.km/cache-root-env"
	labelMounts    = "io.kserve.km/cache-mounts"
	labelSplit     = "io.kserve.km/split-cache-capture"
)

// Fettle's own labels: the type of a cache for which MCV has no format, and the producer's directory if nothing else names it.
const (
	formatFettle = "fettle"
	labelType    = "cache.fettle.image/type"
	labelRoot    = "cache.fettle.image/root"
)

// The values of labelCacheType.
const (
	typeTorchCompile = "torch-compile"
	typeHabana       = "habana-recipe"
)

// Bounds of what one image may say.
const (
	maxTargets   = 256
	maxMounts    = 32
	maxLabelPath = 256
)

// formats returns the formats of MCV and Fettle's own. They are the middle of their labels and of their directories, io.triton.cache.
func formats() []string { return []string{"triton", "vllm", "habana", formatFettle} }

// Labels has the facts from an image's labels.
type Labels struct {
	// Format is MCV's name, triton, vllm or habana, or fettle for formats without one. Empty: these are not the labels of a cache.
	Format string `json:"format,omitempty"`
	// Type is the type of the format. Empty: the labels do not name it.
	Type Type `json:"type,omitempty"`
	// Layouts are the values of labelVLLMFormat.
	Layouts []string `json:"layouts,omitempty"`
	Targets []Target `json:"targets,omitempty"`
	// Entries and Size are -1 if no label has them. Size is the size of the unpacked cache in bytes.
	Entries int64 `json:"entries"`
	Size    int64 `json:"size"`
	// Framework and CacheHash are hints for users.
	Framework string `json:"framework,omitempty"`
	CacheHash string `json:"cacheHash,omitempty"`
	// Root is the directory for which the cache was made, and RootEnv the variable that names it.
	Root    string `json:"root,omitempty"`
	RootEnv string `json:"rootEnv,omitempty"`
	// SubPath is the directory below Root that programs use.
	SubPath string       `json:"subPath,omitempty"`
	Mounts  []LabelMount `json:"mounts,omitempty"`
	Notes   []string     `json:"notes,omitempty"`
}

// LabelMount is a directory of the cache that is mounted at a path of its own.
type LabelMount struct {
	SubPath          string `json:"subPath"`
	AbsPath          string `json:"absPath"`
	Env              string `json:"env,omitempty"`
	RequiresWritable bool   `json:"requiresWritable,omitempty"`
}

// ReadLabels reads the labels of an image, which may have none. Labels that cannot be read are an error, except for architectures: MCV
// writes wrong ones for some caches, so they become notes.
func ReadLabels(labels map[string]string) (Labels, error) {
	l := Labels{Entries: -1, Size: -1, Layouts: list(labels[labelVLLMFormat])}
	for _, step := range []func(map[string]string) error{l.readFormat, l.readTargets, l.readNumbers, l.readRoot, l.readMounts, l.readHints} {
		if err := step(labels); err != nil {
			return Labels{}, err
		}
	}
	return l, nil
}

func invalidLabel(name, format string, args ...any) error {
	return fmt.Errorf("label %s: %w: %w", name, ErrInvalid, fmt.Errorf(format, args...))
}

// list splits a comma-separated list, up to as many words as there may be targets, and sorts it.
func list(text string) []string {
	var words []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" && len(word) <= longestWord && printable(word) {
			words = append(words, strings.Clone(word))
		}
		if len(words) >= maxTargets {
			break
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// readFormat takes the format from labelCacheType, or from the summary of images that are older than this label.
func (l *Labels) readFormat(labels map[string]string) error {
	var found []string
	for _, format := range formats() {
		if _, ok := labels[labelPrefix+format+labelSummary]; ok {
			found = append(found, format)
		}
	}
	if len(found) > 1 {
		return invalidLabel(labelPrefix+found[1]+labelSummary, "there is one of %s too: want one format an image", found[0])
	}
	if len(found) == 1 {
		l.Format = found[0]
	}
	said := map[string]string{typeTorchCompile: "vllm", typeHabana: "habana", "triton": "triton"}[labels[labelCacheType]]
	switch {
	case said != "" && l.Format != "" && said != l.Format:
		return invalidLabel(labelCacheType, "got %s, but the summary is one of %s", quote(labels[labelCacheType]), l.Format)
	case said != "":
		l.Format = said
	case labels[labelCacheType] != "":
		l.Notes = append(l.Notes, fmt.Sprintf("label %s: %s is not known here", labelCacheType, quote(labels[labelCacheType])))
	}
	return l.readType(labels)
}

// readType takes the type from the format, or from labelType for types that share a format.
func (l *Labels) readType(labels map[string]string) error {
	if l.Format != formatFettle {
		l.Type = typeOf(l.Format)
		return nil
	}
	l.Type = Type(labels[labelType])
	if !slices.Contains(ownTypes(), l.Type) {
		return invalidLabel(labelType, "got %s, want one of %v", quote(labels[labelType]), ownTypes())
	}
	return nil
}

func (l *Labels) readTargets(labels map[string]string) error {
	name := labelPrefix + l.Format + labelSummary
	text, ok := labels[name]
	if !ok {
		return nil
	}
	var summary struct {
		Targets []foreignTarget `json:"targets"`
	}
	if err := decode([]byte(text), &summary); err != nil {
		return fmt.Errorf("label %s: %w", name, err)
	}
	if len(summary.Targets) > maxTargets {
		return invalidLabel(name, "%d targets, want at most %d", len(summary.Targets), maxTargets)
	}
	for _, foreign := range summary.Targets {
		if foreign.PTXVersion != nil && *foreign.PTXVersion >= driverMajor {
			l.Notes = append(l.Notes, fmt.Sprintf(
				"label %s: ptx_version %d is the major of the driver where the image was made, and decides nothing", name, *foreign.PTXVersion))
		}
		target, err := foreign.target(FromLabels, name)
		if err != nil {
			l.Notes = append(l.Notes, err.Error())
		}
		if target.Backend != "" && len(target.Backend) <= longestWord {
			l.Targets = append(l.Targets, target)
		}
	}
	l.Targets = distinct(l.Targets)
	slices.Sort(l.Notes)
	l.Notes = slices.Compact(l.Notes)
	return nil
}

// distinct sorts targets and removes duplicates.
func distinct(targets []Target) []Target {
	slices.SortFunc(targets, compareTargets)
	return slices.CompactFunc(targets, func(a, b Target) bool { return a == b })
}

func (l *Labels) readNumbers(labels map[string]string) error {
	for name, into := range map[string]*int64{labelPrefix + l.Format + labelEntries: &l.Entries, labelPrefix + l.Format + labelSize: &l.Size} {
		text, ok := labels[name]
		if !ok {
			continue
		}
		const bits = 50 // sums of what they say must not overflow
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, bits)
		if err != nil {
			return invalidLabel(name, "got %s, want a number of at most %d bits", quote(text), bits)
		}
		*into = int64(n)
	}
	return nil
}

// readRoot reads NAME=PATH. The text after a comma has settings of that variable.
func (l *Labels) readRoot(labels map[string]string) error {
	if text := labels[labelSubPath]; text != "" && text != "." {
		if err := checkSubPath(text); err != nil {
			return invalidLabel(labelSubPath, "%w", err)
		}
		l.SubPath = text
	}
	if text, ok := labels[labelRoot]; ok {
		if err := mountpath.Check(text); err != nil {
			return invalidLabel(labelRoot, "%w", plain(err))
		}
		l.Root = text
	}
	text, ok := labels[labelRootEnv]
	if !ok {
		return nil
	}
	name, value, found := strings.Cut(text, "=")
	if !found || name == "" {
		return invalidLabel(labelRootEnv, "got %s, want NAME=/PATH", quote(text))
	}
	dir, _, settings := strings.Cut(value, ",")
	if err := mountpath.Check(dir); err != nil {
		return invalidLabel(labelRootEnv, "%w", plain(err))
	}
	if l.Root != "" && l.Root != dir {
		return invalidLabel(labelRootEnv, "got %s, but label %s says %s", quote(dir), labelRoot, quote(l.Root))
	}
	l.Root = strings.Clone(dir) // without the settings, which may be long
	switch {
	case settings:
		l.Notes = append(l.Notes, fmt.Sprintf("label %s: %s has settings behind a comma, which are left out", labelRootEnv, quote(name)))
	case !slices.Contains(AllowedEnv(), name):
		l.Notes = append(l.Notes, leftOut(labelRootEnv, name))
	default:
		l.RootEnv = name
	}
	return nil
}

func leftOut(label, name string) string {
	return fmt.Sprintf("label %s: variable %s is left out: an image may set %s", label, quote(name), strings.Join(AllowedEnv(), ", "))
}

func (l *Labels) readMounts(labels map[string]string) error {
	raw := strings.TrimSpace(labels[labelMounts])
	if raw == "" {
		return nil
	}
	var mounts []LabelMount
	if err := decode([]byte(raw), &mounts); err != nil {
		return fmt.Errorf("label %s: %w", labelMounts, err)
	}
	if len(mounts) > maxMounts {
		return invalidLabel(labelMounts, "%d mounts, want at most %d", len(mounts), maxMounts)
	}
	for i := range mounts {
		m := &mounts[i]
		if err := checkSubPath(m.SubPath); err != nil {
			return invalidLabel(labelMounts, "[%d].subPath: %w", i, err)
		}
		if err := mountpath.Check(m.AbsPath); err != nil {
			return invalidLabel(labelMounts, "[%d].absPath: %w", i, plain(err))
		}
		if m.Env != "" && !slices.Contains(AllowedEnv(), m.Env) {
			l.Notes = append(l.Notes, leftOut(labelMounts, m.Env))
			m.Env = ""
		}
		if other := overlapping(mounts[:i], *m); other >= 0 {
			return invalidLabel(labelMounts, "[%d] overlaps [%d]: want directories and places that are not in each other", i, other)
		}
	}
	l.Mounts = mounts
	return nil
}

// overlapping returns the index of a mount whose directory or path overlaps that of m, or -1.
func overlapping(mounts []LabelMount, m LabelMount) int {
	return slices.IndexFunc(mounts, func(other LabelMount) bool {
		return below(m.SubPath, other.SubPath) || below(other.SubPath, m.SubPath) ||
			below(m.AbsPath, other.AbsPath) || below(other.AbsPath, m.AbsPath)
	})
}

// below reports whether a clean path is a directory or in it.
func below(name, dir string) bool {
	return dir == "." || name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func checkSubPath(text string) error {
	if text == "" || text == "." || strings.HasPrefix(text, "/") || path.Clean(text) != text || strings.HasPrefix(text, "..") ||
		!printable(text) || len(text) > maxLabelPath {
		return fmt.Errorf("got %s, want the path of a directory in the cache, clean and without a / at its start", quote(text))
	}
	return nil
}

func (l *Labels) readHints(labels map[string]string) error {
	for name, into := range map[string]*string{labelFramework: &l.Framework, labelCacheHash: &l.CacheHash} {
		text := labels[name]
		if len(text) > maxLabelPath || !printable(text) {
			return invalidLabel(name, "got %s, want at most %d printable characters", quote(text), maxLabelPath)
		}
		*into = text
	}
	return nil
}

// AllowedEnv returns the variables that an image may set to the path of its cache. An image must not set LD_PRELOAD.
func AllowedEnv() []string {
	return []string{
		"AITER_JIT_DIR", envCUDA, "DG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH",
		"TILELANG_CACHE_DIR", envInductor, envTriton, envVLLM,
	}
}

// The variables of the formats that this package recognizes.
const (
	envTriton   = "TRITON_CACHE_DIR"
	envVLLM     = "VLLM_CACHE_ROOT"
	envInductor = "TORCHINDUCTOR_CACHE_DIR"
	envCUDA     = "CUDA_CACHE_PATH"
)
