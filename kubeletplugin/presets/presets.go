// SPDX-License-Identifier: Apache-2.0

// Package presets is the feature that applies presets to claims: variables, mounts, libraries, tools and drivers of the node.
//
//	Plan      finds the presets that match a claim's devices, combines them, and finds their files on the node
//	Hook      installs fettle-hook on the host, which registers libraries in a container
package presets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

var (
	// errUnread: the presets are not known, and a pod must not start without them.
	errUnread = errors.New("presets cannot be read from the API server: kubelet tries again")
	// errUnmet: the node or the cluster lacks something that a preset needs.
	errUnmet = errors.New("a preset cannot be applied")
)

// Config has the settings and dependencies of the feature.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Holder  *inventory.Holder
	Records *record.Store
	// Namespace is the driver's. It has the ConfigMaps of cluster-wide presets.
	Namespace string
	// Find finds the files on the node that were decided for a claim. It must know which paths of the host containers write to by presets of
	// the cluster.
	Find func(claim string, r preset.Request, writable []string) (hostfiles.Found, error)
	// Configured are the paths of the host, or patterns of paths, to which containers write by the node's configuration. Find knows these.
	Configured []string
	// Mounts is the directory of mounts that belong to a single claim.
	Mounts *hostmount.Dir
	// Event makes an Event on a claim, PodEvent one on a pod that uses it. They must not block.
	Event    func(c *resourceapi.ResourceClaim, request, eventType, reason, note string)
	PodEvent func(pod *corev1.ObjectReference, c *resourceapi.ResourceClaim, eventType, reason, note string)
	// Hook is nil if no hook is installed on the host.
	Hook *Hook
	// ReportMissing says that pods are told of devices without the preset that they need.
	ReportMissing bool
}

// Feature applies presets to claims.
type Feature struct {
	Config
	conditions preset.Conditions
	// informers watch both kinds, by resource.
	informers map[string]*follow.Informer
	// shares are of what the informer of namespaced presets keeps.
	shares preset.Shares
	lent   lent
	// reads looks for files on the node, which a disk or a server may not answer.
	reads *sysfs.Reads
}

var (
	_ prepare.Feature = (*Feature)(nil)
	_ prepare.Owner   = (*Feature)(nil)
)

// The resources of both kinds.
const (
	presetResource        = "devicepresets"
	clusterPresetResource = "clusterdevicepresets"
)

// findPatience is how long the node's files are looked for. Claims of the same devices wait meanwhile. A search takes seconds at most.
const findPatience = time.Minute

// New makes the feature. It watches nothing before Watch.
func New(c Config) (*Feature, error) {
	f := &Feature{
		Config: c, informers: map[string]*follow.Informer{}, lent: lent{records: c.Records, configured: c.Configured},
		reads: sysfs.NewReads(clock.RealClock{}, findPatience),
	}
	var err error
	if f.informers[clusterPresetResource], err = follow.Own(c.Dynamic, clusterPresetResource, readOfCluster, nil); err != nil {
		return nil, err
	}
	ofTenants, err := follow.Own(c.Dynamic, presetResource, f.read, nil)
	if err != nil {
		return nil, err
	}
	f.informers[presetResource] = ofTenants
	_, err = ofTenants.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: f.replaced, DeleteFunc: f.forget})
	return f, err
}

// Watch watches both kinds until ctx ends. stopped waits for its end. First it removes builds of the hook that nothing needs.
func (f *Feature) Watch(ctx context.Context) (stopped func()) {
	if f.Hook != nil {
		if err := f.Hook.Sweep(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot remove unused builds of the hook")
		}
	}
	return follow.Run(ctx, f.informers[presetResource], f.informers[clusterPresetResource])
}

// Destroy removes the hook. It is called when the node has no claim any more.
func (f *Feature) Destroy() error {
	if f.Hook == nil {
		return nil
	}
	return f.Hook.Destroy()
}

// featureName is the feature's name in records.
const featureName = "presets"

// Name returns the feature's name in records.
func (f *Feature) Name() string { return featureName }

