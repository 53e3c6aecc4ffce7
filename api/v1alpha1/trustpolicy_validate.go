// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/registryname"
)

// What a trust policy may have at most, as the CRD has it.
const (
	maxTrustImages      = 64
	maxTrustImage       = 512
	maxTrustNamespaces  = 128
	maxTrustFormats     = 2
	maxTrustSignatures  = 16
	maxTrustAuthorities = 16
	maxTrustIdentities  = 16
	maxTrustIdentity    = 512
	maxTrustPEM         = 8192
	maxTrustRoot        = 65536
	minRSABits          = 2048
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	trustImage = regexp.MustCompile(`^([a-z0-9.-]*[*][*][a-z0-9.*-]*|` +
		`(localhost|[a-z0-9.-]*[.*][a-z0-9.*-]*|[a-z0-9.*-]+:(0*[1-9][0-9]*|[*]+))(/[a-z0-9._*-]+)+)$`)
	trustHost = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	trustPath = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)
	trustPEM  = regexp.MustCompile(`^\s*-----BEGIN PUBLIC KEY-----\s`)
)

// EffectiveMode returns the mode that counts.
func (s *TrustPolicySpec) EffectiveMode() VerificationMode {
	return cmp.Or(s.Mode, VerificationEnforce)
}

// EffectiveFormats returns the formats that count, the newest first.
func (s *TrustPolicySpec) EffectiveFormats() []SignatureFormat {
	var counting []SignatureFormat
	for _, f := range []SignatureFormat{SignatureCosignV3, SignatureCosignV2} {
		if len(s.Formats) == 0 || slices.Contains(s.Formats, f) {
			counting = append(counting, f)
		}
	}
	return counting
}

// EffectiveMinSignatures returns how many signers there must be.
func (s *TrustPolicySpec) EffectiveMinSignatures() int {
	if s.MinSignatures == nil {
		return 1
	}
	return int(*s.MinSignatures)
}

// Stricter returns the stricter of two modes. None at all says nothing, and one that is not known is as strict as can be.
func (m VerificationMode) Stricter(other VerificationMode) VerificationMode {
	lax := []VerificationMode{"", VerificationSkip, VerificationWarn}
	a, b := slices.Index(lax, m), slices.Index(lax, other)
	if a < 0 || b < 0 || a+b == 0 {
		return VerificationEnforce
	}
	return lax[max(a, b)]
}

// Validate reports every fault of the policy's spec below path, those that the CRD's own rules find included. What the trusted roots
// hold is not judged here.
func (s *TrustPolicySpec) Validate(path *field.Path) field.ErrorList {
	faults := oneOf(s.Mode, path.Child("mode"), VerificationEnforce, VerificationWarn, VerificationSkip)
	faults = append(faults, s.validateScope(path)...)
	if n := s.EffectiveMinSignatures(); n < 1 || n > maxTrustSignatures {
		faults = append(faults, field.Invalid(path.Child("minSignatures"), n, fmt.Sprintf("must be 1 to %d", maxTrustSignatures)))
	}
	at := path.Child("authorities")
	if len(s.Authorities) == 0 && s.Mode != VerificationSkip {
		faults = append(faults, field.Required(at, "name at least one authority, or set mode Skip to trust the images whoever made them"))
	}
	faults = append(faults, atMost(len(s.Authorities), maxTrustAuthorities, at)...)
	keys, names := true, []string{}
	for i := range s.Authorities {
		a := &s.Authorities[i]
		if slices.Contains(names, a.Name) {
			faults = append(faults, field.Duplicate(at.Index(i).Child("name"), a.Name))
		}
		names, keys = append(names, a.Name), keys && a.Keyless == nil
		faults = append(faults, a.validate(at.Index(i))...)
	}
	if n := s.EffectiveMinSignatures(); keys && len(s.Authorities) > 0 && n > len(s.Authorities) {
		faults = append(faults, field.Invalid(path.Child("minSignatures"), n,
			fmt.Sprintf("asks for more signers than there are keys, %d", len(s.Authorities))))
	}
	return faults
}

// validateScope is about what the policy is for.
func (s *TrustPolicySpec) validateScope(path *field.Path) field.ErrorList {
	at := path.Child("images")
	faults := slices.Concat(atMost(len(s.Images), maxTrustImages, at), validateSet(s.Images, at))
	if len(s.Images) == 0 {
		faults = append(faults, field.Required(at, "name at least one repository; ** stands for all"))
	}
	for i, image := range s.Images {
		faults = append(faults, noLonger(image, maxTrustImage, at.Index(i))...)
		if why := trustImageFault(image); why != "" {
			faults = append(faults, field.Invalid(at.Index(i), image, why))
		}
	}
	at = path.Child("namespaces")
	if s.Namespaces != nil && len(s.Namespaces) == 0 {
		faults = append(faults, emptyList(at))
	}
	faults = append(faults, slices.Concat(atMost(len(s.Namespaces), maxTrustNamespaces, at), validateSet(s.Namespaces, at))...)
	for i, namespace := range s.Namespaces {
		faults = append(faults, labelFaults(namespace, at.Index(i))...)
	}
	at = path.Child("formats")
	if s.Formats != nil && len(s.Formats) == 0 {
		faults = append(faults, emptyList(at))
	}
	faults = append(faults, atMost(len(s.Formats), maxTrustFormats, at)...)
	known := []SignatureFormat{SignatureCosignV2, SignatureCosignV3}
	for i, format := range s.Formats {
		if slices.Contains(s.Formats[:i], format) {
			faults = append(faults, field.Duplicate(at.Index(i), format))
		}
		if !slices.Contains(known, format) {
			faults = append(faults, field.NotSupported(at.Index(i), format, known))
		}
	}
	return faults
}

