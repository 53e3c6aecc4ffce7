// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/message"
)

// Key is what the cache tells of the key by which its program looks entries up. Most of a key are hashes of code, which a cache does not
// tell: a program that shares all of this may still miss, but one that does not share it misses every entry.
type Key struct {
	// Variables are sorted by name and value.
	Variables []KeyVariable `json:"variables,omitempty"`
	// Triton are the versions of Triton that compiled kernels, sorted.
	Triton []string `json:"triton,omitempty"`
}

// KeyVariable is a variable of the environment with a path, which a program hashes into its key.
type KeyVariable struct {
	Name string `json:"name"`
	// Value is what it was when the cache was made. Entries of one cache may have been made with several.
	Value string `json:"value"`
	// File is the first file of the cache that tells it.
	File string `json:"file"`
	// Set is true where Plan sets the variable: its path says only where the program had its home.
	Set bool `json:"set,omitempty"`
	// Partial is true where other entries of the cache do not have the variable in their key, or have a value that is not kept: whatever a
	// program has, it may find those.
	Partial bool `json:"partial,omitempty"`
}

// keySeen counts the files that tell of keys, and for each variable those with a value that is kept and those with another.
type keySeen struct {
	files        int
	kept, others map[string]int
}

// maxKeyFacts bounds the variables and versions of a key.
const maxKeyFacts = 16

// longestKeyPath is the longest path of a variable that is kept.
const longestKeyPath = 1024

// keyPaths returns the variables with paths of vLLM's key (vllm/envs.py, compile_factors), each with the end of the path that vLLM makes of
// its home if the variable is not set: such a path decides nothing that is compiled. vLLM left these two out of its key after 0.24
// (vllm-project/vllm#47573). The others name libraries. No further variable is kept: one of them is an API key.
func keyPaths() map[string]string {
	return map[string]string{
		"CUDA_HOME": "", "VLLM_CONFIG_ROOT": "/vllm", "VLLM_CUDART_SO_PATH": "", "VLLM_NCCL_INCLUDE_PATH": "", "VLLM_NCCL_SO_PATH": "",
		"VLLM_XLA_CACHE_PATH": "/vllm/xla_cache",
	}
}

// paths returns the paths among the variables of a key, by name. Others are the names of those that tell something else.
func (f *factors) paths() (found []KeyVariable, others []string) {
	endings := keyPaths()
	for _, name := range slices.Sorted(maps.Keys(endings)) {
		text, told := f.Variables[name]
		if !told {
			continue
		}
		var value string
		if json.Unmarshal(text, &value) != nil || !keyPath(value) {
			others = append(others, name)
			continue
		}
		ending := endings[name]
		found = append(found, KeyVariable{Name: name, Value: value, Set: ending != "" && strings.HasSuffix(value, ending)})
	}
	return found, others
}

// keyPath reports whether a text is a path that can be shown and set.
func keyPath(text string) bool {
	return path.IsAbs(text) && path.Clean(text) == text && len(text) <= longestKeyPath && printable(text)
}

// keyVariables adds the variables that a file tells.
func (s *scanner) keyVariables(name string, f *factors) {
	known, seen := &s.cache.Key.Variables, &s.key
	for _, other := range f.Others {
		seen.others[other]++
	}
	for _, v := range f.Paths {
		at := slices.IndexFunc(*known, func(k KeyVariable) bool { return k.Name == v.Name && k.Value == v.Value })
		switch {
		case at >= 0:
			seen.kept[v.Name]++
			(*known)[at].File = min((*known)[at].File, name)
		case len(*known) < maxKeyFacts:
			seen.kept[v.Name]++
			v.File = name
			s.keep(len(v.Value) + len(name) + keptFact)
			*known = append(*known, v)
		default:
			seen.others[v.Name]++
			s.odd.note(fmt.Sprintf("file %s: entries of this cache were made with more values of %s than are shown", quote(name), v.Name))
		}
	}
}

// keyTriton adds the version of Triton that compiled a kernel.
func (s *scanner) keyTriton(version string) {
	known := &s.cache.Key.Triton
	if version != "" && len(*known) < maxKeyFacts && !slices.Contains(*known, version) {
		*known = append(*known, version)
	}
}

// finish sorts the key. A variable of which there are several values cannot be set.
func (k *Key) finish(seen *keySeen) {
	slices.Sort(k.Triton)
	slices.SortFunc(k.Variables, func(a, b KeyVariable) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value)) })
	for i := range k.Variables {
		v := &k.Variables[i]
		v.Set = v.Set && seen.others[v.Name] == 0 && len(k.valuesOf(v.Name)) == 1
		v.Partial = seen.kept[v.Name] < seen.files
	}
}

// valuesOf returns the values of a variable with which entries were made.
func (k *Key) valuesOf(name string) []string {
	var out []string
	for _, v := range k.Variables {
		if v.Name == name {
			out = append(out, v.Value)
		}
	}
	return out
}

// keyEnv returns the variables that a claim sets, so that the program computes the key that it had when the cache was made.
func (c *Cache) keyEnv() []Env {
	var out []Env
	for _, v := range c.Key.Variables {
		if v.Set && c.Type == VLLM {
			out = append(out, Env{v.Name, v.Value})
		}
	}
	return out
}

// KeyOfPod returns what a pod has to share by itself to find any entry. planned says that the claim sets the variables of the plan.
func (c *Cache) KeyOfPod(planned bool) Key {
	if c.Type != VLLM {
		return Key{Triton: c.Key.Triton}
	}
	decidesNothing := func(v KeyVariable) bool { return v.Partial || v.Set && planned }
	return Key{Variables: slices.DeleteFunc(slices.Clone(c.Key.Variables), decidesNothing), Triton: c.Key.Triton}
}

// maxKeyValues bounds the values of a variable in a message.
const maxKeyValues = 3

// MissedWith returns why a program misses every entry if its environment has this variable, or "" if the key does not tell.
func (k *Key) MissedWith(name, value string) string {
	made := k.valuesOf(name)
	if len(made) == 0 || slices.Contains(made, value) {
		return ""
	}
	var named []string
	for _, one := range made[:min(len(made), maxKeyValues)] {
		named = append(named, message.Line(one, longestQuote))
	}
	if more := len(made) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s is %s, but the cache was made with %s, and it is in the key of each entry: none would be found",
		name, quote(value), strings.Join(named, " and "))
}
