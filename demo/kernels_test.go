// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	inmemory "github.com/google/go-containerregistry/pkg/registry"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/harness"
)

// TestKernels pushes what the demo pushes and has the scenario's policy judge it, by the names that the scenario's files have.
func TestKernels(t *testing.T) {
	server := httptest.NewServer(inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0)), inmemory.WithReferrersSupport(true)))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	if err := pushKernels(t.Context(), root, host); err != nil {
		t.Fatal(err)
	}
	var object v1alpha1.TrustPolicy
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join("16-kernel-cache", "policy.yaml"))), &object); err != nil {
		t.Fatal(err)
	}
	policy, err := trust.Compile(&object, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{host}, Mirrors: registry.Mirrors{registryName: {{Host: host}}}})
	if err != nil {
		t.Fatal(err)
	}
	for repository, signer := range signers() {
		ref, err := artifact.ParseReference(registryName + "/" + repository + ":v1")
		if err != nil {
			t.Fatal(err)
		}
		source := client.Source(ref, nil)
		d, err := source.Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		object := trust.Object{Namespace: "demo-16-kernel-cache"}
		_, err = trust.Judge(t.Context(), source, d.Digest, object, []*trust.Policy{policy})
		if wanted := signer == "team"; (err == nil) != wanted {
			t.Errorf("%s is accepted: %t (%v), want %t", ref, err == nil, err, wanted)
		}
	}
}

// TestSigningKey holds that the policy has the key that signs.
func TestSigningKey(t *testing.T) {
	key, err := signingKey("team")
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	var object v1alpha1.TrustPolicy
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join("16-kernel-cache", "policy.yaml"))), &object); err != nil {
		t.Fatal(err)
	}
	want := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if got := []byte(object.Spec.Authorities[0].Key.PEM); !bytes.Equal(got, want) {
		t.Errorf("policy.yaml has the key\n%s, want\n%s", got, want)
	}
}
