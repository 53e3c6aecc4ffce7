// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

func testNames() *Names { return NewNames([SecretSize]byte{1, 2, 3}) }

func openNames(t *testing.T, dir string) *Names {
	t.Helper()
	n, err := OpenNames(disk.OS{}, dir)
	check.Must(t, err)
	return n
}

// namesOf are the names that a node with these Names gives to all sorts of edits.
func namesOf(t *testing.T, n *Names) (all []string) {
	t.Helper()
	for _, edits := range cases() {
		spec, err := n.Common(edits)
		check.Must(t, err)
		_, own, err := n.OfClaim(claimUID, []Own{{Edits: edits}})
		check.Must(t, err)
		all = append(all, spec.Device, own[0])
	}
	slices.Sort(all)
	return all
}

// TestSecret: each node has a secret of its own, which its processes and boots share, and only root can read it.
func TestSecret(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	first := namesOf(t, openNames(t, here))
	if again := namesOf(t, openNames(t, here)); !slices.Equal(first, again) {
		t.Errorf("the next process has other names: %v, %v", first, again)
	}
	other := namesOf(t, openNames(t, there))
	for _, name := range first {
		if slices.Contains(other, name) {
			t.Errorf("two nodes have the name %s", name)
		}
	}
	info, err := os.Stat(filepath.Join(here, secretFile))
	check.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the secret has mode %v", info.Mode())
	}
	check.Must(t, RemoveSecret(disk.OS{}, here))
	check.Must(t, RemoveSecret(disk.OS{}, here))
	if slices.Equal(first, namesOf(t, openNames(t, here))) {
		t.Error("the secret was not removed")
	}
}

// TestSecretDamaged: a secret that is damaged, or that others may have read, is replaced, and somebody is told.
func TestSecretDamaged(t *testing.T) {
	good := hex.EncodeToString(make([]byte, SecretSize))
	for name, damage := range map[string]func(path string) error{
		"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"cut off":   func(path string) error { return os.WriteFile(path, []byte(good[:60]), 0o600) },
		"zeros":     func(path string) error { return os.WriteFile(path, make([]byte, 65), 0o600) },
		"too long":  func(path string) error { return os.WriteFile(path, []byte(good+"00\n"), 0o600) },
		"readable":  func(path string) error { return os.Chmod(path, 0o640) },
		"elsewhere": func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/dev/null", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before := namesOf(t, openNames(t, dir))
			check.Must(t, damage(filepath.Join(dir, secretFile)))
			n, err := OpenNames(disk.OS{}, dir)
			if n == nil || err == nil {
				t.Fatalf("opened %v with error %v, want both", n, err)
			}
			after := namesOf(t, n)
			if slices.Equal(before, after) {
				t.Error("the secret is as before")
			}
			if !slices.Equal(after, namesOf(t, openNames(t, dir))) {
				t.Error("the new secret was not kept")
			}
		})
	}
}

// TestSecretDisk: at whatever operation the disk fails, a process has names that the next one has, too, or none.
func TestSecretDisk(t *testing.T) {
	for i := 1; ; i++ {
		dir := t.TempDir()
		in := fault.New(fault.Fail(i, syscall.ENOSPC))
		n, err := OpenNames(in.FS(disk.OS{}), dir)
		if !slices.ContainsFunc(in.Log(), func(op fault.Op) bool { return op.Fault != "" }) {
			break // there is no operation i
		}
		if n == nil && err == nil {
			t.Errorf("operation %d: neither names nor an error", i)
		}
		kept := namesOf(t, openNames(t, dir))
		if n != nil && !slices.Equal(namesOf(t, n), kept) {
			t.Errorf("operation %d: the next process has other names", i)
		}
	}
}

