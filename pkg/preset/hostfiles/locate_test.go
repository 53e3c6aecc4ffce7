// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// mountedTree is a host's tree and a directory of mounts, on a file system of the test's own.
type mountedTree struct {
	t      *testing.T
	root   string
	mounts *hostmount.Dir
}

func newMountedTree(t *testing.T) *mountedTree {
	t.Helper()
	top := t.TempDir()
	check.Mount(t, top, check.Tmpfs("size=16m,mode=755"))
	check.Must(t, unix.Mount("", top, "", unix.MS_SHARED, ""))
	root := filepath.Join(top, "host")
	m := &mountedTree{t: t, root: root, mounts: hostmount.In(filepath.Join(top, "mounts"), root)}
	m.write("etc/secret/file")
	return m
}

func (m *mountedTree) at(name string) string { return filepath.Join(m.root, name) }

func (m *mountedTree) write(name string) {
	m.t.Helper()
	check.Must(m.t, os.MkdirAll(filepath.Dir(m.at(name)), 0o755))
	check.Must(m.t, os.WriteFile(m.at(name), nil, 0o644))
}

// finder may mount if copies is set.
func (m *mountedTree) finder(copies bool, allowed ...preset.AllowedHostPath) *Finder {
	return &Finder{Root: m.root, Mounts: m.mounts, Copies: copies, Allowed: allowed}
}

// prepare does what a claim's Prepare does, and returns what the runtime is told to mount.
func (m *mountedTree) prepare(f *Finder, mounts ...preset.Mount) ([]container.Mount, error) {
	found, err := f.Find("claim-1", preset.Request{Mounts: mounts})
	if err != nil {
		return nil, err
	}
	for _, s := range found.Steps {
		if err := (step.Kinds{hostmount.StepKind: m.mounts.Kind()}).Apply(m.t.Context(), s); err != nil {
			return nil, err
		}
	}
	m.t.Cleanup(func() { m.undo(found.Steps) })
	return append(found.Shared.Mounts, found.Own.Mounts...), nil
}

func (m *mountedTree) undo(steps []step.Step) {
	for _, s := range steps {
		check.Must(m.t, (step.Kinds{hostmount.StepKind: m.mounts.Kind()}).Undo(m.t.Context(), s))
	}
}

// start returns which file a runtime mounts, as it would at a start of the container: it follows every link.
func (m *mountedTree) start(c container.Mount) (unix.Stat_t, error) {
	var stat unix.Stat_t
	if strings.HasPrefix(c.HostPath, filepath.Dir(m.root)) {
		return stat, unix.Stat(c.HostPath, &stat)
	}
	host, err := rootfs.Open(m.root)
	check.Must(m.t, err)
	defer func() { check.Must(m.t, host.Close()) }()
	return host.Stat(c.HostPath)
}

func clusterMount(hostPath string) preset.Mount {
	return preset.Mount{
		PresetMount: v1alpha1.PresetMount{HostPath: hostPath, ContainerPath: "/x" + hostPath}, From: preset.Origin{Name: "site"},
	}
}

func (m *mountedTree) inode(name string) uint64 {
	m.t.Helper()
	var stat unix.Stat_t
	check.Must(m.t, unix.Stat(m.at(name), &stat))
	return stat.Ino
}

// TestTenantLinksWhatAClusterPresetMounts: a container that may write to a directory above what an administrator's preset mounts puts a
// link to the node's files in its place, after the claim is prepared or before, and reads nothing of these when a container starts.
func TestTenantLinksWhatAClusterPresetMounts(t *testing.T) {
	shared := preset.AllowedHostPath{Path: "/mnt/disks/shared", Writable: true}
	for name, hostPath := range map[string]string{
		"directory": "/mnt/disks/shared/models", "file": "/mnt/disks/shared/models/file", "by a link of root": "/models",
		"by another mount": "/opt/again/models",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMountedTree(t)
			m.write("mnt/disks/shared/models/file")
			check.Must(t, os.MkdirAll(m.at("opt/again"), 0o755))
			check.Must(t, unix.Mount(m.at("mnt/disks/shared"), m.at("opt/again"), "", unix.MS_BIND, ""))
			check.Must(t, os.Symlink("/mnt/disks/shared/models", m.at("models")))
			swap := func() {
				check.Must(t, os.Rename(m.at("mnt/disks/shared/models"), m.at("mnt/disks/shared/moved")))
				check.Must(t, os.Symlink("/etc/secret", m.at("mnt/disks/shared/models")))
			}
			want := m.inode("mnt/disks/shared/models")
			if name == "file" {
				want = m.inode("mnt/disks/shared/models/file")
			}
			told, err := m.prepare(m.finder(true, shared), clusterMount(hostPath))
			check.Must(t, err)
			swap()
			got, err := m.start(told[0])
			if err != nil || got.Ino != want {
				t.Errorf("%s leads to inode %d, %v, want %d as prepared", told[0].HostPath, got.Ino, err, want)
			}
			_, err = m.prepare(m.finder(true, shared), clusterMount(hostPath))
			check.WantErr(t, err, hostmount.ErrOutside, "models", "symbolic link")
		})
	}
}

// TestTenantLinksAnAllowedDirectory: of two directories that a namespace may write to, one in the other, a container moves the inner one
// and puts a link in its place. A DevicePreset of the inner one then gives nothing.
func TestTenantLinksAnAllowedDirectory(t *testing.T) {
	m := newMountedTree(t)
	m.write("data/inner/models/file")
	m.write("etc/models/file")
	inner := clusterMount("/data/inner/models")
	inner.From.Namespace = "team"
	f := m.finder(true, preset.AllowedHostPath{Path: "/data", Writable: true}, preset.AllowedHostPath{Path: "/data/inner", Writable: true})
	_, err := m.prepare(f, inner)
	check.Must(t, err)
	check.Must(t, os.Rename(m.at("data/inner"), m.at("data/moved")))
	check.Must(t, os.Symlink("../etc", m.at("data/inner")))
	_, err = m.prepare(f, inner)
	check.WantErr(t, err, hostmount.ErrOutside, "/data/inner/models", "symbolic link")
}