// Kinds returns the step that makes a mount for a single claim.
func (f *Feature) Kinds() step.Kinds { return step.Kinds{hostmount.StepKind: f.Mounts.Kind()} }

// Leftovers returns the steps for the mounts that a claim has.
func (f *Feature) Leftovers(_ context.Context, uid string, _ device.Device) ([]step.Step, error) {
	return f.Mounts.LeftoverSteps(uid)
}

// Claims returns the claims that have mounts, also of other features.
func (f *Feature) Claims() ([]string, error) {
	names, err := f.Mounts.Claims()
	return slices.DeleteFunc(names, func(name string) bool { return !cachemount.IsClaim(name) }), err
}

// Plan resolves the presets for a claim's requests, and finds the files on the node. A decision of an earlier boot holds.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	ofCluster := f.ofCluster(ctx)
	requests, err := f.requests(ctx, &r, ofCluster)
	if err != nil || len(requests) == 0 {
		return prepare.Contribution{}, err
	}
	writable, err := f.writable(string(r.Claim.UID), requests, ofCluster)
	if err != nil {
		return prepare.Contribution{}, err
	}
	c := prepare.Contribution{Edits: map[string]prepare.Edits{}}
	decision := map[string]preset.Request{}
	var errs []error
	overrides := map[string][]string{} // what the node's files lose to each other, by request
	for _, request := range requests {
		found, err := f.find(ctx, string(r.Claim.UID), request, writable)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: request %s: %w", errUnmet, request.Request, err))
			continue
		}
		overrides[request.Request] = found.Overrides
		if found.Empty() {
			continue // all of it was optional, and is not on the node
		}
		c.Edits[request.Request] = prepare.Edits{Shared: found.Shared, Own: found.Own, Givers: found.Givers}
		c.Steps = append(c.Steps, found.Steps...)
		decision[request.Request] = request
	}
	if !r.AfterReboot {
		f.reportOverrides(r.Claim, requests, overrides)
	}
	if len(decision) > 0 {
		if c.Decision, err = json.Marshal(decision); err != nil {
			return c, fmt.Errorf("encode the presets of claim %s: %w", r.Claim.Name, err)
		}
	}
	return c, errors.Join(errs...)
}

// find finds the files of one request, some of which may be on a file system that does not answer, such as NFS.
func (f *Feature) find(ctx context.Context, claim string, r preset.Request, writable []string) (hostfiles.Found, error) {
	what := "the files of presets for claim " + claim + ", request " + r.Request
	return sysfs.Call(ctx, f.reads, what, func() (hostfiles.Found, error) { return f.Find(claim, r, writable) }, nil)
}

// requests returns the contribution of presets to each request of a claim, sorted.
func (f *Feature) requests(ctx context.Context, r *prepare.Request, ofCluster func() ([]any, error)) ([]preset.Request, error) {
	if !r.AfterReboot {
		return f.decide(ctx, r.Claim, r.Siblings, ofCluster)
	}
	decided, err := decodeDecision(r.Decision)
	if err != nil {
		return nil, fmt.Errorf("claim %s/%s: %w", r.Claim.Namespace, r.Claim.Name, err)
	}
	var out []preset.Request
	for _, request := range slices.Sorted(maps.Keys(decided)) {
		out = append(out, decided[request])
	}
	return out, nil
}

// decide resolves the presets for one claim, and makes Events of refusals.
func (f *Feature) decide(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim, ofCluster func() ([]any, error),
) ([]preset.Request, error) {
	all, err := f.presetsFor(ctx, c.Namespace, ofCluster)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		f.reportWithoutPresets(ctx, c)
		return nil, nil
	}
	in, err := f.input(ctx, c, siblings, all)
	if err != nil {
		return nil, err
	}
	configMaps := configMaps{ctx: ctx, kube: f.Kube, found: map[[2]string]map[string]string{}}
	in.ConfigMap = configMaps.get
	resolution := preset.Resolve(ctx, in, &f.conditions)
	if configMaps.err != nil {
		return nil, fmt.Errorf("%w: %w", errUnmet, configMaps.err)
	}
	requests, err := f.claimRequests(c, &resolution)
	if err != nil {
		return nil, err
	}
	for _, a := range preset.Ambiguities(ctx, in, &resolution, &f.conditions) {
		if a.Claim == c.Name {
			f.Event(c, a.Request, corev1.EventTypeWarning, reasonAmbiguous, "request "+a.Request+": "+a.Message)
		}
	}
	f.reportMissing(c, in.Pod, requests)
	return requests, nil
}

