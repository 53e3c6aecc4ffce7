// SPDX-License-Identifier: Apache-2.0

// Package signed is a registry in the test's own process with images of kernel caches, and signatures of them as cosign makes them, in both
// of its formats. It has a list of referrers or, as older registries, an index at a tag.
package signed

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/lazylayer"
	"github.com/fettle-dev/fettle/test/treesum"
)

const (
	bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	simpleType = "application/vnd.dev.cosign.simplesigning.v1+json"
	configType = "application/vnd.oci.image.config.v1+json"
	layerType  = "application/vnd.oci.image.layer.v1.tar+gzip"

	payloadType = "application/vnd.in-toto+json"
)

// Registry is a running registry of images.
type Registry struct {
	*fpgaregistry.Registry

	referrers bool
	about     map[artifact.Digest][]map[string]any
	// layers are the digests of the images' layers, and trees what the images unpack to.
	layers map[artifact.Digest]string
	trees  map[artifact.Digest]map[string]string
}

// Tree is what an image that Files pushed unpacks to, as treesum has it. Nil: it is not such an image.
func (r *Registry) Tree(image artifact.Digest) map[string]string { return r.trees[image] }

// LayerOf is the digest of an image's layer.
func (r *Registry) LayerOf(image artifact.Digest) string { return r.layers[image] }

// LayerReads counts how often layers were asked for.
func (r *Registry) LayerReads() (n int64) {
	for _, digest := range slices.Compact(slices.Sorted(maps.Values(r.layers))) {
		n += r.ReadsOf(digest)
	}
	return n
}

// Start runs a registry until the test ends, with or without a list of referrers.
func Start(t testing.TB, referrers bool) *Registry {
	t.Helper()
	return StartAt(t, "127.0.0.1", referrers)
}

// StartAt runs one at an address of this machine, so that others reach it.
func StartAt(t testing.TB, address string, referrers bool) *Registry {
	t.Helper()
	return &Registry{
		Registry:  fpgaregistry.StartAt(t, address, registry.WithReferrersSupport(referrers)),
		referrers: referrers, about: map[artifact.Digest][]map[string]any{}, layers: map[artifact.Digest]string{},
		trees: map[artifact.Digest]map[string]string{},
	}
}

// Labels are those of an image with Triton kernels for one GPU: "90" of NVIDIA's.
func Labels(arch string) map[string]string {
	return map[string]string{
		"cache.triton.image/entry-count":      "1",
		"cache.triton.image/cache-size-bytes": "7",
		"cache.triton.image/summary":          fmt.Sprintf(`{"targets":[{"backend":"cuda","arch":%q,"warp_size":32}]}`, arch),
	}
}

// Image pushes an image of one layer with a kernel of this text. No tag leaves it untagged.
func (r *Registry) Image(t testing.TB, repository, tag, kernel string, labels map[string]string) artifact.Digest {
	t.Helper()
	return r.Files(t, repository, tag, map[string]string{"K/kernel.cubin": kernel}, labels)
}

// Files pushes an image of one layer with the files of a cache of Triton's. No tag leaves it untagged.
func (r *Registry) Files(t testing.TB, repository, tag string, files, labels map[string]string) artifact.Digest {
	t.Helper()
	plain := Tar(t, files)
	image := r.Layer(t, repository, tag, lazylayer.Layer{MediaType: layerType, Tar: plain, Data: zipped(t, plain)}, labels)
	tree, err := treesum.OfTars(plain)
	check.Must(t, err)
	r.trees[image] = tree
	return image
}

// Layer pushes an image of one layer. No tag leaves it untagged.
func (r *Registry) Layer(t testing.TB, repository, tag string, l lazylayer.Layer, labels map[string]string) artifact.Digest {
	t.Helper()
	config := marshal(t, map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Labels": labels},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{artifact.DigestOf(l.Tar).String()}},
	})
	blob := r.Blob(t, repository, l.MediaType, l.Data)
	blob.Annotations = l.Annotations
	image := r.manifest(t, repository, tag, fpgaregistry.ManifestType, map[string]any{
		"config": r.Blob(t, repository, configType, config), "layers": []any{blob},
	})
	r.layers[image] = blob.Digest
	return image
}

// Index pushes an index of images for platforms.
func (r *Registry) Index(t testing.TB, repository, tag string, images map[string]artifact.Digest) artifact.Digest {
	t.Helper()
	entries := []any{}
	for _, arch := range []string{"amd64", "arm64"} {
		if d, ok := images[arch]; ok {
			entries = append(entries, map[string]any{
				"mediaType": fpgaregistry.ManifestType, "digest": d.String(), "size": 0,
				"platform": map[string]string{"os": "linux", "architecture": arch},
			})
		}
	}
	return r.manifest(t, repository, tag, fpgaregistry.IndexType, map[string]any{"manifests": entries})
}

