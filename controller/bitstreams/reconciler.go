// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// readTimeout bounds the reading of the files of one artifact.
const readTimeout = 10 * time.Minute

// Options are the administrator's choices.
type Options struct {
	// Registry reaches registries.
	Registry *registry.Client
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
}

// New returns the reconciler of both kinds. It follows changes of specs, of the images in a status, and of the nodes that hold their
// files.
func New(s reconciler.Services, o Options) reconciler.Row {
	return newRow(s, o, artifacts.NewResolver(s, o.Registry).Resolve)
}

func newRow(s reconciler.Services, o Options, resolve artifacts.Resolve) reconciler.Row {
	r := &resolver{client: s.Client, namespace: s.Namespace, scratch: o.Scratch}
	resolved := metrics.CounterBy("bitstream_resolutions_total",
		"References of bitstreams that were asked for, by kind of object and the condition Resolved's reason.", "kind", "reason")
	// Signatures of bitstreams are not verified: the kind has no policies.
	kind := artifacts.Kind{Get: r.get, ReadTimeout: readTimeout, Interval: o.Interval, Action: "ResolveBitstream"}
	pipeline := artifacts.NewReconciler(s, kind, resolve, resolved)
	return reconciler.Row{
		Name: "bitstreams", Metrics: []prometheus.Collector{resolved},
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
		},
	}
}
