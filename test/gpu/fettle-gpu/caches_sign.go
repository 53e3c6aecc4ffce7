// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
)

// Media types of a signature as cosign 3 attaches it.
const (
	bundleType   = "application/vnd.dev.sigstore.bundle.v0.3+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	emptyType    = "application/vnd.oci.empty.v1+json"
)

// sign signs the image in its layout with a new key, and checks that the CLI believes this key and no other. It returns the file of a
// TrustPolicy with the key.
func (k *kernelCaches) sign(ctx context.Context) (policy string, err error) {
	pair, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	stranger, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	if policy, err = k.policy("policy.yaml", pair); err != nil {
		return "", err
	}
	foreign, err := k.policy("stranger.yaml", stranger)
	if err != nil {
		return "", err
	}
	verify := []string{"cache", "verify", "oci:" + k.layout + ":v1", "--as", kernelRepository, "--policy"}
	k.f.check("fettle cache verify: no signature is refused", k.refused(ctx, "refused", append(verify, policy)...))
	if err := k.attach(ctx, pair); err != nil {
		return "", fmt.Errorf("sign the image: %w", err)
	}
	begin := time.Now()
	k.f.check("fettle cache verify: the key of the signature is believed", k.verified(ctx, append(verify, policy)...))
	k.f.fact("verify, s", time.Since(begin).Seconds())
	k.f.check("fettle cache verify: another key is refused", k.refused(ctx, "refused", append(verify, foreign)...))
	never := filepath.Join(k.dir, "never")
	err = k.refused(ctx, "refused", "cache", "extract", "oci:"+k.layout+":v1", never, "--as", kernelRepository, "--policy", foreign)
	if _, there := os.Lstat(never); err == nil && there == nil {
		err = fmt.Errorf("%s is there", never)
	}
	k.f.check("fettle cache extract: another key is refused, and leaves nothing", err)
	return policy, nil
}

// verified runs the CLI, which must say the digest that was built.
func (k *kernelCaches) verified(ctx context.Context, args ...string) error {
	var said struct {
		Digest artifact.Digest `json:"digest"`
	}
	if err := k.fettle(ctx, &said, args...); err != nil {
		return err
	}
	if said.Digest != k.built.Digest {
		return fmt.Errorf("got digest %s, expected %s", said.Digest, k.built.Digest)
	}
	return nil
}

// policy writes a TrustPolicy that believes a key for the repository.
func (k *kernelCaches) policy(name string, pair *sign.EphemeralKeypair) (string, error) {
	key, err := pair.GetPublicKeyPem()
	if err != nil {
		return "", fmt.Errorf("write the public key: %w", err)
	}
	file := filepath.Join(k.dir, name)
	return file, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: fettle.dev/v1alpha1
kind: TrustPolicy
metadata: {name: kernels}
spec:
  images: [%q]
  authorities:
  - name: team
    key:
      pem: %q
`, kernelRepository, key), 0o644)
}

// attach puts a signature into the layout as a referrer of the image.
func (k *kernelCaches) attach(ctx context.Context, pair *sign.EphemeralKeypair) error {
	const predicate = "https://sigstore.dev/cosign/sign/v1"
	statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],`+
		`"predicateType":%q,"predicate":{}}`, k.built.Digest.Hex(), predicate)
	bundle, err := sign.Bundle(&sign.DSSEData{Data: statement, PayloadType: "application/vnd.in-toto+json"}, pair, sign.BundleOptions{})
	if err != nil {
		return err
	}
	data, err := protojson.Marshal(bundle)
	if err != nil {
		return err
	}
	l := layout.At(k.layout)
	layer, err := putBlob(ctx, l, bundleType, data)
	if err != nil {
		return err
	}
	config, err := putBlob(ctx, l, emptyType, []byte("{}"))
	if err != nil {
		return err
	}
	image, err := l.Tagged(ctx, "v1")
	if err != nil {
		return err
	}
	raw, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "artifactType": bundleType, "config": config, "layers": []any{layer},
		"subject": map[string]any{"mediaType": manifestType, "digest": image.Digest, "size": len(image.Raw)},
	})
	if err != nil {
		return err
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return err
	}
	return l.PutManifest(ctx, m)
}

// putBlob writes a blob into a layout and returns its descriptor for a manifest.
func putBlob(ctx context.Context, l *layout.Layout, mediaType string, data []byte) (map[string]any, error) {
	d := artifact.Descriptor{MediaType: mediaType, Digest: artifact.DigestOf(data), Size: int64(len(data))}
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	return map[string]any{"mediaType": mediaType, "digest": d.Digest, "size": d.Size}, l.Blob(ctx, d, open)
}
