// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

const someHex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestDigest(t *testing.T) {
	d, err := ParseDigest("sha256:" + someHex)
	check.Must(t, err)
	if d.Hex() != someHex || d.String() != "sha256:"+someHex || d.IsZero() {
		t.Errorf("got %s", d)
	}
	for _, bad := range []string{
		"", "sha256:", someHex, "sha256:" + strings.ToUpper(someHex), "sha256:" + someHex[1:], "sha256:" + someHex + "0",
		"sha512:" + someHex + someHex, "sha256:../../../../etc/passwd" + someHex[:41], "sha256:" + strings.Repeat("0", 64),
		"sha256:" + someHex[:62] + "zz", "sha256:" + strings.Repeat("/", 64),
	} {
		_, err := ParseDigest(bad)
		wantErr(t, err, ErrInvalid, "sha256")
	}
	var round struct{ A, B Digest }
	data, err := json.Marshal(map[string]Digest{"A": d, "B": {}})
	check.Must(t, err)
	check.Must(t, json.Unmarshal(data, &round))
	if round.A != d || !round.B.IsZero() {
		t.Errorf("%s became %v", data, round)
	}
	if json.Unmarshal([]byte(`"sha256:no"`), &round.A) == nil {
		t.Error("a wrong digest was read")
	}
}

func TestParseReference(t *testing.T) {
	at := "@sha256:" + someHex
	for in, want := range map[string]string{
		"quay.io/org/cache:v1":                     "quay.io/org/cache:v1",
		"QUAY.io/org/cache:v1":                     "quay.io/org/cache:v1",
		"quay.io/org/cache":                        "quay.io/org/cache:latest",
		"quay.io/org/cache" + at:                   "quay.io/org/cache" + at,
		"quay.io/org/cache:v1" + at:                "quay.io/org/cache" + at,
		"busybox":                                  "docker.io/library/busybox:latest",
		"docker.io/library/busybox:1":              "docker.io/library/busybox:1",
		"registry-1.docker.io/library/busybox:1":   "docker.io/library/busybox:1",
		"quay.io:0443/org/cache:v1":                "quay.io/org/cache:v1",
		"index.docker.io:443/library/busybox:1":    "docker.io/library/busybox:1",
		"quay.io:080/org/cache:v1":                 "quay.io/org/cache:v1",
		"localhost:5000/a/b__c/d-e:V1.2_3":         "localhost:5000/a/b__c/d-e:V1.2_3",
		"[2001:db8::1]:5000/x:1":                   "[2001:db8::1]:5000/x:1",
		"10.0.0.1:5000/x:1":                        "10.0.0.1:5000/x:1",
		"my_registry.svc.cluster.local:5000/x:1":   "my_registry.svc.cluster.local:5000/x:1",
		"a.b/" + strings.Repeat("x", 200) + ":tag": "a.b/" + strings.Repeat("x", 200) + ":tag",
	} {
		ref, err := ParseReference(in)
		if err != nil || ref.String() != want {
			t.Errorf("%s: got %s (%v), want %s", in, ref, err, want)
			continue
		}
		if again, err := ParseReference(ref.String()); err != nil || again != ref {
			t.Errorf("%s: read again: %v %v", in, again, err)
		}
	}
	for _, bad := range []string{
		"", "https://quay.io/x", "quay.io/../x:1", "quay.io/a/../../v2/x:1", "quay.io/a//b:1", "quay.io/./a:1", "quay.io/a:..", "quay.io/a:.x",
		"quay.io/A:1", "user@quay.io/a:1", "quay.io/a:1 b", "quay.io/a@sha512:" + someHex + someHex, "quay.io/a@sha256:" + someHex[1:],
		"quay.io/a@sha256:" + strings.ToUpper(someHex), "qu ay.io/a:1", "q%75ay.io/a:1", "quay.io:99999999/a:1", "-x.io/a:1", "x..io/a:1",
		"quay.io/a:1\n", "quay.io/a\x00b:1", "quay.io/" + strings.Repeat("a/", 600) + "a:1", "quay.io/a/:1", "[::1/a:1", "a.b:/c:1",
	} {
		if ref, err := ParseReference(bad); err == nil {
			t.Errorf("%q was read as %s", bad, ref)
		} else {
			wantErr(t, err, ErrInvalid, "expected")
		}
	}
	ref, err := ParseReference("quay.io/org/cache:v1")
	check.Must(t, err)
	d := DigestOf(nil)
	if by := ref.WithDigest(d); by.Tag() != "" || by.Digest() != d || by.Registry() != "quay.io" || by.Repository() != "quay.io/org/cache" {
		t.Errorf("got %s", by)
	}
	other, err := ref.WithTag("v2")
	check.Must(t, err)
	if got := other.String(); got != "quay.io/org/cache:v2" || other.Path() != "org/cache" || other.Identifier() != "v2" {
		t.Errorf("got %s", got)
	}
	_, err = ref.WithTag("../../x")
	wantErr(t, err, ErrInvalid, "tag")
}

