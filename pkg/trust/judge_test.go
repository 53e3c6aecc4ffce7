// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestJudge: the image is signed with the good key only.
func TestJudge(t *testing.T) {
	good, bad := newSigner(t), newSigner(t)
	h := newHub(t, true)
	d := h.image(t, "kernels")
	h.attach(t, d, good.bundle(t, statement(d, signPredicate)))
	with := func(mode v1alpha1.VerificationMode, key signer, namespaces ...string) *Policy {
		return compile(t, func(s *v1alpha1.TrustPolicySpec) { s.Mode, s.Namespaces = mode, namespaces }, key.authority(t, "release"))
	}
	elsewhere := compile(t, func(s *v1alpha1.TrustPolicySpec) { s.Images = []string{"quay.io/**"} }, bad.authority(t, "release"))
	const enforce, warn, skip = v1alpha1.VerificationEnforce, v1alpha1.VerificationWarn, v1alpha1.VerificationSkip
	for name, c := range map[string]struct {
		policies                   []*Policy
		namespace                  string
		asked                      v1alpha1.VerificationMode
		results, warnings, skipped int
		refused                    string
	}{
		"one":                        {policies: []*Policy{with("", good)}, namespace: "a", results: 1},
		"none":                       {refused: "no TrustPolicy is for this repository and objects of the cluster"},
		"another repository":         {policies: []*Policy{elsewhere}, namespace: "a", refused: "this repository and namespace a"},
		"another beside":             {policies: []*Policy{elsewhere, with("", good)}, namespace: "a", results: 1},
		"another namespace":          {policies: []*Policy{with(skip, good, "b")}, namespace: "a", refused: "no TrustPolicy"},
		"its namespace":              {policies: []*Policy{with("", good, "b", "a")}, namespace: "a", results: 1},
		"object of the cluster":      {policies: []*Policy{with("", good, "a")}, refused: "no TrustPolicy"},
		"each has to be satisfied":   {policies: []*Policy{with("", good), with(enforce, bad)}, namespace: "a", refused: "0 of 1 signers"},
		"warning":                    {policies: []*Policy{with(warn, bad)}, namespace: "a", warnings: 1},
		"warning beside a refusal":   {policies: []*Policy{with(warn, bad), with("", bad)}, namespace: "a", refused: "0 of 1 signers"},
		"skipped":                    {policies: []*Policy{with(skip, bad)}, namespace: "a", skipped: 1},
		"stricter than a warning":    {policies: []*Policy{with(warn, bad)}, namespace: "a", asked: enforce, refused: "0 of 1 signers"},
		"stricter than nothing":      {policies: []*Policy{with(skip, bad)}, namespace: "a", asked: warn, warnings: 1},
		"more lenient":               {policies: []*Policy{with("", bad)}, namespace: "a", asked: skip, refused: "0 of 1 signers"},
		"more lenient than warning":  {policies: []*Policy{with(warn, bad)}, namespace: "a", asked: skip, warnings: 1},
		"a mode that nobody knows":   {policies: []*Policy{with(skip, bad)}, namespace: "a", asked: "Never", refused: "0 of 1 signers"},
		"skipped and another's look": {policies: []*Policy{with(skip, bad), with("", good)}, namespace: "a", skipped: 1, results: 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Judge(t.Context(), h.source(t), d, Object{Namespace: c.namespace, Mode: c.asked}, c.policies)
			if c.refused != "" {
				wantRefused(t, err, c.refused, d.String())
				return
			}
			check.Must(t, err)
			if len(got.Results) != c.results || len(got.Warnings) != c.warnings || len(got.Skipped) != c.skipped {
				t.Errorf("got %+v", got)
			}
		})
	}
	h.fail, h.status = "/referrers/", 503
	_, err := Judge(t.Context(), h.source(t), d, Object{Namespace: "a"}, []*Policy{with(warn, good)})
	if err == nil || errors.Is(err, ErrRefused) || !artifact.IsRetryable(err) {
		t.Errorf("a registry that is down is no reason to let an image pass with a warning: %v", err)
	}
}

