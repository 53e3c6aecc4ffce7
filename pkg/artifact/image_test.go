// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// blobs is an ImageSource in memory.
type blobs map[Digest][]byte

func (b blobs) add(text string) string {
	b[DigestOf([]byte(text))] = []byte(text)
	return DigestOf([]byte(text)).String()
}

func (b blobs) Manifest(_ context.Context, d Descriptor) (*Manifest, error) {
	data, ok := b[d.Digest]
	if !ok {
		return nil, ErrNotFound
	}
	return ParseManifest(data)
}

func (b blobs) ReadBlob(_ context.Context, d Descriptor) ([]byte, error) {
	data, ok := b[d.Digest]
	if !ok {
		return nil, ErrNotFound
	}
	return data, nil
}

const gzipLayer = "application/vnd.oci.image.layer.v1.tar+gzip"

// image adds an image whose layers are of the sizes.
func (b blobs) image(config string, sizes ...int) string {
	var layers []string
	for _, size := range sizes {
		layers = append(layers, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, gzipLayer, DigestOf([]byte{byte(size)}), size))
	}
	at := b.add(config)
	return b.add(fmt.Sprintf(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},`+
		`"layers":[%s]}`, at, len(config), strings.Join(layers, ",")))
}

func (b blobs) index(entries ...string) string {
	return b.add(`{"schemaVersion":2,"manifests":[` + strings.Join(entries, ",") + `]}`)
}

func entry(digest, more string) string {
	return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":1%s}`, digest, more)
}

func TestReadImage(t *testing.T) {
	b := blobs{}
	first, second := DigestOf([]byte("first")), DigestOf([]byte("second"))
	plain := b.image(fmt.Sprintf(`{"config":{"Labels":{"a":"b"}},"rootfs":{"diff_ids":[%q,%q]}}`, first, second), 10, 20)
	other := b.image(fmt.Sprintf(`{"rootfs":{"diff_ids":[%q]}}`, first), 30)
	attestation := entry(other, `,"platform":{"os":"unknown","architecture":"unknown"},"annotations":{"vnd.docker.reference.type":"x"}`)
	metainfo := fmt.Sprintf(`{"mediaType":"application/xml","digest":%q,"size":7}`, first) // as in the specification's example
	amd, arm := `,"platform":{"os":"linux","architecture":"amd64"}`, `,"platform":{"os":"linux","architecture":"arm64","variant":"v8"}`
	armConfig := b.image(fmt.Sprintf(`{"os":"linux","architecture":"arm64","variant":"v8","rootfs":{"diff_ids":[%q]}}`, first), 30)
	on := func(platform string, i *Image) *Image {
		for n := range i.Layers {
			i.Layers[n].Platform = platform
		}
		return i
	}
	want := func(digest string, labels map[string]string, sizes ...int) *Image {
		d, _ := ParseDigest(digest)
		i := &Image{Digest: d, Labels: labels}
		for n, size := range sizes {
			layer := Descriptor{MediaType: gzipLayer, Digest: DigestOf([]byte{byte(size)}), Size: int64(size)}
			i.Layers = append(i.Layers, TreeLayer{Descriptor: layer, DiffID: []Digest{first, second}[n]})
		}
		return i
	}
	labels := map[string]string{"a": "b"}
	for name, c := range map[string]struct {
		digest, platform string
		want             *Image
	}{
		"an image":              {plain, "linux/amd64", want(plain, labels, 10, 20)},
		"the only entry":        {b.index(entry(plain, arm), attestation), "linux/amd64", on("linux/arm64/v8", want(plain, labels, 10, 20))},
		"one of several":        {b.index(entry(plain, amd), entry(other, arm)), "linux/arm64", on("linux/arm64/v8", want(other, nil, 30))},
		"another of several":    {b.index(entry(plain, amd), entry(other, arm)), "linux/amd64", on("linux/amd64", want(plain, labels, 10, 20))},
		"the config's platform": {armConfig, "linux/amd64", on("linux/arm64/v8", want(armConfig, nil, 30))},
		"the config, not index": {b.index(entry(armConfig, amd)), "linux/amd64", on("linux/arm64/v8", want(armConfig, nil, 30))},
		"beside something else": {b.index(entry(plain, ""), metainfo), "linux/amd64", want(plain, labels, 10, 20)},
		"none of several":       {b.index(entry(plain, amd), entry(other, arm)), "linux/arm", nil},
		"an index in the index": {b.index(entry(b.index(entry(plain, "")), "")), "linux/amd64", nil},
		"an empty index":        {b.index(), "linux/amd64", nil},
		"too few diffIDs":       {b.image(fmt.Sprintf(`{"rootfs":{"diff_ids":[%q]}}`, first), 10, 20), "linux/amd64", nil},
		"no layer":              {b.image(`{}`), "linux/amd64", nil},
		"a broken diffID":       {b.image(`{"rootfs":{"diff_ids":["sha256:ab"]}}`, 10), "linux/amd64", nil},
		"a key twice":           {b.image(`{"rootfs":{},"rootfs":{}}`, 10), "linux/amd64", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := ParseDigest(c.digest)
			got, err := ReadImage(t.Context(), b, Descriptor{Digest: d}, c.platform)
			if c.want == nil {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("got %v, want %v", err, ErrInvalid)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
