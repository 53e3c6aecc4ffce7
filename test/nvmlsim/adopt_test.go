// SPDX-License-Identifier: Apache-2.0

package nvmlsim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/pcisim"
)

func TestMain(m *testing.M) { os.Exit(pcisim.Run(m)) }

func write(t *testing.T, name, content string) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(t, os.WriteFile(name, []byte(content), 0o644))
}

// adopted is a machine of two cards with capabilities 20 and 21.
func adopted(t *testing.T) (nvmlsim.Machine, string) {
	t.Helper()
	tree := t.TempDir()
	for i, address := range []string{"0000:18:00.0", "0000:3a:00.0"} {
		write(t, filepath.Join(tree, "proc/driver/nvidia/gpus", address, "information"),
			fmt.Sprintf("Model: \t NVIDIA H100\nGPU UUID: \t GPU-%d\nDevice Minor: \t %d\n", i, i+1))
		device := filepath.Join(tree, "sys/bus/pci/devices", address)
		check.Must(t, os.MkdirAll(device, 0o755))
		check.Must(t, os.Symlink("../../drivers/nvidia", filepath.Join(device, "driver")))
	}
	write(t, filepath.Join(tree, "proc/driver/nvidia/version"), "NVRM version: NVIDIA Module  570.172.08  Release Build\n")
	m, err := nvmlsim.Adopt(filepath.Join(t.TempDir(), "state"), tree, nvmlsim.H100, 20, 21)
	check.Must(t, err)
	check.Must(t, m.SwitchOn())
	if s, err := m.Look(); err != nil || s.ToolVersion != "570.172.08" {
		t.Errorf("the tool's version is %q, %v", s.ToolVersion, err)
	}
	return m, tree
}

// access lists the access files with their minors.
func access(t *testing.T, tree string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := filepath.Join(tree, "proc/driver/nvidia/capabilities")
	check.Must(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			text, err := os.ReadFile(path)
			line, _, _ := strings.Cut(string(text), "\n")
			files[strings.TrimPrefix(path, root+"/")] = strings.TrimPrefix(line, "DeviceFileMinor: ")
			return err
		}
		return err
	}))
	return files
}

// TestAdopt: the cards are those of the tree. Capabilities get the numbers there are, the smallest first, and numbers above them when there
// are no more. Those of an instance that is gone are given again, and the files of one that stays are not touched.
func TestAdopt(t *testing.T) {
	m, tree := adopted(t)
	s, err := m.Look()
	check.Must(t, err)
	if c := s.Cards[1]; c.BusID != "00000000:3A:00.0" || c.UUID != "GPU-1" || c.Minor != 2 || c.Model != nvmlsim.H100 {
		t.Errorf("card %+v", c)
	}
	controls := map[string]string{"mig/config": "1", "mig/monitor": "2"}
	expect := func(more map[string]string) {
		t.Helper()
		for name, minor := range controls {
			more[name] = minor
		}
		if diff := cmp.Diff(more, access(t, tree)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	first, err := m.Foreign(1, 19, 0, 1)
	check.Must(t, err)
	expect(map[string]string{"gpu2/mig/gi1/access": "20", "gpu2/mig/gi1/ci0/access": "21"})
	_, err = m.Foreign(0, 9, 4, 1)
	check.Must(t, err)
	expect(map[string]string{
		"gpu2/mig/gi1/access": "20", "gpu2/mig/gi1/ci0/access": "21", "gpu1/mig/gi1/access": "22", "gpu1/mig/gi1/ci0/access": "23",
	})
	stays := filepath.Join(tree, "proc/driver/nvidia/capabilities/gpu1/mig/gi1/access")
	before, err := os.Stat(stays)
	check.Must(t, err)
	check.Must(t, m.Reset(1, 2))
	_, err = m.Foreign(1, 19, 6)
	check.Must(t, err)
	expect(map[string]string{"gpu2/mig/gi1/access": "20", "gpu1/mig/gi1/access": "22", "gpu1/mig/gi1/ci0/access": "23"})
	after, err := os.Stat(stays)
	check.Must(t, err)
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("the file of an instance that stays was written")
	}
	if first != 1 {
		t.Errorf("instance %d", first)
	}
	if _, err := nvmlsim.Adopt(filepath.Join(t.TempDir(), "state"), t.TempDir(), nvmlsim.H100); err == nil {
		t.Error("a tree without GPUs was adopted")
	}
}

// TestFollowDrivers: a card that another driver has, or none, is gone for the library, with its instances, and comes back without them.
// That is told by a sys that reacts, and by no other.
func TestFollowDrivers(t *testing.T) {
	m, tree := adopted(t)
	check.Must(t, os.Remove(filepath.Join(tree, "sys/bus/pci/devices/0000:18:00.0/driver")))
	s, err := m.Look()
	check.Must(t, err)
	if c, ret := s.Card("0000:18:00.0"); ret != nvmlsim.Success {
		t.Errorf("card %+v, %d", c, ret)
	}

	text, err := os.ReadFile("../machines/8xh100-iommu.txtar")
	check.Must(t, err)
	host, err := sim.Parse(text)
	check.Must(t, err)
	reacts := pcisim.Start(t, host, nil)
	m, err = nvmlsim.Adopt(filepath.Join(t.TempDir(), "state"), reacts.Root, nvmlsim.H100)
	check.Must(t, err)
	check.Must(t, m.SwitchOn())
	_, err = m.Foreign(0, 19, 0, 1)
	check.Must(t, err)
	for _, driver := range []string{"", "vfio-pci"} {
		reacts.Set(pcisim.Set{Function: "0000:18:00.0", Driver: &driver})
		s, err := m.Look()
		check.Must(t, err)
		if c, ret := s.Card("0000:18:00.0"); ret != nvmlsim.NotFound {
			t.Errorf("driver %q: card %+v, %d", driver, c, ret)
		}
		if files := access(t, reacts.Root); len(files) != 2 {
			t.Errorf("driver %q: files %v", driver, files)
		}
	}
	back := "nvidia"
	reacts.Set(pcisim.Set{Function: "0000:18:00.0", Driver: &back})
	s, err = m.Look()
	check.Must(t, err)
	c, ret := s.Card("0000:18:00.0")
	if ret != nvmlsim.Success || len(c.Instances) > 0 || c.MIG {
		t.Errorf("card %+v, %d", c, ret)
	}
	if c, ret := s.Card("0000:19:00.0"); ret != nvmlsim.Success || !c.MIG {
		t.Errorf("card %+v, %d", c, ret)
	}
}