// instances are texts that a pattern may be for: with many things in place of each wildcard.
func instances(pattern string) []string {
	before, after, found := strings.Cut(pattern, "*")
	if !found {
		return []string{pattern}
	}
	places := []string{"", "a", "0", "a.a", "a-a"}
	if rest, double := strings.CutPrefix(after, "*"); double {
		after, places = rest, append(places, "a.a/a", "/a", "a/a", "/a/a", "a/", ".a/a")
	}
	all := []string{}
	for _, tail := range instances(after) {
		for _, place := range places {
			all = append(all, before+place+tail)
		}
	}
	return all
}

// TestPatternsMatchSomething: a random pattern that is valid matches a repository, and one that is said to match none matches none.
func TestPatternsMatchSomething(t *testing.T) {
	random := seed.New(t)
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	accepted, refused := 0, 0
	for range 4000 {
		pattern := pick("a.b", "docker.io", "index.docker.io", "*", "**", "*.b", "-a.b", "a", "localhost", "a.b**", "a-*", "a..b", "*-") +
			pick("", "", "", ":*", ":00", ":5000", ":0443", ":99999", ":44*")
		for range random.IntN(4) {
			pattern += "/" + pick("a", "*", "**", "a-*", "-a", "a_", "*__*", "a**", "", "a.b", "a._b")
		}
		spec := v1alpha1.TrustPolicySpec{Images: []string{pattern}, Mode: v1alpha1.VerificationSkip}
		fault := spec.Validate(field.NewPath("spec")).ToAggregate()
		expression, err := globs(spec.Images)
		check.Must(t, err)
		matched := ""
		texts := []string{"a", "a.b/a", "a.b/a/a"}
		for _, port := range []string{"", ":5000"} {
			texts = append(texts, instances(strings.Replace(pattern, ":*", port, 1))...)
		}
		for _, text := range texts {
			if ref, err := artifact.ParseReference(text); err == nil && expression.MatchString(ref.Repository()) {
				matched = text
				break
			}
		}
		switch {
		case fault == nil && matched == "":
			t.Errorf("%q is valid and matches nothing", pattern)
		case fault != nil && matched != "" && strings.Contains(fault.Error(), "can match no"):
			t.Errorf("%q matches %s: %v", pattern, matched, fault)
		case fault == nil:
			accepted++
		default:
			refused++
		}
	}
	if accepted < 100 || refused < 100 {
		t.Errorf("%d patterns were valid and %d not: the test says little", accepted, refused)
	}
}

func TestImages(t *testing.T) {
	for pattern, c := range map[string]struct{ yes, no string }{
		"**":              {"quay.io/a busybox docker.io/library/busybox a.b:5000/c/d/e", ""},
		"quay.io/**":      {"quay.io/a quay.io/a/b", "evilquay.io/a quay-io.example/a quay.io.evil.example/a"},
		"quay.io/*":       {"quay.io/a", "quay.io/a/b quay.io.example/a"},
		"quay.io/a-*/c":   {"quay.io/a-b/c", "quay.io/a-b/d/c quay.io/a-b/cc quay.io/a/c"},
		"quay.io/a":       {"quay.io/a quay.io/a:v1", "quay.io/ab quay.io/a/b"},
		"*.example.com/a": {"r.example.com/a x.r.example.com/a", "example.com/a r-example.com/a"},
		"docker.io/**":    {"busybox team/cache", "quay.io/docker.io/a"},
		"a.b:5000/**":     {"a.b:5000/c a.b:05000/c A.b:5000/c", "a.b/c a.b:50001/c"},
		// However a registry is spelled, in a policy or in an image, it is the same one.
		"a.b/c":                    {"a.b:443/c a.b:0443/c A.B:443/c a.b:80/c", "a.b:444/c a.b:4430/c"},
		"a.b:0443/c":               {"a.b/c a.b:443/c", "a.b:5000/c"},
		"a.b:*/c":                  {"a.b/c a.b:443/c a.b:5000/c", "a.bc/c a.b/c/d"},
		"index.docker.io/**":       {"busybox docker.io/team/cache registry-1.docker.io:443/team/cache", "quay.io/a"},
		"index.docker.io:*/team/*": {"docker.io/team/cache team/cache registry-1.docker.io:443/team/cache", "busybox quay.io/team/cache"},
	} {
		p := compile(t, func(s *v1alpha1.TrustPolicySpec) {
			s.Images, s.Mode = []string{"never.example/x", pattern}, v1alpha1.VerificationSkip
		})
		for list, want := range map[string]bool{c.yes: true, c.no: false} {
			for image := range strings.FieldsSeq(list) {
				ref, err := artifact.ParseReference(image)
				check.Must(t, err)
				if got := p.Applies(ref, "any"); got != want {
					t.Errorf("%s for %s: got %t", pattern, image, got)
				}
			}
		}
	}
	h, key := newHub(t, true), newSigner(t)
	d := h.image(t, "kernels")
	h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
	p := compile(t, func(s *v1alpha1.TrustPolicySpec) { s.Images = []string{"quay.io/**"} }, key.authority(t, "release"))
	_, err := Verify(t.Context(), h.source(t), d, p)
	wantRefused(t, err, "the policy is not for this repository", "spec.images")
}

