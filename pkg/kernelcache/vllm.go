// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The layouts of a vLLM cache, in MCV's words.
const (
	// LayoutTriton is HASH/rank_R_D/triton_cache, of vLLM before it had artifacts.
	LayoutTriton = "triton"
	// LayoutBinary is HASH/rank_R_D/PREFIX/artifact_*, each a file, or a directory if it was saved unpacked.
	LayoutBinary = "binary"
	// LayoutAOT is torch_aot_compile/HASH/rank_R_D/model.
	LayoutAOT = "aot_compile"
)

// The names of vLLM's files and directories (vllm/compilation/backends.py, decorators.py).
const (
	vllmIndex    = "vllm_compile_cache.py"
	vllmFactors  = "cache_key_factors.json"
	vllmCompile  = "torch_compile_cache"
	vllmAOT      = "torch_aot_compile"
	vllmArtifact = "artifact_"
	vllmDevice   = "VLLM_TARGET_DEVICE"
)

// vllmWritten returns the files that vLLM writes beside its artifacts (vllm/compilation/backends.py): the index, after each start that
// compiled anything, and the inputs of its hash.
func vllmWritten() []string {
	return []string{vllmIndex, vllmFactors, "computation_graph.py", "transformed_code.py"}
}

var rankDir = regexp.MustCompile(`^rank_[0-9]{1,6}_[0-9]{1,6}$`)

// rankIndex returns the index of rank_R_D in a path, or -1.
func rankIndex(parts []string) int { return slices.IndexFunc(parts, rankDir.MatchString) }

// literal is a string in an index: the bytes [start, end) without its quotes.
type literal struct {
	start, end int
	// escaped is true for a string with a backslash, which is not a path of the cache.
	escaped bool
}

// parseIndex finds the strings of an index, which is a Python literal as pprint writes it. It ignores everything else in it.
func parseIndex(data []byte) ([]literal, error) {
	if len(data) > MaxText {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalid, len(data), MaxText)
	}
	var found []literal
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '#':
			line := bytes.IndexByte(data[i:], '\n')
			if line < 0 {
				return found, nil
			}
			i += line
		case '\'', '"':
			if bytes.HasPrefix(data[i:], bytes.Repeat(data[i:i+1], 3)) {
				return nil, fmt.Errorf("%w: offset %d: a string in triple quotes, want what vLLM writes", ErrInvalid, i)
			}
			one, err := stringAt(data, i)
			if err != nil {
				return nil, err
			}
			if found = append(found, one); len(found) > maxValues {
				return nil, fmt.Errorf("%w: more than %d strings", ErrInvalid, maxValues)
			}
			i = one.end
		}
	}
	return found, nil
}

// stringAt reads the string whose opening quote is at i.
func stringAt(data []byte, i int) (literal, error) {
	one := literal{start: i + 1}
	for at := i + 1; at < len(data) && data[at] != '\n'; at++ {
		switch data[at] {
		case '\\':
			one.escaped = true
			at++
		case data[i]:
			one.end = at
			return one, nil
		}
	}
	return literal{}, fmt.Errorf("%w: offset %d: a string that does not end", ErrInvalid, i)
}

// anchors returns the directories of the cache that a path in an index may lead into, the innermost first: the directory of the index, and
// those above it up to the one that is named by a hash.
func anchors(dir string) []string {
	parts := strings.Split(dir, "/")
	least := len(parts)
	if at := rankIndex(parts); at > 0 {
		least = at
	}
	var found []string
	for n := len(parts); n >= least; n-- {
		found = append(found, strings.Join(parts[:n], "/"))
	}
	return found
}

// splitPath splits a producer's path into its root and the rest in the cache. ok is false if it does not lead into the cache.
func splitPath(text, dir string) (root, rest string, ok bool) {
	if !strings.HasPrefix(text, "/") || path.Clean(text) != text {
		return "", "", false
	}
	for _, anchor := range anchors(dir) {
		if at := strings.Index(text, "/"+anchor+"/"); at > 0 && at <= longestRoot {
			return text[:at], text[at+1:], true
		}
	}
	return "", "", false
}

// indexRoot returns the root of an index's paths, empty if they disagree, and what of each is below it. size is what the index has beside
// the roots.
func indexRoot(data []byte, literals []literal, dir string) (root string, rests []string, size int) {
	agree := true
	size = len(data)
	for _, one := range literals {
		text := string(data[one.start:one.end])
		if one.escaped {
			continue
		}
		own, rest, ok := splitPath(text, dir)
		if !ok {
			continue
		}
		agree = agree && (root == "" || root == own)
		root, rests, size = own, append(rests, rest), size-len(own)
	}
	if !agree {
		root = ""
	}
	return root, rests, size
}

