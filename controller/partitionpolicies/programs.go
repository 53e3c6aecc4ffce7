// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// eachProgram reads the DaemonSets and the Modules of KMM of the whole cluster, from the API server: these are many bytes for a cache, and
// are looked at seldom. Tenants make them, as many and as large as they like, so none is kept after each has looked at it. Begin is called
// when a list begins, also when it begins anew, with what it is a list of.
func eachProgram(ctx context.Context, live client.Reader, begin func(modules bool), each func(*nodepolicy.Program)) error {
	listing := reconciler.Listing{Reader: live, List: &appsv1.DaemonSetList{}}
	err := listing.Read(ctx, func() { begin(false) }, func(o runtime.Object) error {
		if d, ok := o.(*appsv1.DaemonSet); ok && d.DeletionTimestamp == nil {
			each(new(nodepolicy.NewProgram(d.Namespace+"/"+d.Name, false, &d.Spec.Template.Spec)))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list DaemonSets: %w", err)
	}
	modules := &unstructured.UnstructuredList{}
	modules.SetGroupVersionKind(stack.KMMGroupVersion().WithKind("ModuleList"))
	listing = reconciler.Listing{Reader: live, List: modules}
	err = listing.Read(ctx, func() { begin(true) }, func(o runtime.Object) error {
		if m, ok := o.(*unstructured.Unstructured); ok && m.GetDeletionTimestamp() == nil {
			if p, loads := programOf(m); loads {
				each(&p)
			}
		}
		return nil
	})
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) { // KMM may not be installed
		return fmt.Errorf("list Modules of KMM: %w", err)
	}
	return nil
}

// programOf returns a Module of KMM as a program. One that loads no driver is none, and neither is one whose fields have another form. KMM
// loads a driver that has a version only on nodes with a label for it.
func programOf(m *unstructured.Unstructured) (p nodepolicy.Program, loads bool) {
	var module struct {
		Spec struct {
			ModuleLoader *struct {
				Container struct {
					Version string `json:"version"`
				} `json:"container"`
			} `json:"moduleLoader"`
			Selector    map[string]string   `json:"selector"`
			Tolerations []corev1.Toleration `json:"tolerations"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object, &module); err != nil || module.Spec.ModuleLoader == nil {
		return nodepolicy.Program{}, false
	}
	spec := corev1.PodSpec{NodeSelector: module.Spec.Selector, Tolerations: module.Spec.Tolerations}
	if module.Spec.ModuleLoader.Container.Version != "" {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: stack.KMMLabel(m.GetNamespace(), m.GetName()), Operator: corev1.NodeSelectorOpExists,
			}}}},
		}}}
	}
	return nodepolicy.NewProgram(m.GetNamespace()+"/"+m.GetName(), true, &spec), true
}
