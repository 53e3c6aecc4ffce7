// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// trustCase is the spec of a TrustPolicy in YAML and what is wrong with it, judged by Validate and by the API server.
type trustCase struct {
	name, spec string
	// want are the beginnings of the faults, one each.
	want []string
	// lenient says why the API server takes what Validate does not, strict why it is the other way round.
	lenient, strict string
}

// pemBlock is a public key as YAML has it on one line.
func pemBlock(label, base64 string) string {
	return `"-----BEGIN ` + label + `-----\n` + base64 + `\n-----END ` + label + `-----\n"`
}

const (
	ecKey      = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECzcOVpHkpuarDsiDjqt2NbDvB8Oi0laYECDLqYiWuwtlJRoDKnx65dtcCTE3hK+7FYSNaz1G9MMhzIC0+JfJkQ=="
	weakCurve  = "ME4wEAYHKoZIzj0CAQYFK4EEACEDOgAETPOm13fiZYdulv05KN1kMrQhSH47c55lKBTkItsiGBIlKrtzLJGKJiqRbvFQq3zkQWI7mr80a04="
	ed25519Key = "MCowBQYDK2VwAyEAehsi2zeIrn2sHgYS7FcaB69GOJgac6J3BxOzf47tpO8="
	x25519Key  = "MCowBQYDK2VuAyEAvAonPUvgw53+h58zLRAkpGYmK1XFO7NlrMtUf7RHYRc="
	shortRSA   = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCtidTGIlh2lWLOQggYML4o//y7wYaVqXql3VxcaRXo99DiurLnMR6YCwmyv7Axce6L9weSJnFhKWCfwmk" +
		"SniIfOZIpV4JhZES12HobXEA3L1FGH0MFn21F3HBS1RujKdTRLFiF0VtHeY+QGmElBwdJOl+erI3Mi7EA8G/7dpSa7QIDAQAB"
)

// keyed and keyless are policies with one authority.
func keyed(more string) string {
	return "images: ['**']\nauthorities: [{name: a, key: {pem: " + pemBlock("PUBLIC KEY", ecKey) + "}}]\n" + more
}

func keyless(identity string) string { return keylessWith("identities: [" + identity + "]") }

func keylessWith(fields string) string {
	return "images: ['**']\nauthorities: [{name: a, keyless: {" + fields + "}}]\n"
}

func ofKey(pem string) string {
	return "images: ['**']\nauthorities: [{name: a, key: {pem: " + pem + "}}]\n"
}

func trustCases() []trustCase {
	var all []trustCase
	all = append(all, trustScopeCases()...)
	all = append(all, trustImageCases()...)
	all = append(all, trustKeyCases()...)
	all = append(all, trustIdentityCases()...)
	return append(all, trustLimitCases()...)
}

func trustScopeCases() []trustCase {
	return []trustCase{
		{name: "a key", spec: keyed("")},
		{name: "everything", spec: keyed("mode: Warn\nnamespaces: [a, b-c]\nformats: [CosignV2, CosignV3]\nminSignatures: 1\n")},
		{name: "mode", spec: keyed("mode: Audit"), want: []string{`spec.mode: Unsupported value: "Audit"`}},
		{name: "formats", spec: keyed("formats: [Notary]"), want: []string{`spec.formats[0]: Unsupported value: "Notary"`}},
		{
			name: "format twice", spec: keyed("formats: [CosignV2, CosignV2]"),
			want: []string{`spec.formats[1]: Duplicate value: "CosignV2"`},
		},
		{name: "no formats", spec: keyed("formats: []"), want: []string{"spec.formats: Required value"}},
		{name: "no namespaces", spec: keyed("namespaces: []"), want: []string{"spec.namespaces: Required value"}},
		{
			name: "namespaces", spec: keyed("namespaces: [A, a.b, '*', a, a]"),
			want: []string{
				`spec.namespaces[4]: Duplicate value: "a"`, `spec.namespaces[0]: Invalid value: "A"`,
				`spec.namespaces[1]: Invalid value: "a.b"`, `spec.namespaces[2]: Invalid value: "*"`,
			},
		},
		{name: "signatures of nobody", spec: keyed("minSignatures: 0"), want: []string{"spec.minSignatures: Invalid value: 0"}},
		{
			name: "more signers than keys", spec: keyed("minSignatures: 2"),
			want: []string{"spec.minSignatures: Invalid value: 2: asks for more signers than there are keys, 1"},
		},
		{name: "signers of one provider", spec: keyless("{issuer: a, subjectRegExp: '.+@b'}") + "minSignatures: 3"},
		{name: "nobody", spec: "images: ['**']", want: []string{"spec.authorities: Required value: name at least one authority"}},
		{name: "nobody on purpose", spec: "images: ['**']\nmode: Skip"},
		{
			name: "nobody in a warning", spec: "images: ['**']\nmode: Warn",
			want: []string{"spec.authorities: Required value: name at least one authority"},
		},
		{
			name: "authorities twice",
			spec: "images: ['**']\nauthorities: [{name: a, key: {pem: " + pemBlock("PUBLIC KEY", ecKey) + "}}, {name: a, key: {pem: " +
				pemBlock("PUBLIC KEY", ed25519Key) + "}}]",
			want: []string{`spec.authorities[1].name: Duplicate value: "a"`},
		},
		{
			name: "neither", spec: "images: ['**']\nauthorities: [{name: a}]",
			want: []string{"spec.authorities[0]: Required value: set exactly one of key and keyless"},
		},
		{
			name: "both",
			spec: "images: ['**']\nauthorities: [{name: a, key: {pem: " + pemBlock("PUBLIC KEY", ecKey) +
				"}, keyless: {identities: [{issuer: a, subject: b}]}}]",
			want: []string{"spec.authorities[0]: Required value: set exactly one of key and keyless"},
		},
		{
			name: "authority's name", spec: "images: ['**']\nauthorities: [{name: A.b, keyless: {identities: [{issuer: a, subject: b}]}}]",
			want: []string{`spec.authorities[0].name: Invalid value: "A.b"`},
		},
	}
}

