// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/equal"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/plan/saved"
)

const (
	// snapshotBytes bounds what is of no namespace in a snapshot but for slices, claimBytes the claims that have devices, tenantBytes what
	// counts in quotas, askerBytes the claims and templates of one waiting pod, and podsBytes the pods of a round, all in the API's binary
	// form: tenants make objects as large as the API server takes them, and an object takes some four times as much in memory.
	snapshotBytes = 8 << 20
	claimBytes    = 12 << 20
	tenantBytes   = 4 << 20
	askerBytes    = 256 << 10
	podsBytes     = 8 << 20
	// sliceBytes bounds the slices, in memory. 100 nodes whose GPUs are divided in all ways have half of it.
	sliceBytes = 48 << 20
	// pageSize is how many objects are asked for at once that no tenant makes.
	pageSize = 100
)

// ErrTooMuch ends the reading of objects.
var ErrTooMuch = errors.New("the objects are larger than the controller keeps")

// onNode selects the pods of a node. The API server has an index of pods by spec.nodeName.
func onNode(name string) client.ListOption {
	return client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("spec.nodeName", name)}
}

// PodsOn lists the pods of nodes. If they are too large, the error is ErrTooMuch.
func PodsOn(ctx context.Context, live client.Reader, nodes []string) ([]*corev1.Pod, error) {
	of := tenantsWithPods(live)
	pods := tenantKind[*corev1.Pod]{list: &corev1.PodList{}, trim: trimPod, bare: barePod}
	lists := make([][]*corev1.Pod, len(nodes))
	for i, node := range nodes {
		if err := pods.read(ctx, of, &lists[i], onNode(node)); err != nil {
			return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
		}
	}
	of.log(ctx, "Pods of namespaces that have too large ones are known by their requests only")
	return slices.Concat(lists...), nil
}

// Pending lists the pods without a node that may wait for devices. If they are too large, those of the namespaces with the largest are left
// out.
func Pending(ctx context.Context, live client.Reader) ([]*corev1.Pod, error) {
	of := tenantsWithPods(live)
	waiting := tenantKind[*corev1.Pod]{
		list: &corev1.PodList{},
		trim: func(pod *corev1.Pod) *corev1.Pod {
			if !mayWait(pod) {
				return nil
			}
			return trimPod(pod)
		},
		bare: func(*corev1.Pod) *corev1.Pod { return nil },
	}
	var pods []*corev1.Pod
	if err := waiting.read(ctx, of, &pods, onNode("")); err != nil {
		return nil, fmt.Errorf("list pods without a node: %w", err)
	}
	of.log(ctx, "Waiting pods of namespaces that have too large ones are not looked at")
	return pods, nil
}

// mayWait says whether a pod may wait for devices.
func mayWait(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		(pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "") && (len(pod.Spec.ResourceClaims) > 0 || len(extended(pod)) > 0)
}

// extended lists the extended resources of a pod, which may stand for devices.
func extended(pod *corev1.Pod) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/") ||
				strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
				out = append(out, name)
			}
		}
	}
	return out
}

// Reader reads what decides about devices.
type Reader struct {
	// Live reads from the API server, Cached knows Nodes and AcceleratorNodes.
	Live, Cached client.Reader
}

// Snapshot is what decides about the devices of some pods.
type Snapshot struct {
	plan.Snapshot
	// AllNodes is how many nodes the cluster has. Those in the snapshot may be fewer.
	AllNodes int
	// Devices are those of which the snapshot was read.
	Devices *Devices
}

// Whole says whether every node of the cluster is in the snapshot.
func (s *Snapshot) Whole() bool { return len(s.Nodes) == s.AllNodes }

// Read reads what decides about the devices of pods: nodes that these may be on, maxNodes at most, with their slices, and the claims that
// have devices there. First are labels of nodes that are chosen before others; nil: none are. Pods are left out: what they use of CPU and
// memory is not judged. If what is of no node is too large, or all of the first node, the error is ErrTooMuch. If quotas are, namespaces
// are left out, those with the largest first.
func (r Reader) Read(ctx context.Context, d *Devices, askers []Asker, first func(labels map[string]string) bool) (*Snapshot, error) {
	s := &Snapshot{Devices: d}
	s.Classes = d.all
	cluster := &pageReader{Reader: r.Live, left: snapshotBytes - d.bytes}
	var err error
	if s.Namespaces, err = pages(ctx, cluster, &corev1.NamespaceList{}, trimNamespace); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	if s.TaintRules, err = taintRules(ctx, cluster); err != nil {
		return nil, err
	}
	if err := r.readNodes(ctx, cluster, s, askers, first); err != nil {
		return nil, err
	}
	of := &tenants{cluster: cluster, left: tenantBytes}
	quotas := tenantKind[*corev1.ResourceQuota]{
		list: &corev1.ResourceQuotaList{}, trim: trimQuota, bare: func(*corev1.ResourceQuota) *corev1.ResourceQuota { return nil },
	}
	if err := quotas.read(ctx, of, &s.Quotas); err != nil {
		return nil, fmt.Errorf("list quotas: %w", err)
	}
	if err := r.readClaims(ctx, of, s, askers); err != nil {
		return nil, err
	}
	of.log(ctx, "Quotas of namespaces with too large claims or quotas are left out")
	return s, nil
}

