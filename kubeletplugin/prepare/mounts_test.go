// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestMountsExclude: of random mounts, each two of different features or of a feature and a device are refused if a program could not see
// both, and no others. The error names both.
func TestMountsExclude(t *testing.T) {
	random := seed.New(t)
	features := []string{"", "presets", "kernelCaches"}
	names := []string{"a", "ab", "b", "a.b"}
	for range 2000 {
		var all []mounted
		for i := range 1 + random.IntN(5) {
			m := mounted{feature: features[random.IntN(len(features))], giver: fmt.Sprintf("giver-%d", i)}
			for range 1 + random.IntN(3) {
				m.ContainerPath += "/" + names[random.IntN(len(names))]
			}
			m.HostPath = fmt.Sprintf("/host/%d", random.IntN(2))
			all = append(all, m)
		}
		want := 0
		text := fmt.Sprint(checkMounts(append([]mounted(nil), all...)))
		for i, a := range all {
			for _, b := range all[:i] {
				inside := strings.HasPrefix(a.ContainerPath+"/", b.ContainerPath+"/") || strings.HasPrefix(b.ContainerPath+"/", a.ContainerPath+"/")
				if !inside || a.feature == b.feature || a.Mount == b.Mount {
					continue
				}
				want++
				if !strings.Contains(text, a.giver) || !strings.Contains(text, b.giver) {
					t.Errorf("the error does not name %s and %s, which are at %s and %s: %s", a.giver, b.giver, a.ContainerPath, b.ContainerPath, text)
				}
			}
		}
		if got := strings.Count(text, "give one of them another path"); got != want {
			t.Fatalf("%d of %d pairs are refused in %+v: %s", got, want, all, text)
		}
	}
}

// TestMountOfDevice: a claim gets nothing that would hide its device, or that its device would hide. It holds nothing then. What it was
// given in an earlier boot it keeps.
func TestMountOfDevice(t *testing.T) {
	const disk = "/mnt/localssd/ssd0"
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	give := func(at string) {
		mount := container.Mount{HostPath: "/data", ContainerPath: at}
		s.decisions.give = map[string]given{"ssd0": {word: "x", Edits: Edits{
			Shared: container.Edits{Mounts: []container.Mount{mount}}, Givers: map[string]string{at: "ClusterDevicePreset data"},
		}}}
	}
	for _, at := range []string{disk, disk + "/below", "/mnt", "/mnt/localssd"} {
		give(at)
		_, err := s.ask(c)
		if _, refused := errors.AsType[*MountError](err); !refused {
			t.Fatalf("a mount at %s: %v", at, err)
		}
		for _, want := range []string{"ClusterDevicePreset data", "device ssd0", at, disk} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
		s.records()
		s.heldBy("", aDisk("ssd0"))
	}
	give("/mnt/localssd/ssd")
	s.prepare(c)
	moved := ssd("ssd0")
	moved.Edits.Mounts[0].ContainerPath = "/mnt/localssd/ssd"
	s = s.reboot()
	s.put(c)
	s.setMachine(machine{gpu("gpu0", 0), moved})
	_, err := s.ask(c)
	check.Must(t, err)
}