// trustImageFault says what is wrong with a pattern of repositories, or "". It refuses a pattern that no repository can match: its policy
// would look valid and never apply.
//
// With an "a" in place of each wildcard, a pattern is a valid name if any text in their place makes it one, since an "a" may be beside
// every other character of a name.
func trustImageFault(pattern string) string {
	if !trustImage.MatchString(pattern) {
		return "must be a registry with a dot, a port or a *, a slash, and a repository without tag or digest: registry.example/team/*, " +
			"or registry.example/** for all of a registry"
	}
	host, path, found := strings.Cut(pattern, "/")
	host, port, hasPort := strings.Cut(host, ":")
	if !trustHost.MatchString(strings.ReplaceAll(host, "*", "a")) {
		return "can match no registry: no part of a registry's name is empty, or begins or ends with -"
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && port[0] != '*' && (err != nil || n == 0) {
		return "can match no registry: a port is 1 to 65535, or * for any"
	}
	if !found {
		return "" // with **, which may stand for the slash
	}
	for part := range strings.SplitSeq(path, "/") {
		if !trustPath.MatchString(strings.ReplaceAll(part, "*", "a")) {
			return "can match no repository: each part of a repository has letters and digits, between which there may be ., _, __ or -"
		}
	}
	if !hasPort && registryname.Host(host) == registryname.DockerHub && !strings.Contains(path, "/") && !strings.Contains(path, "**") {
		return "can match no repository: those of Docker Hub have two parts, as docker.io/library/busybox: name both, or docker.io/**"
	}
	return ""
}

func labelFaults(name string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, detail := range validation.IsDNS1123Label(name) {
		faults = append(faults, field.Invalid(path, name, detail))
	}
	return faults
}

func (a *TrustAuthority) validate(path *field.Path) field.ErrorList {
	faults := labelFaults(a.Name, path.Child("name"))
	if (a.Key == nil) == (a.Keyless == nil) {
		faults = append(faults, field.Required(path, "set exactly one of key and keyless"))
	}
	if a.Key != nil {
		if _, err := a.Key.PublicKey(); err != nil {
			faults = append(faults, field.Invalid(path.Child("key", "pem"), field.OmitValueType{}, err.Error()))
		}
	}
	if a.Keyless != nil {
		faults = append(faults, a.Keyless.validate(path.Child("keyless"))...)
	}
	if a.TrustedRoot == "" {
		return faults
	}
	at := path.Child("trustedRoot")
	faults = append(faults, noLonger(a.TrustedRoot, maxTrustRoot, at)...)
	if a.Keyless == nil && a.Key != nil && !a.Key.RequireTransparencyLog {
		faults = append(faults, field.Forbidden(at, "a key needs it only with requireTransparencyLog"))
	}
	if !strings.HasPrefix(strings.TrimSpace(a.TrustedRoot), "{") || !json.Valid([]byte(a.TrustedRoot)) {
		faults = append(faults, field.Invalid(at, field.OmitValueType{}, "must be a Sigstore trusted root in JSON"))
	}
	return faults
}

// PublicKey reads the key.
func (k *TrustKey) PublicKey() (crypto.PublicKey, error) {
	if len(k.PEM) > maxTrustPEM || !trustPEM.MatchString(k.PEM) {
		return nil, fmt.Errorf("must be one PUBLIC KEY block in PEM of at most %d characters", maxTrustPEM)
	}
	block, rest := pem.Decode([]byte(k.PEM))
	if block == nil || len(block.Headers) > 0 || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("must be one PUBLIC KEY block in PEM and nothing else")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("must be a public key: %w", err)
	}
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return nil, fmt.Errorf("must be on the curve P-256, P-384 or P-521, not %s", key.Params().Name)
		}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits {
			return nil, fmt.Errorf("must have %d bits or more, not %d", minRSABits, bits)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("must be an ECDSA, RSA or Ed25519 key, not %T", key)
	}
	return key, nil
}

func (k *TrustKeyless) validate(path *field.Path) field.ErrorList {
	at := path.Child("identities")
	faults := atMost(len(k.Identities), maxTrustIdentities, at)
	if len(k.Identities) == 0 {
		faults = append(faults, field.Required(at, "say who may have signed: without, any certificate would do"))
	}
	for i := range k.Identities {
		id := &k.Identities[i]
		faults = append(faults, identityFaults("issuer", id.Issuer, id.IssuerRegExp, at.Index(i))...)
		faults = append(faults, identityFaults("subject", id.Subject, id.SubjectRegExp, at.Index(i))...)
	}
	return faults
}

// identityFaults is about one of the two halves of an identity.
func identityFaults(name, exact, expression string, path *field.Path) field.ErrorList {
	at := path.Child(name + "RegExp")
	faults := slices.Concat(noLonger(exact, maxTrustIdentity, path.Child(name)), noLonger(expression, maxTrustIdentity, at))
	if (exact == "") == (expression == "") {
		return append(faults, field.Required(path, fmt.Sprintf("set exactly one of %s and %[1]sRegExp", name)))
	}
	if expression == "" {
		return faults
	}
	_, err := regexp.Compile(expression)
	whole, wholeErr := regexp.Compile(WholeRegExp(expression))
	switch {
	case err != nil || wholeErr != nil:
		faults = append(faults, field.Invalid(at, expression, "must be a regular expression: "+errors.Join(err, wholeErr).Error()))
	case whole.MatchString(""):
		faults = append(faults, field.Invalid(at, expression, "must not match the empty text: one that does is no condition"))
	}
	return faults
}

// WholeRegExp is a valid expression that matches whole texts only.
func WholeRegExp(expression string) string { return "^(?:" + expression + ")$" }
