// SPDX-License-Identifier: Apache-2.0

// Package bitstreams resolves FPGABitstreams and ClusterFPGABitstreams: it reads what their references name, says so in their status, and
// grants the kubelet plugin their pull secrets. The bytes of the files decide what they are; tags and configs are believed as far as they
// agree with the bytes.
package bitstreams

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// Head returns what the pipeline reads of a bitstream.
func Head(b v1alpha1.CommonFPGABitstream, driver string) artifacts.Head {
	s := b.Status
	return artifacts.Head{
		CommonObject: b.CommonObject, Image: b.Spec.Image, PullSecrets: b.Spec.ImagePullSecrets, SecretNamespace: b.ReferenceNamespace(driver),
		ObservedGeneration: s.ObservedGeneration, Digest: s.Digest, Conditions: &s.Conditions,
		Known: s.ObservedGeneration == b.GetGeneration() && s.Digest != "" && len(s.Images) > 0,
	}
}

// object is a bitstream on its way through the pipeline.
type object struct {
	v1alpha1.CommonFPGABitstream

	resolver *resolver
	// images are those of a digest that the status does not describe yet.
	images []v1alpha1.BitstreamImage
}

// Head implements [artifacts.Artifact].
func (o *object) Head() artifacts.Head { return Head(o.CommonFPGABitstream, o.resolver.namespace) }

// Read implements [artifacts.Artifact].
func (o *object) Read(ctx context.Context, src *registry.Source, d artifact.Descriptor) (err error) {
	o.images, err = Read(ctx, src, d, o.resolver.scratch)
	return err
}

// Record implements [artifacts.Artifact].
func (o *object) Record(r artifacts.Result) {
	s := o.Status
	switch {
	case r.Digest == "":
		s.Digest, s.Images = "", nil
	case r.Digest != s.Digest || len(o.images) > 0:
		s.Digest, s.Images = r.Digest, o.images
	}
	s.ObservedGeneration = o.GetGeneration()
}

// Observe implements [artifacts.Artifact]: it counts the nodes that hold a file of the status's images.
func (o *object) Observe(ctx context.Context, _ time.Time) (again time.Duration, err error) {
	o.Status.Nodes = nil
	if len(o.Status.Images) == 0 {
		return 0, nil
	}
	var list v1alpha1.AcceleratorNodeList
	if err := o.resolver.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("count the nodes that hold it: %w", err)
	}
	o.Status.Nodes = ptr.To(holders(list.Items, o.Status.Images))
	return 0, nil
}