func (r *Registry) manifest(t testing.TB, repository, tag, mediaType string, content map[string]any) artifact.Digest {
	t.Helper()
	content["schemaVersion"], content["mediaType"] = 2, mediaType
	data := marshal(t, content)
	d := artifact.DigestOf(data)
	if tag == "" {
		tag = d.String()
	}
	r.Raw(t, repository, tag, mediaType, data)
	return d
}

// Tar is the tar of an image with the files of a cache of Triton's, or of the directory io.TYPE.cache that their names begin with.
func Tar(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		full := name
		if !strings.HasPrefix(name, "io.") {
			full = "io.triton.cache/" + name
		}
		header := &tar.Header{Name: full, Mode: 0o644, Size: int64(len(files[name]))}
		check.Must(t, w.WriteHeader(header))
		_, err := w.Write([]byte(files[name]))
		check.Must(t, err)
	}
	check.Must(t, w.Close())
	return raw.Bytes()
}

func zipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(plain)
	check.Must(t, errors.Join(err, z.Close()))
	return out.Bytes()
}

// Key signs.
type Key struct{ pair *sign.EphemeralKeypair }

// NewKey makes one.
func NewKey(t testing.TB) Key {
	t.Helper()
	pair, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		t.Fatal(err)
	}
	return Key{pair}
}

// PEM is the public key.
func (k Key) PEM(t testing.TB) string {
	t.Helper()
	text, err := k.pair.GetPublicKeyPem()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What a statement says of an image.
const (
	SignPredicate = "https://sigstore.dev/cosign/sign/v1"
	SBOMPredicate = "https://spdx.dev/Document"
)

func statement(d artifact.Digest, predicate string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],`+
		`"predicateType":%q,"predicate":{}}`, d.Hex(), predicate)
}

// SignV3 attaches a bundle as cosign 3 does.
func (r *Registry) SignV3(t testing.TB, repository string, d artifact.Digest, key Key) {
	t.Helper()
	r.AttestV3(t, repository, d, key, SignPredicate)
}

// AttestV3 attaches a bundle that says something else of the image, as cosign attest does.
func (r *Registry) AttestV3(t testing.TB, repository string, d artifact.Digest, key Key, predicate string) {
	t.Helper()
	b, err := sign.Bundle(&sign.DSSEData{Data: statement(d, predicate), PayloadType: payloadType}, key.pair, sign.BundleOptions{})
	check.Must(t, err)
	r.attach(t, repository, d, b)
}

// Identity is a person or a build that an authority of a world gives certificates to.
type Identity struct {
	World           World
	Issuer, Subject string
}

// SignKeyless attaches a bundle with a certificate.
func (r *Registry) SignKeyless(t testing.TB, repository string, d artifact.Digest, by Identity) {
	t.Helper()
	signed := Attested{Issuer: by.Issuer, Subject: by.Subject, After: 5 * time.Minute} // certificates of the world begin then
	r.attach(t, repository, d, by.World.Attest(t, statement(d, SignPredicate), signed))
}

func (r *Registry) attach(t testing.TB, repository string, d artifact.Digest, b *bundlepb.Bundle) {
	t.Helper()
	data, err := protojson.Marshal(b)
	check.Must(t, err)
	referrer := r.manifest(t, repository, "", fpgaregistry.ManifestType, map[string]any{
		"artifactType": bundleType, "config": r.Blob(t, repository, fpgaregistry.EmptyType, []byte("{}")),
		"layers":  []any{r.Blob(t, repository, bundleType, data)},
		"subject": map[string]any{"mediaType": fpgaregistry.ManifestType, "digest": d.String(), "size": 1},
	})
	if r.referrers {
		return
	}
	r.about[d] = append(r.about[d], map[string]any{
		"mediaType": fpgaregistry.ManifestType, "digest": referrer.String(), "size": 0, "artifactType": bundleType,
	})
	r.manifest(t, repository, strings.Replace(d.String(), ":", "-", 1), fpgaregistry.IndexType, map[string]any{"manifests": r.about[d]})
}

// SignV2 puts a simple signature at the tag where cosign 2 does, in the place of others.
func (r *Registry) SignV2(t testing.TB, repository string, d artifact.Digest, key Key) {
	t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, d)
	signature, _, err := key.pair.SignData(t.Context(), payload)
	if err != nil {
		t.Fatal(err)
	}
	blob := r.Blob(t, repository, simpleType, payload)
	r.manifest(t, repository, "sha256-"+d.Hex()+".sig", fpgaregistry.ManifestType, map[string]any{
		"config": r.Blob(t, repository, configType, []byte("{}")),
		"layers": []any{map[string]any{
			"mediaType": simpleType, "digest": blob.Digest, "size": blob.Size,
			"annotations": map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
		}},
	})
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
