// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	signatureType = "application/vnd.test.signature"
	sbomType      = "application/vnd.test.sbom"
)

// refer pushes a manifest about another and returns its descriptor, as an index has it.
func (h *hub) refer(t testing.TB, subject artifact.Descriptor, artifactType string) artifact.Descriptor {
	t.Helper()
	config, layer := h.pushBlob(t, []byte("{}")), h.pushBlob(t, []byte("a signature"))
	config.MediaType = emptyType
	if artifactType == sbomType {
		config.MediaType = sbomType // it is what this registry goes by
	}
	data, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "artifactType": artifactType, "config": wire(config), "layers": []any{wire(layer)},
		"subject": wire(subject),
	})
	check.Must(t, err)
	d := artifact.Descriptor{MediaType: manifestType, ArtifactType: artifactType, Digest: artifact.DigestOf(data), Size: int64(len(data))}
	h.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+d.Digest.String(), manifestType, data)
	return d
}

// index is the list of some referrers.
func index(t testing.TB, list ...artifact.Descriptor) []byte {
	t.Helper()
	entries := []any{}
	for _, d := range list {
		entry := wire(d)
		entry["artifactType"] = d.ArtifactType
		entries = append(entries, entry)
	}
	data, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": entries})
	check.Must(t, err)
	return data
}

func fallbackTag(d artifact.Digest) string { return strings.Replace(d.String(), ":", "-", 1) }

func TestReferrers(t *testing.T) {
	h := plainHub(t)
	src, image, want := referred(t, h)
	got, err := src.Referrers(t.Context(), image.Digest, signatureType)
	check.Must(t, err)
	if len(got) != 1 || got[0].Digest != want.Digest {
		t.Errorf("got %+v, want %s", got, want.Digest)
	}
	m, err := src.Manifest(t.Context(), got[0])
	check.Must(t, err)
	if m.Subject.Digest != image.Digest || m.ArtifactType != signatureType {
		t.Errorf("got %+v", m)
	}
	none, err := src.Referrers(t.Context(), artifact.DigestOf([]byte("nobody's")), signatureType)
	if err != nil || len(none) != 0 {
		t.Errorf("got %+v, %v", none, err)
	}
}

// referred is an image with a signature and a list of materials.
func referred(t testing.TB, h *hub) (src *Source, image, signature artifact.Descriptor) {
	t.Helper()
	h.push(t, "v1", []byte("x"))
	src = h.source(t)
	image, err := src.Resolve(t.Context())
	check.Must(t, err)
	h.refer(t, image, sbomType)
	return src, image, h.refer(t, image, signatureType)
}

// TestReferrersByTag is with a registry that has no list of its own.
func TestReferrersByTag(t *testing.T) {
	h := plainHub(t)
	h.handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	src, image, want := referred(t, h)
	if got, err := src.Referrers(t.Context(), image.Digest, signatureType); err != nil || len(got) != 0 {
		t.Fatalf("without a tag: %+v, %v", got, err)
	}
	tag := "/v2/" + repo + "/manifests/" + fallbackTag(image.Digest)
	h.put(t, http.MethodPut, tag, indexType,
		index(t, artifact.Descriptor{MediaType: manifestType, ArtifactType: sbomType, Digest: want.Digest}, want))
	got, err := src.Referrers(t.Context(), image.Digest, signatureType)
	check.Must(t, err)
	if len(got) != 1 || got[0].Digest != want.Digest || got[0].Size != want.Size {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// page answers the list of referrers as a registry does that has this to say.
func page(h *hub, answer func(w http.ResponseWriter, r *http.Request)) {
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			answer(w, r)
			return true
		}
		return false
	})
}

func TestReferrersPages(t *testing.T) {
	h := plainHub(t)
	src, image, want := referred(t, h)
	page(h, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", indexType)
		other := want
		if r.URL.Query().Get("last") == "" {
			w.Header().Set("Link", `<https://elsewhere.example/v2/x/referrers/y?n=1&last=a%2Fb>; rel="next"`)
			other.Digest = artifact.DigestOf([]byte("the first"))
		} else if r.URL.Query().Get("last") != "a/b" {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = w.Write(index(t, other))
	})
	got, err := src.Referrers(t.Context(), image.Digest, signatureType)
	check.Must(t, err)
	if len(got) != 2 || got[1].Digest != want.Digest {
		t.Errorf("got %+v", got)
	}
}

