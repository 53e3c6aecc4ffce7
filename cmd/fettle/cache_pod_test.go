// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// TestCacheInPod extracts as a Job does: from a private repository with the secrets' files, by the digest that somebody verified, into a
// volume's root, and again without the registry.
func TestCacheInPod(t *testing.T) {
	r := fpgaregistry.Start(t)
	secrets := t.TempDir() // as Kubernetes makes them, by way of links
	check.Must(t, os.Mkdir(filepath.Join(secrets, "..data"), 0o700))
	secret := func(name, form, host string) string {
		auth := base64.StdEncoding.EncodeToString([]byte(fpgaregistry.User + ":" + fpgaregistry.Password))
		content := fmt.Appendf(nil, form, host, auth)
		check.Must(t, os.WriteFile(filepath.Join(secrets, "..data", name), content, 0o600))
		check.Must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(secrets, name)))
		return filepath.Join(secrets, name)
	}
	const modern, legacy = `{"auths":{%q:{"auth":%q}}}`, `{%q:{"auth":%q}}`
	first, second := secret("00.json", modern, "other.example"), secret("01.dockercfg", legacy, r.Host)
	settings := filepath.Join(t.TempDir(), "registries.yaml")
	check.Must(t, os.WriteFile(settings, fmt.Appendf(nil, "plainHTTP: [%q]\n", r.Host), 0o600))
	ref := r.Host + "/private/cache:v1"
	access := []string{"--registries", settings, "--registry-config", secrets}
	out := wants(t, 0, "@sha256:", append([]string{"cache", "build", cacheDir(t), "-t", ref}, access...)...)
	_, digest, _ := strings.Cut(strings.TrimSpace(out), "@")
	volume := t.TempDir()
	extract := []string{"cache", "extract", ref, volume, "--into", "--digest", digest}
	wants(t, 1, "access refused", append(extract, access[:2]...)...)
	wants(t, 1, "access refused", append(extract, "--registries", settings, "--registry-config", first)...)
	wants(t, 0, "3 files", "cache", "extract", ref, t.TempDir(), "--into", "--digest", digest, "--registries", settings, "--registry-config",
		second)
	wants(t, 1, "misnamed.json: it is not valid", append(extract, "--registries", settings, "--registry-config",
		secret("misnamed.json", legacy, r.Host))...)
	check.Must(t, os.Remove(filepath.Join(secrets, "misnamed.json")))
	wants(t, 1, "access refused", append(extract, "--registries", settings, "--registry-config", t.TempDir())...)
	wants(t, 1, "no such file", append(extract, "--registries", settings, "--registry-config", "never.json")...)
	wants(t, 0, "3 files", append(extract, access...)...)
	r.Down.Store(true)
	wants(t, 0, "was there already", append(extract, access...)...)
	marker, err := os.ReadFile(filepath.Join(volume, ".fettle-digest"))
	if err != nil || strings.TrimSpace(string(marker)) != digest {
		t.Errorf("the marker is %q (%v), want %s", marker, err, digest)
	}
	check.Must(t, filepath.WalkDir(filepath.Join(volume, "K1"), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		want := fs.FileMode(0o644)
		if d.IsDir() {
			want = 0o755
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v (%v), want %v", name, info.Mode(), err, want)
		}
		return nil
	}))
}

// TestCacheMirrorThatLies: what a mirror replaced is read at the registry itself, by each verb that reads layers.
func TestCacheMirrorThatLies(t *testing.T) {
	r := fpgaregistry.Start(t)
	mirror, lies := r.Lie(t, fpgaregistry.Flipped)
	settings := filepath.Join(t.TempDir(), "registries.yaml")
	const form = "plainHTTP: [%[1]q, %[2]q]\nmirrors: {%[1]q: [{host: %[2]q}]}\n"
	check.Must(t, os.WriteFile(settings, fmt.Appendf(nil, form, r.Host, mirror), 0o600))
	ref := r.Host + "/team/cache:v1"
	access := []string{"--registries", settings}
	wants(t, 0, "@sha256:", append([]string{"cache", "build", cacheDir(t), "-t", ref}, access...)...)
	for _, args := range [][]string{
		{"extract", ref, filepath.Join(t.TempDir(), "new"), "--insecure-skip-verify"},
		{"extract", ref, t.TempDir(), "--into", "--insecure-skip-verify"},
		{"inspect", ref, "--files"},
		{"push", ref, "oci:" + t.TempDir() + ":v1"},
	} {
		before := lies.Load()
		wants(t, 0, "", slices.Concat([]string{"cache"}, args, access)...)
		if lies.Load() == before {
			t.Errorf("cache %s did not ask the mirror", args[0])
		}
	}
}