func descriptorJSON(mediaType string) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":"sha256:%s","size":7}`, mediaType, someHex)
}

// TestDenseTextsAreNotDecoded: what a manifest or a config becomes in memory is bounded beside its bytes.
func TestDenseTextsAreNotDecoded(t *testing.T) {
	config := descriptorJSON("application/vnd.test.config.v1+json")
	dense := strings.Repeat("{},", 1_300_000) + "{}"
	for name, text := range map[string]string{
		"layers":      `{"schemaVersion":2,"config":` + config + `,"layers":[` + dense + `]}`,
		"manifests":   `{"schemaVersion":2,"manifests":[` + dense + `]}`,
		"annotations": `{"schemaVersion":2,"manifests":[],"annotations":{` + members(100_000) + `}}`,
		"depth":       `{"schemaVersion":2,"manifests":[],"x":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			took := allocated(func() { _, err = ParseManifest([]byte(text)) })
			wantErr(t, err, ErrInvalid, "expected at most")
			if took > 4*uint64(MaxManifest) {
				t.Errorf("%d MiB for a text of %d", took>>20, len(text)>>20)
			}
		})
	}
	_, err := parseImage(&Manifest{Layers: make([]Descriptor, 1)}, []byte(`{"config":{"Labels":{`+members(100_000)+`}}}`), "")
	wantErr(t, err, ErrInvalid, "expected at most")
	text, err := json.Marshal(strings.Repeat("x", maxLabels))
	check.Must(t, err)
	_, err = parseImage(&Manifest{Layers: make([]Descriptor, 1)}, []byte(`{"config":{"Labels":{"a":`+string(text)+
		`}},"rootfs":{"diff_ids":["sha256:`+someHex+`"]}}`), "")
	wantErr(t, err, ErrTooLarge, "labels")
}

// members returns n members of an object.
func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":"",`, i)
	}
	return b.String() + `"x":""`
}

