// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/claimspec"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// The kind of the document of a snapshot that has the version and the gates. It is never an object of a cluster.
const (
	HeaderAPIVersion = "plan.fettle.dev/v1"
	HeaderKind       = "Snapshot"
)

// Header is the document of a snapshot that has the version and the gates.
type Header struct {
	metav1.TypeMeta   `json:",inline"`
	KubernetesVersion string          `json:"kubernetesVersion,omitempty"`
	FeatureGates      map[string]bool `json:"featureGates,omitempty"`
	// Missing are kinds of objects that could not be read when the snapshot was made, each with the reason.
	Missing []Problem `json:"missing,omitempty"`
}

// File has manifests: YAML documents, JSON, or lists of objects.
type File struct {
	// Name is how messages call it.
	Name string
	Data []byte
}

// Read collects the objects of files that a plan needs; other kinds are skipped. Objects without a namespace get the given one. What a
// plan could be wrong about is a problem: fields that are not known, and workloads whose pods do not exist. An error is about input that
// cannot be read.
func Read(files []File, namespace string) (Snapshot, []Problem, error) {
	r := &reader{namespace: cmp.Or(namespace, metav1.NamespaceDefault), seen: map[string]string{}}
	var errs []error
	for _, f := range files {
		for _, document := range manifest.Split(f.Data) {
			where := fmt.Sprintf("%s:%d", f.Name, document.Line)
			if err := r.document(document.Text, where); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", where, err))
			}
		}
	}
	sortProblems(r.problems)
	return r.Snapshot, r.problems, errors.Join(errs...)
}

// reader collects objects.
type reader struct {
	Snapshot
	namespace string
	// seen says where each object was read.
	seen     map[string]string
	problems []Problem
}

func (r *reader) document(text []byte, where string) error {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return r.object(trimmed, where)
	}
	raw, err := manifest.JSON(text)
	if err != nil {
		return err
	}
	return r.object(raw, where)
}

// head is what all objects have.
type head struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// title is how messages call the object.
func (h head) title() string {
	return titleOf(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
}

// titleOf is KIND NAMESPACE/NAME, or KIND NAME.
func titleOf(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// object takes an object, or the items of a list.
func (r *reader) object(raw []byte, where string) error {
	if string(raw) == "null" {
		return nil
	}
	var h head
	if err := json.Unmarshal(raw, &h); err != nil {
		return fmt.Errorf("want a Kubernetes object: %w", manifest.WithoutTypes(err))
	}
	if h.Kind == "" || h.APIVersion == "" {
		return errors.New("want a Kubernetes object with apiVersion and kind")
	}
	if h.Items != nil && strings.HasSuffix(h.Kind, "List") {
		for i, item := range h.Items {
			item, err := withKind(item, h)
			if err == nil {
				err = r.object(item, where)
			}
			if err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	return r.one(raw, h, where)
}

// withKind gives an item of a list like PodList the kind that its list says.
func withKind(item json.RawMessage, list head) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(item, &fields); err != nil {
		return nil, err
	}
	if fields["kind"] != nil || list.Kind == "List" {
		return item, nil
	}
	fields["kind"], _ = json.Marshal(strings.TrimSuffix(list.Kind, "List"))
	fields["apiVersion"], _ = json.Marshal(list.APIVersion)
	return json.Marshal(fields)
}

// one takes one object.
func (r *reader) one(raw []byte, h head, where string) error {
	if h.Kind == HeaderKind && h.APIVersion == HeaderAPIVersion {
		return r.header(raw)
	}
	k, known := kinds()[h.Kind]
	group, version, _ := strings.Cut(h.APIVersion, "/")
	if version == "" {
		group = ""
	}
	if !known || k.group != group {
		r.skipped(h, group)
		return nil
	}
	if h.Metadata.Name == "" {
		return fmt.Errorf("%s without metadata.name: want a name; objects with generateName have none before they are created", h.Kind)
	}
	if k.namespaced {
		h.Metadata.Namespace = cmp.Or(h.Metadata.Namespace, r.namespace)
	} else {
		h.Metadata.Namespace = ""
	}
	title := h.title()
	if before, twice := r.seen[title]; twice {
		return fmt.Errorf("%s is at %s already: give it once, or the second as an addition", title, before)
	}
	r.seen[title] = where
	if !slices.Contains(k.versions, strings.TrimPrefix(h.APIVersion, group+"/")) {
		r.problem(title, "apiVersion %s is not read: want %s; convert the object or take it from an API server that serves it",
			h.APIVersion, strings.TrimPrefix(group+"/"+k.versions[0], "/"))
		return nil
	}
	unknown, err := k.take(&r.Snapshot, raw, h.Metadata.Namespace)
	if at, message, ok := manifest.WrongType(err); ok {
		return fmt.Errorf("%s: %s: %s", title, at, message)
	}
	if err == nil {
		err = r.refused(h.Kind)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	for _, u := range unknown {
		r.problem(title, "%v: the field is left out", u)
	}
	return nil
}

// refused says why the API server would refuse the object of a kind that was read last.
func (r *reader) refused(kind string) error {
	spec := field.NewPath("spec")
	switch kind {
	case "ResourceClaim":
		return claimspec.Faults(&r.Claims[len(r.Claims)-1].Spec.Devices, spec.Child("devices")).ToAggregate()
	case "ResourceClaimTemplate":
		return claimspec.Faults(&r.Templates[len(r.Templates)-1].Spec.Spec.Devices, spec.Child("spec", "devices")).ToAggregate()
	}
	return nil
}

// header reads the version and the gates of a snapshot.
func (r *reader) header(raw []byte) error {
	var h Header
	unknown, err := strictjson.UnmarshalStrict(raw, &h)
	if err = errors.Join(append(unknown, manifest.WithoutTypes(err))...); err != nil {
		return fmt.Errorf("%s: %w", HeaderKind, err)
	}
	if r.Version != "" || r.Gates != nil {
		return fmt.Errorf("two documents of kind %s: want at most one, since a plan is for one cluster", HeaderKind)
	}
	r.Version, r.Gates = h.KubernetesVersion, h.FeatureGates
	r.problems = append(r.problems, h.Missing...)
	return nil
}

// skipped says what a user might expect of a kind that is left out.
func (r *reader) skipped(h head, group string) {
	switch group {
	case "apps", "batch":
		r.problem(h.title(), "only Pods are planned: add the pods that this %s makes", h.Kind)
	case resourceapi.GroupName:
		r.problem(h.title(), "kind %s is not needed for a plan: left out", h.Kind)
	}
}

func (r *reader) problem(object, format string, args ...any) {
	r.problems = append(r.problems, Problem{Object: object, Message: fmt.Sprintf(format, args...)})
}

// sortProblems orders problems by object and message.
func sortProblems(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
}
