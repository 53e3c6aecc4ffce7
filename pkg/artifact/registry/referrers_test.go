// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
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

// TestReferrersBreakOff: a list whose next page is none is no answer. It is neither taken for a registry without lists, which would hide
// the signatures on the first page, nor for all that there is.
func TestReferrersBreakOff(t *testing.T) {
	h := plainHub(t)
	src, image, first := referred(t, h)
	for name, code := range map[string]int{"gone": 404, "not understood": 400, "not allowed": 405, "a page of its own": 200} {
		t.Run(name, func(t *testing.T) {
			page(h, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("last") != "" {
					w.WriteHeader(code)
					return
				}
				w.Header().Set("Content-Type", indexType)
				w.Header().Set("Link", `<?last=1>; rel="next"`)
				_, _ = w.Write(index(t, first))
			})
			got, err := src.Referrers(t.Context(), image.Digest, signatureType)
			if wantErr(t, err, artifact.ErrUnavailable, "referrers of", "broke off"); len(got) > 0 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestReferrersOfOtherKinds: what somebody else has put into the list, with a digest of another algorithm or of no known form, hides
// no signature, whether the registry lists it or a tag.
func TestReferrersOfOtherKinds(t *testing.T) {
	h := plainHub(t)
	src, image, want := referred(t, h)
	entry := func(mediaType, digest string, size int64) any {
		return map[string]any{"mediaType": mediaType, "digest": digest, "size": size, "artifactType": signatureType}
	}
	some := artifact.DigestOf([]byte("some")).String()
	body, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []any{
		entry(manifestType, "sha512:"+strings.Repeat("0a", 64), 7), entry("", some, 7), entry(manifestType, some, -1), wire(want),
	}})
	check.Must(t, err)
	wants := func(where string) {
		t.Helper()
		got, err := src.Referrers(t.Context(), image.Digest, signatureType)
		if err != nil || len(got) != 1 || got[0].Digest != want.Digest {
			t.Errorf("%s: got %+v, %v; want %s", where, got, err, want.Digest)
		}
	}
	page(h, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", indexType)
		_, _ = w.Write(body)
	})
	wants("the registry's list")
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.Contains(r.URL.Path, "/referrers/"):
			w.WriteHeader(http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, fallbackTag(image.Digest)):
			w.Header().Set("Content-Type", indexType)
			_, _ = w.Write(body)
		default:
			return false
		}
		return true
	})
	wants("the tag")
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
		"another link":      {200, indexType, `<?a=b>; rel="prev"`, index(t), nil},
		"no link":           {200, indexType, `?a=b; rel="next"`, index(t), artifact.ErrInvalid},
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

// TestReferrersOfAllPagesAreBounded: what the annotations of all pages take together is no more than one page may have.
func TestReferrersOfAllPagesAreBounded(t *testing.T) {
	h := plainHub(t)
	src, image, _ := referred(t, h)
	body := []byte(`{"schemaVersion":2,"mediaType":"` + indexType + `","manifests":[],"annotations":{"a":"` +
		strings.Repeat("x", 1<<20) + `"}}`)
	pages := 0
	page(h, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", indexType)
		if pages++; pages%8 != 0 {
			w.Header().Set("Link", `<?last=1>; rel="next"`)
		}
		_, _ = w.Write(body)
	})
	_, err := src.Referrers(t.Context(), image.Digest, signatureType)
	wantErr(t, err, artifact.ErrTooLarge, "at most 4194304 bytes")
}

