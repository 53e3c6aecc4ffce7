// SPDX-License-Identifier: Apache-2.0

// Package crd applies and upgrades CustomResourceDefinitions. Helm does not: it installs the files of a chart's crds folder once and
// never changes them. An upgrade that would remove a version in which objects may be stored is refused.
package crd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Definition is one CustomResourceDefinition to apply.
type Definition struct {
	// Name is PLURAL.GROUP.
	Name string
	// Versions are the names of its versions, in the order of the file.
	Versions []string
	// object is the file's content, so that server-side apply owns the fields of the file and no zero values of a Go type.
	object *unstructured.Unstructured
}

// Load reads every *.yaml file at the top of files, sorted by name. A file that is not one CustomResourceDefinition of
// apiextensions.k8s.io/v1 is an error that names the file.
func Load(files fs.FS) ([]Definition, error) {
	paths, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var definitions []Definition
	var faults []error
	for _, path := range paths {
		content, err := fs.ReadFile(files, path)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		d, err := parse(content)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", path, err))
			continue
		}
		definitions = append(definitions, d)
	}
	slices.SortFunc(definitions, func(a, b Definition) int { return cmp.Compare(a.Name, b.Name) })
	return definitions, errors.Join(faults...)
}

// parse reads one definition. It drops the status and the creation time that generators leave in: they belong to the API server.
func parse(content []byte) (Definition, error) {
	var typed apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &typed); err != nil {
		return Definition{}, fmt.Errorf("parse CustomResourceDefinition: %w", err)
	}
	if typed.Kind != "CustomResourceDefinition" || typed.APIVersion != apiextensionsv1.SchemeGroupVersion.String() {
		return Definition{}, fmt.Errorf("is a %s of %q; expected a CustomResourceDefinition of %s",
			typed.Kind, typed.APIVersion, apiextensionsv1.SchemeGroupVersion)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(content, &object.Object); err != nil {
		return Definition{}, fmt.Errorf("parse CustomResourceDefinition: %w", err)
	}
	delete(object.Object, "status")
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	d := Definition{Name: typed.Name, object: object}
	for _, v := range typed.Spec.Versions {
		d.Versions = append(d.Versions, v.Name)
	}
	return d, nil
}

// RefusedError says why a live CustomResourceDefinition is not upgraded.
type RefusedError struct {
	// Name is the definition's.
	Name string
	// Stored are the versions in which objects may be stored and that this release does not know.
	Stored []string
	// Known are the versions of this release.
	Known []string
}

// Error names the definition, the versions and the next step.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("CustomResourceDefinition %s keeps its newer form: objects may be stored as %s, this release knows only %s;"+
		" install a release that knows both, or rewrite the objects and remove the version from status.storedVersions",
		e.Name, strings.Join(e.Stored, ", "), strings.Join(e.Known, ", "))
}

// check refuses to replace a live definition whose stored versions the wanted one lacks.
func check(live *apiextensionsv1.CustomResourceDefinition, want Definition) error {
	var missing []string
	for _, stored := range live.Status.StoredVersions {
		if !slices.Contains(want.Versions, stored) {
			missing = append(missing, stored)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &RefusedError{Name: want.Name, Stored: missing, Known: want.Versions}
}

// established says whether the API server serves the definition.
func established(live *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(live.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}
