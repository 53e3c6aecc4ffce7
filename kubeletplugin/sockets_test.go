// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// listen makes a socket. If live, somebody listens at it until the test ends.
func listen(t *testing.T, path string, live bool) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	check.Must(t, err)
	l.SetUnlinkOnClose(false)
	if !live {
		check.Must(t, l.Close())
		return
	}
	t.Cleanup(func() { _ = l.Close() })
}

// TestRemoveDeadSockets: the sockets of instances that were killed go; those of others, of this instance and of one that starts stay.
func TestRemoveDeadSockets(t *testing.T) {
	dir := t.TempDir()
	c := Config{PodUID: "own", PluginsDir: filepath.Join(dir, "p"), RegistryDir: filepath.Join(dir, "r")}
	for name, live := range map[string]bool{
		"p/fettle.dev/dra-own.sock": false, "r/fettle.dev-own-reg.sock": false,
		"p/fettle.dev/dra-killed.sock": false, "r/fettle.dev-killed-reg.sock": false,
		"p/fettle.dev/dra.sock": false, "r/fettle.dev-reg.sock": false,
		"p/fettle.dev/dra-older.sock": true, "r/fettle.dev-older-reg.sock": true,
		"r/gpu.other.com-reg.sock": false,
	} {
		listen(t, filepath.Join(dir, name), live)
	}
	file := filepath.Join(dir, "p/fettle.dev/dra-file.sock")
	check.Must(t, os.WriteFile(file, nil, 0o600))
	before := found(t, dir)
	check.Must(t, c.removeDeadSockets(time.Now()))
	if diff := cmp.Diff(before, found(t, dir)); diff != "" {
		t.Errorf("an instance that starts lost its sockets (-want +got):\n%s", diff)
	}
	check.Must(t, c.removeDeadSockets(time.Now().Add(2*bindTime)))
	want := []string{
		"p/fettle.dev/dra-file.sock", "p/fettle.dev/dra-older.sock", "p/fettle.dev/dra-own.sock",
		"r/fettle.dev-older-reg.sock", "r/fettle.dev-own-reg.sock", "r/gpu.other.com-reg.sock",
	}
	if diff := cmp.Diff(want, found(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	missing := Config{PluginsDir: filepath.Join(dir, "none"), RegistryDir: filepath.Join(dir, "none")}
	check.Must(t, missing.removeDeadSockets(time.Now()))
}

// found returns the files below a directory, sorted.
func found(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	check.Must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out = append(out, name)
		return err
	}))
	return out
}

// TestEmptyNodeHasNoMetadata: the device metadata of a claim that kubelet forgot goes with the driver.
func TestEmptyNodeHasNoMetadata(t *testing.T) {
	p := newPlugin(t, t.TempDir())
	of := filepath.Join(p.config.pluginDir(), metadataDir, "team-a_forgotten", "gpu")
	spec := filepath.Join(p.config.CDIRoot, metadataPrefix+"u1_gpu.json")
	check.Must(t, os.MkdirAll(of, 0o755))
	check.Must(t, os.MkdirAll(p.config.CDIRoot, 0o755))
	check.Must(t, os.WriteFile(filepath.Join(of, "metadata.json"), nil, 0o600))
	check.Must(t, os.WriteFile(spec, nil, 0o600))
	emptied, err := p.removeNodeFiles(t.Context())
	check.Must(t, err)
	if !emptied {
		t.Error("not emptied")
	}
	for _, dir := range []string{p.config.pluginDir(), p.config.CDIRoot} {
		if left := found(t, dir); left != nil {
			t.Errorf("left: %v", left)
		}
	}
}
