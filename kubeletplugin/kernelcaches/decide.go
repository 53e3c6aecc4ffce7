// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/gpu"
)

// The reasons of Events on claims.
const (
	ReasonSkipped = "KernelCacheSkipped"
	ReasonMisfit  = "KernelCacheMisfit"
)

// optionalTimeout is how long a claim waits for an optional cache.
const optionalTimeout = 20 * time.Second

// defaultWritable is how many bytes a claim may add if the object sets no writableLimit.
const defaultWritable = 1 << 30

// decide returns the caches for a claim's requests, by the request without its alternative. The error names each cache that the claim needs
// and cannot have.
func (f *Feature) decide(
	ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find prepare.Find,
) (map[string][]cachemount.Use, error) {
	out := map[string][]cachemount.Use{}
	var errs []error
	for _, r := range f.requests(ctx, c, a) {
		for _, source := range r.config.KernelCaches {
			use, err := f.decideOne(ctx, c, &r, source, find)
			switch {
			case err == nil && use != nil:
				out[r.base] = append(out[r.base], *use)
			case err != nil && source.Optional && decides(ctx, err):
				f.Event(c, r.named(source), corev1.EventTypeWarning, ReasonSkipped,
					fmt.Sprintf("request %s goes without an optional cache: %v", r.base, err))
			case err != nil:
				errs = append(errs, fmt.Errorf("request %s: %w", r.base, err))
			}
		}
	}
	if len(errs) == 0 {
		errs = append(errs, conflicts(out))
	}
	return out, errors.Join(errs...)
}

// decides reports whether a claim goes without an optional cache for an error. A call that is over, or a plugin that is stopped, decides
// nothing, and neither does it that nobody has tried to fetch what the object names now.
func decides(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !errors.Is(err, artifact.ErrNotAsked)
}

// request is a request of a claim that names caches, with its devices.
type request struct {
	base   string
	config *claim.GPUEffective
	got    []*claim.Result
	// usesUserNamespace reports whether a pod of the claim has a user namespace. It reads the pods once for all requests.
	usesUserNamespace func() (bool, error)
}

// named names a cache of the request in Events.
func (r *request) named(source v1alpha1.KernelCacheSource) string { return r.base + "/" + source.Name }

// requests returns the requests of a claim that name caches.
func (f *Feature) requests(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation) []request {
	usesUserNamespace := sync.OnceValues(func() (bool, error) { return f.pods.usesUserNamespace(ctx, c) })
	out := requestsOf(a)
	for i := range out {
		out[i].usesUserNamespace = usesUserNamespace
	}
	return out
}

// requestsOf returns the requests that name caches. Requests for admin access get no caches.
func requestsOf(a claim.Allocation) []request {
	var out []request
	for i := range a.Results {
		r := &a.Results[i]
		if r.AdminAccess || r.Config.GPU == nil || len(r.Config.GPU.KernelCaches) == 0 {
			continue
		}
		j := slices.IndexFunc(out, func(q request) bool { return q.base == r.BaseRequest })
		if j < 0 {
			j, out = len(out), append(out, request{base: r.BaseRequest, config: r.Config.GPU})
		}
		out[j].got = append(out[j].got, r)
	}
	return out
}

// decideOne decides on one cache of a request. It returns nil without an error if the object lets the claim go without the cache.
func (f *Feature) decideOne(
	ctx context.Context, c *resourceapi.ResourceClaim, r *request, source v1alpha1.KernelCacheSource, find prepare.Find,
) (*cachemount.Use, error) {
	if !f.Enabled {
		return nil, fmt.Errorf("%s %s %w: kernel caches are disabled: set the chart's kernelCaches.enabled",
			source.Kind, source.Name, cachemount.ErrRefused)
	}
	ctx, cancel := limit(ctx, source)
	defer cancel()
	o, tree, err := f.find(ctx, c, source)
	if err != nil {
		return nil, err
	}
	found, err := f.read(ctx, o, tree)
	if err != nil {
		return nil, err
	}
	missed, err := f.pods.missed(ctx, c, r, o, found)
	if err != nil {
		return nil, err
	}
	if reasons := append(mismatches(found, r.got, find), missed...); len(reasons) > 0 {
		switch onMismatch(o) {
		case v1alpha1.CacheMismatchSkip:
			f.Event(c, r.named(source), corev1.EventTypeWarning, ReasonSkipped, fmt.Sprintf("request %s goes without %s, which does not fit: %s",
				r.base, o, strings.Join(reasons, "; ")))
			return nil, nil //nolint:nilnil // documented above
		case v1alpha1.CacheMismatchMount:
			f.Event(c, r.named(source), corev1.EventTypeWarning, ReasonMisfit, fmt.Sprintf(
				"request %s gets %s although it does not fit, as spec.compatibility.onMismatch says: %s",
				r.base, o, strings.Join(reasons, "; ")))
		case v1alpha1.CacheMismatchRefuse:
			return nil, fmt.Errorf("%s %w, it does not fit: %s", o, cachemount.ErrRefused, strings.Join(reasons, "; "))
		}
	}
	return f.planUse(ctx, &wanted{
		object: o, owner: string(c.UID), source: source, tree: tree, found: found, usesUserNamespace: r.usesUserNamespace,
	})
}

