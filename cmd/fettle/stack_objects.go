// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// read reads the cluster, the files, or both, where the objects of the files take the place of those of the cluster. unread says what
// could not be read.
func (f *stackPlanFlags) read(ctx context.Context) (out stack.Objects, unread []string, err error) {
	if f.fromCluster {
		if out, unread, err = f.stackObjects(ctx); err != nil {
			return out, nil, err
		}
	}
	if len(f.files) == 0 {
		return out, unread, nil
	}
	files, err := stackFiles(f.files)
	if err != nil {
		return out, nil, err
	}
	keepAge(files.Stacks, out.Stacks)
	out.Stacks = replaced(out.Stacks, files.Stacks)
	out.Nodes = replaced(out.Nodes, files.Nodes)
	out.Accelerators = replaced(out.Accelerators, files.Accelerators)
	out.Pods = replaced(out.Pods, files.Pods)
	out.Claims = replaced(out.Claims, files.Claims)
	out.Budgets = replaced(out.Budgets, files.Budgets)
	out.NodeModules = replaced(out.NodeModules, files.NodeModules)
	return out, unread, nil
}

// keepAge gives stacks of files the age of those whose place they take. Another is younger than all: the oldest holds for a node.
func keepAge(stacks, before []*v1alpha1.AcceleratorStack) {
	for _, s := range stacks {
		if !s.CreationTimestamp.IsZero() {
			continue
		}
		s.CreationTimestamp = metav1.NewTime(time.Now())
		for _, old := range before {
			if old.Name == s.Name {
				s.CreationTimestamp = old.CreationTimestamp
			}
		}
	}
}

// replaced returns the objects with others in place of those of the same namespaces and names.
func replaced[T metav1.Object](objects, by []T) []T {
	name := func(o T) string { return o.GetNamespace() + "/" + o.GetName() }
	now := map[string]bool{}
	for _, o := range by {
		now[name(o)] = true
	}
	return append(slices.DeleteFunc(objects, func(old T) bool { return now[name(old)] }), by...)
}

// stackObjects reads a cluster.
func (f *stackPlanFlags) stackObjects(ctx context.Context) (out stack.Objects, unread []string, err error) {
	client, _, err := f.client()
	if err != nil {
		return out, nil, err
	}
	r := &snapshotReader{ctx: ctx, client: client}
	own, core := v1alpha1.GroupVersion, corev1.SchemeGroupVersion
	for _, err := range []error{
		readInto(r, &out.Stacks, own.WithResource("acceleratorstacks")),
		readInto(r, &out.Accelerators, own.WithResource("acceleratornodes")),
		readInto(r, &out.Nodes, core.WithResource("nodes")),
		readInto(r, &out.Pods, core.WithResource("pods")),
		readInto(r, &out.Claims, resourceapi.SchemeGroupVersion.WithResource("resourceclaims")),
		readInto(r, &out.Budgets, policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")),
	} {
		if err != nil {
			return out, nil, err
		}
	}
	modules, err := client.list(ctx, stack.KMMGroupVersion().WithResource("nodemodulesconfigs"), "")
	switch {
	case apierrors.IsForbidden(err):
		r.problem("Snapshot nodemodulesconfigs", "none were read, and the plan is made as if there were none: %v", err)
	case err != nil && !apierrors.IsNotFound(err): // KMM is not installed
		return out, nil, fmt.Errorf("list the nodemodulesconfigs: %w", err)
	}
	for i := range modules {
		out.NodeModules = append(out.NodeModules, &modules[i])
	}
	for _, p := range r.problems {
		unread = append(unread, strings.TrimPrefix(p.Object, "Snapshot ")+": "+p.Message)
	}
	return out, unread, nil
}

func readInto[T any](r *snapshotReader, into *[]*T, resource schema.GroupVersionResource) (err error) {
	*into, err = listInto[T](r, []schema.GroupVersionResource{resource}, false, nil)
	return err
}

// stackFiles reads files. Objects without a namespace are in the namespace default.
func stackFiles(names []string) (out stack.Objects, err error) {
	r := manifestReader{namespace: metav1.NamespaceDefault, seen: map[string]string{}}
	own := v1alpha1.GroupVersion.String() + " "
	r.takers = map[string]func(raw []byte) error{
		own + v1alpha1.KindAcceleratorStack: func(raw []byte) error {
			s := &v1alpha1.AcceleratorStack{}
			out.Stacks = append(out.Stacks, s)
			return errors.Join(strict(raw, s), s.Spec.Validate(field.NewPath("spec")).ToAggregate())
		},
		own + "AcceleratorNode": take(&out.Accelerators),
		"v1 Node":               take(&out.Nodes),
		"v1 Pod":                takeInNamespace(&r, &out.Pods),
		resourceapi.SchemeGroupVersion.String() + " ResourceClaim":    takeInNamespace(&r, &out.Claims),
		policyv1.SchemeGroupVersion.String() + " PodDisruptionBudget": takeInNamespace(&r, &out.Budgets),
		stack.KMMGroupVersion().String() + " NodeModulesConfig": func(raw []byte) error {
			m := &unstructured.Unstructured{}
			out.NodeModules = append(out.NodeModules, m)
			return m.UnmarshalJSON(raw)
		},
	}
	for _, name := range names {
		err = errors.Join(err, r.files(name))
	}
	return out, err
}

// take collects objects.
func take[T any](into *[]*T) func(raw []byte) error {
	return func(raw []byte) error {
		object := new(T)
		*into = append(*into, object)
		return json.Unmarshal(raw, object)
	}
}

// takeInNamespace collects objects that have a namespace.
func takeInNamespace[T any, P interface {
	*T
	metav1.Object
}](r *manifestReader, into *[]P) func(raw []byte) error {
	return func(raw []byte) error {
		object := P(new(T))
		*into = append(*into, object)
		return r.decode(raw, object, object)
	}
}
