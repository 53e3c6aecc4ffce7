// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
)

// fromFiles reads what the flags name. Every file may hold objects of every kind; only the claims of --claim are explained.
func (f *explainFlags) fromFiles() (source, error) {
	r := objectReader{
		namespace: cmp.Or(*f.Namespace, metav1.NamespaceDefault), configMaps: map[string]map[string]string{}, seen: map[string]string{},
		Objects: explain.Objects{Driver: v1alpha1.DriverName, Namespaces: map[string]map[string]string{}},
	}
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
	// namespace is that of objects which name none.
	namespace  string
	configMaps map[string]map[string]string
	// seen is the file of each object.
	seen map[string]string
}

// files reads a file, or those of a directory that look like manifests.
func (r *objectReader) files(name string) error {
	info, err := os.Stat(name)
	if name == "-" || err != nil || !info.IsDir() {
		return r.file(name) // which says what is wrong
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			errs = append(errs, r.file(filepath.Join(name, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

func (r *objectReader) file(name string) error {
	data, title, err := readManifests(name)
	if err != nil {
		return err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			document, err = yaml.YAMLToJSONStrict(document)
		}
		if err == nil {
			err = r.object(document, title)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
	}
}

// object takes one of a document, or the items of a list.
func (r *objectReader) object(raw []byte, file string) error {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return fmt.Errorf("want a Kubernetes object: %w", err)
	}
	if strings.HasSuffix(head.Kind, "List") && head.Items != nil {
		for _, item := range head.Items {
			if err := r.object(item, file); err != nil {
				return err
			}
		}
		return nil
	}
	take, known := r.takers()[head.APIVersion+" "+head.Kind]
	group, _, _ := strings.Cut(head.APIVersion, "/")
	if !known {
		if group == resourceapi.GroupName && slices.Contains([]string{"ResourceClaim", "ResourceSlice"}, head.Kind) {
			return fmt.Errorf("%s %s: apiVersion %s: want %s", head.Kind, head.Metadata.Name, head.APIVersion, resourceapi.SchemeGroupVersion)
		}
		return nil
	}
	title := strings.TrimSpace(head.Kind + " " + strings.TrimPrefix(head.Metadata.Namespace+"/"+head.Metadata.Name, "/"))
	if before, twice := r.seen[title]; twice {
		return fmt.Errorf("%s is in %s already: give it once", title, before)
	}
	r.seen[title] = file
	if err := take(raw); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	return nil
}

// takers are by apiVersion and kind.
func (r *objectReader) takers() map[string]func(raw []byte) error {
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

// decode reads an object that has a namespace.
func (r *objectReader) decode(raw []byte, into any, meta metav1.Object) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	meta.SetNamespace(cmp.Or(meta.GetNamespace(), r.namespace))
	return nil
}

// strict refuses fields that the API server would not know.
func strict(raw []byte, into metav1.Object) error {
	namespace := into.GetNamespace()
	unknown, err := strictjson.UnmarshalStrict(raw, into)
	into.SetNamespace(cmp.Or(into.GetNamespace(), namespace))
	return errors.Join(append(unknown, err)...)
}
