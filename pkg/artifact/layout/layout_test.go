// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/check"
)

// Readers of images and signatures must be able to read them in a layout.
var (
	_ trust.Source         = (*Source)(nil)
	_ artifact.ImageSource = (*Source)(nil)
)

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func newLayout(t testing.TB) *Layout {
	t.Helper()
	l := At(filepath.Join(t.TempDir(), "layout"))
	check.Must(t, l.Create())
	return l
}

func blob(t testing.TB, l *Layout, text string) artifact.Descriptor {
	t.Helper()
	d := artifact.Descriptor{MediaType: "a/b", Digest: artifact.DigestOf([]byte(text)), Size: int64(len(text))}
	check.Must(t, l.Blob(t.Context(), d, opens(text)))
	return d
}

func opens(text string) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

func wire(d artifact.Descriptor) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, d.MediaType, d.Digest, d.Size)
}

// manifest returns the manifest of an image or, with a subject, of a referrer.
func manifest(t testing.TB, l *Layout, text string, subject artifact.Digest) *artifact.Manifest {
	t.Helper()
	about := ""
	if !subject.IsZero() {
		about = fmt.Sprintf(`,"artifactType":"x/signature","subject":{"mediaType":%q,"digest":%q,"size":1}`, manifestType, subject)
	}
	d := blob(t, l, text)
	m, err := artifact.ParseManifest(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]%s}`,
		manifestType, wire(d), wire(d), about))
	check.Must(t, err)
	return m
}

func resolve(t testing.TB, l *Layout, tag string, d artifact.Digest) (artifact.Digest, error) {
	t.Helper()
	found, err := l.Source(tag, d, artifact.Reference{}).Resolve(t.Context())
	return found.Digest, err
}

// TestRoundTrip writes images with signatures and reads them back by tag, by digest and by neither.
func TestRoundTrip(t *testing.T) {
	l := newLayout(t)
	one, two := manifest(t, l, "one", artifact.Digest{}), manifest(t, l, "two", artifact.Digest{})
	check.Must(t, l.Tag(t.Context(), one, ""))
	check.Must(t, l.Tag(t.Context(), two, ""))
	check.Must(t, l.Create()) // which changes nothing
	if got, err := resolve(t, l, "", artifact.Digest{}); err != nil || got != two.Digest {
		t.Errorf("got %s (%v), want the second image, which took the place of the first", got, err)
	}
	check.Must(t, l.Tag(t.Context(), one, "v1"))
	signature := manifest(t, l, "signature", two.Digest)
	check.Must(t, l.PutManifest(t.Context(), signature))
	check.Must(t, l.PutManifest(t.Context(), signature))
	check.Must(t, l.Tag(t.Context(), one, "sha256-"+two.Digest.Hex()+".sig"))
	for name, test := range map[string]struct {
		tag          string
		digest, want artifact.Digest
	}{
		"tag": {tag: "v1", want: one.Digest}, "digest": {digest: one.Digest, want: one.Digest},
		"without a tag": {want: two.Digest}, "not in the index": {digest: signature.Digest, want: signature.Digest},
	} {
		if got, err := resolve(t, l, test.tag, test.digest); err != nil || got != test.want {
			t.Errorf("%s: got %s (%v), want %s", name, got, err, test.want)
		}
	}
	list, err := l.Referrers(t.Context(), two.Digest, "x/signature")
	check.Must(t, err)
	if len(list) != 1 || list[0].Digest != signature.Digest {
		t.Errorf("got referrers %v, want %s", list, signature.Digest)
	}
	for _, d := range []artifact.Digest{one.Digest, signature.Digest} {
		if list, err := l.Referrers(t.Context(), d, "x/signature"); err != nil || len(list) > 0 {
			t.Errorf("got referrers %v of %s (%v), want none", list, d, err)
		}
	}
	tagged, err := l.Tagged(t.Context(), "sha256-"+two.Digest.Hex()+".sig")
	if err != nil || tagged.Digest != one.Digest {
		t.Errorf("got %v (%v), want what the tag names", tagged, err)
	}
	if _, err := l.Tagged(t.Context(), "other"); !errors.Is(err, artifact.ErrNotFound) || artifact.IsRetryable(err) {
		t.Errorf("got %v, want ErrNotFound for good", err)
	}
	_, err = resolve(t, l, "other", artifact.Digest{})
	check.WantErr(t, err, artifact.ErrNotFound, `tag "other"`, "among 4 entries")
	if names := leftovers(t, l.Dir()); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
}

// TestReferrersTag: registries without a list have an index at a tag, and so have copies of them.
func TestReferrersTag(t *testing.T) {
	l := newLayout(t)
	image := manifest(t, l, "one", artifact.Digest{})
	signature := manifest(t, l, "signature", image.Digest)
	check.Must(t, l.Tag(t.Context(), image, "v1"))
	other := `{"mediaType":"x/y","artifactType":"x/other","digest":"` + image.Digest.String() + `","size":1}`
	about, err := artifact.ParseManifest(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s,%s]}`, indexType,
		wire(artifact.Descriptor{MediaType: manifestType, Digest: signature.Digest, Size: int64(len(signature.Raw))}), other))
	check.Must(t, err)
	check.Must(t, l.Tag(t.Context(), about, "sha256-"+image.Digest.Hex()))
	list, err := l.Referrers(t.Context(), image.Digest, "x/signature")
	if err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
		t.Errorf("got %v (%v), want the signature", list, err)
	}
	if got, err := resolve(t, l, "", artifact.Digest{}); err != nil || got != image.Digest {
		t.Errorf("got %s (%v), want the only image", got, err)
	}
}

