// SPDX-License-Identifier: Apache-2.0

package oci_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	inmemory "github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// raw returns an image of eight bytes for a shell.
func raw(t *testing.T, shell, content string) oci.File {
	t.Helper()
	sidecar := `{"format":"rbf","id":"d8424dc4a4a3c413f89e433683f9040b","interfaceID":"` + shell + `","clocks":{"high":312.5,"low":"auto"}}`
	b, err := fpga.InspectRaw(strings.NewReader(content), int64(len(content)), []byte(sidecar))
	if err != nil {
		t.Fatal(err)
	}
	return oci.File{Name: shell[:4], Content: strings.NewReader(content), Bitstream: b}
}

func pack(t *testing.T, about oci.About, files ...oci.File) *oci.Artifact {
	t.Helper()
	a, err := oci.Pack(files, about)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPack pins the bytes: an artifact's digest must not change with a release.
func TestPack(t *testing.T) {
	a := pack(t, oci.About{Name: "n"}, raw(t, shellB, "image b."), raw(t, shellA, "image a."))
	b := pack(t, oci.About{Name: "n"}, raw(t, shellA, "image a."), raw(t, shellB, "image b."))
	if a.Root.Digest != b.Root.Digest {
		t.Errorf("got %s and %s for the same files in another order", a.Root.Digest, b.Root.Digest)
	}
	const wantConfig = `{"format":"rbf","id":"d8424dc4a4a3c413f89e433683f9040b","interfaceID":"` + shellA +
		`","name":"n","size":8,"clock":{"high":312.5,"low":"auto"}}`
	config := artifact.DigestOf([]byte(wantConfig))
	if !slices.ContainsFunc(a.Blobs, func(b oci.Blob) bool { return b.Digest == config }) {
		t.Errorf("want a config %s among %v", wantConfig, a.Blobs)
	}
	want := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
		`"artifactType":"application/vnd.fettle.fpga.bitstream.v1","config":{"mediaType":"application/vnd.fettle.fpga.bitstream.config.v1+json",`+
		`"digest":"%s","size":%d},"layers":[{"mediaType":"application/vnd.fettle.fpga.bitstream.layer.v1.rbf","digest":"%s","size":8}]}`,
		config, len(wantConfig), artifact.DigestOf([]byte("image a.")))
	if diff := cmp.Diff(want, string(a.Manifests[0].Raw)); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	if last := a.Manifests[len(a.Manifests)-1]; last.Digest != a.Root.Digest || last.MediaType != fpgaregistry.IndexType {
		t.Errorf("got %s, a %s, last; want the index %s", last.Digest, last.MediaType, a.Root.Digest)
	}
}

func TestPackRefuses(t *testing.T) {
	unknown := raw(t, shellA, "image a.")
	unknown.Bitstream.Payload = nil
	nowhere := raw(t, shellB, "image b.")
	nowhere.Bitstream.InterfaceID = ""
	long := raw(t, shellA, "image a.")
	long.Bitstream.Size = fpga.MaxFile + 1
	a := raw(t, shellA, "image a.")
	for name, test := range map[string]struct {
		files []oci.File
		about oci.About
		want  string
	}{
		"none":              {want: "got 0 files, expected 1 to 64"},
		"many":              {files: slices.Repeat([]oci.File{a}, 65), want: "got 65 files"},
		"one twice":         {files: []oci.File{a, a}, want: "are both for interface " + shellA},
		"no interface":      {files: []oci.File{a, nowhere}, want: "says no interface id"},
		"no payload":        {files: []oci.File{unknown}, want: "not known which of its bytes"},
		"long":              {files: []oci.File{long}, want: "too large"},
		"blank for another": {files: []oci.File{a}, about: oci.About{BlankFor: []string{shellB}}, want: "no file is for interface " + shellB},
		"name":              {files: []oci.File{a}, about: oci.About{Name: "a\nb"}, want: "name: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := oci.Pack(test.files, test.about)
			check.WantErr(t, err, nil, test.want)
		})
	}
}

