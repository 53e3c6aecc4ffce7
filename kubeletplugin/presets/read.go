// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// readPreset is a preset, decoded and checked once for each of its versions. It never changes.
type readPreset struct {
	metav1.ObjectMeta
	preset preset.Preset
	// err is why the preset cannot be read. Claims fail with it.
	err error
}

// read decodes a preset for the informers to keep.
func read(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	out := &readPreset{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Generation: u.GetGeneration(),
	}}
	p, err := v1alpha1.DecodeDevicePreset(u)
	out.preset, out.err = preset.Of(p), err
	return out, nil
}

// presetsFor returns the presets that may match claims of a namespace.
func (f *Feature) presetsFor(ctx context.Context, namespace string) ([]preset.Preset, error) {
	ofCluster, err := f.list(ctx, clusterPresetResource, "")
	if err != nil {
		return nil, err
	}
	ofNamespace, err := f.list(ctx, presetResource, namespace)
	return append(ofCluster, ofNamespace...), err
}

// list returns the presets of a kind. It asks the API server while the informer is not current. A cluster without the kind, as one that is
// being upgraded, has none.
func (f *Feature) list(ctx context.Context, resource, namespace string) ([]preset.Preset, error) {
	objects, err := f.objects(ctx, resource, namespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	}
	out := make([]preset.Preset, 0, len(objects))
	for _, object := range objects {
		known, ok := object.(*readPreset)
		if !ok {
			continue
		}
		if known.err != nil {
			return nil, known.err
		}
		out = append(out, known.preset)
	}
	return out, nil
}

func (f *Feature) objects(ctx context.Context, resource, namespace string) ([]any, error) {
	if informer := f.informers[resource]; informer.Current() {
		return informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	}
	all, err := f.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]any, len(all.Items))
	for i := range all.Items {
		if out[i], err = read(&all.Items[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// configMaps reads the ConfigMaps that presets name, each once.
type configMaps struct {
	ctx   context.Context //nolint:containedctx // it is that of the one call that resolves presets
	kube  kubernetes.Interface
	found map[[2]string]map[string]string
	err   error
}

// get returns the data of a ConfigMap. It returns false if the ConfigMap does not exist, and after any other error, which it keeps in err.
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