func TestCompileRefuses(t *testing.T) {
	key, w := newSigner(t), newWorld(t)
	identity := v1alpha1.TrustIdentity{Issuer: issuer, Subject: subject}
	logged := key.authority(t, "logged")
	logged.Key.RequireTransparencyLog = true
	broken := w.authority(t, identity)
	broken.TrustedRoot = `{"mediaType": 1}`
	public := w.authority(t, identity)
	public.TrustedRoot = ""
	for name, c := range map[string]struct {
		by    v1alpha1.TrustAuthority
		root  []byte
		words []string
	}{
		"no identity":       {w.authority(t), nil, []string{"identities", "say who may have signed"}},
		"any identity":      {w.authority(t, v1alpha1.TrustIdentity{IssuerRegExp: ".*", SubjectRegExp: ".*"}), nil, []string{"no condition"}},
		"half an identity":  {w.authority(t, v1alpha1.TrustIdentity{Issuer: issuer}), nil, []string{"subject"}},
		"no root for a log": {logged, nil, []string{"(logged)", "set trustedRoot, or give Fettle the public one"}},
		"no root":           {public, nil, []string{"(ci)", "set trustedRoot, or give Fettle the public one"}},
		"broken root":       {broken, nil, []string{"trustedRoot is not valid"}},
		"broken public":     {public, []byte("{"), []string{"the public trusted root is not valid"}},
	} {
		t.Run(name, func(t *testing.T) {
			object := &v1alpha1.TrustPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "kernels"},
				Spec:       v1alpha1.TrustPolicySpec{Images: []string{"**"}, Authorities: []v1alpha1.TrustAuthority{c.by}},
			}
			_, err := Compile(object, c.root)
			if err == nil {
				t.Fatal("it was taken")
			}
			for _, word := range append(c.words, "TrustPolicy kernels") {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
		})
	}
	spec := v1alpha1.TrustPolicySpec{Images: []string{"**"}, Authorities: []v1alpha1.TrustAuthority{public, logged}}
	if _, err := Compile(&v1alpha1.TrustPolicy{Spec: spec}, w.Root(t)); err != nil {
		t.Errorf("with the public root: %v", err)
	}
}

