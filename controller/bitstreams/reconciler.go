// SPDX-License-Identifier: Apache-2.0

// Package bitstreams resolves FPGABitstreams and ClusterFPGABitstreams: it reads what their references name, has the TrustPolicies judge
// it, says so in their status, and grants the kubelet plugin their pull secrets. The bytes of the files decide what they are; tags and
// configs are believed as far as they agree with the bytes.
package bitstreams

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// readTimeout bounds the reading of the files of one artifact.
const readTimeout = 10 * time.Minute

// Options are the administrator's choices.
type Options struct {
	// Registry reaches registries.
	Registry *registry.Client
	// Policies lists the TrustPolicies.
	Policies func(context.Context) ([]*trust.Policy, error)
	// Scratch is the directory through which files are read.
	Scratch *Scratch
	// Interval is how often tags are resolved.
	Interval time.Duration
}

// resolver reads bitstreams for the pipeline.
type resolver struct {
	client    client.Client
	namespace string
	scratch   *Scratch
	mirrors   registryname.Mirrors
}

// New returns the reconciler of both kinds. It follows changes of specs, of policies, of the images in a status, and of the nodes that
// hold their files.
func New(s reconciler.Services, o Options) reconciler.Row {
	return newRow(s, o, artifacts.NewResolver(s, o.Registry).Resolve)
}

func newRow(s reconciler.Services, o Options, resolve artifacts.Resolve) reconciler.Row {
	r := &resolver{client: s.Client, namespace: s.Namespace, scratch: o.Scratch, mirrors: o.Registry.Mirrors()}
	resolved := metrics.CounterBy("bitstream_resolutions_total",
		"References of bitstreams that were asked for, by kind of object and the condition Resolved's reason.", "kind", "reason")
	refused := metrics.GaugeBy("bitstreams_refused", "Bitstreams that the TrustPolicies refuse, by kind of object.", "kind")
	// Without a policy for its image, a bitstream is as good as the policies of DeviceClasses say.
	kind := artifacts.Kind{
		Get: r.get, Policies: o.Policies, PolicyOptional: true, ReadTimeout: readTimeout, Interval: o.Interval, Action: "ResolveBitstream",
	}
	counts := artifacts.Counts{Resolved: resolved, Refused: refused}
	pipeline := artifacts.NewReconciler(s, kind, resolve, counts, v1alpha1.KindFPGABitstream, v1alpha1.KindClusterFPGABitstream)
	return reconciler.Row{
		Name: "bitstreams", Metrics: []prometheus.Collector{resolved, refused},
		Queues: []reconciler.Queue{
			r.queue("fpgabitstream", &v1alpha1.FPGABitstream{}, pairs.OfNamespaces, pipeline),
			r.queue("clusterfpgabitstream", &v1alpha1.ClusterFPGABitstream{}, pairs.OfCluster, pipeline),
		},
	}
}

func (r *resolver) get(ctx context.Context, key types.NamespacedName) (artifacts.Artifact, error) {
	b, err := pairs.Bitstream(ctx, r.client, key)
	return &object{CommonFPGABitstream: b, resolver: r}, err
}

func (r *resolver) queue(name string, kind client.Object, scope pairs.Scope, pipeline reconcile.Reconciler) reconciler.Queue {
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, imagesChanged())
	return reconciler.Queue{
		Name: name, Workers: artifacts.Workers, Reconciler: pipeline,
		Watches: []reconciler.Watch{
			{Object: kind, Predicates: []predicate.Predicate{changed}},
			{Object: &v1alpha1.AcceleratorNode{}, Handler: r.onNodes(scope)},
			{Object: &v1alpha1.TrustPolicy{}, Handler: r.onPolicies(scope), Predicates: reconciler.GenerationChanged()},
		},
	}
}

// Head returns what the pipeline reads of a bitstream.
func Head(b v1alpha1.CommonFPGABitstream, driver string) artifacts.Head {
	s := b.Status
	return artifacts.Head{
		CommonObject: b.CommonObject, Image: b.Spec.Image, PullSecrets: b.Spec.ImagePullSecrets, SecretNamespace: b.ReferenceNamespace(driver),
		ObservedGeneration: s.ObservedGeneration, Digest: s.Digest, Verification: s.Verification, Conditions: &s.Conditions,
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
	o.images, err = Read(ctx, o.GetNamespace(), src, d, o.resolver.scratch)
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
	s.Verification, s.ObservedGeneration, s.Summary = r.Verdict, o.GetGeneration(), v1alpha1.SummaryOf(o.Spec.Namespaces)
}

// Observe implements [artifacts.Artifact]: it counts the nodes that hold a file of the status's images.
func (o *object) Observe(ctx context.Context, _ time.Time) (out artifacts.Observed, err error) {
	o.Status.Nodes = nil
	if len(o.Status.Images) == 0 {
		return out, nil
	}
	var list v1alpha1.AcceleratorNodeList
	if err := o.resolver.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("count the nodes that hold it: %w", err)
	}
	o.Status.Nodes = ptr.To(holders(list.Items, o.Status.Images))
	return out, nil
}
