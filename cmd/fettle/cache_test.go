// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/test/check"
)

// call runs the program and gives its status with what it printed.
func call(t testing.TB, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// wants fails unless the program ends with the status and prints the words.
func wants(t testing.TB, status int, words string, args ...string) string {
	t.Helper()
	got, stdout, stderr := call(t, args...)
	if got != status || !strings.Contains(stdout+stderr, words) {
		t.Fatalf("fettle %s: status %d, want %d with %q:\n%s%s", strings.Join(args, " "), got, status, words, stdout, stderr)
	}
	return stdout
}

// cacheDir is a Triton cache of one kernel.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache", "K1")
	check.Must(t, os.MkdirAll(dir, 0o700))
	for name, text := range map[string]string{
		"add.cubin":       "\x7fELF",
		"add.json":        `{"hash":"x","target":{"backend":"cuda","arch":90,"warp_size":32},"num_warps":4,"name":"add"}`,
		"__grp__add.json": `{"child_paths":{"add.json":"/root/.triton/cache/K1/add.json","add.cubin":"/root/.triton/cache/K1/add.cubin"}}`,
	} {
		check.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Dir(dir)
}

// signer signs images in a layout as cosign does.
type signer struct {
	t    testing.TB
	l    *layout.Layout
	pair *sign.EphemeralKeypair
}

func newSigner(t testing.TB, l *layout.Layout) signer {
	t.Helper()
	pair, err := sign.NewEphemeralKeypair(nil)
	check.Must(t, err)
	return signer{t, l, pair}
}

func (s signer) blob(mediaType string, data []byte) map[string]any {
	s.t.Helper()
	d := artifact.Descriptor{MediaType: mediaType, Digest: artifact.DigestOf(data), Size: int64(len(data))}
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	check.Must(s.t, s.l.Blob(s.t.Context(), d, open))
	return map[string]any{"mediaType": mediaType, "digest": d.Digest, "size": d.Size}
}

func (s signer) manifest(content map[string]any) *artifact.Manifest {
	s.t.Helper()
	content["schemaVersion"], content["mediaType"] = 2, "application/vnd.oci.image.manifest.v1+json"
	data, err := json.Marshal(content)
	check.Must(s.t, err)
	m, err := artifact.ParseManifest(data)
	check.Must(s.t, err)
	return m
}

// v3 is a referrer, of the predicate that cosign sign writes or another.
func (s signer) v3(d artifact.Digest, predicate string) {
	s.t.Helper()
	const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],`+
		`"predicateType":%q,"predicate":{}}`, d.Hex(), predicate)
	b, err := sign.Bundle(&sign.DSSEData{Data: statement, PayloadType: "application/vnd.in-toto+json"}, s.pair, sign.BundleOptions{})
	check.Must(s.t, err)
	data, err := protojson.Marshal(b)
	check.Must(s.t, err)
	check.Must(s.t, s.l.PutManifest(s.t.Context(), s.manifest(map[string]any{
		"artifactType": bundleType, "layers": []any{s.blob(bundleType, data)},
		"config":  s.blob("application/vnd.oci.empty.v1+json", []byte("{}")),
		"subject": map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": d, "size": 1},
	})))
}

const signPredicate = "https://sigstore.dev/cosign/sign/v1"

// v2 is a payload at a tag.
func (s signer) v2(d artifact.Digest) {
	s.t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, d)
	signature, _, err := s.pair.SignData(s.t.Context(), payload)
	check.Must(s.t, err)
	layer := s.blob("application/vnd.dev.cosign.simplesigning.v1+json", payload)
	layer["annotations"] = map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)}
	check.Must(s.t, s.l.Tag(s.t.Context(), s.manifest(map[string]any{
		"config": s.blob("application/vnd.oci.image.config.v1+json", []byte("{}")), "layers": []any{layer},
	}), "sha256-"+d.Hex()+".sig"))
}

// policy is a file with a TrustPolicy that believes the signer.
func (s signer) policy(images string) string {
	s.t.Helper()
	text, err := s.pair.GetPublicKeyPem()
	check.Must(s.t, err)
	name := filepath.Join(s.t.TempDir(), "policy.yaml")
	check.Must(s.t, os.WriteFile(name, fmt.Appendf(nil, `apiVersion: fettle.dev/v1alpha1
kind: TrustPolicy
metadata: {name: kernels}
spec:
  images: [%q]
  authorities:
  - name: team
    key:
      pem: %q
