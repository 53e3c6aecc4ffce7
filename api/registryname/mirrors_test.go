// SPDX-License-Identifier: Apache-2.0

package registryname

import (
	"slices"
	"testing"
)

// TestOrigins: whatever name a mirror is called by, what it has of a registry is known as that registry's.
func TestOrigins(t *testing.T) {
	m := Mirrors{
		"Registry.Example:443": {"Mirror.Example:05000/cache", "plain.example", "[2001:DB8:0::1]:5000"},
		"index.docker.io":      {"mirror.example:5000/hub"},
		"mirror.example:5000":  {"mirror-of.example/mirror"},
		"circle.example":       {"circle.example", "other.example"},
		"other.example":        {"circle.example"},
	}
	for repository, want := range map[string][]string{
		"mirror.example:5000/cache/demo/x":      {"registry.example/demo/x"},
		"mirror.example:5000/hub/library/x":     {"docker.io/library/x"},
		"mirror.example:5000/cache":             nil,
		"mirror.example:5000/cached/x":          nil,
		"mirror.example:5000/x":                 nil,
		"mirror.example/cache/x":                nil,
		"plain.example/demo/x":                  {"registry.example/demo/x"},
		"plain.example:5000/demo/x":             nil,
		"[2001:db8::1]:5000/x":                  {"registry.example/x"},
		"mirror-of.example/mirror/cache/demo/x": {"mirror.example:5000/cache/demo/x", "registry.example/demo/x"},
		"mirror-of.example/cache/demo/x":        nil,
		"circle.example/x":                      {"other.example/x"},
		"other.example/x":                       {"circle.example/x"},
		"registry.example/demo/x":               nil,
	} {
		got := m.Origins(repository)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: origins %q, want %q", repository, got, want)
		}
	}
	if got := Mirrors(nil).Origins("registry.example/x"); got != nil {
		t.Errorf("without mirrors: %q", got)
	}
}
