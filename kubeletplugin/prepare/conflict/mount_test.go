// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/seed"
)

// TestMountsExclude: of random mounts, each two of different features or of a feature and a device are refused if a program could not see
// both, and no others. The error names both.
func TestMountsExclude(t *testing.T) {
	random := seed.New(t)
	features := []string{"", "presets", "kernelCaches"}
	names := []string{"a", "ab", "b", "a.b"}
	for range 2000 {
		var all []Mount
		for i := range 1 + random.IntN(5) {
			m := Mount{Feature: features[random.IntN(len(features))], Giver: fmt.Sprintf("giver-%d", i)}
			for range 1 + random.IntN(3) {
				m.ContainerPath += "/" + names[random.IntN(len(names))]
			}
			m.HostPath = fmt.Sprintf("/host/%d", random.IntN(2))
			all = append(all, m)
		}
		want := 0
		text := fmt.Sprint(Mounts(append([]Mount(nil), all...)))
		for i, a := range all {
			for _, b := range all[:i] {
				inside := strings.HasPrefix(a.ContainerPath+"/", b.ContainerPath+"/") || strings.HasPrefix(b.ContainerPath+"/", a.ContainerPath+"/")
				if !inside || a.Feature == b.Feature || a.Mount == b.Mount {
					continue
				}
				want++
				if !strings.Contains(text, a.Giver) || !strings.Contains(text, b.Giver) {
					t.Errorf("the error does not name %s and %s, which are at %s and %s: %s", a.Giver, b.Giver, a.ContainerPath, b.ContainerPath, text)
				}
			}
		}
		if got := strings.Count(text, "give one of them another path"); got != want {
			t.Fatalf("%d of %d pairs are refused in %+v: %s", got, want, all, text)
		}
	}
}