// readNodes reads nodes and their slices. Of a small cluster these are two lists.
func (r Reader) readNodes(
	ctx context.Context, cluster *pageReader, s *Snapshot, askers []Asker, first func(labels map[string]string) bool,
) error {
	names, all, err := r.candidates(ctx, askers, first)
	if err != nil {
		return err
	}
	s.AllNodes = all
	parts := &sharedSlices{left: sliceBytes}
	if len(names) == all {
		if s.Nodes, err = pages(ctx, cluster, &corev1.NodeList{}, saved.Node); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		s.AllNodes = len(s.Nodes)
		s.Slices, err = parts.list(ctx, r.Live)
		if !errors.Is(err, ErrTooMuch) {
			return err
		}
		s.Nodes, parts = nil, &sharedSlices{left: sliceBytes}
	}
	if s.Slices, err = parts.list(ctx, r.Live, onNode("")); err != nil {
		return err
	}
	for _, name := range names {
		nodes, err := pages(ctx, cluster, &corev1.NodeList{}, saved.Node, client.MatchingFields{"metadata.name": name})
		if err != nil {
			return fmt.Errorf("read node %s: %w", name, err)
		}
		more, err := parts.list(ctx, r.Live, onNode(name))
		switch {
		case errors.Is(err, ErrTooMuch) && len(s.Nodes) > 0:
			return nil // those before it are looked at
		case err != nil:
			return err
		}
		s.Nodes, s.Slices = append(s.Nodes, nodes...), append(s.Slices, more...)
	}
	return nil
}

// sharedSlices lists slices, and keeps what is equal in them once, until they take too much memory.
type sharedSlices struct {
	parts equal.Parts
	left  int
}

func (p *sharedSlices) list(ctx context.Context, live client.Reader, options ...client.ListOption) ([]*resourceapi.ResourceSlice, error) {
	var out []*resourceapi.ResourceSlice
	left := p.left
	begin := func() { out, p.left = nil, left }
	listing := reconciler.Listing{Reader: live, List: &resourceapi.ResourceSliceList{}, Page: pageSize, Options: options}
	err := listing.Read(ctx, begin, func(o runtime.Object) error {
		slice, ok := o.(*resourceapi.ResourceSlice)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		slice.ObjectMeta = metav1.ObjectMeta{Name: slice.Name, UID: slice.UID}
		p.left -= p.parts.Share(slice)
		if p.left < 0 {
			return ErrTooMuch
		}
		out = append(out, slice)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	return out, nil
}

// pageReader lists objects until they are too many bytes.
type pageReader struct {
	client.Reader
	left int
}

// keep drops the managed fields of an object, and counts the rest.
func (r *pageReader) keep(object client.Object) error {
	object.SetManagedFields(nil)
	r.left -= sizeOf(object)
	if r.left < 0 {
		return ErrTooMuch
	}
	return nil
}

// pages lists objects, and keeps of each what trim returns. With ErrTooMuch it returns those that it kept.
func pages[T client.Object](
	ctx context.Context, r *pageReader, list client.ObjectList, trim func(T) T, options ...client.ListOption,
) ([]T, error) {
	var out []T
	left := r.left
	begin := func() { out, r.left = nil, left }
	listing := reconciler.Listing{Reader: r, List: list, Page: pageSize, Options: options}
	err := listing.Read(ctx, begin, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		object = trim(object)
		if err := r.keep(object); err != nil {
			return err
		}
		out = append(out, object)
		return nil
	})
	return out, err
}

// all keeps all of an object.
func all[T any](object T) T { return object }

// trimNamespace keeps the labels of a namespace, by which it is selected.
func trimNamespace(n *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels}}
}

// taintRules lists the DeviceTaintRules in the newest version that is served: v1 since Kubernetes 1.37. Their fields are the same in all. A
// cluster that serves none has none.
func taintRules(ctx context.Context, r *pageReader) ([]*resourceapi.DeviceTaintRule, error) {
	for _, version := range []string{"v1", "v1beta2", "v1alpha3"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: resourceapi.GroupName, Version: version, Kind: "DeviceTaintRuleList"})
		objects, err := pages(ctx, r, list, all[*unstructured.Unstructured])
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list DeviceTaintRules of %s: %w", version, err)
		}
		out := make([]*resourceapi.DeviceTaintRule, len(objects))
		for i, o := range objects {
			out[i] = &resourceapi.DeviceTaintRule{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out[i]); err != nil {
				return nil, fmt.Errorf("read DeviceTaintRule %s: %w", o.GetName(), err)
			}
			if err := r.keep(out[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, nil
}

// Repelling lists the pods with a node that require an anti-affinity in more than their node, on all nodes but the given ones: they may
// keep pods from nodes that have none of them. Only what keeps others away is kept. What of that is too large counts as unknown.
func Repelling(ctx context.Context, live client.Reader, but []string) ([]*corev1.Pod, error) {
	repelling := func(kept func(*corev1.Pod) *corev1.Pod) func(*corev1.Pod) *corev1.Pod {
		return func(pod *corev1.Pod) *corev1.Pod {
			if pod.Spec.NodeName == "" || slices.Contains(but, pod.Spec.NodeName) || podspec.Ended(pod) || !repelsAfar(pod) {
				return nil
			}
			out := kept(pod)
			out.Spec.Containers, out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = nil, nil, nil
			return out
		}
	}
	pods := tenantKind[*corev1.Pod]{list: &corev1.PodList{}, trim: repelling(placedPod), bare: repelling(barePod)}
	var out []*corev1.Pod
	if err := pods.read(ctx, tenantsWithPods(live), &out); err != nil {
		return nil, fmt.Errorf("list pods with an anti-affinity: %w", err)
	}
	return out, nil
}

// repelsAfar says whether a pod may keep others from other nodes than its own.
func repelsAfar(pod *corev1.Pod) bool {
	return slices.ContainsFunc(podspec.AntiAffinity(pod), func(t podspec.Term) bool { return t.Key != corev1.LabelHostname })
}
