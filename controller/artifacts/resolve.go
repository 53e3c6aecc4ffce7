// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// askTimeout bounds the question which digest an image is.
const askTimeout = time.Minute

// Resolve asks about one artifact; [Resolver.Resolve] does.
type Resolve func(ctx context.Context, k *Kind, a Artifact, policies []*trust.Policy) (*Outcome, error)

// Resolver asks registries and policies about artifacts.
type Resolver struct {
	live     client.Reader
	grants   grant.Writer
	registry *registry.Client
}

// NewResolver returns a resolver. It reads pull secrets live, since the controller may not list Secrets.
func NewResolver(s reconciler.Services, c *registry.Client) Resolver {
	return Resolver{live: s.Live, registry: c, grants: grant.NewWriter(s.Live, s.Client, s.Namespace)}
}

// Resolve grants the pull secrets of an artifact, resolves its image and has the policies judge it. It returns nil if nothing can have
// changed. What is wrong with the object or its registry is part of the outcome; an error is trouble with the API server.
func (r Resolver) Resolve(ctx context.Context, k *Kind, a Artifact, policies []*trust.Policy) (*Outcome, error) {
	h := a.Head()
	out := &Outcome{Policies: h.Applying(policies)}
	if err := r.grant(ctx, h); err != nil {
		return outcomeOf(out, err)
	}
	if k.unjudged(out.Policies) && Settled(h) && neverJudged(h) {
		return nil, nil //nolint:nilnil // documented above
	}
	if h.Image == "" || refuseUnasked(k, h, policies, out) {
		return out, nil
	}
	keys, err := credentials(ctx, r.live, h.Grant())
	if err != nil {
		return outcomeOf(out, err)
	}
	var ref artifact.Reference
	if ref, out.Err = artifact.ParseReference(h.Image); out.Err == nil {
		source := r.registry.Source
		if h.GetNamespace() != "" {
			source = r.registry.TenantSource
		}
		inquiry{kind: k, head: h, src: source(ref, keys), out: out}.ask(ctx, a)
	}
	return out, nil
}

// refuseUnasked refuses an image by the policies alone, if they do: then its registry is not asked at all, since whoever names a host
// would otherwise have the controller contact it.
func refuseUnasked(k *Kind, h Head, policies []*trust.Policy, out *Outcome) bool {
	ref, err := artifact.ParseReference(h.Image)
	if k.PolicyOptional || err != nil { // without a right to be judged, a refusal is only a verdict, for DeviceClasses to use
		return false
	}
	if out.Refusal = trust.RefuseUnasked(ref, h.GetNamespace(), policies); out.Refusal == nil {
		return false
	}
	out.Unasked = true
	out.Err = &Fault{Reason: refusalReason(out.Policies), Err: fmt.Errorf("its registry is not asked: %w", out.Refusal)}
	if h.Known {
		out.Judged = h.Digest
	}
	return true
}

// outcomeOf separates a fault of the object, which is an outcome, from trouble with the API server, which is an error.
func outcomeOf(out *Outcome, err error) (*Outcome, error) {
	if !errors.Is(err, ErrSecret) {
		return nil, err
	}
	out.Err = err
	return out, nil
}

// inquiry is about one artifact. What it finds goes into out.
type inquiry struct {
	kind *Kind
	head Head
	src  *registry.Source
	out  *Outcome
}

// ask asks the registry. Content that was read once is not read again, since a digest stands for it. Signatures are: a policy may have
// changed, and there may be more of them.
func (i inquiry) ask(ctx context.Context, a Artifact) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	d, err := i.src.Resolve(asking)
	if err != nil {
		i.out.Err = err
		i.judgeKnown(ctx)
		return
	}
	reading, cancel := context.WithTimeout(ctx, i.kind.ReadTimeout)
	defer cancel()
	if !i.head.Known || i.head.Digest != d.Digest.String() {
		if i.out.Err = a.Read(reading, i.src, d); i.out.Err != nil {
			return
		}
	}
	i.out.Digest = d.Digest.String()
	i.judge(reading, d.Digest)
}

// judgeKnown asks the policies about the digest in the status, if the registry is not available and other policies are for the image now:
// some answers need no registry.
func (i inquiry) judgeKnown(ctx context.Context) {
	h := i.head
	if ReasonOf(i.out.Err) != ReasonRegistryUnavailable || !h.Known || stands(h, i.out.Policies, h.Digest) {
		return
	}
	if d, err := artifact.ParseDigest(h.Digest); err == nil {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		i.judge(asking, d)
	}
}

func (i inquiry) judge(ctx context.Context, d artifact.Digest) {
	if i.kind.unjudged(i.out.Policies) {
		return
	}
	i.out.Judged = d.String()
	object := trust.Object{Namespace: i.head.GetNamespace(), Mode: i.head.Mode}
	i.out.Verdict, i.out.Refusal = trust.Judge(ctx, i.src, d, object, i.out.Policies)
}

// Settled says whether a registry can only repeat what the status says.
func Settled(h Head) bool {
	return h.ObservedGeneration == h.GetGeneration() && pinned(h) && meta.IsStatusConditionTrue(*h.Conditions, v1alpha1.ConditionResolved)
}

// neverJudged says whether the status says that no policy is for the image.
func neverJudged(h Head) bool {
	c := meta.FindStatusCondition(*h.Conditions, v1alpha1.ConditionVerified)
	return h.Verification == nil && c != nil && (c.Reason == ReasonNoTrustPolicy || c.Reason == ReasonHostFile)
}

// ErrSecret marks a pull secret that cannot be used. The object is at fault. Any other error is trouble with the API server, which passes.
var ErrSecret = pullsecret.ErrUnusable

// credentials reads the pull secrets of a request. Live must not read from a cache: the controller may not list Secrets.
func credentials(ctx context.Context, live client.Reader, r grant.Request) (authn.Keychain, error) {
	keys, err := pullsecret.Read(ctx, func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
		var secret corev1.Secret
		return &secret, live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret)
	}, r.Namespace, r.Names)
	if err != nil {
		return nil, err // not the nil *registry.Keychain
	}
	return keys, nil
}

// grant brings an object's Role to the secrets that it names: none if it names none. A spec that changed may have named some until now.
func (r Resolver) grant(ctx context.Context, h Head) error {
	var err error
	request := h.Grant()
	switch {
	case len(request.Names) > 0:
		err = r.grants.Ensure(ctx, request)
	case h.ObservedGeneration != h.GetGeneration():
		err = r.grants.Revoke(ctx, request)
	}
	switch {
	case apierrors.IsForbidden(err):
		return forbidden(request.Namespace)
	case errors.Is(err, grant.ErrForeign):
		return fmt.Errorf("%w: %w", ErrSecret, err)
	}
	return err
}

func forbidden(namespace string) error {
	return fmt.Errorf("%w: the controller may not read Secrets of namespace %s, or not grant that to the nodes; an administrator adds it to "+
		"bitstreams.pullSecretNamespaces of the chart", ErrSecret, namespace)
}
