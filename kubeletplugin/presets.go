// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/preset"
)

var (
	// errPresetsUnread is about presets that were not read yet: without them a pod would start that lacks what they give.
	errPresetsUnread = errors.New("presets cannot be read from the API server: kubelet tries again")
	// errPresetUnmet is about what a preset gives and the node or the cluster does not have.
	errPresetUnmet = errors.New("a preset cannot be applied")
)

// presets decides what presets give to the claims of this node.
type presets struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	latest  *latest
	// namespace is the driver's, where the ConfigMaps of cluster-wide presets are.
	namespace string
	// realise looks up on the node what was decided.
	realise func(claim string, r preset.Request) (engine.Preset, error)
	// tell says on a claim what of presets was refused or overridden. It must not block.
	tell func(c *resourceapi.ResourceClaim, eventType, reason, note string)

	conditions preset.Conditions
	// informers follow both kinds, by resource. Nil before watch.
	informers map[string]cache.SharedIndexInformer
}

// The resources of both kinds.
const (
	presetResource        = "devicepresets"
	clusterPresetResource = "clusterdevicepresets"
)

func (p *Plugin) newPresets() *presets {
	config := p.config.File.Presets
	files := &presetFiles{
		root: p.config.HostRoot, drivers: newDriverFiles(&p.config), allowed: config.AllowedHostPaths, scratch: config.Scratch, mounts: p.mounts,
	}
	if p.config.HostRoot != "/" {
		files.directories = config.HostDirectories
	}
	if p.hooks != nil {
		files.hook = p.hooks.ready
	}
	return &presets{
		kube: p.clients.Kube, dynamic: p.clients.Dynamic, latest: p.latest, namespace: p.config.Namespace, realise: files.realise,
		tell: func(c *resourceapi.ResourceClaim, eventType, reason, note string) {
			p.teller.event(c, eventType, reason, note)
		},
	}
}

// decide is the engine's Presets.
func (p *presets) decide(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim, given map[string]json.RawMessage,
) (map[string]engine.Preset, error) {
	if given != nil {
		return p.again(string(c.UID), given)
	}
	all, err := p.all(ctx, c.Namespace)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	in, shared, err := p.input(ctx, c, siblings, all)
	if err != nil {
		return nil, err
	}
	configMaps := configMaps{ctx: ctx, kube: p.kube, found: map[[2]string]map[string]string{}}
	in.ConfigMap = configMaps.get
	resolution := preset.Resolve(ctx, in, &p.conditions)
	if configMaps.err != nil {
		return nil, fmt.Errorf("%w: %w", errPresetUnmet, configMaps.err)
	}
	gives, err := p.take(c, &resolution)
	if err != nil {
		return nil, err
	}
	for _, a := range preset.Ambiguities(ctx, in, &resolution, shared, &p.conditions) {
		if a.Claim == c.Name {
			p.tell(c, corev1.EventTypeWarning, reasonPresetAmbiguous, "request "+a.Request+": "+a.Message)
		}
	}
	return gives, nil
}

// take realises what a resolution has for one claim, and tells what it was refused.
func (p *presets) take(c *resourceapi.ResourceClaim, resolution *preset.Resolution) (map[string]engine.Preset, error) {
	p.tellRefusals(c, resolution)
	var errs []error
	for _, m := range resolution.Missing {
		if m.Claim == c.Name {
			errs = append(errs, fmt.Errorf("%w: %s, %s: %s", errPresetUnmet, m.From, m.Field, m.Message))
		}
	}
	if len(errs) == 0 {
		p.tellOverrides(c, resolution)
	}
	out := map[string]engine.Preset{}
	for _, r := range resolution.Requests {
		if r.Claim != c.Name || len(errs) > 0 {
			continue
		}
		given, err := p.realise(string(c.UID), r)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: request %s: %w", errPresetUnmet, r.Request, err))
			continue
		}
		if !given.Empty() {
			out[r.Request] = given
		}
	}
	return out, errors.Join(errs...)
}

// again looks up anew what was decided in an earlier boot.
func (p *presets) again(claim string, given map[string]json.RawMessage) (map[string]engine.Preset, error) {
	out := map[string]engine.Preset{}
	for request, raw := range given {
		var r preset.Request
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("presets of request %s, as recorded: %w", request, err)
		}
		add, err := p.realise(claim, r)
		if err != nil {
			return nil, fmt.Errorf("%w: request %s: %w", errPresetUnmet, request, err)
		}
		if !add.Empty() { // all of it was optional, and is not on the node any more
			out[request] = add
		}
	}
	return out, nil
}