`, images, text), 0o600))
	return name
}

func build(t testing.TB) (*layout.Layout, artifact.Digest) {
	t.Helper()
	l := layout.At(filepath.Join(t.TempDir(), "layout"))
	wants(t, 0, "oci:"+l.Dir()+"@sha256:", "cache", "build", cacheDir(t), "-t", "oci:"+l.Dir()+":v1")
	m, err := l.Tagged(t.Context(), "v1")
	check.Must(t, err)
	return l, m.Digest
}

// TestCacheSigned verifies both forms of signatures in a layout, in registries with and without a list of referrers to which they were
// pushed, and in a layout again, and extracts what was verified.
func TestCacheSigned(t *testing.T) {
	for _, form := range []string{"CosignV2", "CosignV3"} {
		for _, referrers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s referrers %t", form, referrers), func(t *testing.T) {
				l, d := build(t)
				s := newSigner(t, l)
				if form == "CosignV2" {
					s.v2(d)
				} else {
					s.v3(d, signPredicate)
				}
				server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(referrers)))
				t.Cleanup(server.Close)
				repository := strings.TrimPrefix(server.URL, "http://") + "/team/cache"
				policy, again := s.policy("127.0.0.1:*/team/*"), filepath.Join(t.TempDir(), "again")
				want := "SIGNED     " + form + " by "
				wants(t, 0, want, "cache", "verify", "oci:"+l.Dir(), "--policy", policy, "--as", repository)
				wants(t, 0, "SIGNATURE", "cache", "push", "oci:"+l.Dir()+":v1", repository+":v1", "--plain-http")
				wants(t, 0, want, "cache", "verify", repository+":v1", "--plain-http", "--policy", policy)
				wants(t, 0, "SIGNATURE", "cache", "push", repository+":v1", "oci:"+again, "--plain-http")
				wants(t, 0, want, "cache", "verify", "oci:"+again, "--policy", policy, "--as", repository)
				inspected := wants(t, 0, d.String(), "cache", "inspect", repository+":v1", "--plain-http", "--files")
				if diff := cmp.Diff(inspected, wants(t, 0, "", "cache", "inspect", "oci:"+again)); diff != "" {
					t.Errorf("the registry's reads otherwise than the layout's (-registry +layout):\n%s", diff)
				}
				dir := filepath.Join(t.TempDir(), "out")
				wants(t, 0, "3 files with", "cache", "extract", repository+":v1", dir, "--plain-http", "--policy", policy)
				other := filepath.Join(t.TempDir(), "other")
				wants(t, 0, d.String(), "cache", "build", dir, "-t", "oci:"+other) // the same files give the same digest
			})
		}
	}
}

// TestCacheRefused: what no policy vouches for is neither verified nor extracted, and the message says why.
func TestCacheRefused(t *testing.T) {
	l, d := build(t)
	s, stranger := newSigner(t, l), newSigner(t, l)
	s.v3(d, "https://spdx.dev/Document")
	policy := s.policy("registry.example/team/*")
	ref := []string{"oci:" + l.Dir(), "--as", "registry.example/team/cache", "--policy"}
	wants(t, 1, "refused", append([]string{"cache", "verify"}, append(ref, policy)...)...)
	s.v2(d)
	wants(t, 0, "CosignV2", append([]string{"cache", "verify"}, append(ref, policy)...)...)
	wants(t, 1, "refused", append([]string{"cache", "verify"}, append(ref, stranger.policy("registry.example/team/*"))...)...)
	elsewhere := []string{"cache", "verify", "oci:" + l.Dir(), "--as", "registry.example/other/x", "--policy", policy}
	wants(t, 1, "no TrustPolicy is for this repository", elsewhere...)
	wants(t, 2, "say with --as", "cache", "verify", "oci:"+l.Dir(), "--policy", policy)
	wants(t, 2, "want --policy FILE", "cache", "verify", "oci:"+l.Dir())
	dir := t.TempDir()
	extract := append([]string{"cache", "extract", "--into", ref[0], dir}, ref[1:]...)
	wants(t, 1, "refused", append(extract, stranger.policy("registry.example/team/*"))...)
	wants(t, 2, "want one of --policy, --digest and --insecure-skip-verify", "cache", "extract", "--into", ref[0], dir)
	wants(t, 2, "want one of", "cache", "extract", ref[0], dir, "--digest", d.String(), "--insecure-skip-verify")
	wants(t, 1, "not found", "cache", "extract", ref[0], dir, "--into", "--digest", artifact.DigestOf([]byte("x")).String())
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("there is %v (%v) after refusals", entries, err)
	}
	other := filepath.Join(t.TempDir(), "pod.yaml")
	check.Must(t, os.WriteFile(other, []byte("apiVersion: v1\nkind: Pod\n"), 0o600))
	wants(t, 1, "got v1 Pod, want fettle.dev/v1alpha1 TrustPolicy", append([]string{"cache", "verify"}, append(ref, other)...)...)
}

// TestCacheTampered: a changed layer is noticed before anything of it is there.
func TestCacheTampered(t *testing.T) {
	l, d := build(t)
	m, err := l.Tagged(t.Context(), "v1")
	check.Must(t, err)
	name := filepath.Join(l.Dir(), "blobs", "sha256", m.Layers[0].Digest.Hex())
	data, err := os.ReadFile(name)
	check.Must(t, err)
	data[len(data)-5] ^= 1
	check.Must(t, os.WriteFile(name, data, 0o600))
	dir := t.TempDir()
	wants(t, 1, "layer 1: ", "cache", "extract", "oci:"+l.Dir(), dir, "--into", "--digest", d.String())
	wants(t, 1, "not what was declared", "cache", "push", "oci:"+l.Dir(), "oci:"+filepath.Join(t.TempDir(), "copy"))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("there is %v (%v) of a layer that was changed", entries, err)
	}
}