func TestReferrersAnswers(t *testing.T) {
	h := plainHub(t)
	src, image, _ := referred(t, h)
	many := make([]artifact.Descriptor, maxReferrers/2+1)
	for i := range many {
		many[i] = artifact.Descriptor{MediaType: manifestType, ArtifactType: sbomType, Digest: artifact.DigestOf(fmt.Append(nil, i)), Size: 1}
	}
	config, err := json.Marshal(wire(artifact.Descriptor{MediaType: "a/b", Digest: artifact.DigestOf(nil), Size: 7}))
	check.Must(t, err)
	for name, c := range map[string]struct {
		code              int
		contentType, link string
		body              []byte
		kind              error
	}{
		"not a list":        {200, indexType, "", []byte(`{"schemaVersion":2,"config":` + string(config) + `}`), artifact.ErrInvalid},
		"not JSON":          {200, indexType, "", []byte("<html>"), artifact.ErrInvalid},
		"a page of its own": {200, "text/html", "", []byte("<html>"), nil},
		"not known":         {404, "", "", nil, nil},
		"not understood":    {400, "", "", nil, nil},
		"not allowed":       {405, "", "", nil, nil},
		"refused":           {403, "", "", nil, artifact.ErrUnauthorized},
		"down":              {503, "", "", nil, artifact.ErrUnavailable},
		"too large":         {200, indexType, "", []byte(strings.Repeat(" ", artifact.MaxManifest+1)), artifact.ErrTooLarge},
		"endless":           {200, indexType, `<?last=1>; rel="next"`, index(t), artifact.ErrTooLarge},
		"endless and long":  {200, indexType, `<?last=1>; rel="next"`, index(t, many...), artifact.ErrTooLarge},
		"link to nothing":   {200, indexType, `<>; rel="next"`, index(t), artifact.ErrInvalid},
		"another link":      {200, indexType, `<?a=b>; rel="prev"`, index(t), artifact.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			page(h, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.contentType)
				if c.link != "" {
					w.Header().Set("Link", c.link)
				}
				w.WriteHeader(c.code)
				_, _ = w.Write(c.body)
			})
			got, err := src.Referrers(t.Context(), image.Digest, signatureType)
			if c.kind == nil {
				if err != nil || len(got) != 0 {
					t.Errorf("got %+v, %v; want none, since there is no tag either", got, err)
				}
				return
			}
			wantErr(t, err, c.kind, "referrers of", image.Digest.String())
		})
	}
}

// TestReferrersOfMirror: that a mirror knows of none does not mean that there are none.
func TestReferrersOfMirror(t *testing.T) {
	h, mirror := plainHub(t), plainHub(t)
	_, image, want := referred(t, h)
	mirror.push(t, "v1", []byte("x"))
	config := h.quick()
	config.PlainHTTP = append(config.PlainHTTP, mirror.host())
	config.Mirrors = map[string][]string{h.host(): {mirror.host()}}
	got, err := newSource(t, config, h.host()+"/"+repo+":v1").Referrers(t.Context(), image.Digest, signatureType)
	check.Must(t, err)
	if len(got) != 1 || got[0].Digest != want.Digest || mirror.count("/referrers/") == 0 {
		t.Errorf("got %+v", got)
	}
}

func TestTagged(t *testing.T) {
	h := plainHub(t)
	digest, _ := h.push(t, "other", []byte("y"))
	src := h.source(t)
	m, err := src.Tagged(t.Context(), "other")
	if err != nil || m.Digest != digest {
		t.Errorf("got %+v, %v", m, err)
	}
	_, err = src.Tagged(t.Context(), "none")
	wantErr(t, err, artifact.ErrNotFound, repo+":none")
	_, err = src.Tagged(t.Context(), "../../x")
	wantErr(t, err, artifact.ErrInvalid, "tag")
}

// FuzzReferrers: whatever a registry says, the list is bounded or an error.
func FuzzReferrers(f *testing.F) {
	sbom := artifact.Descriptor{MediaType: manifestType, ArtifactType: sbomType, Digest: artifact.DigestOf(nil)}
	f.Add(index(f, sbom), `<?last=1>; rel="next"`)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[]}`), `</v2/x/referrers/y?n=1>;rel=next`)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[],"subject":{}}`), "<")
	f.Fuzz(func(t *testing.T, data []byte, link string) {
		list, err := parseReferrers(data)
		if (list == nil) == (err == nil) || len(list) > maxReferrers {
			t.Errorf("%d entries, %v", len(list), err)
		}
		for _, d := range list {
			if d.Check() != nil && d.Size <= 1<<50 {
				t.Errorf("got %+v", d)
			}
		}
		next, err := nextPage(link)
		if strings.ContainsAny(next, " \r\n/#") || err != nil && next != "" {
			t.Errorf("%q became %q, %v", link, next, err)
		}
	})
}
