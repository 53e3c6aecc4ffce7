// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

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