// find returns the object that a claim names and its cache, which is on the node then.
func (f *Feature) find(
	ctx context.Context, c *resourceapi.ResourceClaim, source v1alpha1.KernelCacheSource,
) (*object, *artifact.Tree, error) {
	o, err := f.objects.get(ctx, source.Kind, c.Namespace, source.Name)
	if err == nil {
		err = o.checkNamespace(c.Namespace)
	}
	if err != nil {
		return nil, nil, err
	}
	tree, err := f.ensureLocal(ctx, o)
	return o, tree, err
}

// limit ends the wait for an optional cache.
func limit(ctx context.Context, source v1alpha1.KernelCacheSource) (context.Context, context.CancelFunc) {
	if source.Optional {
		return context.WithTimeout(ctx, optionalTimeout)
	}
	return context.WithCancel(ctx)
}

// read inspects an object's cache. The targets in the object's spec count if the cache itself names no architecture.
func (f *Feature) read(ctx context.Context, o *object, tree *artifact.Tree) (*kernelcache.Cache, error) {
	store, err := f.Store()
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	found, err := f.Mounter.Inspect(ctx, store, tree, o.GetNamespace(), kernelcache.Type(o.Spec.Type))
	if err != nil {
		return nil, inspectError(o, err)
	}
	if o.Spec.Compatibility == nil || len(o.Spec.Compatibility.Targets) == 0 || hasArch(found) {
		return found, nil
	}
	out := *found
	out.Targets = nil
	for _, t := range o.Spec.Compatibility.Targets {
		arch, features, err := kernelcache.ParseArch(t.Backend, t.Arch)
		if err != nil {
			return nil, fmt.Errorf("%s %w: spec.compatibility.targets: %w", o, cachemount.ErrRefused, err)
		}
		out.Targets = append(out.Targets, kernelcache.Target{
			Backend: t.Backend, Arch: arch, Features: features, Source: kernelcache.FromLabels, Where: "spec.compatibility.targets",
		})
	}
	return &out, nil
}

// hasArch reports whether the cache itself names an architecture.
func hasArch(c *kernelcache.Cache) bool {
	return slices.ContainsFunc(c.Targets, func(t kernelcache.Target) bool { return t.Arch != "" })
}

func onMismatch(o *object) v1alpha1.CacheMismatch {
	if o.Spec.Compatibility == nil || o.Spec.Compatibility.OnMismatch == "" {
		return v1alpha1.CacheMismatchRefuse
	}
	return o.Spec.Compatibility.OnMismatch
}

// mismatches returns the reasons why the cache does not fit the devices, each once.
func mismatches(found *kernelcache.Cache, results []*claim.Result, find prepare.Find) []string {
	var out []string
	for _, r := range results {
		d, ok := find(r)
		if !ok {
			continue // Prepare refuses an unknown device
		}
		for _, reason := range deviceMismatches(found, d) {
			if !slices.Contains(out, reason) {
				out = append(out, reason)
			}
		}
	}
	return out
}

func deviceMismatches(found *kernelcache.Cache, d device.Device) []string {
	fitted, err := gpu.Of(d)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, reason := range found.Fits(fitted) {
		out = append(out, reason.Message)
	}
	return out
}

// wanted is a cache that a claim is to have, by its UID.
type wanted struct {
	*object
	owner  string
	source v1alpha1.KernelCacheSource
	tree   *artifact.Tree
	found  *kernelcache.Cache
	// usesUserNamespace is that of the request.
	usesUserNamespace func() (bool, error)
}