// TestLoad: a policy that does not compile lets nothing pass, though the image is signed and another policy is satisfied.
func TestLoad(t *testing.T) {
	key := newSigner(t)
	h := newHub(t, true)
	d := h.image(t, "kernels")
	h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
	logged := key.authority(t, "logged")
	logged.Key.RequireTransparencyLog = true
	load := func(images []string, mode v1alpha1.VerificationMode, by v1alpha1.TrustAuthority, namespaces ...string) *Policy {
		return Load(&v1alpha1.TrustPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "broken", Generation: 3},
			Spec: v1alpha1.TrustPolicySpec{
				Images: images, Mode: mode, Authorities: []v1alpha1.TrustAuthority{by}, Namespaces: namespaces,
			},
		}, nil)
	}
	ours, others := []string{"127.0.0.1:*/team/*"}, []string{"quay.io/**"}
	good := load(ours, "", key.authority(t, "release"))
	if good.Fault() != nil {
		t.Fatal(good.Fault())
	}
	for name, c := range map[string]struct {
		policy *Policy
		passes bool
	}{
		"enforces":          {policy: load(ours, "", logged)},
		"warns":             {policy: load(ours, v1alpha1.VerificationWarn, logged)},
		"skips":             {policy: load(ours, v1alpha1.VerificationSkip, logged)},
		"for no image":      {policy: load(nil, "", logged)},
		"another's image":   {load(others, "", logged), true},
		"another namespace": {load(ours, "", logged, "b"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.policy.Fault() == nil {
				t.Error("it has no fault")
			}
			_, err := Judge(t.Context(), h.source(t), d, Object{Namespace: "a"}, []*Policy{good, c.policy})
			if c.passes {
				check.Must(t, err)
				return
			}
			wantRefused(t, err, "TrustPolicy broken (generation 3)")
		})
	}
	_, err := Judge(t.Context(), h.source(t), d, Object{Namespace: "a"}, []*Policy{load(ours, v1alpha1.VerificationSkip, logged)})
	wantRefused(t, err, "spec.authorities[0] (logged)", "set trustedRoot, or give Fettle the public one")
}