// TestNamesCannotBeComputed: what a pod knows is its node's hardware, so the edits, and the UID of its claim. That is not enough.
func TestNamesCannotBeComputed(t *testing.T) {
	guess := NewNames([SecretSize]byte{})
	for name, edits := range cases() {
		spec, err := testNames().Common(edits)
		check.Must(t, err)
		guessed, err := guess.Common(edits)
		check.Must(t, err)
		if spec.Device == guessed.Device {
			t.Errorf("%s: the name does not depend on the secret", name)
		}
		// As the version before named it.
		start, end := strings.Index(string(spec.Content), `{"name"`), strings.Index(string(spec.Content), `],"containerEdits":{}}`)
		edit := string(spec.Content)[start:end]
		_, edit, _ = strings.Cut(edit, `"containerEdits":`)
		sum := sha256.Sum256([]byte(strings.TrimSuffix(edit, "}")))
		if old := hex.EncodeToString(sum[:])[:hashLength]; strings.HasSuffix(spec.Device, old) {
			t.Errorf("%s: the name is a hash without a secret", name)
		}
		if _, hash, _ := strings.Cut(spec.Device, "="+secretPrefix); len(hash)*4 < 128 {
			t.Errorf("%s: name %s has less than 128 bits", name, spec.Device)
		}
	}
}

// TestShown: the name that kubelet shows names the device, is in a file of its own, and gives a container nothing.
func TestShown(t *testing.T) {
	d := open(t)
	for _, kind := range []string{"gpu", "host"} {
		spec, err := Shown(kind, "nvidia-0000-17-00-0")
		check.Must(t, err)
		check.Must(t, d.Ensure(spec))
		if spec.Device != "fettle.dev/"+kind+"=nvidia-0000-17-00-0" || spec.Device != ShownName(kind, "nvidia-0000-17-00-0") {
			t.Errorf("the name is %s", spec.Device)
		}
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(d.path), cdiapi.WithAutoRefresh(false))
	check.Must(t, err)
	for _, name := range []string{"fettle.dev/gpu=nvidia-0000-17-00-0", "fettle.dev/host=nvidia-0000-17-00-0"} {
		container := &oci.Spec{Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
		if missing, err := cache.InjectDevices(container, name); err != nil {
			t.Errorf("%s: %v, missing %v", name, err, missing)
			continue
		}
		if len(container.Linux.Devices)+len(container.Linux.Resources.Devices)+len(container.Mounts) > 0 || container.Hooks != nil {
			t.Errorf("%s gives a container %+v", name, container)
		}
		if !slices.Equal(container.Process.Env, []string{shownEdit}) {
			t.Errorf("%s gives a container the variables %v", name, container.Process.Env)
		}
	}
	for _, name := range []string{"", "/", "a b", "../x"} {
		if spec, err := Shown("gpu", name); err == nil {
			t.Errorf("%q: made %+v", name, spec)
		}
	}
}

// TestRecordedNames: edits that a record has a name for keep it, whichever version or secret made it.
func TestRecordedNames(t *testing.T) {
	edits := cases()["both"]
	const old, oldOwn = "fettle.dev/common=x0123", "fettle.dev/claim=x4567"
	spec, err := CommonAs(old, edits)
	check.Must(t, err)
	if spec.Device != old || spec.File != FileOf(old) {
		t.Errorf("spec %+v, content %s", spec, spec.Content)
	}
	now, err := testNames().Common(edits)
	check.Must(t, err)
	again, err := CommonAs(now.Device, edits)
	check.Must(t, err)
	if string(again.Content) != string(now.Content) || again.File != now.File {
		t.Errorf("restored as %s, was %s", again.Content, now.Content)
	}
	_, names, err := testNames().OfClaim("u1", []Own{{Edits: edits, Name: oldOwn}, {Edits: edits}})
	check.Must(t, err)
	if names[0] != oldOwn || names[1] == oldOwn {
		t.Errorf("names %v", names)
	}
	for _, name := range []string{"", "x", oldOwn, CommonKind + "=", CommonKind + "=../x"} {
		if spec, err := CommonAs(name, edits); err == nil {
			t.Errorf("%q: made %+v", name, spec)
		}
	}
}
