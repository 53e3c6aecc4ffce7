// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	inmemory "github.com/google/go-containerregistry/pkg/registry"
	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/signed"
)

const (
	repo         = "team/cache"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	emptyType    = "application/vnd.oci.empty.v1+json"
	payloadType  = "application/vnd.in-toto+json"
	sbom         = "https://spdx.dev/Document"
	issuer       = "https://issuer.example"
	subject      = "builder@team.example"
)

// wantRefused fails unless the error is an answer that has all the words.
func wantRefused(t testing.TB, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the refusal does not say %q: %v", w, err)
		}
	}
}

// hub is a registry, with or without a list of referrers. Then what cosign does is done here too: it keeps an index at a tag.
type hub struct {
	*httptest.Server
	handler   http.Handler
	referrers bool
	about     map[artifact.Digest][]map[string]any
	// fail answers requests whose path has the text with the status.
	fail   string
	status int
}

func newHub(t testing.TB, referrers bool) *hub {
	t.Helper()
	options := []inmemory.Option{inmemory.Logger(log.New(io.Discard, "", 0))}
	if referrers {
		options = append(options, inmemory.WithReferrersSupport(true))
	}
	h := &hub{handler: inmemory.New(options...), referrers: referrers, about: map[artifact.Digest][]map[string]any{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.fail != "" && strings.Contains(r.URL.Path, h.fail) {
			w.WriteHeader(h.status)
			return
		}
		h.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hub) put(t testing.TB, method, path, contentType string, body []byte) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	if w.Code >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}

func (h *hub) blob(t testing.TB, mediaType string, data []byte) map[string]any {
	t.Helper()
	d := artifact.DigestOf(data)
	h.put(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d.String(), "", data)
	return map[string]any{"mediaType": mediaType, "digest": d.String(), "size": len(data)}
}

func (h *hub) manifest(t testing.TB, tag, mediaType string, content map[string]any) artifact.Digest {
	t.Helper()
	content["schemaVersion"], content["mediaType"] = 2, mediaType
	data, err := json.Marshal(content)
	check.Must(t, err)
	d := artifact.DigestOf(data)
	if tag == "" {
		tag = d.String()
	}
	h.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, mediaType, data)
	return d
}

// image pushes an image of its own.
func (h *hub) image(t testing.TB, what string) artifact.Digest {
	t.Helper()
	return h.manifest(t, "v1", manifestType, map[string]any{
		"config": h.blob(t, "application/vnd.oci.image.config.v1+json", []byte("{}")), "layers": []any{h.blob(t, "a/b", []byte(what))},
	})
}

// attach pushes a bundle as cosign 3 does. The annotation is left out, since it is not to be believed.
func (h *hub) attach(t testing.TB, d artifact.Digest, data []byte) {
	t.Helper()
	content := map[string]any{
		"artifactType": bundleType, "config": h.blob(t, emptyType, []byte("{}")), "layers": []any{h.blob(t, bundleType, data)},
		"subject": map[string]any{"mediaType": manifestType, "digest": d.String(), "size": 1},
	}
	referrer := h.manifest(t, "", manifestType, content)
	if h.referrers {
		return
	}
	h.about[d] = append(h.about[d], map[string]any{
		"mediaType": manifestType, "digest": referrer.String(), "size": 0, "artifactType": bundleType, // 0: not said
	})
	h.manifest(t, strings.Replace(d.String(), ":", "-", 1), indexType, map[string]any{"manifests": h.about[d]})
}

// layer is a simple signature.
type layer struct {
	payload     []byte
	annotations map[string]string
}

// tag pushes simple signatures as cosign 2 does.
func (h *hub) tag(t testing.TB, d artifact.Digest, signatures ...layer) {
	t.Helper()
	layers := []any{}
	for _, s := range signatures {
		l := h.blob(t, simpleType, s.payload)
		l["annotations"] = s.annotations
		layers = append(layers, l)
	}
	h.manifest(t, "sha256-"+d.Hex()+".sig", manifestType, map[string]any{
		"config": h.blob(t, "application/vnd.oci.image.config.v1+json", []byte("{}")), "layers": layers,
	})
}

func (h *hub) source(t testing.TB) *registry.Source {
	t.Helper()
	host := h.Listener.Addr().String()
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{host}, Backoff: time.Millisecond, Tries: 2})
	check.Must(t, err)
	ref, err := artifact.ParseReference(host + "/" + repo + ":v1")
	check.Must(t, err)
	return client.Source(ref, nil)
}

// signer has a key.
type signer struct{ *sign.EphemeralKeypair }

func newSigner(t testing.TB) signer {
	t.Helper()
	pair, err := sign.NewEphemeralKeypair(nil)
	check.Must(t, err)
	return signer{pair}
}

func (s signer) authority(t testing.TB, name string) v1alpha1.TrustAuthority {
	t.Helper()
	text, err := s.GetPublicKeyPem()
	check.Must(t, err)
	return v1alpha1.TrustAuthority{Name: name, Key: &v1alpha1.TrustKey{PEM: text}}
}

func statement(d artifact.Digest, predicate string) []byte {
	return fmt.Appendf(nil, `{"_type":%q,"subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		intotoStatement, d.Hex(), predicate)
}

// bundle is a signature as cosign 3 makes it.
func (s signer) bundle(t testing.TB, payload []byte) []byte {
	t.Helper()
	b, err := sign.Bundle(&sign.DSSEData{Data: payload, PayloadType: payloadType}, s, sign.BundleOptions{})
	check.Must(t, err)
	return bundleJSON(t, b)
}

func bundleJSON(t testing.TB, b *bundlepb.Bundle) []byte {
	t.Helper()
	data, err := protojson.Marshal(b)
	check.Must(t, err)
	return data
}

func simplePayload(d artifact.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"other.example/x"},"image":{"docker-manifest-digest":%q},"type":%q},`+
		`"optional":null}`, d, simpleCritical)
}

// simple is a signature as cosign 2 makes it.
func (s signer) simple(t testing.TB, payload []byte) layer {
	t.Helper()
	signature, _, err := s.SignData(context.Background(), payload)
	check.Must(t, err)
	return layer{payload, map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(signature)}}
}

// world is one with a signer.
type world struct{ signed.World }

func newWorld(t testing.TB) world {
	t.Helper()
	return world{signed.NewWorld(t)}
}

func (w world) authority(t testing.TB, ids ...v1alpha1.TrustIdentity) v1alpha1.TrustAuthority {
	t.Helper()
	return w.Authority(t, "ci", ids...)
}

// attest is a bundle of the newer or the older log, signed so long from now.
func (w world) attest(t testing.TB, payload []byte, after time.Duration, newLog, stamped bool) *bundlepb.Bundle {
	t.Helper()
	return w.Attest(t, payload, signed.Attested{Issuer: issuer, Subject: subject, After: after, NewLog: newLog, Stamped: stamped})
}

// simple is a simple signature with a certificate.
func (w world) simple(t testing.TB, payload []byte) layer {
	t.Helper()
	return layer{payload, w.Simple(t, payload, issuer, subject)}
}

func compile(t testing.TB, change func(*v1alpha1.TrustPolicySpec), authorities ...v1alpha1.TrustAuthority) *Policy {
	t.Helper()
	object := &v1alpha1.TrustPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "kernels", Generation: 7},
		Spec:       v1alpha1.TrustPolicySpec{Images: []string{"127.0.0.1:*/team/*"}, Authorities: authorities},
	}
	if change != nil {
		change(&object.Spec)
	}
	p, err := Compile(object, nil)
	check.Must(t, err)
	return p
}
