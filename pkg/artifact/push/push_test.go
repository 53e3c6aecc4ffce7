// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	inmemory "github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/test/check"
)

var _ Target = (*layout.Layout)(nil)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

func newLayout(t testing.TB) *layout.Layout {
	t.Helper()
	l := layout.At(filepath.Join(t.TempDir(), "layout"))
	check.Must(t, l.Create())
	return l
}

func wire(mediaType string, raw []byte) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, artifact.DigestOf(raw), len(raw))
}

// image writes an image with the text as its layer, and with a subject if there is one.
func image(t testing.TB, l *layout.Layout, text string, subject artifact.Digest) *artifact.Manifest {
	t.Helper()
	data := []byte(text)
	check.Must(t, l.Blob(t.Context(), artifact.Descriptor{Digest: artifact.DigestOf(data), Size: int64(len(data))},
		func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }))
	about := ""
	if !subject.IsZero() {
		about = fmt.Sprintf(`,"artifactType":%q,"subject":{"mediaType":%q,"digest":%q,"size":1}`, BundleType, manifestType, subject)
	}
	m, err := artifact.ParseManifest(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]%s}`,
		manifestType, wire("a/b", data), wire("a/b", data), about))
	check.Must(t, err)
	check.Must(t, l.PutManifest(t.Context(), m))
	return m
}

func index(t testing.TB, of ...*artifact.Manifest) *artifact.Manifest {
	t.Helper()
	var entries []string
	for _, m := range of {
		entries = append(entries, wire(m.MediaType, m.Raw))
	}
	m, err := artifact.ParseManifest(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`,
		indexType, strings.Join(entries, ",")))
	check.Must(t, err)
	return m
}

// TestCopy brings an index with its images and all their signatures to a registry without a list of referrers, and back.
func TestCopy(t *testing.T) {
	from, back := newLayout(t), newLayout(t)
	one, two := image(t, from, "one", artifact.Digest{}), image(t, from, "two", artifact.Digest{})
	both := index(t, one, two)
	check.Must(t, from.Tag(t.Context(), both, "v1"))
	onOne, onBoth := image(t, from, "signature of one", one.Digest), image(t, from, "signature of both", both.Digest)
	older := image(t, from, "older signature", artifact.Digest{})
	check.Must(t, from.Tag(t.Context(), older, "sha256-"+both.Digest.Hex()+".sig"))

	server := httptest.NewServer(inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := artifact.ParseReference(host + "/team/both:v1")
	check.Must(t, err)
	to, err := NewRepository(ref, registry.Config{PlainHTTP: []string{host}}, nil)
	check.Must(t, err)
	copied, err := Copy(t.Context(), from.Source("v1", artifact.Digest{}, artifact.Reference{}), to, "v1")
	check.Must(t, err)
	if copied.Digest != both.Digest || len(copied.Signatures) != 3 {
		t.Errorf("got %+v, want %s with three signatures", copied, both.Digest)
	}
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{host}, Tries: 1})
	check.Must(t, err)
	_, err = Copy(t.Context(), opening{client.Source(ref, nil)}, back, "v2")
	check.Must(t, err)
	for _, m := range []*artifact.Manifest{one, two, both, onOne, onBoth, older} {
		if got, err := back.Manifest(t.Context(), artifact.Descriptor{Digest: m.Digest}); err != nil || !bytes.Equal(got.Raw, m.Raw) {
			t.Errorf("%s did not come back: %v", m.Raw, err)
		}
	}
	for _, subject := range []artifact.Digest{one.Digest, both.Digest} {
		if list, err := back.Referrers(t.Context(), subject, BundleType); err != nil || len(list) != 1 {
			t.Errorf("got referrers %v of %s (%v), want one", list, subject, err)
		}
	}
}

// opening reads small blobs as if they were large.
type opening struct{ *registry.Source }

func (o opening) Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	data, err := o.ReadBlob(ctx, d)
	return io.NopCloser(bytes.NewReader(data)), err
}

// tampered gives other bytes for layers.
type tampered struct{ *layout.Source }

func (tampered) Open(context.Context, artifact.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("two")), nil
}

// TestCopyRefuses: a blob with other bytes, a nested index and a missing image lead to no tag.
func TestCopyRefuses(t *testing.T) {
	from := newLayout(t)
	one := image(t, from, "one", artifact.Digest{})
	check.Must(t, from.Tag(t.Context(), one, "v1"))
	inner := index(t, one)
	check.Must(t, from.PutManifest(t.Context(), inner))
	check.Must(t, from.Tag(t.Context(), index(t, inner), "nested"))
	for name, test := range map[string]struct {
		source Source
		kind   error
	}{
		"tampered": {tampered{from.Source("v1", artifact.Digest{}, artifact.Reference{})}, artifact.ErrMismatch},
		"nested":   {from.Source("nested", artifact.Digest{}, artifact.Reference{}), artifact.ErrInvalid},
		"absent":   {from.Source("never", artifact.Digest{}, artifact.Reference{}), artifact.ErrNotFound},
	} {
		to := newLayout(t)
		if _, err := Copy(t.Context(), test.source, to, "v1"); !errors.Is(err, test.kind) {
			t.Errorf("%s: got %v, want %v", name, err, test.kind)
		}
		if m, err := to.Tagged(t.Context(), "v1"); !errors.Is(err, artifact.ErrNotFound) {
			t.Errorf("%s: the tag names %v (%v)", name, m, err)
		}
	}
}
