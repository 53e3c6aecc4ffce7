// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// groupPrefix is the prefix of a group file, the list of the files of an entry (triton/runtime/cache.py, put_group).
const groupPrefix = "__grp__"

func isGroup(name string) bool {
	return strings.HasPrefix(name, groupPrefix) && strings.HasSuffix(name, ".json")
}

const (
	longestName = 255
	// longestRoot is the longest path of a producer's directory, as kernels have it.
	longestRoot = 4096
)

// group is a group file. Triton has written two forms: a map of names to absolute paths, and a list of names. Only the map is bound to a
// directory.
type group struct {
	top map[string]json.RawMessage
	// children is nil for a list of names, which is in names.
	children map[string]string
	names    []string
}

func parseGroup(data []byte) (group, error) {
	var g group
	if err := decode(data, &g.top); err != nil {
		return group{}, err
	}
	raw, ok := g.top["child_paths"]
	if !ok || bytes.Equal(raw, []byte("null")) {
		return group{}, fmt.Errorf("%w: want child_paths", ErrInvalid)
	}
	if err := decode(raw, &g.children); err != nil {
		if listErr := decode(raw, &g.names); listErr != nil {
			return group{}, fmt.Errorf("child_paths: want names with their paths, or names: %w", err)
		}
		g.children = nil
	} else {
		g.names = slices.Sorted(maps.Keys(g.children))
	}
	for _, name := range g.names {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > longestName {
			return group{}, fmt.Errorf("%w: child_paths: %s is no name of a file", ErrInvalid, quote(name))
		}
	}
	return g, nil
}

// root returns the producer's directory of the cache, for a group file in the directory dir of the cache. It is empty if the paths lead
// elsewhere or to several directories.
func (g group) root(dir string) string {
	root := ""
	for name, child := range g.children {
		own, ok := strings.CutSuffix(child, "/"+path.Join(dir, name))
		if !ok || own == "" || len(own) > longestRoot || !path.IsAbs(own) || path.Clean(own) != own || root != "" && own != root {
			return ""
		}
		root = own
	}
	return root
}

// RewriteGroup changes the paths in a group file to another directory, the future one of the group file itself. Other keys stay. A list of
// names is returned as it is. A result of more than MaxText bytes is refused: a short path becomes a long one for each of the names.
func RewriteGroup(data []byte, dir string) ([]byte, error) {
	g, err := parseGroup(data)
	if err != nil || g.children == nil {
		return data, err
	}
	prefix, least := childPrefix(dir), 0
	for name := range g.children {
		if least += len(prefix) + 2*len(name); least > MaxText { // before it takes so much memory
			return nil, tooLong()
		}
	}
	out, err := g.in(prefix)
	if err == nil && len(out) > MaxText {
		return nil, tooLong()
	}
	return out, err
}

// childPrefix returns what the paths of the files in a directory begin with.
func childPrefix(dir string) string { return strings.TrimSuffix(dir, "/") + "/" }

// in returns the group file with this before the name of each of its files.
func (g group) in(prefix string) ([]byte, error) {
	moved, top := make(map[string]string, len(g.children)), maps.Clone(g.top)
	for name := range g.children {
		moved[name] = prefix + name
	}
	var err error
	if top["child_paths"], err = encode(moved); err != nil {
		return nil, fmt.Errorf("child_paths: %w", err)
	}
	return encode(top)
}

func tooLong() error {
	return fmt.Errorf("%w: its paths in another directory make it too long: want at most %d bytes", ErrInvalid, MaxText)
}

// kernel is an entry of a Triton cache, from its NAME.json.
type kernel struct {
	manifestKernel
	code Code
	// version is that of Triton, which has it in the key.
	version string
}

// foreignKernel is NAME.json. Before 3.0 its target was a list: ["cuda", 80].
type foreignKernel struct {
	Hash       string          `json:"hash"`
	Target     json.RawMessage `json:"target"`
	PTXVersion *int            `json:"ptx_version"`
	NumStages  int             `json:"num_stages"`
	NumWarps   int             `json:"num_warps"`
	Debug      json.RawMessage `json:"debug"`
	Version    json.RawMessage `json:"triton_version"`
}

func parseKernel(data []byte) (kernel, error) {
	var f foreignKernel
	if err := decode(data, &f); err != nil {
		return kernel{}, err
	}
	if len(f.Hash) > 256 || !printable(f.Hash) {
		return kernel{}, fmt.Errorf("%w: hash %s: want a hash", ErrInvalid, quote(f.Hash))
	}
	k := kernel{manifestKernel: manifestKernel{Hash: f.Hash, PTXVersion: f.PTXVersion, NumStages: f.NumStages, NumWarps: f.NumWarps}}
	_ = json.Unmarshal(f.Debug, &k.Debug) // anything else is false
	if json.Unmarshal(f.Version, &k.version) != nil || len(k.version) > longestWord || !printable(k.version) {
		k.version = ""
	}
	var target foreignTarget
	var pair []json.RawMessage
	switch {
	case len(f.Target) == 0:
		return k, nil
	case json.Unmarshal(f.Target, &pair) == nil && len(pair) == 2 && json.Unmarshal(pair[0], &target.Backend) == nil:
		target.Arch = pair[1]
	default:
		if err := decode(f.Target, &target); err != nil {
			return kernel{}, fmt.Errorf("target: %w", err)
		}
	}
	k.Backend, k.Arch, k.WarpSize = target.Backend, target.Arch, target.WarpSize
	return k, nil
}

// The directives at the start of a PTX module (PTX ISA, "PTX Module Directives").
var (
	ptxVersion = regexp.MustCompile(`(?m)^\s*\.version\s+([0-9]{1,2})\.([0-9])\s*$`)
	ptxTarget  = regexp.MustCompile(`(?m)^\s*\.target\s+(sm_[0-9]+[af]?)\b`)
)

// longestPTXHead bounds the part of a module that has the directives: a comment of the compiler comes before them.
const longestPTXHead = 8 << 10

// parsePTX returns the version of a module, times 10, and its target.
func parsePTX(head []byte) (version int, target string, err error) {
	v, t := ptxVersion.FindSubmatch(head), ptxTarget.FindSubmatch(head)
	if v == nil || t == nil {
		return 0, "", fmt.Errorf("%w: no .version and .target in its first %d bytes", ErrInvalid, longestPTXHead)
	}
	major, err := strconv.Atoi(string(v[1]))
	if err != nil {
		return 0, "", fmt.Errorf("%w: .version: %w", ErrInvalid, err)
	}
	return 10*major + int(v[2][0]-'0'), string(t[1]), nil
}