// claimRequests returns one claim's part of a resolution, and makes Events of refusals.
func (f *Feature) claimRequests(c *resourceapi.ResourceClaim, resolution *preset.Resolution) ([]preset.Request, error) {
	f.reportRefusals(c, resolution)
	var errs []error
	for _, m := range resolution.Missing {
		if m.Claim == c.Name {
			errs = append(errs, fmt.Errorf("%w: %s, %s: %s", errUnmet, m.From, m.Field, m.Message))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	var out []preset.Request
	for _, r := range resolution.Requests {
		if r.Claim == c.Name {
			out = append(out, r)
		}
	}
	return out, nil
}

// input reads only those objects of the cluster that the presets need.
func (f *Feature) input(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim, all []preset.Preset,
) (preset.Input, error) {
	in := preset.Input{
		Presets: all, Namespace: c.Namespace, Driver: v1alpha1.DriverName, DriverNamespace: f.Namespace,
	}
	if slices.ContainsFunc(all, func(p preset.Preset) bool { return p.NamespaceSelector != nil }) {
		namespace, err := f.Kube.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
		if err != nil {
			return in, fmt.Errorf("read the labels of namespace %s for presets: %w", c.Namespace, err)
		}
		in.NamespaceLabels = namespace.Labels
	}
	pod, err := f.ownerPod(ctx, c)
	if err != nil {
		return in, err
	}
	in.Pod = pod
	claims, err := f.podClaims(ctx, pod, c, siblings)
	if err != nil {
		return in, err
	}
	slices.SortFunc(claims, func(a, b *resourceapi.ResourceClaim) int { return strings.Compare(a.Name, b.Name) })
	v, _ := f.Holder.Get()
	for _, claim := range claims {
		owned := pod != nil && metav1.IsControlledBy(claim, pod)
		list := &in.Claims
		if pod != nil && !owned {
			list = &in.Shared
		}
		*list = append(*list, preset.OfClaim(claim, v1alpha1.DriverName, owned, publishedDevices(v)))
	}
	return in, nil
}

// podClaims returns all claims of a pod, so that presets agree for all of them. It reads those that are not among the siblings.
func (f *Feature) podClaims(
	ctx context.Context, pod *corev1.Pod, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim,
) ([]*resourceapi.ResourceClaim, error) {
	claims := []*resourceapi.ResourceClaim{c}
	if pod == nil {
		return claims, nil
	}
	for _, name := range preset.ClaimsOf(pod) {
		i := slices.IndexFunc(siblings, func(s *resourceapi.ResourceClaim) bool { return s.Name == name })
		switch {
		case name == c.Name:
		case i >= 0:
			claims = append(claims, siblings[i])
		default:
			s, err := f.Kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, fmt.Errorf("read claim %s, which pod %s has too, for presets: %w", name, pod.Name, err)
			}
			claims = append(claims, s)
		}
	}
	return claims, nil
}

// publishedDevices finds devices as the ResourceSlices have them.
func publishedDevices(v *inventory.Snapshot) func(pool, name string) *resourceapi.Device {
	return func(pool, name string) *resourceapi.Device {
		if v == nil {
			return nil
		}
		for i := range v.Devices {
			if d := &v.Devices[i]; d.Name == name && strings.HasSuffix(pool, "/"+string(d.Kind)) {
				return &resourceapi.Device{Name: d.Name, Attributes: d.Attributes, Capacity: d.Capacity}
			}
		}
		return nil
	}
}
