// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/treesum"
)

// tarOf is a bare tar in which the i-th file has i thousand bytes.
func tarOf(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, name := range names {
		content := bytes.Repeat([]byte{byte(i + 1)}, 1000*i)
		check.Must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write(content)
		check.Must(t, err)
	}
	check.Must(t, w.Close())
	return b.Bytes()
}

// newTree is the tree of an image with these layers and a digest made of the seed.
func newTree(seed string, form artifact.TreeForm, tars ...[]byte) artifact.TreeSpec {
	spec := artifact.TreeSpec{
		Digest: artifact.DigestOf([]byte("image " + seed)), Room: 1 << 20, Form: form,
		Options: unpack.Options{Paths: []string{"cache/"}},
	}
	for _, data := range tars {
		d := artifact.Descriptor{
			MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: artifact.DigestOf(data), Size: int64(len(data)),
		}
		spec.Layers = append(spec.Layers, artifact.TreeLayer{Descriptor: d, DiffID: d.Digest})
	}
	return spec
}

// TestUnpackFromRegistry: a tree straight from a registry whose every second answer breaks off.
func TestUnpackFromRegistry(t *testing.T) {
	tars := [][]byte{tarOf(t, "cache/a", "cache/d/b", "cache/d/c"), tarOf(t, "cache/d/e/f", "cache/d/b")}
	byDigest := map[string][]byte{}
	for _, data := range tars {
		byDigest[artifact.DigestOf(data).String()] = data
	}
	for _, form := range []artifact.TreeForm{artifact.TreeDirectory, artifact.TreeImage} {
		t.Run(string(form), func(t *testing.T) {
			h := plainHub(t)
			spec := newTree("1", form, tars...)
			h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
				body := ranged(byDigest[path.Base(r.URL.Path)])(w, r)
				if n%2 == 1 {
					body = body[:len(body)/2]
				}
				_, _ = w.Write(body)
			}))
			s := newStore(t, artifact.StoreConfig{})
			tree, err := s.Unpack(t.Context(), spec, h.source(t).Layers(spec.Layers))
			check.Must(t, err)
			if tree.Entries != 7 {
				t.Errorf("%+v", tree.TreeMetadata)
			}
			holds, err := treesum.OfTars(tars...)
			check.Must(t, err)
			want := map[artifact.Digest]map[string]string{spec.Digest: holds}
			checkTrees(t, s, want)

			gone := newTree("2", form, tars...)
			h.set(answering(http.StatusNotFound, nil, ""))
			_, err = s.Unpack(t.Context(), gone, h.source(t).Layers(gone.Layers))
			wantErr(t, err, artifact.ErrNotFound)
			h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(ranged(byDigest[path.Base(r.URL.Path)])(w, r)[:700])
			}))
			_, err = s.Unpack(t.Context(), gone, h.source(t).Layers(gone.Layers))
			wantErr(t, err, artifact.ErrUnavailable)
			var refused *unpack.Error
			if errors.As(err, &refused) {
				t.Errorf("an outage is held against the image: %v", err)
			}
			if _, err := s.OpenTree(gone.Digest); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a tree of half an image: %v", err)
			}
			checkTrees(t, s, want)
		})
	}
}

// TestUnpackRefusesAtOnce: a wrong beginning of a layer is refused before the registry has sent the rest.
func TestUnpackRefusesAtOnce(t *testing.T) {
	h := plainHub(t)
	layer := append([]byte("no tar"), blobBytes(1, 1<<20)...)
	spec := newTree("1", artifact.TreeImage, layer)
	h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(ranged(layer)(w, r)[:600<<10])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	config := h.quick()
	config.Stall = 10 * time.Minute // longer than any test
	src := newSource(t, config, h.host()+"/"+repo+":v1")
	_, err := newStore(t, artifact.StoreConfig{}).Unpack(t.Context(), spec, src.Layers(spec.Layers))
	wantErr(t, err, artifact.ErrInvalid, string(unpack.RuleTar))
}