func trustImageCases() []trustCase {
	all := []trustCase{
		{name: "no images", spec: "mode: Skip\nimages: []", want: []string{"spec.images: Required value"}},
		{name: "image twice", spec: "mode: Skip\nimages: ['**', '**']", want: []string{`spec.images[1]: Duplicate value: "**"`}},
	}
	for _, image := range []string{
		"**", "quay.io/**", "quay.io/team/cache", "quay.io/team/cache-*", "*.example.com/a", "localhost/a", "registry:5000/a/b", "quay.io**",
		"10.0.0.1:5000/a", "localhost:5000/**", "a.b/c_d/e__f.g", "registry:*/a", "*/a", "**.example", "a.b:0443/c", "docker.io/library/*",
		"docker.io/**", "docker.io/team**", "index.docker.io:*/**", "a.b/*-c/d_*", "a-*.b-*/c", "registry:65535/a",
	} {
		all = append(all, trustCase{name: "image " + image, spec: fmt.Sprintf("mode: Skip\nimages: [%q]", image)})
	}
	for _, image := range []string{
		"", "team/cache", "quay.io/a:v1", "quay.io/a@sha256:0", "https://quay.io/a", "Quay.io/a", "quay.io/", "quay.io//a", "/a", "quay.io/a b",
		"a", "quay.io/A", "quay.io/a\n", "*", "quay.io", "*.example", ":00/**", "a.b:00/**", "a.b:443*/**", "a.b:5000", "**:5000",
	} {
		all = append(all, trustCase{
			name: fmt.Sprintf("image %q", image), spec: fmt.Sprintf("mode: Skip\nimages: [%q]", image),
			want: []string{fmt.Sprintf("spec.images[0]: Invalid value: %q", image)},
		})
	}
	for _, image := range []string{
		"a.b:99999/**", "a.b:65536/c", "a..b/c", "-a.b/c", "a-.b/c", "a.b-/*", ".*/a", "a.b/-c", "a.b/c-", "a.b/c._d", "a.b/c/../d", "a.b/*-/d",
		"docker.io/team", "docker.io/*", "index.docker.io/team-*", "registry-1.docker.io/*",
	} {
		all = append(all, trustCase{
			name: fmt.Sprintf("image %q", image), spec: fmt.Sprintf("mode: Skip\nimages: [%q]", image),
			want: []string{fmt.Sprintf("spec.images[0]: Invalid value: %q: can match no re", image)}, lenient: "one expression cannot say it",
		})
	}
	return all
}