// TestKeeps: entries and keys of other tools stay.
func TestKeeps(t *testing.T) {
	l := newLayout(t)
	one := manifest(t, l, "one", artifact.Digest{})
	check.Must(t, l.Tag(t.Context(), one, ""))
	foreign := fmt.Sprintf(`{"schemaVersion":2,"annotations":{"a":"b"},"x":[1],"manifests":[{"mediaType":%q,"digest":%q,"size":%d,`+
		`"annotations":{"%s":"old"},"y":{"z":1}}]}`, manifestType, one.Digest, len(one.Raw), refName)
	check.Must(t, os.WriteFile(filepath.Join(l.Dir(), indexFile), []byte(foreign), 0o600))
	check.Must(t, l.Tag(t.Context(), manifest(t, l, "two", artifact.Digest{}), "new"))
	var got map[string]any
	data, err := os.ReadFile(filepath.Join(l.Dir(), indexFile))
	check.Must(t, err)
	check.Must(t, json.Unmarshal(data, &got))
	first := got["manifests"].([]any)[0].(map[string]any) //nolint:forcetypeassert // a test
	want := []any{map[string]any{"a": "b"}, []any{1.0}, map[string]any{"z": 1.0}}
	if diff := cmp.Diff(want, []any{got["annotations"], got["x"], first["y"]}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOtherContent: index.json may name anything, as in the specification's example. What is no manifest is no image, and stays.
func TestOtherContent(t *testing.T) {
	l := newLayout(t)
	one, two := manifest(t, l, "one", artifact.Digest{}), manifest(t, l, "two", artifact.Digest{})
	check.Must(t, l.Tag(t.Context(), one, ""))
	metainfo := blob(t, l, "<component/>")
	metainfo.MediaType = "application/xml"
	entries := fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d},%s]}`,
		manifestType, one.Digest, len(one.Raw), wire(metainfo))
	check.Must(t, os.WriteFile(filepath.Join(l.Dir(), indexFile), []byte(entries), 0o600))
	for _, want := range []*artifact.Manifest{one, two} {
		check.Must(t, l.Tag(t.Context(), want, ""))
		if got, err := resolve(t, l, "", artifact.Digest{}); err != nil || got != want.Digest {
			t.Errorf("got %s (%v), want the only image, %s", got, err, want.Digest)
		}
		data, err := os.ReadFile(filepath.Join(l.Dir(), indexFile))
		if err != nil || !strings.Contains(string(data), metainfo.Digest.String()) {
			t.Errorf("%v: the index lost an entry: %s", err, data)
		}
	}
}

// TestConcurrent: no tag of several writers is lost.
func TestConcurrent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			l := At(dir)
			if err := l.Create(); err != nil {
				t.Error(err)
				return
			}
			if err := l.Tag(t.Context(), manifest(t, l, "same", artifact.Digest{}), fmt.Sprint("v", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 8 {
		if _, err := At(dir).Tagged(t.Context(), fmt.Sprint("v", i)); err != nil {
			t.Error(err)
		}
	}
}

// TestRefuses: broken layouts are refused with a reason, and nothing outside the directory is opened.
func TestRefuses(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	check.Must(t, os.WriteFile(outside, []byte("outside"), 0o600))
	digest := artifact.DigestOf([]byte("outside"))
	replace := func(name, text string) func(testing.TB, *Layout) {
		return func(t testing.TB, l *Layout) {
			t.Helper()
			check.Must(t, os.WriteFile(filepath.Join(l.Dir(), name), []byte(text), 0o600))
		}
	}
	entry := `{"mediaType":"` + manifestType + `","digest":"` + digest.String() + `","size":7}`
	for name, test := range map[string]struct {
		change func(t testing.TB, l *Layout)
		kind   error
		words  string
	}{
		"no version": {replace(versionFile, `{}`), artifact.ErrInvalid, versionFile},
		"twice":      {replace(versionFile, `{"imageLayoutVersion":"1.0.0","imageLayoutVersion":"1.0.0"}`), artifact.ErrInvalid, versionFile},
		"no index": {func(t testing.TB, l *Layout) {
			t.Helper()
			check.Must(t, os.Remove(filepath.Join(l.Dir(), indexFile)))
		}, artifact.ErrNotFound, indexFile},
		"too large":    {replace(indexFile, strings.Repeat(" ", artifact.MaxManifest+1)), artifact.ErrTooLarge, indexFile},
		"an image":     {replace(indexFile, `{"schemaVersion":2,"config":`+entry+`,"layers":[]}`), artifact.ErrInvalid, "expected an index"},
		"a key twice":  {replace(indexFile, `{"schemaVersion":2,"manifests":[],"manifests":[]}`), artifact.ErrInvalid, "each key once"},
		"another case": {replace(indexFile, `{"schemaVersion":2,"Manifests":[`+entry+`]}`), artifact.ErrInvalid, ""},
		"a digest": {
			replace(indexFile, `{"schemaVersion":2,"manifests":[{"mediaType":"a/b","digest":"../x","size":1}]}`), artifact.ErrInvalid, "digest",
		},
		"a link outside": {linked(outside, digest, entry), nil, "path escapes"},
		"a pipe": {func(t testing.TB, l *Layout) {
			t.Helper()
			replace(indexFile, `{"schemaVersion":2,"manifests":[`+entry+`]}`)(t, l)
			check.Must(t, unix.Mkfifo(filepath.Join(l.Dir(), blobPath(digest)), 0o600))
		}, artifact.ErrInvalid, "expected a regular file"},
		"other bytes": {func(t testing.TB, l *Layout) {
			t.Helper()
			replace(indexFile, `{"schemaVersion":2,"manifests":[`+entry+`]}`)(t, l)
			replace(blobPath(digest), "inside!")(t, l)
		}, artifact.ErrMismatch, "7 bytes with digest"},
		"two of a tag": {func(t testing.TB, l *Layout) {
			t.Helper()
			check.Must(t, l.Tag(t.Context(), manifest(t, l, "one", artifact.Digest{}), "v2"))
			check.Must(t, l.Tag(t.Context(), manifest(t, l, "two", artifact.Digest{}), "v3"))
			data, err := os.ReadFile(filepath.Join(l.Dir(), indexFile))
			check.Must(t, err)
			replace(indexFile, strings.NewReplacer(`"v2"`, `"v1"`, `"v3"`, `"v1"`).Replace(string(data)))(t, l)
		}, artifact.ErrInvalid, "2 manifests have the tag"},
		"several": {func(t testing.TB, l *Layout) {
			t.Helper()
			check.Must(t, l.Tag(t.Context(), manifest(t, l, "one", artifact.Digest{}), "v2"))
			check.Must(t, l.Tag(t.Context(), manifest(t, l, "two", artifact.Digest{}), "v3"))
		}, artifact.ErrNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLayout(t)
			test.change(t, l)
			tag := "v1"
			if strings.Contains(name, "several") || strings.Contains(test.words, "bytes") || test.kind == nil || name == "a pipe" {
				tag = ""
			}
			d, err := l.Source(tag, artifact.Digest{}, artifact.Reference{}).Resolve(t.Context())
			if err == nil {
				t.Fatalf("got %+v, want an error", d)
			}
			if test.kind != nil && !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.words) {
				t.Errorf("got %v, want %v with %q", err, test.kind, test.words)
			}
		})
	}
}

func linked(outside string, digest artifact.Digest, entry string) func(testing.TB, *Layout) {
	return func(t testing.TB, l *Layout) {
		t.Helper()
		check.Must(t, os.Symlink(outside, filepath.Join(l.Dir(), blobPath(digest))))
		check.Must(t, os.WriteFile(filepath.Join(l.Dir(), indexFile), []byte(`{"schemaVersion":2,"manifests":[`+entry+`]}`), 0o600))
	}
}

// TestWritesWhatWasDeclared: a blob with other bytes is not written, and a damaged blob is written again.
func TestWritesWhatWasDeclared(t *testing.T) {
	l := newLayout(t)
	good := artifact.Descriptor{MediaType: "a/b", Digest: artifact.DigestOf([]byte("good")), Size: 4}
	for _, text := range []string{"goof", "goo", "goods"} {
		check.WantErr(t, l.Blob(t.Context(), good, opens(text)), artifact.ErrMismatch, "expected 4 with "+good.Digest.String())
	}
	if names := leftovers(t, l.Dir()); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
	check.Must(t, l.Blob(t.Context(), good, opens("good")))
	check.Must(t, os.WriteFile(filepath.Join(l.Dir(), blobPath(good.Digest)), []byte("goof"), 0o600))
	check.Must(t, l.Blob(t.Context(), good, opens("good")))
	if data, err := l.ReadBlob(t.Context(), good); err != nil || !bytes.Equal(data, []byte("good")) {
		t.Errorf("got %q (%v)", data, err)
	}
	full := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	if err := At(full).Create(); err == nil || !strings.Contains(err.Error(), `it holds something else, "x"`) {
		t.Errorf("got %v, want a refusal", err)
	}
}

func leftovers(t testing.TB, dir string) (names []string) {
	t.Helper()
	check.Must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if isTemporary(filepath.Base(path)) {
			names = append(names, path)
		}
		return err
	}))
	return names
}

// FuzzIndex: whatever index.json is, it is refused or written back with the same entries.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"manifests":[]}`))
	f.Add([]byte(`{"schemaVersion":2,"mediaType":"` + indexType + `","manifests":[{"mediaType":"a/b","digest":"sha256:` +
		strings.Repeat("0a", 32) + `","size":3,"annotations":{"` + refName + `":"v1"},"x":{}}],"y":null}`))
	f.Add([]byte(`{"schemaVersion":2,"MANIFESTS":[]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[],"subject":{"mediaType":"a/b","digest":"sha256:00","size":3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parseIndex(data)
		if err != nil {
			if !errors.Is(err, artifact.ErrInvalid) && !errors.Is(err, artifact.ErrTooLarge) {
				t.Errorf("an error of no kind: %v", err)
			}
			return
		}
		again, err := x.bytes()
		if err != nil {
			return // numbers and text are written in another form, so the result may exceed the limit
		}
		y, err := parseIndex(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(x.entries, y.entries); diff != "" {
			t.Errorf("(-was +is):\n%s", diff)
		}
	})
}
