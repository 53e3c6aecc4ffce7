// SPDX-License-Identifier: Apache-2.0

// Package crd applies and upgrades CustomResourceDefinitions. Helm does not: it installs the files of a chart's crds folder once and
// never changes them. An upgrade that would remove a version in which objects may be stored is refused.
package crd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// established says whether the API server serves the definition, and will go on: one that is being deleted is served until its objects are
// gone.
func established(live *apiextensionsv1.CustomResourceDefinition) bool {
	is := func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}
	return live.DeletionTimestamp == nil && slices.ContainsFunc(live.Status.Conditions, is)
}

// establishTimeout bounds the wait for the API server to serve a definition, which usually takes less than a second.
const establishTimeout = 30 * time.Second

// Apply brings one definition to the API server by server-side apply as owner and returns once it is served. Applying the same
// definition again changes nothing. It returns a [*RefusedError] when the live definition has stored versions that d lacks, and
// then leaves it untouched.
//
// The client must not read from a cache.
func Apply(ctx context.Context, c client.Client, d Definition, owner string) error {
	var live apiextensionsv1.CustomResourceDefinition
	err := c.Get(ctx, client.ObjectKey{Name: d.Name}, &live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read CustomResourceDefinition %s: %w", d.Name, err)
	}
	if live.DeletionTimestamp != nil {
		return fmt.Errorf("CustomResourceDefinition %s is being deleted, with all its objects: it is made again when it is gone", d.Name)
	}
	if refused := check(&live, d); refused != nil {
		return refused
	}
	apply := client.ApplyConfigurationFromUnstructured(d.object.DeepCopy())
	if err := c.Apply(ctx, apply, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply CustomResourceDefinition %s: %w", d.Name, err)
	}
	return WaitEstablished(ctx, c, d.Name)
}

// WaitEstablished returns once the API server serves the definition, or an error that quotes its conditions.
func WaitEstablished(ctx context.Context, c client.Reader, name string) error {
	var live apiextensionsv1.CustomResourceDefinition
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, establishTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: name}, &live)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && established(&live), err
	})
	if err != nil {
		return fmt.Errorf("wait for CustomResourceDefinition %s to be established (conditions %+v): %w",
			name, live.Status.Conditions, err)
	}
	return nil
}