func pushTo(t *testing.T, a *oci.Artifact, ref artifact.Reference, config registry.Config) error {
	t.Helper()
	to, err := push.NewRepository(ref, config, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a.Push(t.Context(), to, ref.Tag())
}

// TestPush reads pushed artifacts with the reader of the cluster.
func TestPush(t *testing.T) {
	r := fpgaregistry.Start(t)
	for name, about := range map[string]oci.About{"typed": {}, "untyped": {Untyped: true}, "blank": {BlankFor: []string{shellA}}} {
		t.Run(name, func(t *testing.T) {
			a := pack(t, about, raw(t, shellB, "image b."), raw(t, shellA, "image a."))
			ref, err := artifact.ParseReference(r.Host + "/" + repo + ":" + name)
			if err != nil {
				t.Fatal(err)
			}
			if err := pushTo(t, a, ref, registry.Config{PlainHTTP: []string{r.Host}}); err != nil {
				t.Fatal(err)
			}
			got, err := list(t, r, ":"+name)
			if diff := cmp.Diff(a.Images, got); err != nil || diff != "" {
				t.Errorf("%v (-pushed +read):\n%s", err, diff)
			}
		})
	}
}

func TestPushRefuses(t *testing.T) {
	r := fpgaregistry.Start(t)
	a := pack(t, oci.About{}, raw(t, shellA, "image a."))
	ref, err := artifact.ParseReference(r.Host + "/" + repo + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := pushTo(t, a, ref, registry.Config{}); !errors.Is(err, artifact.ErrPlainHTTP) {
		t.Errorf("without leave: got %v, want %v", err, artifact.ErrPlainHTTP)
	}
	if err := pushTo(t, a, ref.WithDigest(a.Root.Digest), registry.Config{PlainHTTP: []string{r.Host}}); err == nil {
		t.Error("to a digest: got nil, want an error")
	}
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{r.Host}, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := client.Source(ref, nil).Resolve(t.Context()); !errors.Is(err, artifact.ErrNotFound) {
		t.Errorf("got %v, %v; want nothing to be there", d, err)
	}
}

// TestPushTLS: loopback gets https too, although the library would use plain http.
func TestPushTLS(t *testing.T) {
	server := httptest.NewTLSServer(inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref, err := artifact.ParseReference(server.Listener.Addr().String() + "/" + repo + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	a := pack(t, oci.About{}, raw(t, shellA, "image a."))
	if err := pushTo(t, a, ref, registry.Config{Transport: server.Client().Transport}); err != nil {
		t.Error(err)
	}
}

func TestLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	l := layout.At(dir)
	if err := l.Create(); err != nil {
		t.Fatal(err)
	}
	resolve := func(tag string) (artifact.Descriptor, error) {
		return l.Source(tag, artifact.Digest{}, artifact.Reference{}).Resolve(t.Context())
	}
	a, b := pack(t, oci.About{}, raw(t, shellA, "image a.")), pack(t, oci.About{}, raw(t, shellB, "image b."), raw(t, shellA, "image a."))
	for _, step := range []struct {
		artifact *oci.Artifact
		tag      string
	}{{a, "a"}, {b, "b"}, {a, ""}, {b, ""}} {
		if err := step.artifact.Push(t.Context(), l, step.tag); err != nil {
			t.Fatal(err)
		}
		d, err := resolve(step.tag)
		if err != nil || d.Digest != step.artifact.Root.Digest {
			t.Fatalf("tag %q: got %s, %v; want %s", step.tag, d.Digest, err, step.artifact.Root.Digest)
		}
		got, err := oci.List(t.Context(), l, d)
		if diff := cmp.Diff(step.artifact.Images, got); err != nil || diff != "" {
			t.Errorf("%v (-written +read):\n%s", err, diff)
		}
	}
	if d, err := resolve("a"); err != nil || d.Digest != a.Root.Digest {
		t.Errorf("got %s, %v; want the first tag as it was", d.Digest, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*.*")); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v; want nothing half written", left, err)
	}
}

// TestLayoutOfOthers: unknown entries are kept, and nothing outside the directory is read.
func TestLayoutOfOthers(t *testing.T) {
	dir := t.TempDir()
	a := pack(t, oci.About{}, raw(t, shellA, "image a."))
	l := layout.At(filepath.Join(dir, "l"))
	if err := errors.Join(l.Create(), a.Push(t.Context(), l, "a")); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, "l", "index.json")
	entry := fmt.Sprintf(`{"mediaType":"x/y","digest":"%s","size":1,"annotations":{"org.opencontainers.image.ref.name":"z"},`+
		`"platform":{"os":"linux"}}`, artifact.DigestOf(nil))
	if err := os.WriteFile(index, []byte(`{"schemaVersion":2,"manifests":[`+entry+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Push(t.Context(), l, "a"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(index); err != nil || !bytes.Contains(data, []byte(entry)) {
		t.Errorf("got %s, %v; want the entry as it was", data, err)
	}
	blob := filepath.Join(dir, "l", "blobs", "sha256", a.Root.Digest.Hex())
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "outside"), a.Manifests[0].Raw, 0o600), os.Remove(blob),
		os.Symlink(filepath.Join(dir, "outside"), blob)); err != nil {
		t.Fatal(err)
	}
	if m, err := l.Manifest(t.Context(), a.Root); err == nil {
		t.Errorf("got %s through a link out of the directory, want an error", m.Raw)
	}
}