// allocated returns how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestParseManifest(t *testing.T) {
	layer, config := descriptorJSON("application/vnd.test.gbs"), descriptorJSON("application/vnd.test.config.v1+json")
	image := `{"schemaVersion":2,"config":` + config + `,"layers":[` + layer + `],"annotations":{"a":"b"}}`
	m, err := ParseManifest([]byte(image))
	check.Must(t, err)
	if m.IsIndex() || m.MediaType != manifestType || m.ArtifactType != "application/vnd.test.config.v1+json" ||
		m.Digest != DigestOf([]byte(image)) || len(m.Layers) != 1 || m.Layers[0].Size != 7 || m.Annotations["a"] != "b" {
		t.Errorf("got %+v", m)
	}
	entry := `{"mediaType":"` + manifestType + `","artifactType":"application/vnd.x","digest":"sha256:` + someHex +
		`","size":9,"annotations":{"id":"1"},"platform":{"os":"linux","architecture":"arm","variant":"v7"}}`
	m, err = ParseManifest([]byte(`{"schemaVersion":2,"artifactType":"application/vnd.y","manifests":[` + entry + `]}`))
	check.Must(t, err)
	d, err := ParseDigest("sha256:" + someHex)
	check.Must(t, err)
	want := []Descriptor{{
		MediaType: manifestType, ArtifactType: "application/vnd.x", Digest: d, Size: 9, Annotations: map[string]string{"id": "1"},
		Platform: "linux/arm/v7",
	}}
	if diff := cmp.Diff(want, m.Manifests); diff != "" || !m.IsIndex() || m.ArtifactType != "application/vnd.y" {
		t.Errorf("%+v: %s", m, diff)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	layer := descriptorJSON("application/vnd.test.gbs")
	image := func(more string) string {
		return `{"schemaVersion":2,"config":` + layer + `,"layers":[` + layer + `]` + more + `}`
	}
	many := strings.TrimSuffix(strings.Repeat(layer+",", maxDescriptors+1), ",")
	sizeBeyond := fmt.Sprintf(`"size":%d`, maxSize+1) // sums of sizes must not overflow
	for in, word := range map[string]string{
		"":                                  "JSON",
		"[]":                                "JSON",
		image("") + image(""):               "JSON",
		image(`,"layers":[]`):               "layers",
		`{"schemaVersion":1,"fsLayers":[]}`: "version 1",
		`{"schemaVersion":3}`:               "schemaVersion 2",
		`{"schemaVersion":2}`:               "either",
		image(`,"manifests":[]`):            "either",
		`{"schemaVersion":2,"layers":[]}`:   "config",
		image(`,"mediaType":"` + indexType + `"`):                       "media type",
		image(`,"artifactType":"no"`):                                   "artifactType",
		`{"schemaVersion":2,"manifests":[` + many + `]}`:                "1024",
		strings.Replace(image(""), `"size":7`, `"size":-1`, 1):          "config.size",
		strings.Replace(image(""), `"size":7`, `"size":1e30`, 1):        "JSON",
		strings.Replace(image(""), `"size":7`, sizeBeyond, 1):           "config.size",
		strings.Replace(image(""), someHex, "../../etc/passwd", 1):      "config.digest",
		strings.Replace(image(""), "vnd.test.gbs", `x\u001b[2J`, 1):     "config.mediaType",
		`{"schemaVersion":2,"manifests":[{"mediaType":"a/b"}]}`:         "manifests[0].digest",
		`{"schemaVersion":2,"config":` + layer + `,"layers":[{}]}`:      "layers[0].digest",
		`{"schemaVersion":2,"config":` + layer + `,"layers":[null]}`:    "layers[0].digest",
		`{"schemaVersion":2,"manifests":[],"mediaType":"text/x"}`:       "media type",
		image(`,"annotations":{"a":"1","a":"2"}`):                       "annotations",
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000):         "JSON",
		`{"schemaVersion":2,"config":` + layer + `,"layers":"` + "x\"}": "JSON",
	} {
		_, err := ParseManifest([]byte(in))
		if err == nil {
			t.Errorf("read: %.80s", in)
			continue
		}
		wantErr(t, err, ErrInvalid, word)
		if strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 500 {
			t.Errorf("not fit for a terminal: %q", err)
		}
	}
	_, err := ParseManifest(make([]byte, MaxManifest+1))
	wantErr(t, err, ErrTooLarge)
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"quay.io/a/b:v1", "a@sha256:" + someHex, "[::1]:5/x", "localhost:1/a_b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := ParseReference(s)
		if err != nil {
			wantErr(t, err, ErrInvalid)
			return
		}
		if again, err := ParseReference(ref.String()); err != nil || again != ref {
			t.Errorf("%q became %s, which is read as %s (%v)", s, ref, again, err)
		}
		if strings.Contains(ref.String(), "..") || strings.ContainsAny(ref.String(), " %?#\\\n") {
			t.Errorf("%q became %s", s, ref)
		}
	})
}

func FuzzManifest(f *testing.F) {
	layer := descriptorJSON("application/vnd.test.gbs")
	f.Add([]byte(`{"schemaVersion":2,"config":` + layer + `,"layers":[` + layer + `],"annotations":{"a":"b"}}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[` + layer + `]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			if m != nil || IsRetryable(err) {
				t.Errorf("got %v and %v", m, err)
			}
			return
		}
		for _, d := range append(append([]Descriptor{}, m.Layers...), m.Manifests...) {
			if d.Digest.IsZero() || d.Size < 0 || !mediaTypeForm.MatchString(d.MediaType) {
				t.Errorf("a descriptor that is not valid: %+v", d)
			}
		}
		if m.IsIndex() != m.Config.Digest.IsZero() {
			t.Errorf("neither image nor index: %+v", m)
		}
	})
}