// RewriteIndex changes the paths of artifacts in vLLM's index to another root. dir is the index's directory in the cache. Only strings
// that lead into the cache change, and all other bytes stay. A result of more than MaxText bytes is refused, as by RewriteGroup.
func RewriteIndex(data []byte, dir, root string) ([]byte, error) {
	if err := checkIndexRoot(root); err != nil {
		return nil, err
	}
	literals, err := parseIndex(data)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	done := 0
	for _, one := range literals {
		if _, rest, ok := splitPath(string(data[one.start:one.end]), dir); ok && !one.escaped {
			out.Write(data[done:one.start])
			out.WriteString(path.Join(root, rest))
			if done = one.end; out.Len()+len(data)-done > MaxText {
				return nil, tooLong()
			}
		}
	}
	out.Write(data[done:])
	return out.Bytes(), nil
}

// checkIndexRoot refuses a root that cannot stand in an index.
func checkIndexRoot(root string) error {
	if strings.ContainsAny(root, "'\"\\\n") {
		return fmt.Errorf("%w: %s cannot stand in %s: want a path without quotes and backslashes", ErrInvalid, quote(root), vllmIndex)
	}
	return nil
}

// factors has the inputs of vLLM's hash, for users. Only the variables that name what the cache is for are kept: the file has all
// variables of vLLM, and one of them is an API key.
type factors struct {
	CodeHash     string                     `json:"code_hash"`
	CompilerHash string                     `json:"compiler_hash"`
	ConfigHash   string                     `json:"config_hash"`
	Variables    map[string]json.RawMessage `json:"env"`
	// Env are the variables that stand in a manifest, Paths those of the key. Others are variables of the key that are no path here.
	Env    map[string]string `json:"-"`
	Paths  []KeyVariable     `json:"-"`
	Others []string          `json:"-"`
}

// text returns the variables of a manifest that are text and may be shown.
func (f *factors) text() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"VLLM_COMPILE_CACHE_SAVE_FORMAT", "VLLM_MAIN_CUDA_VERSION", vllmDevice} {
		var value *string
		if json.Unmarshal(f.Variables[name], &value) == nil && value != nil && len(*value) <= longestWord && printable(*value) {
			out[name] = *value
		}
	}
	return out
}

func parseFactors(data []byte) (factors, error) {
	var f factors
	if err := decode(data, &f); err != nil {
		return factors{}, err
	}
	f.Paths, f.Others = f.paths()
	f.Env, f.Variables = f.text(), nil
	for _, hash := range []*string{&f.CodeHash, &f.CompilerHash, &f.ConfigHash} {
		if len(*hash) > 256 || !printable(*hash) {
			*hash = ""
		}
	}
	return f, nil
}

func (f factors) device() string { return f.Env[vllmDevice] }

// inductorBest is the suffix of files with the results of the autotuner (torch/_inductor/runtime/autotune_cache.py).
const inductorBest = ".best_config"

// deviceProperties matches what Inductor writes into the source of each kernel, such as
// DeviceProperties(type='hip', index=0, cc='gfx90a', major=9, warp_size=64). For NVIDIA, cc is a number.
var deviceProperties = regexp.MustCompile(`DeviceProperties\(type='([a-z]{1,16})'[^)\n]{0,512}?\bcc=(?:'([^'\n]{1,64})'|([0-9]{2,3}))` +
	`(?:[^)\n]{0,512}?\bwarp_size=([0-9]{1,4}))?`)

// Bounds of the source files that are read for a cache without Triton's metadata. The device is near the start of every source.
const (
	maxSources    = 64
	longestSource = 256 << 10
)

// parseSource finds the device for which Inductor wrote a source file.
func parseSource(head []byte) (foreignTarget, bool) {
	parts := deviceProperties.FindSubmatch(head)
	if parts == nil {
		return foreignTarget{}, false
	}
	target := foreignTarget{Backend: string(parts[1]), Arch: json.RawMessage(parts[3])}
	if len(parts[2]) > 0 {
		target.Arch, _ = json.Marshal(string(parts[2])) // Text is always JSON.
	}
	target.WarpSize, _ = strconv.Atoi(string(parts[4])) // Missing: 0, which is unknown.
	return target, true
}
