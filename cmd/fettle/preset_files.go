// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
)

// fromFiles reads what the flags name. Every file may hold objects of every kind; only the claims of --claim are explained.
func (f *explainFlags) fromFiles() (source, error) {
	r := newObjectReader(cmp.Or(*f.Namespace, metav1.NamespaceDefault))
	r.ConfigMap = func(namespace, name string) (map[string]string, bool) {
		data, ok := r.configMaps[namespace+"/"+name]
		return data, ok
	}
	var errs []error
	for _, name := range f.claims {
		errs = append(errs, r.file(name))
	}
	asked := slices.Clone(r.Claims)
	if len(asked) == 0 && errors.Join(errs...) == nil {
		errs = append(errs, fmt.Errorf("%s: want a ResourceClaim", f.claims.String()))
	}
	for _, name := range slices.Concat(f.pods, f.presets, f.slices) {
		errs = append(errs, r.files(name))
	}
	wanted := func(c *resourceapi.ResourceClaim) bool { return slices.Contains(asked, c) }
	return source{r.Objects, wanted, func() error { return nil }}, errors.Join(errs...)
}

// objectReader collects objects of files.
type objectReader struct {
	explain.Objects
	manifestReader
	configMaps map[string]map[string]string
}

// newObjectReader returns a reader. Objects that name no namespace are in the given one.
func newObjectReader(namespace string) *objectReader {
	r := &objectReader{
		Objects:    explain.Objects{Driver: v1alpha1.DriverName, Namespaces: map[string]map[string]string{}},
		configMaps: map[string]map[string]string{},
	}
	r.manifestReader = manifestReader{namespace: namespace, seen: map[string]string{}, takers: r.kinds()}
	return r
}

// kinds returns what takes objects, by apiVersion and kind.
func (r *objectReader) kinds() map[string]func(raw []byte) error {
	own := v1alpha1.GroupVersion.String() + " "
	resource := resourceapi.SchemeGroupVersion.String() + " "
	return map[string]func(raw []byte) error{
		resource + "ResourceClaim": func(raw []byte) error {
			c := &resourceapi.ResourceClaim{}
			r.Claims = append(r.Claims, c)
			return r.decode(raw, c, c)
		},
		resource + "ResourceSlice": func(raw []byte) error {
			s := &resourceapi.ResourceSlice{}
			r.Slices = append(r.Slices, s)
			return json.Unmarshal(raw, s)
		},
		"v1 Pod": func(raw []byte) error {
			pod := &corev1.Pod{}
			r.Pods = append(r.Pods, pod)
			return r.decode(raw, pod, pod)
		},
		"v1 Namespace": func(raw []byte) error {
			var n corev1.Namespace
			err := json.Unmarshal(raw, &n)
			r.Namespaces[n.Name] = n.Labels
			return err
		},
		"v1 ConfigMap": func(raw []byte) error {
			var m corev1.ConfigMap
			err := r.decode(raw, &m, &m)
			r.configMaps[m.Namespace+"/"+m.Name] = m.Data
			return err
		},
		own + v1alpha1.KindDevicePreset: func(raw []byte) error {
			var p v1alpha1.DevicePreset
			err := errors.Join(r.decode(raw, &p, &p), strict(raw, &p))
			r.Presets = append(r.Presets, preset.Of(p.Common()))
			return err
		},
		own + v1alpha1.KindClusterDevicePreset: func(raw []byte) error {
			var p v1alpha1.ClusterDevicePreset
			err := strict(raw, &p)
			r.Presets = append(r.Presets, preset.Of(p.Common()))
			return err
		},
	}
}
