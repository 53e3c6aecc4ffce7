// SPDX-License-Identifier: Apache-2.0

// Package kernelcaches resolves and verifies the images of GPUKernelCaches and ClusterGPUKernelCaches, and sums up in their status what
// nodes and volumes have of them. It reads manifests, configurations and signatures; only nodes and the Jobs of volumes read layers.
package kernelcaches

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// readTimeout bounds the reading of an image and of its signatures.
const readTimeout = 3 * time.Minute

// Options are the administrator's choices.
type Options struct {
	// Registry reaches registries.
	Registry *registry.Client
	// Policies lists the TrustPolicies.
	Policies func(context.Context) ([]*trust.Policy, error)
	// Volumes plans the volumes of caches.
	Volumes *volumes.Planner
	// Interval is how often tags are resolved of objects that do not say.
	Interval time.Duration
}

// resolver reads caches for the pipeline.
type resolver struct {
	client    client.Client
	namespace string
	plan      plan
	mirrors   registryname.Mirrors
	rollouts  rollouts
}

// New returns the reconciler of both kinds. It follows changes of specs, of policies, of claims and Jobs of volumes, and what nodes
// report.
func New(s reconciler.Services, o Options) reconciler.Row {
	return newRow(s, o, artifacts.NewResolver(s, o.Registry).Resolve, o.Volumes.Report)
}

// plan plans the volumes of a cache for its status.
type plan func(context.Context, volumes.Object) (volumes.Plan, error)

func newRow(s reconciler.Services, o Options, resolve artifacts.Resolve, p plan) reconciler.Row {
	r := &resolver{client: s.Client, namespace: s.Namespace, plan: p, mirrors: o.Registry.Mirrors()}
	resolved := metrics.CounterBy("kernel_cache_resolutions_total",
		"References of kernel caches that were asked for, by kind of object and the condition Resolved's reason.", "kind", "reason")
	refused := metrics.GaugeBy("kernel_caches_refused", "Kernel caches that the TrustPolicies refuse, by kind of object.", "kind")
	counts := artifacts.Counts{Resolved: resolved, Refused: refused}
	pipeline := artifacts.NewReconciler(s, r.kind(o), resolve, counts, v1alpha1.KindGPUKernelCache, v1alpha1.KindClusterGPUKernelCache)
	own := reconciler.Queue{
		Name: "gpukernelcache", Workers: artifacts.Workers, Reconciler: pipeline,
		Watches: r.watches(&v1alpha1.GPUKernelCache{}, pairs.OfNamespaces, o.Volumes.Enabled()),
	}
	ofCluster := reconciler.Queue{
		Name: "clustergpukernelcache", Workers: artifacts.Workers, Reconciler: pipeline,
		Watches: append(r.watches(&v1alpha1.ClusterGPUKernelCache{}, pairs.OfCluster, o.Volumes.Enabled()), reconciler.Watch{
			Object: reconciler.Metadata("v1", "Namespace"), Handler: r.onNamespaces(), Predicates: reconciler.ComesOrGoes(),
		}),
	}
	return reconciler.Row{
		Name: "kernel caches", Metrics: []prometheus.Collector{resolved, refused}, Queues: []reconciler.Queue{own, ofCluster},
	}
}

// watches are those of the queue of one kind. Claims and Jobs may be read only if volumes are enabled.
func (r *resolver) watches(kind client.Object, scope pairs.Scope, withVolumes bool) []reconciler.Watch {
	respecified := reconciler.GenerationChanged()
	watches := []reconciler.Watch{
		{Object: kind, Predicates: respecified},
		{Object: &v1alpha1.AcceleratorNode{}, Handler: r.onNodes(scope)},
		{Object: &v1alpha1.TrustPolicy{}, Handler: r.onPolicies(scope), Predicates: respecified},
	}
	if withVolumes {
		owned := handler.EnqueueRequestForOwner(r.client.Scheme(), r.client.RESTMapper(), kind, handler.OnlyControllerOwner())
		watches = append(watches,
			reconciler.Watch{Object: &corev1.PersistentVolumeClaim{}, Handler: owned}, reconciler.Watch{Object: &batchv1.Job{}, Handler: owned})
	}
	return watches
}

