// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Policy is a TrustPolicy that is ready to be asked. It does not change, and is safe for concurrent use.
type Policy struct {
	name        string
	uid         types.UID
	generation  int64
	mode        v1alpha1.VerificationMode
	images      *regexp.Regexp
	mirrors     registryname.Mirrors // see AtMirrors
	namespaces  []string
	formats     []v1alpha1.SignatureFormat
	min         int
	authorities []*authority
	// publicRoot is the digest of the public root, zero where no authority asks it.
	publicRoot artifact.Digest
	// fault is why it does not compile; then nothing passes.
	fault error
}

// Load is Compile for who must go on with a policy that does not compile: it refuses every image that it is for, whatever mode it says. One
// that does not even tell which images these are is for all.
func Load(object *v1alpha1.TrustPolicy, publicRoot []byte) *Policy {
	p, err := Compile(object, publicRoot)
	if err == nil {
		return p
	}
	images, bad := globs(object.Spec.Images)
	if bad != nil || len(object.Spec.Images) == 0 {
		images = regexp.MustCompile("")
	}
	return &Policy{
		name: object.Name, uid: object.UID, generation: object.Generation, mode: v1alpha1.VerificationEnforce, images: images,
		namespaces: slices.Clone(object.Spec.Namespaces), fault: err,
	}
}

// Compile reads the keys and trusted roots of a policy. publicRoot is the trusted root of authorities that have none of their own, in JSON;
// a policy that needs it where there is none is refused.
func Compile(object *v1alpha1.TrustPolicy, publicRoot []byte) (*Policy, error) {
	spec := &object.Spec
	if err := spec.Validate(field.NewPath("spec")).ToAggregate(); err != nil {
		return nil, fmt.Errorf("the TrustPolicy %s is not valid: %w", object.Name, err)
	}
	images, err := globs(spec.Images)
	if err != nil {
		return nil, fmt.Errorf("spec.images of the TrustPolicy %s: %w", object.Name, err)
	}
	p := &Policy{
		name: object.Name, uid: object.UID, generation: object.Generation, mode: spec.EffectiveMode(), images: images,
		namespaces: slices.Clone(spec.Namespaces), formats: spec.EffectiveFormats(), min: spec.EffectiveMinSignatures(),
	}
	for i := range spec.Authorities {
		a, err := compileAuthority(&spec.Authorities[i], publicRoot)
		if err != nil {
			return nil, fmt.Errorf("spec.authorities[%d] (%s) of the TrustPolicy %s: %w", i, spec.Authorities[i].Name, object.Name, err)
		}
		p.authorities = append(p.authorities, a)
		if asksPublic(&spec.Authorities[i]) {
			p.publicRoot = artifact.DigestOf(publicRoot)
		}
	}
	return p, nil
}

// anyPort is what a pattern's ":*" before the first slash means. A reference has no port where it is the default one.
const anyPort = `(:[0-9]+)?`

// globs returns an expression for the repositories that any of the patterns is for. Patterns name registries as references do.
func globs(patterns []string) (*regexp.Regexp, error) {
	var all []string
	for _, p := range patterns {
		host, path, _ := strings.Cut(p, "/")
		name, port := strings.TrimRight(host, "*"), ""
		if strings.HasSuffix(name, ":") && name != host {
			host, port = strings.TrimSuffix(name, ":"), anyPort // taken off first, since Host knows no such port
		}
		expression := glob(registryname.Host(host)) + port
		if path != "" {
			expression += "/" + glob(path)
		}
		all = append(all, expression)
	}
	return regexp.Compile(v1alpha1.WholeRegExp(strings.Join(all, "|")))
}

// glob returns an expression for a part of a pattern: ** is anything, * anything but a slash.
func glob(pattern string) string {
	expression := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*\*`, `.*`)
	return strings.ReplaceAll(expression, `\*`, `[^/]*`)
}

// Name is the object's.
func (p *Policy) Name() string { return p.name }

// UID is the object's: a policy that was made again under a name is another one.
func (p *Policy) UID() types.UID { return p.uid }

// Generation is that of the spec.
func (p *Policy) Generation() int64 { return p.generation }

// PublicRoot is the digest of the public trusted root that the policy was compiled with, zero where it does not depend on it: what the
// policy said by one root is nothing by another.
func (p *Policy) PublicRoot() artifact.Digest { return p.publicRoot }

// Fault is why the policy does not compile, nil where it does.
func (p *Policy) Fault() error { return p.fault }

// AtMirrors returns the policy for a client that has these mirrors. If the policy enforces, it is for what a mirror has of its images, too,
// by the mirror's own name. A policy that does not enforce lets nothing pass at a mirror that is not for its name.
func (p *Policy) AtMirrors(m registryname.Mirrors) *Policy {
	at := *p
	at.mirrors = m
	return &at
}

// Applies says whether the policy is for an image that an object of the namespace refers to. The namespace is empty for an object of the
// cluster.
func (p *Policy) Applies(ref artifact.Reference, namespace string) bool {
	return p.covers(ref.Repository()) && (len(p.namespaces) == 0 || slices.Contains(p.namespaces, namespace))
}

// covers says whether the policy is for a repository.
func (p *Policy) covers(repository string) bool {
	lenient := p.mode == v1alpha1.VerificationSkip || p.mode == v1alpha1.VerificationWarn
	return p.images.MatchString(repository) || !lenient && slices.ContainsFunc(p.mirrors.Origins(repository), p.images.MatchString)
}

// Cache compiles each version of a TrustPolicy once. As long as a policy is not changed, the cache returns the same *Policy for it, so two
// lists from the cache are equal if and only if the policies in them are the same and unchanged, also if one was deleted and made again. It
// is safe for concurrent use.
type Cache struct {
	publicRoot []byte
	mirrors    registryname.Mirrors

	mu       sync.Mutex
	compiled map[types.UID]*Policy
}

// NewCache returns an empty cache. The public root is as in [Load], the mirrors are as in [Policy.AtMirrors].
func NewCache(publicRoot []byte, mirrors registryname.Mirrors) *Cache {
	return &Cache{publicRoot: publicRoot, mirrors: mirrors, compiled: map[types.UID]*Policy{}}
}

// All returns the policies that there are, in the given order, and forgets all others.
func (c *Cache) All(objects []*v1alpha1.TrustPolicy) []*Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, policies := make(map[types.UID]*Policy, len(objects)), make([]*Policy, 0, len(objects))
	for _, object := range objects {
		p := c.load(object)
		kept[object.UID] = p
		policies = append(policies, p)
	}
	c.compiled = kept
	return policies
}

// One returns one policy.
func (c *Cache) One(object *v1alpha1.TrustPolicy) *Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.load(object)
}

func (c *Cache) load(object *v1alpha1.TrustPolicy) *Policy {
	p := c.compiled[object.UID]
	if p == nil || p.generation != object.Generation {
		p = Load(object, c.publicRoot).AtMirrors(c.mirrors)
		c.compiled[object.UID] = p
	}
	return p
}
