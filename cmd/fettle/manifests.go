// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/manifest"
)

// manifestReader reads objects of files. Those of kinds without a taker are passed over.
type manifestReader struct {
	// namespace is that of objects which name none.
	namespace string
	// takers take objects, by apiVersion and kind.
	takers map[string]func(raw []byte) error
	// seen is the file of each object.
	seen map[string]string
}

// files reads a file, or those of a directory that look like manifests.
func (r *manifestReader) files(name string) error {
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

func (r *manifestReader) file(name string) error {
	data, title, err := readManifests(name)
	if err != nil {
		return err
	}
	for _, d := range manifest.Split(data) {
		document, err := manifest.JSON(d.Text)
		if err == nil {
			err = r.object(document, title)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
	}
	return nil
}

// object takes one of a document, or the items of a list.
func (r *manifestReader) object(raw []byte, file string) error {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return fmt.Errorf("want a Kubernetes object: %w", manifest.WithoutTypes(err))
	}
	if strings.HasSuffix(head.Kind, "List") && head.Items != nil {
		for _, item := range head.Items {
			if err := r.object(item, file); err != nil {
				return err
			}
		}
		return nil
	}
	take, known := r.takers[head.APIVersion+" "+head.Kind]
	if !known {
		return r.otherVersion(head.TypeMeta, head.Metadata.Name)
	}
	title := strings.TrimSpace(head.Kind + " " + strings.TrimPrefix(head.Metadata.Namespace+"/"+head.Metadata.Name, "/"))
	if before, twice := r.seen[title]; twice {
		return fmt.Errorf("%s is in %s already: give it once", title, before)
	}
	r.seen[title] = file
	if err := take(raw); err != nil {
		return fmt.Errorf("%s: %w", title, manifest.WithoutTypes(err))
	}
	return nil
}

// otherVersion refuses an object whose kind has a taker for another version of its group.
func (r *manifestReader) otherVersion(kind metav1.TypeMeta, name string) error {
	group, _, _ := strings.Cut(kind.APIVersion, "/")
	for known := range r.takers {
		version, of, _ := strings.Cut(known, " ")
		if of == kind.Kind && strings.HasPrefix(version, group+"/") {
			return fmt.Errorf("%s %s: apiVersion %s: want %s", kind.Kind, name, kind.APIVersion, version)
		}
	}
	return nil
}

// decode reads an object that has a namespace.
func (r *manifestReader) decode(raw []byte, into any, meta metav1.Object) error {
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