func (r *resolver) kind(o Options) artifacts.Kind {
	return artifacts.Kind{
		Get: r.get, Policies: o.Policies, ReadTimeout: readTimeout, Interval: o.Interval, Action: "JudgeKernelCache",
		Announced: []status.Rule{
			{Type: v1alpha1.ConditionCompatible, Well: metav1.ConditionTrue, Silent: []string{ReasonNoNodeTold}},
			{Type: v1alpha1.ConditionDegraded, Well: metav1.ConditionFalse},
			{Type: v1alpha1.ConditionNamespaceMissing, Well: metav1.ConditionFalse},
		},
	}
}

func (r *resolver) get(ctx context.Context, key types.NamespacedName) (artifacts.Artifact, error) {
	c, err := pairs.KernelCache(ctx, r.client, key)
	if err != nil {
		r.rollouts.forget(key)
	}
	return &cache{object: object{c, r.namespace}, resolver: r}, err
}

// cache is a cache on its way through the pipeline.
type cache struct {
	object

	resolver *resolver
	// image is that of a digest that the status does not describe yet.
	image *v1alpha1.CacheImage
}

// Read implements [artifacts.Artifact].
func (c *cache) Read(ctx context.Context, src *registry.Source, d artifact.Descriptor) (err error) {
	c.image, err = readImage(ctx, src, d)
	return err
}

// Record implements [artifacts.Artifact].
func (c *cache) Record(r artifacts.Result) {
	s := c.Status
	switch {
	case r.Kept:
	case r.Digest == "":
		s.PreviousDigests = c.history("")
		s.ResolvedDigest, s.ResolvedImage, s.Image = "", "", nil
		s.Admitted, s.AdmittedSince = nil, nil
	default:
		if s.ResolvedDigest != r.Digest {
			s.Admitted, s.AdmittedSince = new(int32), nil // the first wave begins when claims may have it
		}
		s.PreviousDigests = c.history(r.Digest)
		s.ResolvedDigest, s.ResolvedImage = r.Digest, c.Spec.Image
		if c.image != nil {
			s.Image = c.image
		}
	}
	s.Verification, s.ObservedGeneration, s.Summary = r.Verdict, c.GetGeneration(), v1alpha1.SummaryOf(c.WorkloadNamespaces)
}

// Observe implements [artifacts.Artifact]. No watch tells of pods that have volumes, so a cache with volumes is observed again after a
// while.
func (c *cache) Observe(ctx context.Context, now time.Time) (out artifacts.Observed, err error) {
	around, err := c.resolver.surroundings(ctx, c.object)
	if err != nil {
		return out, err
	}
	observe(c.object, around, now)
	before := c.Status.Admitted
	out.Again = c.resolver.rollouts.advance(c.object, around.Nodes, now)
	out.Admits = c.Status.Admitted != nil && before != nil && *c.Status.Admitted > *before
	if len(around.Volumes.Volumes) > 0 {
		out.Again = reconciler.Sooner(out.Again, wait.Jitter(volumes.Interval, reconciler.Jitter))
	}
	return out, nil
}

// surroundings returns what the nodes say of caches, which namespaces of the object's are missing, and how its volumes are.
func (r *resolver) surroundings(ctx context.Context, o object) (around surroundings, err error) {
	var nodes v1alpha1.AcceleratorNodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return around, fmt.Errorf("count the nodes that have it: %w", err)
	}
	around.Nodes = nodes.Items
	for _, name := range o.NamedNamespaces() {
		err := r.client.Get(ctx, client.ObjectKey{Name: name}, reconciler.Metadata("v1", "Namespace"))
		if client.IgnoreNotFound(err) != nil {
			return around, fmt.Errorf("look for the namespace %s: %w", name, err)
		}
		if err != nil {
			around.MissingNamespaces = append(around.MissingNamespaces, name)
		}
	}
	around.Volumes, err = r.plan(ctx, volumes.Of(o.CommonGPUKernelCache))
	return around, err
}
