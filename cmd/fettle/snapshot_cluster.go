// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/equal"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/saved"
)

func genericConfig() *genericclioptions.ConfigFlags { return genericclioptions.NewConfigFlags(true) }

// snapshotReader reads the objects of a cluster that decide who gets which device. What may not be read is a problem, not a failure.
type snapshotReader struct {
	plan.Snapshot
	ctx       context.Context //nolint:containedctx // it is that of the one call
	client    *reader
	namespace string
	problems  []plan.Problem
}

// ofCluster reads a cluster: all namespaces as far as they may be read, and otherwise the one of kubectl.
func (f *snapshotFlags) ofCluster(ctx context.Context) (plan.Snapshot, []plan.Problem, error) {
	client, namespace, err := f.client()
	if err != nil {
		return plan.Snapshot{}, nil, err
	}
	r := &snapshotReader{ctx: ctx, client: client, namespace: namespace}
	if err := r.versionAndGates(f.cluster); err != nil {
		return plan.Snapshot{}, nil, err
	}
	if err := r.objects(); err != nil {
		return plan.Snapshot{}, nil, err
	}
	inSchedulersOrder(r.Pods)
	return r.Snapshot, r.problems, nil
}

// versionAndGates asks the API server for its version, and for its gates, which are among its metrics.
func (r *snapshotReader) versionAndGates(c *cluster) error {
	config, err := c.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	info, err := client.ServerVersionWithContext(r.ctx)
	if err != nil {
		return fmt.Errorf("ask the API server for its version: %w", err)
	}
	r.Version = versionOf(info)
	metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(r.ctx)
	if err != nil {
		r.problem("Snapshot kubernetes", "feature gates are taken for the defaults of %s, since the metrics of the API server cannot be read: %v",
			r.Version, err)
		return nil
	}
	set, _, err := gates.For(r.Version, gates.FromMetrics(metrics))
	if err != nil {
		return err
	}
	r.Gates = set.Changed()
	return nil
}

// versionOf is the version whose gates an API server has: a newer one may emulate it.
func versionOf(info *apiversion.Info) string {
	if info.EmulationMajor != "" && info.EmulationMinor != "" {
		return info.EmulationMajor + "." + info.EmulationMinor
	}
	return info.Major + "." + info.Minor
}

// objects reads each kind. Of nodes, pods, claims and templates it keeps what decides about devices.
func (r *snapshotReader) objects() (err error) {
	core := func(resource string) []schema.GroupVersionResource {
		return []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource(resource)}
	}
	devices := func(resource string, versions ...string) (out []schema.GroupVersionResource) {
		for _, version := range append([]string{"v1"}, versions...) {
			out = append(out, schema.GroupVersionResource{Group: resourceapi.GroupName, Version: version, Resource: resource})
		}
		return out
	}
	var groups []schema.GroupVersionResource
	for _, version := range []string{"v1beta1", "v1alpha3"} {
		groups = append(groups, schema.GroupVersionResource{Group: schedulingapi.GroupName, Version: version, Resource: "podgroups"})
	}
	var parts equal.Parts
	for _, read := range []func() error{
		func() error { r.Nodes, err = listInto(r, core("nodes"), false, trimmed(saved.Node)); return err },
		func() error {
			r.Namespaces, err = listInto[corev1.Namespace](r, core("namespaces"), false, nil)
			return err
		},
		func() error { r.Pods, err = listInto(r, core("pods"), true, trimmed(saved.Pod)); return err },
		func() error {
			r.Quotas, err = listInto[corev1.ResourceQuota](r, core("resourcequotas"), true, nil)
			return err
		},
		func() error {
			r.Slices, err = listInto(r, devices("resourceslices"), false, func(s *resourceapi.ResourceSlice) bool {
				parts.Share(s)
				return true
			})
			return err
		},
		func() error {
			r.Classes, err = listInto[resourceapi.DeviceClass](r, devices("deviceclasses"), false, nil)
			return err
		},
		func() error {
			r.Claims, err = listInto(r, devices("resourceclaims"), true, trimmed(saved.Claim))
			return err
		},
		func() error {
			r.Templates, err = listInto(r, devices("resourceclaimtemplates"), true, trimmed(saved.Template))
			return err
		},
		func() error {
			r.TaintRules, err = listInto[resourceapi.DeviceTaintRule](r, devices("devicetaintrules", "v1beta2", "v1alpha3"), false, nil)
			return err
		},
		func() error {
			r.PodGroups, err = listInto[schedulingapi.PodGroup](r, groups, true, nil)
			return err
		},
	} {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// trimmed keeps what a function returns of an object.
func trimmed[T any](trim func(*T) *T) func(*T) bool {
	return func(object *T) bool {
		*object = *trim(object)
		return true
	}
}

func (r *snapshotReader) problem(object, format string, args ...any) {
	r.problems = append(r.problems, plan.Problem{Object: object, Message: fmt.Sprintf(format, args...)})
}

// listInto lists a resource in the first of its versions that is served. Where all namespaces may not be read, it is the one of kubectl.
// Of an object that is kept, keep may drop parts.
func listInto[T any](r *snapshotReader, versions []schema.GroupVersionResource, namespaced bool, keep func(*T) bool) ([]*T, error) {
	resource := versions[0].Resource
	list := func(namespace string) (objects []*T, err error) {
		for _, version := range versions {
			if objects, err = listOf(r.ctx, r.client, version, choice[T]{namespace: namespace, keep: keep}); !apierrors.IsNotFound(err) {
				break
			}
		}
		return objects, err
	}
	objects, err := list(metav1.NamespaceAll)
	if apierrors.IsForbidden(err) && namespaced && r.namespace != "" {
		// Who may not list a resource is not told which versions of it are served.
		r.problem("Snapshot "+resource, "only those of namespace %s were read: %v", r.namespace, err)
		objects, err = list(r.namespace)
	}
	switch {
	case apierrors.IsForbidden(err):
		r.problem("Snapshot "+resource, "none were read, and the plan is made as if there were none: %v", err)
		return nil, nil
	case apierrors.IsNotFound(err) && len(versions) > 1:
		return nil, nil // the cluster does not have this kind
	case err != nil:
		return nil, fmt.Errorf("list the %s: %w", resource, err)
	}
	return objects, nil
}

// inSchedulersOrder sorts pods as the scheduler takes them: by priority, and then the oldest first.
func inSchedulersOrder(pods []*corev1.Pod) {
	priority := func(pod *corev1.Pod) int32 {
		if pod.Spec.Priority == nil {
			return 0
		}
		return *pod.Spec.Priority
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(priority(b), priority(a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