func trustKeyCases() []trustCase {
	const (
		at       = "spec.authorities[0].key.pem: Invalid value: must be "
		rootAt   = "spec.authorities[0].trustedRoot: "
		badRoot  = "Invalid value: must be a Sigstore"
		notKey   = "a schema cannot read a key"
		notJSON  = "a schema cannot read JSON in a text"
		identity = "keyless: {identities: [{issuer: a, subject: b}]}"
	)
	key := "key: {pem: " + pemBlock("PUBLIC KEY", ecKey)
	root := func(authority, root string) string {
		return fmt.Sprintf("images: ['**']\nauthorities: [{name: a, %s, trustedRoot: %q}]", authority, root)
	}
	return []trustCase{
		{name: "Ed25519", spec: ofKey(pemBlock("PUBLIC KEY", ed25519Key))},
		{name: "no key", spec: ofKey("''"), want: []string{at + "one PUBLIC KEY block in PEM"}},
		{name: "private key", spec: ofKey(pemBlock("PRIVATE KEY", ecKey)), want: []string{at + "one PUBLIC KEY block in PEM"}},
		{name: "certificate", spec: ofKey(pemBlock("CERTIFICATE", ecKey)), want: []string{at + "one PUBLIC KEY block in PEM"}},
		{name: "broken key", spec: ofKey(pemBlock("PUBLIC KEY", ecKey[:20])), want: []string{at + "a public key: "}, lenient: notKey},
		{name: "X25519", spec: ofKey(pemBlock("PUBLIC KEY", x25519Key)), want: []string{at + "an ECDSA, RSA or Ed25519 key"}, lenient: notKey},
		{name: "P-224", spec: ofKey(pemBlock("PUBLIC KEY", weakCurve)), want: []string{at + "on the curve P-256"}, lenient: notKey},
		{
			name: "RSA of 1024 bits", spec: ofKey(pemBlock("PUBLIC KEY", shortRSA)),
			want: []string{"spec.authorities[0].key.pem: Invalid value: must have 2048 bits or more, not 1024"}, lenient: notKey,
		},
		{
			name: "two keys", spec: ofKey(strings.ReplaceAll(pemBlock("PUBLIC KEY", ecKey)+pemBlock("PUBLIC KEY", ecKey), `""`, "")),
			want: []string{at + "one PUBLIC KEY block in PEM and nothing else"}, lenient: notKey,
		},
		{name: "root of a key with a log", spec: root(key+", requireTransparencyLog: true}", "{}")},
		{name: "root of a key", spec: root(key+"}", "{}"), want: []string{rootAt + "Forbidden: a key needs it only with"}},
		{name: "root", spec: root(identity, `{"mediaType": "x"}`)},
		{name: "root that is none", spec: root(identity, `["x"]`), want: []string{rootAt + badRoot}, lenient: notJSON},
		{name: "root cut off", spec: root(identity, `{"mediaType"`), want: []string{rootAt + badRoot}, lenient: notJSON},
		{name: "empty root", spec: root(identity, ""), strict: "in Go the empty text is the same as none"},
	}
}