// TestReadPublicRoot: what is there must be a trusted root.
func TestReadPublicRoot(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		check.Must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	good := w.Root(t)
	data, err := ReadPublicRoot(file("good", good))
	check.Must(t, err)
	if string(data) != string(good) {
		t.Error("it read something else")
	}
	if data, err := ReadPublicRoot(""); data != nil || err != nil {
		t.Errorf("no path: %q, %v", data, err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "never"): "no such file",
		file("empty", nil):          "is empty",
		file("bad", []byte("{")):    "the public trusted root is not valid",
	} {
		if _, err := ReadPublicRoot(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestMirrorByItsOwnName: an image that a policy refuses does not pass by the name of a mirror that has it, whatever policies are for that
// name. A policy that is lenient lets nothing pass at a mirror.
func TestMirrorByItsOwnName(t *testing.T) {
	good := newSigner(t)
	h := newHub(t, true)
	d := h.image(t, "stranger")
	signed := h.image(t, "signed")
	h.attach(t, signed, good.bundle(t, statement(signed, signPredicate)))
	source := h.source(t)
	mirrors := registryname.Mirrors{"registry.example": {source.Reference().Registry()}}
	of := func(mode v1alpha1.VerificationMode, images string) *Policy {
		return compile(t, func(s *v1alpha1.TrustPolicySpec) { s.Mode, s.Images = mode, []string{images} }, good.authority(t, "release")).
			AtMirrors(mirrors)
	}
	const enforce, warn, skip = v1alpha1.VerificationEnforce, v1alpha1.VerificationWarn, v1alpha1.VerificationSkip
	for name, c := range map[string]struct {
		policies []*Policy
		image    artifact.Digest
		refused  string
	}{
		"skipped everywhere else":          {[]*Policy{of(enforce, "registry.example/team/*"), of(skip, "**")}, d, "0 of 1 signers"},
		"skipped at the mirror":            {[]*Policy{of(enforce, "registry.example/**"), of(skip, "127.0.0.1:*/**")}, d, "0 of 1 signers"},
		"signed":                           {[]*Policy{of(enforce, "registry.example/team/*"), of(skip, "**")}, signed, ""},
		"skipped at the origin alone":      {[]*Policy{of(skip, "registry.example/**")}, d, "no TrustPolicy"},
		"warned of at the origin alone":    {[]*Policy{of(warn, "registry.example/**")}, d, "no TrustPolicy"},
		"another repository of the origin": {[]*Policy{of(enforce, "registry.example/other/*"), of(skip, "**")}, d, ""},
		"another origin":                   {[]*Policy{of(enforce, "quay.io/team/*"), of(skip, "**")}, d, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Judge(t.Context(), source, c.image, Object{Namespace: "a"}, c.policies)
			if c.refused == "" {
				check.Must(t, err)
				return
			}
			wantRefused(t, err, c.refused)
		})
	}
}

// TestMirrorWithOtherSignatures: an image whose signatures a mirror does not show, since it lies or is behind, is not refused before its
// registry was asked for them.
func TestMirrorWithOtherSignatures(t *testing.T) {
	good, mallory := newSigner(t), newSigner(t)
	for name, c := range map[string]struct {
		mirrorsOnly, second bool
		refused             string
	}{
		"asks the registry": {false, false, ""}, "mirrors only": {true, false, "0 of 1 signers"}, "asks the next mirror": {true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, mirror := newHub(t, true), newHub(t, true)
			d := h.image(t, "signed")
			h.attach(t, d, good.bundle(t, statement(d, signPredicate)))
			if mirror.image(t, "signed") != d {
				t.Fatal("the mirror has another image")
			}
			mirror.attach(t, d, mallory.bundle(t, statement(d, signPredicate)))
			host := h.source(t).Reference().Registry()
			at := mirror.source(t).Reference().Registry()
			config := registry.Config{PlainHTTP: []string{host, at}, Mirrors: registry.Mirrors{host: {{Host: at}}}, Tries: 1}
			if c.mirrorsOnly {
				config.MirrorsOnly = []string{host}
			}
			if c.second {
				next := newHub(t, true)
				next.attach(t, next.image(t, "signed"), good.bundle(t, statement(d, signPredicate)))
				name := next.source(t).Reference().Registry()
				config.PlainHTTP, config.Mirrors[host] = append(config.PlainHTTP, name), append(config.Mirrors[host], registry.Mirror{Host: name})
			}
			client, err := registry.NewClient(config)
			check.Must(t, err)
			policy := compile(t, func(s *v1alpha1.TrustPolicySpec) { s.Images = []string{"**"} }, good.authority(t, "release"))
			_, err = Judge(t.Context(), client.TenantSource(h.source(t).Reference(), nil), d, Object{Namespace: "a"}, []*Policy{policy})
			if c.refused == "" {
				check.Must(t, err)
				return
			}
			wantRefused(t, err, c.refused)
		})
	}
}

// TestRefuseUnasked: what Judge refuses whatever the registry says is refused without it, and nothing else is.
func TestRefuseUnasked(t *testing.T) {
	ref, err := artifact.ParseReference("registry.example/team/cache:v1")
	if err != nil {
		t.Fatal(err)
	}
	load := func(mode v1alpha1.VerificationMode, images, pem string, namespaces ...string) *Policy {
		p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 3}}
		p.Spec.Mode, p.Spec.Images, p.Spec.Namespaces = mode, []string{images}, namespaces
		if pem != "" {
			p.Spec.Authorities = []v1alpha1.TrustAuthority{{Name: "a", Key: &v1alpha1.TrustKey{PEM: pem}}}
		}
		return Load(p, nil)
	}
	skip := load(v1alpha1.VerificationSkip, "registry.example/**", "")
	for name, c := range map[string]struct {
		policies []*Policy
		word     string
	}{
		"none":             {nil, "no TrustPolicy is for this repository and namespace a"},
		"other images":     {[]*Policy{load(v1alpha1.VerificationSkip, "other.example/**", "")}, "no TrustPolicy"},
		"other namespaces": {[]*Policy{load(v1alpha1.VerificationSkip, "**", "", "b")}, "no TrustPolicy"},
		"does not compile": {[]*Policy{skip, load(v1alpha1.VerificationWarn, "**", "no key")}, "TrustPolicy p (generation 3)"},
		"skips":            {[]*Policy{skip}, ""},
	} {
		err := RefuseUnasked(ref, "a", c.policies)
		if c.word == "" && err != nil || c.word != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.word)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
