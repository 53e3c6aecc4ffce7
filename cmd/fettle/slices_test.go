// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestSlicesOfMachines: what is printed of each machine of test/machines, whose nodes are plain files then, is byte for byte what the
// plugin's own function makes of the machine with its nodes, which the plugin's tests compare with what is published.
func TestSlicesOfMachines(t *testing.T) {
	files, err := filepath.Glob("../../test/machines/*.txtar")
	check.Must(t, err)
	set, _, err := gates.For("", nil)
	check.Must(t, err)
	config, err := nodeconfig.Load("")
	check.Must(t, err)
	devices := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			tree, err := sysfs.Open(nodefixture.Expand(t, name))
			check.Must(t, err)
			defer tree.Close()
			m := publication.Machine{Tree: tree, File: &config, Usable: cdi.Check}
			m.Counters, m.Kept = set.Kept()
			found := m.Find(t.Context())
			devices += len(found.Devices)
			want := []string{`{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + name + `"}}`}
			for _, slice := range publication.Objects(name, found.Pools(name)) {
				text, err := json.Marshal(slice)
				check.Must(t, err)
				want = append(want, string(text))
			}
			status, stdout, stderr := call(t, "slices", "--machine", file, "-o", "json")
			if status != 0 {
				t.Fatalf("status %d: %s", status, stderr)
			}
			var list struct{ Items []any }
			check.Must(t, json.Unmarshal([]byte(stdout), &list))
			var got []string
			for _, item := range list.Items {
				text, err := json.Marshal(item)
				check.Must(t, err)
				got = append(got, string(text))
			}
			if diff := cmp.Diff(sortedKeys(t, want), got); diff != "" {
				t.Errorf("objects (-of the machine +printed):\n%s", diff)
			}
			for _, p := range found.Problems {
				if !strings.Contains(stderr, p.Message) {
					t.Errorf("stderr lacks %q:\n%s", p.Message, stderr)
				}
			}
		})
	}
	if devices == 0 {
		t.Error("no machine has a device")
	}
}

// sortedKeys are JSON objects with their keys in order, since a List that was read has them so.
func sortedKeys(t *testing.T, texts []string) (out []string) {
	t.Helper()
	for _, text := range texts {
		var value any
		check.Must(t, json.Unmarshal([]byte(text), &value))
		again, err := json.Marshal(value)
		check.Must(t, err)
		out = append(out, string(again))
	}
	return out
}