func trustIdentityCases() []trustCase {
	const (
		at    = "spec.authorities[0].keyless.identities"
		empty = "in Go the empty text is the same as none"
	)
	all := []trustCase{
		{name: "identity", spec: keyless("{issuer: 'https://a', subject: b@c}")},
		{name: "identities", spec: keyless(`{issuerRegExp: 'https://(a|b)', subject: b@c}, {issuer: a, subjectRegExp: '.+@b\.c'}`)},
		{name: "no requirements", spec: keylessWith("identities: [{issuer: a, subject: b}], requireSCT: false, requireTransparencyLog: false")},
		{name: "no identity", spec: keylessWith("identities: []"), want: []string{at + ": Required value: say who may have signed"}},
		{name: "no identities", spec: keylessWith("requireSCT: false"), want: []string{at + ": Required value: say who may have signed"}},
		{
			name: "empty identity", spec: keyless("{}"),
			want: []string{at + "[0]: Required value: set exactly one of issuer", at + "[0]: Required value: set exactly one of subject"},
		},
		{name: "no issuer", spec: keyless("{subject: a}"), want: []string{at + "[0]: Required value: set exactly one of issuer"}},
		{name: "no subject", spec: keyless("{issuer: a}"), want: []string{at + "[0]: Required value: set exactly one of subject"}},
		{
			name: "issuer twice", spec: keyless("{issuer: a, issuerRegExp: a, subject: b}"),
			want: []string{at + "[0]: Required value: set exactly one of issuer"},
		},
		{
			name: "subject twice", spec: keyless("{issuer: a, subjectRegExp: a, subject: b}"),
			want: []string{at + "[0]: Required value: set exactly one of subject"},
		},
		{name: "empty beside", spec: keyless("{issuer: '', issuerRegExp: a, subject: b}"), strict: empty},
	}
	for _, expression := range []string{"(", "a)|(b", `\`, "(?P<x", "a{2,1}", `\Qa`} {
		all = append(all, trustCase{
			name: "expression " + expression, spec: keyless(fmt.Sprintf("{issuer: a, subjectRegExp: %q}", expression)),
			want: []string{fmt.Sprintf("%s[0].subjectRegExp: Invalid value: %q: must be a regular expression", at, expression)},
		})
	}
	for _, expression := range []string{".*", "a?", "^$", "x|", "()", "(?i)"} {
		all = append(all, trustCase{
			name: "expression " + expression, spec: keyless(fmt.Sprintf("{issuerRegExp: %q, subject: a}", expression)),
			want: []string{fmt.Sprintf("%s[0].issuerRegExp: Invalid value: %q: must not match the empty text", at, expression)},
		})
	}
	return all
}

// trustLimitCases are at each limit and one beyond.
func trustLimitCases() []trustCase {
	var all []trustCase
	key := "{name: a%d, key: {pem: " + strings.ReplaceAll(pemBlock("PUBLIC KEY", ecKey), "%", "%%") + "}}"
	for _, limit := range []struct {
		name  string
		most  int
		spec  func(n int) string
		field string
	}{
		{"images", 64, list("mode: Skip\nimages: [%s]", "a.b/a%d"), "images"},
		{"image", 512, long("mode: Skip\nimages: [a.b/%s]", "b", 4), "images[0]"},
		{"namespaces", 128, list(keyed("namespaces: [%s]"), "a%d"), "namespaces"},
		{"namespace", 63, long(keyed("namespaces: [%s]"), "a"), "namespaces[0]"},
		{"signatures", 16, of(keyless("{issuer: a, subject: b}") + "minSignatures: %d"), "minSignatures"},
		{"authorities", 16, list("images: ['**']\nauthorities: [%s]", key), "authorities"},
		{"authority", 63, long(strings.Replace(keyless("{issuer: a, subject: b}"), "name: a", "name: %s", 1), "a"), "authorities[0].name"},
		{"identities", 16, list(keylessWith("identities: [%s]"), "{issuer: a, subject: b%d}"), "authorities[0].keyless.identities"},
		{"issuer", 512, long(keyless("{issuer: %s, subject: b}"), "é"), "authorities[0].keyless.identities[0].issuer"},
		{"subject", 512, long(keyless("{issuer: a, subject: %s}"), "é"), "authorities[0].keyless.identities[0].subject"},
		{"issuers", 512, long(keyless("{issuerRegExp: %s, subject: b}"), "é"), "authorities[0].keyless.identities[0].issuerRegExp"},
		{"subjects", 512, long(keyless("{issuer: a, subjectRegExp: %s}"), "é"), "authorities[0].keyless.identities[0].subjectRegExp"},
	} {
		for n, want := range map[int][]string{limit.most: nil, limit.most + 1: {"spec." + limit.field + ": "}} {
			all = append(all, trustCase{name: fmt.Sprintf("%s %d", limit.name, n), spec: limit.spec(n), want: want})
		}
	}
	return all
}

func validateTrust(t *testing.T, spec string) field.ErrorList {
	t.Helper()
	var s v1alpha1.TrustPolicySpec
	if err := yaml.UnmarshalStrict([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	return s.Validate(field.NewPath("spec"))
}

func TestTrustPolicyValidate(t *testing.T) {
	for _, c := range trustCases() {
		t.Run(c.name, func(t *testing.T) {
			faults := validateTrust(t, c.spec)
			for i, fault := range faults {
				if i >= len(c.want) || !strings.HasPrefix(fault.Error(), c.want[i]) {
					t.Errorf("fault %d is %q", i, fault.Error())
				}
			}
			if len(faults) != len(c.want) {
				t.Errorf("%d faults, want %q", len(faults), c.want)
			}
		})
	}
}

func TestTrustPolicyDefaults(t *testing.T) {
	var s v1alpha1.TrustPolicySpec
	if s.EffectiveMode() != v1alpha1.VerificationEnforce || s.EffectiveMinSignatures() != 1 {
		t.Errorf("got %s and %d", s.EffectiveMode(), s.EffectiveMinSignatures())
	}
	s.Formats = []v1alpha1.SignatureFormat{v1alpha1.SignatureCosignV2}
	if diff := cmp.Diff(s.Formats, s.EffectiveFormats()); diff != "" {
		t.Error(diff)
	}
}

func TestStricterMode(t *testing.T) {
	const enforce, warn, skip = v1alpha1.VerificationEnforce, v1alpha1.VerificationWarn, v1alpha1.VerificationSkip
	for _, c := range []struct{ a, b, want v1alpha1.VerificationMode }{
		{enforce, skip, enforce},
		{enforce, warn, enforce},
		{warn, skip, warn},
		{skip, skip, skip},
		{warn, warn, warn},
		{enforce, "", enforce},
		{warn, "", warn},
		{skip, "", skip},
		{"", "", enforce},
		{skip, "Whatever", enforce},
		{warn, "Whatever", enforce},
	} {
		if got := c.a.Stricter(c.b); got != c.want {
			t.Errorf("%s and %s: got %s, want %s", c.a, c.b, got, c.want)
		}
		if got := c.b.Stricter(c.a); got != c.want {
			t.Errorf("%s and %s: got %s, want %s", c.b, c.a, got, c.want)
		}
	}
}