// TestNobodyMayMountACopy: where the plugin may not mount, what others than root can change is refused, and the rest is as ever.
func TestNobodyMayMountACopy(t *testing.T) {
	m := newMountedTree(t)
	for name, change := range map[string]func(string) error{
		"every user may write": func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"user 1000 owns":       func(dir string) error { return os.Chown(dir, 1000, 0) },
		"group 1000 may write": func(dir string) error {
			if err := os.Chown(dir, 0, 1000); err != nil {
				return err
			}
			return os.Chmod(dir, 0o775)
		},
		"containers may write": nil,
	} {
		dir := "/srv/" + strings.ReplaceAll(name, " ", "-")
		m.write(dir + "/models/file")
		f := m.finder(false)
		told, err := m.prepare(f, clusterMount(dir+"/models"))
		check.Must(t, err)
		if told[0].HostPath != dir+"/models" {
			t.Errorf("%s: mounts %+v", name, told)
		}
		if change == nil { // a preset of the cluster gives it for writing
			f.Writable = []string{dir}
		} else {
			check.Must(t, change(m.at(dir)))
		}
		_, err = m.prepare(f, clusterMount(dir+"/models"))
		check.WantErr(t, err, nil, dir, name, "let root alone write there")
		f.Copies = true
		_, err = m.prepare(f, clusterMount(dir+"/models"))
		check.Must(t, err)
		follows := clusterMount(dir + "/models")
		follows.Propagation = v1alpha1.PropagationHostToContainer
		_, err = m.prepare(f, follows)
		check.WantErr(t, err, nil, name, "leave out propagation")
	}
}

// TestContainersReadOnlyWhatWasPrepared: whatever tenants move and link below the directories that they may write to, before claims are
// prepared and before containers start, a container gets the file that its claim was prepared with, and never one that is elsewhere.
func TestContainersReadOnlyWhatWasPrepared(t *testing.T) {
	random, copies, kept := seed.New(t), 0, 0
	for range 40 {
		m := newMountedTree(t)
		places := m.grow(random)
		writable := []string{places[random.IntN(len(places))], places[random.IntN(len(places))]}
		allowed := []preset.AllowedHostPath{{Path: writable[0], Writable: true}, {Path: writable[1], Namespaces: []string{"team"}}}
		f := m.finder(random.IntN(4) > 0, allowed...)
		if random.IntN(2) == 0 {
			f.Writable = writable[1:]
		} else {
			writable = writable[:1]
		}
		secret := map[uint64]bool{m.inode("etc"): true, m.inode("etc/secret"): true, m.inode("etc/secret/file"): true}
		for range 12 {
			m.attack(random, writable)
			from := preset.Origin{Name: "site"}
			name := places[random.IntN(len(places))]
			if random.IntN(3) == 0 {
				from.Namespace = "team"
				name = path.Join(allowed[random.IntN(2)].Path, []string{"", "a", "a/b", "file"}[random.IntN(4)])
			}
			asked := clusterMount(name)
			asked.From = from
			told, err := m.prepare(f, asked)
			if err != nil {
				continue // refused
			}
			if strings.HasPrefix(told[0].HostPath, filepath.Dir(m.root)) {
				copies++
			} else {
				kept++
			}
			before, err := m.start(told[0])
			check.Must(t, err)
			m.attack(random, writable)
			after, err := m.start(told[0])
			if err != nil || before.Ino != after.Ino || secret[after.Ino] {
				t.Fatalf("%s by %s, with %+v and %v to write: at first inode %d, then %d, %v; secret are %v",
					name, from, allowed, writable, before.Ino, after.Ino, err, secret)
			}
		}
	}
	if copies < 20 || kept < 5 {
		t.Errorf("%d copies and %d paths: the test says little", copies, kept)
	}
}

// grow makes random directories with files, and returns their paths and those of the files.
func (m *mountedTree) grow(random *rand.Rand) (places []string) {
	for range 8 {
		name := "/" + []string{"mnt", "srv", "opt"}[random.IntN(3)]
		for range 1 + random.IntN(3) {
			name += "/" + []string{"a", "b"}[random.IntN(2)]
		}
		m.write(name + "/file")
		places = append(places, name, name+"/file")
	}
	return places
}

// attack moves and links at random below what containers may write to.
func (m *mountedTree) attack(random *rand.Rand, writable []string) {
	for range 6 {
		dir := writable[random.IntN(len(writable))]
		if info, err := os.Lstat(m.at(dir)); err != nil || !info.IsDir() {
			continue // a container that has a file cannot move it
		}
		root, err := os.OpenRoot(m.at(dir)) // what is mounted in the container
		check.Must(m.t, err)
		at := []string{"a", "b", "file", "a/b", "b/a", "a/file"}[random.IntN(6)]
		_ = root.Rename(at, fmt.Sprintf("moved%d", random.IntN(3)))
		switch up := strings.Repeat("../", 1+random.IntN(5)); random.IntN(4) {
		case 0:
			_ = root.Symlink("/etc/secret", at)
		case 1:
			_ = root.Symlink(up+"etc/secret/file", at)
		case 2:
			_ = root.Symlink(up+"etc", at)
		case 3:
			_ = root.Mkdir(at, 0o755)
		}
		check.Must(m.t, root.Close())
	}
}
