// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/image"
)

const (
	// registryName is what the scenarios' files call the registry. Where it runs differs from cluster to cluster: that is its mirror.
	registryName = "registry.example"
	// cacheSource is what a machine with the kernels' program has in its cache.
	cacheSource = "demo/16-kernel-cache/cache"
)

// signers say who pushes to which repository of the registry. Whom to believe is for the scenario's policy to say.
func signers() map[string]string {
	return map[string]string{"demo/add": "team", "demo/shared": "team", "demo/stranger": "stranger"}
}

// signingKey is somebody's key. Everybody can make it, so it vouches for nothing but a demo.
func signingKey(whose string) (*ecdsa.PrivateKey, error) {
	seed := sha256.Sum256([]byte("fettle demo: " + whose))
	return ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
}

// pushKernels puts the image of the cache into each repository, signed by whom signers say.
func pushKernels(ctx context.Context, root, registry string) error {
	for repository, signer := range signers() {
		if err := pushSigned(ctx, filepath.Join(root, cacheSource), registry, repository, signer); err != nil {
			return fmt.Errorf("push %s/%s:v1, signed by the %s: %w", registry, repository, signer, err)
		}
	}
	return nil
}

// pushSigned does what "fettle cache build DIR -t REGISTRY/REPOSITORY:v1" and "cosign sign" do.
func pushSigned(ctx context.Context, dir, host, repository, signer string) error {
	packed, layer, err := pack(dir)
	if err != nil {
		return err
	}
	ref, err := artifact.ParseReference(host + "/" + repository + ":v1")
	if err != nil {
		return err
	}
	to, err := push.NewRepository(ref, registry.Config{PlainHTTP: []string{host}}, nil)
	if err != nil {
		return err
	}
	bundle, err := sign(packed.Manifest.Digest, signer)
	if err != nil {
		return err
	}
	if err := packed.Push(ctx, to, ref.Tag(), opens(layer)); err != nil {
		return err
	}
	return attach(ctx, to, packed.Manifest, bundle)
}

// pack makes the image of a cache, and the bytes of its layer.
func pack(dir string) (packed *image.Packed, layer []byte, err error) {
	files := os.DirFS(dir)
	cache, err := kernelcache.Inspect(files, kernelcache.Options{})
	if err != nil {
		return nil, nil, err
	}
	described, err := cache.Describe()
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	packed, err = image.Pack(files, &cache, described, &b, image.Options{Platform: "linux/" + runtime.GOARCH})
	return packed, b.Bytes(), err
}

func opens(data []byte) push.Opener {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// sign makes a bundle as cosign 3 does: a statement about the digest in an envelope, https://github.com/secure-systems-lab/dsse.
func sign(d artifact.Digest, signer string) ([]byte, error) {
	const payloadType = "application/vnd.in-toto+json"
	key, err := signingKey(signer)
	if err != nil {
		return nil, err
	}
	statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],`+
		`"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`, d.Hex())
	sum := sha256.Sum256(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(statement), statement))
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"mediaType":            push.BundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": signer}},
		"dsseEnvelope": map[string]any{
			"payload": statement, "payloadType": payloadType, "signatures": []any{map[string]any{"sig": signature}},
		},
	})
}

// attach makes a bundle a referrer of an image.
func attach(ctx context.Context, to push.Target, of *artifact.Manifest, bundle []byte) error {
	const emptyType = "application/vnd.oci.empty.v1+json"
	described := func(mediaType string, data []byte) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": artifact.DigestOf(data), "size": len(data)}
	}
	empty := []byte("{}")
	raw, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "artifactType": push.BundleType,
		"config": described(emptyType, empty), "layers": []any{described(push.BundleType, bundle)},
		"subject": described(of.MediaType, of.Raw),
	})
	if err != nil {
		return err
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return err
	}
	if err := to.Blob(ctx, m.Config, opens(empty)); err != nil {
		return err
	}
	if err := to.Blob(ctx, m.Layers[0], opens(bundle)); err != nil {
		return err
	}
	return to.PutManifest(ctx, m)
}