// planUse decides how the claim mounts the cache.
func (f *Feature) planUse(ctx context.Context, w *wanted) (*cachemount.Use, error) {
	o, tree, mount := w.object, w.tree, w.mount()
	want := w.source.MountPath
	if want == "" {
		want = mount.Path
	}
	plan, err := w.found.Plan(want)
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w (mountPath of the claim, or spec.mount.path)", o, cachemount.ErrRefused, err)
	}
	ref, err := reference(o)
	if err != nil {
		return nil, err
	}
	u := &cachemount.Use{
		Kind: o.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		Digest: ref.Digest(), Tree: tree.Digest, Owner: w.owner, Reference: ref.WithDigest(tree.Digest).String(),
		SecretsIn: o.ReferenceNamespace(f.Namespace), Secrets: secretNames(o),
		Type: kernelcache.Type(o.Spec.Type), Want: want, Size: tree.Size,
	}
	if u.Access, err = access(w.source, mount, w.usesUserNamespace); err != nil {
		return nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	if u.Bytes, err = writableLimit(mount, f.MaxWritable); err != nil {
		return nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrRefused, err)
	}
	for i := range plan.Mounts {
		m := &plan.Mounts[i]
		if u.Access == cachemount.ReadOnly && m.ReadOnly == kernelcache.ReadOnlyFails {
			return nil, fmt.Errorf("%s %w: access ReadOnly: programs that use a cache of type %s write to it in any case: use Overlay",
				o, cachemount.ErrRefused, w.found.Type)
		}
		u.Mounts = append(u.Mounts, cachemount.Mount{Source: m.Source, Target: m.Target})
	}
	if mount.Env != v1alpha1.CacheEnvNone {
		u.Env = plan.Env
	}
	u.Key = u.NewKey()
	store, err := f.Store()
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	stored := &cachemount.Stored{Store: store, Tree: tree, Cache: w.found}
	if u.Fill, err = f.Mounter.Measure(ctx, stored, u, &plan); err != nil {
		return nil, measureError(o, err)
	}
	return u, nil
}

// measureError adds the object to the reason why a claim cannot have what would have to be made for it.
func measureError(o *object, err error) error {
	if errors.Is(err, cachemount.ErrRefused) {
		return fmt.Errorf("%s %w", o, err)
	}
	return inspectError(o, err)
}

// inspectError wraps err as refused if the cache itself is wrong, else as not ready: the call may have ended while it waited for its turn,
// and the disk or the store may do better later.
func inspectError(o *object, err error) error {
	if errors.Is(err, kernelcache.ErrInvalid) {
		return fmt.Errorf("%s %w: %w", o, cachemount.ErrRefused, err)
	}
	return fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
}

// writableLimit returns how many bytes a claim may add to each mount of a cache, at most most if that is positive.
func writableLimit(mount *v1alpha1.CacheMount, most int64) (int64, error) {
	limit := int64(defaultWritable)
	if mount.WritableLimit == nil {
		if most > 0 {
			limit = min(limit, most)
		}
		return limit, nil
	}
	limit = mount.WritableLimit.Value()
	if most > 0 && limit > most {
		return 0, fmt.Errorf("spec.mount.writableLimit: %s is more than the %d bytes that the chart's budget.maxWritableLimit allows: lower it",
			mount.WritableLimit, most)
	}
	return limit, nil
}

// conflicts returns an error for each variable that two caches of one claim want, and for each path that two want or of which one lies
// below the other's.
func conflicts(uses map[string][]cachemount.Use) error {
	var all []*cachemount.Use
	for _, request := range slices.Sorted(maps.Keys(uses)) {
		for i := range uses[request] {
			all = append(all, &uses[request][i])
		}
	}
	var errs []error
	for i, u := range all {
		for _, other := range all[:i] {
			if what := shared(other, u); what != "" && other.Key != u.Key {
				errs = append(errs, fmt.Errorf("%s and %s %w: both want %s: give one of them another mountPath", other, u, cachemount.ErrRefused, what))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// shared says which path or variable two caches both want, or "".
func shared(a, b *cachemount.Use) string {
	for _, m := range a.Mounts {
		for _, n := range b.Mounts {
			if mountpath.Overlap(m.Target, n.Target) {
				return max(m.Target, n.Target) // the inner one of the two
			}
		}
	}
	for _, e := range a.Env {
		if slices.ContainsFunc(b.Env, func(o kernelcache.Env) bool { return o.Name == e.Name }) {
			return "variable " + e.Name
		}
	}
	return ""
}
