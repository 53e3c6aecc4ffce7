// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/test/check"
)

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
		if _, refused := errors.AsType[*conflict.MountError](err); !refused {
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

// TestVariableOfTwo: the runtime would keep one of two values, and which one follows from the names of files.
func TestVariableOfTwo(t *testing.T) {
	s := newSite(t)
	dev := gpu("gpu0", 0)
	dev.Edits.Env = []string{"MODE=device"}
	s.setMachine(machine{dev})
	c := allocated("u1", aGPU("gpu0"))
	give := func(text string) {
		s.decisions.give = map[string]given{"gpu0": {word: "x", Edits: Edits{
			Shared: container.Edits{Env: []string{text}}, Givers: map[string]string{"MODE": "ClusterDevicePreset data"},
		}}}
	}
	give("MODE=preset")
	_, err := s.ask(c)
	if _, refused := errors.AsType[*conflict.VariableError](err); !refused {
		t.Fatal(err)
	}
	for _, want := range []string{"ClusterDevicePreset data", "device gpu0", "variable MODE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	s.records()
	give("MODE=device")
	s.prepare(c)
	dev.Edits.Env = []string{"MODE=new"}
	s = s.reboot()
	s.put(c)
	s.setMachine(machine{dev})
	_, err = s.ask(c)
	check.Must(t, err)
}
