// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/trust"
)

const (
	// askTimeout bounds the question what a reference means, readTimeout the reading of what is new and of signatures.
	askTimeout  = time.Minute
	readTimeout = 3 * time.Minute

	// maxTargets is how many targets a status lists, and maxTarget how long one may be.
	maxTargets = 16
	maxTarget  = 128
	// maxPolicies is how many policies a status lists.
	maxPolicies = 64
)

// errNotACache: the reference names something that no node could use.
var errNotACache = errors.New("is no image of a kernel cache")

// Outcome is what one look at an object found.
type Outcome struct {
	// Err says why it is not resolved; Digest and Image count only without it.
	Err error
	// Digest is what the reference means.
	Digest string
	Image  *v1alpha1.CacheImage
	// Judged is the digest that was verified, empty where none was.
	Judged string
	// Policies are those that are for the image.
	Policies []*trust.Policy
	// Verdict and Refusal are what they say: the refusal, or another error where there is no answer.
	Verdict trust.Verdict
	Refusal error
}

// Looker looks at objects.
type Looker struct {
	// Live does not read from a cache; the controller may not list Secrets.
	Live     client.Reader
	Grants   grant.Writer
	Registry *registry.Client
}

// Look does what an object asks for and finds out what there is to say of it. What is wrong with the object or its registry is part of the
// outcome; an error is trouble with the API server.
func (l Looker) Look(ctx context.Context, o Object, policies []*trust.Policy) (*Outcome, error) {
	out := &Outcome{Policies: o.Policies(policies)}
	r := o.Grant()
	out.Err = pull.Grant(ctx, l.Grants, r, o.Status.ObservedGeneration != o.GetGeneration())
	var keys authn.Keychain
	if out.Err == nil {
		keys, out.Err = pull.Keys(ctx, l.Live, r.Namespace, r.Names)
	}
	switch {
	case errors.Is(out.Err, pull.ErrSecret):
		return out, nil
	case out.Err != nil:
		return nil, out.Err
	}
	l.resolve(ctx, o, keys, out)
	return out, nil
}

// resolve asks the registry. What was read once is not read again, since a digest stands for it; signatures are, since a policy may have
// changed, and more of them may have come.
func (l Looker) resolve(ctx context.Context, o Object, keys authn.Keychain, out *Outcome) {
	ref, err := artifact.ParseReference(o.Spec.Image)
	if err != nil {
		out.Err = err
		return
	}
	src := l.Registry.Source(ref, keys)
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	d, err := src.Resolve(asking)
	if err != nil {
		out.Err = err
		l.judgeKnown(ctx, o, src, out)
		return
	}
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out.Digest, out.Image = d.Digest.String(), o.Status.Image
	if !known(o) || o.Status.ResolvedDigest != out.Digest {
		if out.Image, out.Err = readImage(reading, src, d); out.Err != nil {
			return
		}
	}
	l.judge(reading, o, src, d.Digest, out)
}

// judgeKnown asks the policies about what the reference meant before, if others are for it now: some answers need no registry.
func (l Looker) judgeKnown(ctx context.Context, o Object, src *registry.Source, out *Outcome) {
	if pull.ReasonOf(out.Err) != pull.ReasonRegistryUnavailable || !known(o) || stands(o, out.Policies, o.Status.ResolvedDigest) {
		return
	}
	if d, err := artifact.ParseDigest(o.Status.ResolvedDigest); err == nil {
		reading, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		l.judge(reading, o, src, d, out)
	}
}

func (l Looker) judge(ctx context.Context, o Object, src *registry.Source, d artifact.Digest, out *Outcome) {
	out.Judged = d.String()
	out.Verdict, out.Refusal = trust.Judge(ctx, src, d, o.GetNamespace(), out.Policies, o.mode())
}

// readImage reads what an image says of itself. The labels are whoever pushed it's word, and shown as that.
func readImage(ctx context.Context, src artifact.ImageSource, d artifact.Descriptor) (*v1alpha1.CacheImage, error) {
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if errors.Is(err, artifact.ErrInvalid) {
		return nil, fmt.Errorf("%s %w: %w", d.Digest, errNotACache, err)
	}
	if err != nil {
		return nil, err
	}
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", image.Digest, errNotACache, err)
	}
	out := &v1alpha1.CacheImage{
		Digest: image.Digest.String(), CompressedBytes: image.Size(), Bytes: max(labels.Size, 0), Type: typeOf(labels.Format),
	}
	for _, t := range labels.Targets[:min(len(labels.Targets), maxTargets)] {
		out.Targets = append(out.Targets, message.Clip(t.String(), maxTarget))
	}
	return out, nil
}

// typeOf is our word for a format.
func typeOf(format string) string {
	switch format {
	case "triton":
		return string(v1alpha1.CacheTriton)
	case "vllm":
		return string(v1alpha1.CacheVLLM)
	}
	return format
}

// known says whether the status holds what the image meant once. Other parts of the spec may have changed since.
func known(o Object) bool {
	return o.Status.ResolvedImage == o.Spec.Image && o.Status.ResolvedDigest != "" && o.Status.Image != nil
}

// stands says whether the status has a verdict on the digest by the policies as they are. What is more lenient than a policy that is
// satisfied counts only for the spec that it was found for, which may ask for more now.
func stands(o Object, policies []*trust.Policy, digest string) bool {
	v := o.Status.Verification
	if v == nil || v.Digest != digest || o.Status.ResolvedImage != o.Spec.Image || !slices.Equal(v.Policies, references(policies)) {
		return false
	}
	return o.Status.ObservedGeneration == o.GetGeneration() || v.Result == v1alpha1.CacheVerified || v.Result == v1alpha1.CacheRefused
}

// references are the first so many as a status lists.
func references(policies []*trust.Policy) (out []v1alpha1.CachePolicyReference) {
	for _, p := range policies[:min(len(policies), maxPolicies)] {
		out = append(out, v1alpha1.CachePolicyReference{Name: p.Name(), Generation: p.Generation()})
	}
	return out
}
