// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"context"
	"errors"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// askTimeout bounds the question what a reference means, readTimeout the reading of what is new.
	askTimeout  = time.Minute
	readTimeout = 10 * time.Minute
)

// Looker looks at objects.
type Looker struct {
	// Live does not read from a cache; the controller may not list Secrets.
	Live     client.Reader
	Grants   grant.Writer
	Registry Registry
	Verifier Verifier
}

// Look does what an object asks for and finds out what there is to say of it: nil where nothing can have changed. What is wrong with
// the object or its registry is part of the outcome; an error is trouble with the API server.
func (l Looker) Look(ctx context.Context, o Object) (*Outcome, error) {
	if err := pull.Grant(ctx, l.Grants, o.Grant(), o.Status.ObservedGeneration != o.GetGeneration()); err != nil {
		return faultOf(err)
	}
	if Settled(o) {
		return nil, nil //nolint:nilnil // nothing to say is a good answer
	}
	if o.Spec.Image == "" {
		return &Outcome{Verdict: Verdict{
			Status: metav1.ConditionUnknown, Reason: ReasonHostFile, Message: "no TrustPolicy speaks of files on the nodes",
		}}, nil
	}
	keys, err := pull.Keys(ctx, l.Live, o.SecretNamespace, o.Secrets)
	if err != nil {
		return faultOf(err)
	}
	out := l.resolve(ctx, o, keys)
	return &out, nil
}

func faultOf(err error) (*Outcome, error) {
	if errors.Is(err, pull.ErrSecret) {
		return &Outcome{Err: err}, nil
	}
	return nil, err
}

// resolve asks the registry. Bytes that were read once are not read again, since a digest stands for them.
func (l Looker) resolve(ctx context.Context, o Object, keys authn.Keychain) Outcome {
	ref, err := artifact.ParseReference(o.Spec.Image)
	if err != nil {
		return Outcome{Err: err}
	}
	a := l.Registry.Open(ref, keys)
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	d, err := a.Resolve(asking)
	if err != nil {
		return Outcome{Err: err}
	}
	out := Outcome{Digest: d.Digest.String(), Images: o.Status.Images}
	if !known(o.Status, o.GetGeneration()) || o.Status.Digest != out.Digest {
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if out.Images, err = Read(reading, a, d); err != nil {
			return Outcome{Err: err}
		}
	}
	out.Verdict = l.Verifier.Verify(ctx, ref, d.Digest)
	return out
}
