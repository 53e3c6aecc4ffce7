// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// readPreset is a preset, decoded and checked once for each of its versions. It never changes. A tenant may make very many, so it has no
// more than is needed.
type readPreset struct {
	namespace, name, resourceVersion string
	uid                              types.UID
	// preset is nil if it is read when it is needed.
	preset *preset.Preset
	// err is why the preset cannot be read. Claims fail with it.
	err error
}

// GetObjectMeta returns what informers look at.
func (r *readPreset) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.namespace, Name: r.name, UID: r.uid, ResourceVersion: r.resourceVersion}
}

// decode decodes a preset. It returns false for another object.
func decode(object any) (*readPreset, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	p, err := v1alpha1.DecodeDevicePreset(u)
	decoded := preset.Of(p)
	return &readPreset{
		namespace: u.GetNamespace(), name: u.GetName(), resourceVersion: u.GetResourceVersion(), uid: u.GetUID(), preset: &decoded, err: err,
	}, true
}

// readOfCluster decodes a preset of the administrator's for the informer to keep.
func readOfCluster(object any) (any, error) {
	if out, ok := decode(object); ok {
		return out, nil
	}
	return object, nil
}

// read decodes a preset of a tenant's for the informer to keep, as far as its namespace's share goes.
func (f *Feature) read(object any) (any, error) {
	out, ok := decode(object)
	if !ok {
		return object, nil
	}
	if !f.shares.Note(out.namespace, out.uid, out.preset.Rules.Size()) {
		out.preset = nil
	}
	return out, nil
}

// forget gives the share of a deleted preset back.
func (f *Feature) forget(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if deleted, ok := object.(*readPreset); ok {
		f.shares.Forget(deleted.namespace, deleted.uid)
	}
}

// replaced gives the share of a preset back that was deleted and made again while nothing was watched: the informer takes both for one.
func (f *Feature) replaced(before, now any) {
	was, ok := before.(*readPreset)
	if is, known := now.(*readPreset); ok && known && was.uid != is.uid {
		f.forget(was)
	}
}

// ofCluster returns a function that returns the presets of the cluster. It reads them once, so that all of a claim is decided by the same.
func (f *Feature) ofCluster(ctx context.Context) func() ([]any, error) {
	return sync.OnceValues(func() ([]any, error) { return f.objects(ctx, clusterPresetResource, "") })
}

// presetsFor returns the presets that may match claims of a namespace.
func (f *Feature) presetsFor(ctx context.Context, namespace string, ofCluster func() ([]any, error)) ([]preset.Preset, error) {
	objects, err := ofCluster()
	all, err := f.usable(ctx, objects, err)
	if err != nil {
		return nil, err
	}
	objects, err = f.objects(ctx, presetResource, namespace)
	ofNamespace, err := f.usable(ctx, objects, err)
	return append(all, ofNamespace...), err
}

// usable returns the presets of a kind that were read, or why they were not.
func (f *Feature) usable(ctx context.Context, objects []any, err error) ([]preset.Preset, error) {
	if _, over := errors.AsType[*preset.OverError](err); over {
		return nil, fmt.Errorf("%w: %w", errUnmet, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	}
	out := make([]preset.Preset, 0, len(objects))
	for _, object := range objects {
		known, ok := object.(*readPreset)
		if !ok {
			continue
		}
		if known.preset == nil {
			if known, err = f.ask(ctx, known); err != nil {
				return nil, fmt.Errorf("%w: %w", errUnread, err)
			}
		}
		switch {
		case known == nil: // it is gone
		case known.err != nil:
			return nil, known.err
		default:
			out = append(out, *known.preset)
		}
	}
	return out, nil
}

// ask reads a preset of which only the name was kept. Its namespace is within its share, so these are few. It returns nil if there is none.
func (f *Feature) ask(ctx context.Context, known *readPreset) (*readPreset, error) {
	u, err := f.presets(presetResource, known.namespace).Get(ctx, known.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // documented above
	}
	if err != nil {
		return nil, err
	}
	out, _ := decode(u)
	return out, nil
}

func (f *Feature) presets(resource, namespace string) dynamic.ResourceInterface {
	return f.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace)
}

// pageSize is how many presets are asked for at once. The API server may hold objects of more than a megabyte.
const pageSize = 8

// objects returns the presets of a kind and namespace, or an *preset.OverError if the namespace has too many. It asks the API server while
// the informer is not current. A cluster without the kind, as one that is being upgraded, has none.
func (f *Feature) objects(ctx context.Context, resource, namespace string) ([]any, error) {
	if informer := f.informers[resource]; informer.Current() {
		if err := f.shares.Check(namespace); err != nil {
			return nil, err
		}
		return informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	}
	var out []any
	var own preset.Shares
	for next := ""; ; {
		page, err := f.presets(resource, namespace).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			p, _ := decode(&page.Items[i])
			if namespace != "" {
				own.Note(namespace, p.uid, p.preset.Rules.Size())
			}
			out = append(out, p)
		}
		if err := own.Check(namespace); err != nil {
			return nil, err
		}
		if next = page.GetContinue(); next == "" {
			return out, nil
		}
	}
}

// maxConfigMaps is how many ConfigMaps presets may name for the claims of one pod.
const maxConfigMaps = 64

var errTooManyConfigMaps = fmt.Errorf("presets name more than %d ConfigMaps for the claims of the pod, or these have more than %d bytes "+
	"of data: name fewer or smaller ones", maxConfigMaps, v1alpha1.MaxClaimConfigMaps)

// configMaps reads the ConfigMaps that presets name, each once.
type configMaps struct {
	ctx   context.Context //nolint:containedctx // it is that of the one call that resolves presets
	kube  kubernetes.Interface
	found map[[2]string]map[string]string
	// size is the bytes of all that were found.
	size int
	err  error
}

// get returns the data of a ConfigMap. It returns false if the ConfigMap does not exist, and after any other error, which it keeps in err.
func (m *configMaps) get(namespace, name string) (map[string]string, bool) {
	key := [2]string{namespace, name}
	if data, asked := m.found[key]; asked {
		return data, data != nil
	}
	m.found[key] = nil
	if m.size > v1alpha1.MaxClaimConfigMaps || len(m.found) > maxConfigMaps {
		m.err = errTooManyConfigMaps
		return nil, false
	}
	object, err := m.kube.CoreV1().ConfigMaps(namespace).Get(m.ctx, name, metav1.GetOptions{})
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
	for key, value := range object.Data {
		m.size += len(key) + len(value)
	}
	return m.found[key], true
}