// input reads what the presets need to know of the cluster, and no more than they ask for. Shared are the claims of the pod that it does
// not own.
func (p *presets) input(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim, all []preset.Preset,
) (in preset.Input, shared []preset.Claim, err error) {
	in = preset.Input{
		Presets: all, Namespace: c.Namespace, Driver: v1alpha1.DriverName, DriverNamespace: p.namespace,
	}
	if slices.ContainsFunc(all, func(p preset.Preset) bool { return p.NamespaceSelector != nil }) {
		namespace, err := p.kube.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
		if err != nil {
			return in, nil, fmt.Errorf("read the labels of namespace %s for presets: %w", c.Namespace, err)
		}
		in.NamespaceLabels = namespace.Labels
	}
	pod, err := p.ownerOf(ctx, c)
	if err != nil {
		return in, nil, err
	}
	in.Pod = pod
	claims, err := p.ofPod(ctx, pod, c, siblings)
	if err != nil {
		return in, nil, err
	}
	slices.SortFunc(claims, func(a, b *resourceapi.ResourceClaim) int { return strings.Compare(a.Name, b.Name) })
	v, _ := p.latest.get()
	for _, claim := range claims {
		owned := pod != nil && metav1.IsControlledBy(claim, pod)
		list := &in.Claims
		if pod != nil && !owned {
			list = &shared
		}
		*list = append(*list, preset.OfClaim(claim, v1alpha1.DriverName, owned, publishedIn(v)))
	}
	return in, shared, nil
}

// ofPod are the claims that a pod has, so that what presets give to one agrees with what they give to the others. Those that did not
// come along are read.
func (p *presets) ofPod(
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
			s, err := p.kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, fmt.Errorf("read claim %s, which pod %s has too, for presets: %w", name, pod.Name, err)
			}
			claims = append(claims, s)
		}
	}
	return claims, nil
}

// publishedIn finds devices as the slices have them.
func publishedIn(v *view) func(pool, name string) *resourceapi.Device {
	return func(pool, name string) *resourceapi.Device {
		if v == nil {
			return nil
		}
		for i := range v.devices {
			if d := &v.devices[i]; d.Name == name && strings.HasSuffix(pool, "/"+string(d.Kind)) {
				return &resourceapi.Device{Name: d.Name, Attributes: d.Attributes, Capacity: d.Capacity}
			}
		}
		return nil
	}
}

// ownerOf is the one pod that a claim was made for. Nil: pods may share it.
func (p *presets) ownerOf(ctx context.Context, c *resourceapi.ResourceClaim) (*corev1.Pod, error) {
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil, nil //nolint:nilnil // documented above
	}
	pod, err := p.kube.CoreV1().Pods(c.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s for presets: %w", owner.Name, err)
	}
	if pod.UID != owner.UID {
		return nil, fmt.Errorf("pod %s is another than the one that claim %s was made for", owner.Name, c.Name)
	}
	return pod, nil
}

// configMaps reads those that presets ask for, each once.
type configMaps struct {
	ctx   context.Context //nolint:containedctx // it is that of the one call that resolves presets
	kube  kubernetes.Interface
	found map[[2]string]map[string]string
	err   error
}

// get says that there is no such ConfigMap only where the API server says so; another error is kept.
func (m *configMaps) get(namespace, name string) (map[string]string, bool) {
	key := [2]string{namespace, name}
	if data, asked := m.found[key]; asked {
		return data, data != nil
	}
	object, err := m.kube.CoreV1().ConfigMaps(namespace).Get(m.ctx, name, metav1.GetOptions{})
	m.found[key] = nil
	switch {
	case apierrors.IsNotFound(err):
		return nil, false
	case apierrors.IsForbidden(err):
		m.err = errors.Join(m.err, fmt.Errorf("the node may not read ConfigMap %s/%s (yet): the condition Valid of the preset that names it "+
			"says why: %w", namespace, name, err))
		return nil, false
	case err != nil:
		m.err = errors.Join(m.err, fmt.Errorf("read ConfigMap %s/%s for presets: %w", namespace, name, err))
		return nil, false
	}
	m.found[key] = map[string]string{}
	maps.Copy(m.found[key], object.Data)
	return m.found[key], true
}