// TestReferrersOfMirror: that a mirror knows of none does not mean that there are none.
func TestReferrersOfMirror(t *testing.T) {
	h, mirror := plainHub(t), plainHub(t)
	_, image, want := referred(t, h)
	mirror.push(t, "v1", []byte("x"))
	config := h.quick()
	config.PlainHTTP = append(config.PlainHTTP, mirror.host())
	config.Mirrors = Mirrors{h.host(): {{Host: mirror.host()}}}
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

// TestNextPage: of all links of all headers the one to the next page counts, however its parameters are written.
func TestNextPage(t *testing.T) {
	for name, c := range map[string]struct {
		headers []string
		want    string
		bad     bool
	}{
		"none":                  {},
		"the only one":          {headers: []string{`</v2/x?last=b&n=1>; rel="next"`}, want: "last=b&n=1"},
		"a bare value":          {headers: []string{`<?last=b>;rel=next`}, want: "last=b"},
		"another first":         {headers: []string{`<?n=1>; rel="first", <?last=b>; rel="next"`}, want: "last=b"},
		"another last":          {headers: []string{`<?last=b>; rel="next",<?n=1>; rel="first"`}, want: "last=b"},
		"a header each":         {headers: []string{`<?n=1>; rel="first"`, `<?last=b>; rel="next"`}, want: "last=b"},
		"others only":           {headers: []string{`<?n=1>; rel="first", <?n=2>; rel="prev"`}},
		"more parameters":       {headers: []string{`<?last=b>; title="a"; rel=next; x`}, want: "last=b"},
		"spaces and capitals":   {headers: []string{`,, <?last=b> ; REL = "Next" , `}, want: "last=b"},
		"several relations":     {headers: []string{`<?last=b>; rel="last  next"`}, want: "last=b"},
		"comma in the URL":      {headers: []string{`<?n=1,2;rel=next>; rel="first", <?last=b,c>; rel="next"`}, want: "last=b%2Cc"},
		"comma in a text":       {headers: []string{`<?n=1>; title="a, <?x=y>; rel=\"next\""; rel="first"`}},
		"the first rel counts":  {headers: []string{`<?n=1>; rel="first"; rel="next"`}},
		"next is part of a rel": {headers: []string{`<?n=1>; rel="next-archive", <?n=2>; rel="https://next"`}},
		"in another parameter":  {headers: []string{`<?n=1>; title="rel=next"; rev=next`}},
		"no rel":                {headers: []string{`<?n=1>`}},
		"no query":              {headers: []string{`</v2/x>; rel="next"`}, bad: true},
		"no link":               {headers: []string{`next`}, bad: true},
		"no end of the URL":     {headers: []string{`<?n=1; rel="next"`}, bad: true},
		"no end of the text":    {headers: []string{`<?n=1>; rel="next`}, bad: true},
		"an escape at the end":  {headers: []string{`<?n=1>; rel="next\`}, bad: true},
		"no separator":          {headers: []string{`<?n=1> rel="next"`}, bad: true},
		"no value":              {headers: []string{`<?n=1>; rel=`}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := nextPage(c.headers)
			if c.bad {
				wantErr(t, err, artifact.ErrInvalid, "link to more referrers")
			} else if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestNextPageAmongLinks: where among random links, texts and headers the next page is named does not matter.
func TestNextPageAmongLinks(t *testing.T) {
	random := seed.New(t)
	others := []string{`<?o=1>; rel="first"`, `<?o=2>;rel=prev`, `<?o=,>; title="x, <?o=3>; rel=next"; rel="last"`, `<?o=4>`}
	next := []string{`<?last=b>; rel="next"`, `<?last=b> ;rel=next;title="<,;>"`, `<?last=b>; title="\"" ; Rel="up NEXT"`}
	for range 500 {
		var links []string
		for range random.IntN(4) {
			links = append(links, others[random.IntN(len(others))])
		}
		links = slices.Insert(links, random.IntN(len(links)+1), next[random.IntN(len(next))])
		headers := []string{links[0]}
		for _, l := range links[1:] {
			if last := len(headers) - 1; random.IntN(2) == 0 {
				headers[last] += ", " + l
			} else {
				headers = append(headers, l)
			}
		}
		if got, err := nextPage(headers); err != nil || got != "last=b" {
			t.Fatalf("%q: got %q, %v", headers, got, err)
		}
	}
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
		next, err := nextPage([]string{link})
		if strings.ContainsAny(next, " \r\n/#") || err != nil && next != "" {
			t.Errorf("%q became %q, %v", link, next, err)
		}
	})
}
