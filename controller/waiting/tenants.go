// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/plan/saved"
)

// tenants bounds what objects of namespaces take together. While they take too much, the namespace that takes most is reduced, so that no
// tenant can have others left out.
type tenants struct {
	// cluster reads the objects, and counts the bare ones.
	cluster *pageReader
	left    int
	sizes   map[string]int
	// reduced are the namespaces of which only the bare objects are kept. reduce does that in each list.
	reduced map[string]bool
	reduce  []func(namespace string) error
}

// tenantsWithPods returns the bounds of what the pods of a round take.
func tenantsWithPods(live client.Reader) *tenants {
	return &tenants{cluster: &pageReader{Reader: live, left: podsBytes}, left: podsBytes}
}

// count counts an object, and reduces namespaces until all fit.
func (t *tenants) count(namespace string, size int) error {
	if t.sizes == nil {
		t.sizes, t.reduced = map[string]int{}, map[string]bool{}
	}
	t.sizes[namespace] += size
	for t.left -= size; t.left < 0; {
		largest := namespace
		for other, size := range t.sizes {
			if size > t.sizes[largest] || size == t.sizes[largest] && other < largest {
				largest = other
			}
		}
		t.left += t.sizes[largest]
		delete(t.sizes, largest)
		t.reduced[largest] = true
		for _, reduce := range t.reduce {
			if err := reduce(largest); err != nil {
				return err
			}
		}
	}
	return nil
}

// log names the reduced namespaces to the administrator.
func (t *tenants) log(ctx context.Context, what string) {
	if len(t.reduced) > 0 {
		names := slices.Sorted(maps.Keys(t.reduced))
		klog.FromContext(ctx).Info(what, "namespaces", len(names), "first", names[:min(len(names), 10)], "limitBytes", tenantBytes)
	}
}

// sizeOf returns the size of an object in the API's binary form.
func sizeOf(object client.Object) int {
	if sized, ok := object.(interface{ Size() int }); ok {
		return sized.Size()
	}
	return 0
}

// tenantKind is a kind of objects that tenants make, and what is kept of each of them.
type tenantKind[T interface {
	client.Object
	comparable
}] struct {
	// list is an empty list of the kind.
	list client.ObjectList
	// trim returns the part of an object that decides, nil if nothing does.
	trim func(T) T
	// bare returns what others have to know of an object of a reduced namespace, nil if nothing.
	bare func(T) T
}

// read lists the objects of all namespaces, or those that the options select, into a slice. Bare objects count as the cluster's.
func (k *tenantKind[T]) read(ctx context.Context, of *tenants, into *[]T, options ...client.ListOption) error {
	r := of.cluster
	var none T
	keepBare := func(object T) error {
		b := k.bare(object)
		if b == none {
			return nil
		}
		*into = append(*into, b)
		return r.keep(b)
	}
	of.reduce = append(of.reduce, func(namespace string) error {
		all := *into
		*into = nil
		for _, object := range all {
			if object.GetNamespace() != namespace {
				*into = append(*into, object)
			} else if err := keepBare(object); err != nil {
				return err
			}
		}
		return nil
	})
	left, clusterLeft, sizes := of.left, r.left, maps.Clone(of.sizes)
	begin := func() { *into, of.left, r.left, of.sizes = nil, left, clusterLeft, maps.Clone(sizes) }
	listing := reconciler.Listing{Reader: r, List: k.list, Options: options}
	return listing.Read(ctx, begin, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		if of.reduced[object.GetNamespace()] {
			return keepBare(object)
		}
		if object = k.trim(object); object == none {
			return nil
		}
		*into = append(*into, object)
		return of.count(object.GetNamespace(), sizeOf(object))
	})
}

// trimQuota keeps what decides of a quota.
func trimQuota(q *corev1.ResourceQuota) *corev1.ResourceQuota {
	meta := metav1.ObjectMeta{Namespace: q.Namespace, Name: q.Name, UID: q.UID}
	return &corev1.ResourceQuota{ObjectMeta: meta, Spec: q.Spec, Status: q.Status}
}

// trimClaim keeps what decides of a claim. Configurations of devices decide nothing.
func trimClaim(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Spec.Devices.Config = nil
	if c.Status.Allocation != nil {
		c.Status.Allocation.Devices.Config = nil
	}
	return saved.Claim(c)
}

func trimTemplate(t *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplate {
	t.Spec.Spec.Devices.Config = nil
	return saved.Template(t)
}

// trimPod drops texts of a pod that decide nothing, which may be long.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if pod.Annotations = nil; mirror {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Env, c.EnvFrom, c.Command, c.Args, c.Lifecycle = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
		}
	}
	return pod
}

const (
	// maxBare is from which size on a bare pod is known by what it takes of its node only. maxOwner bounds the owner that a bare object keeps,
	// and maxResources the names of the resources that a bare pod asks for, all in bytes. The API server bounds none of them.
	maxBare      = 2 << 10
	maxOwner     = 512
	maxResources = 1 << 10
)

// ownerOf returns the controller of an object. A longer one than any that there can be is none.
func ownerOf(o metav1.Object) []metav1.OwnerReference {
	owner := metav1.GetControllerOf(o)
	if owner == nil || owner.Size() > maxOwner {
		return nil
	}
	return []metav1.OwnerReference{*owner}
}

// barePod returns what others have to know of a pod, nil for one that has ended. What it takes of the cluster's share of memory is bounded.
func barePod(pod *corev1.Pod) *corev1.Pod {
	if podspec.Ended(pod) {
		return nil
	}
	out := placedPod(pod)
	if out.Size() > maxBare {
		out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = nil, nil // the claims still say for which pod they are
		podspec.LeaveOut(out)
	}
	return out
}

// placedPod returns what a pod takes of its node, what keeps other pods from it, and what tells its claims. It has one container, which
// asks for what all of the pod's have of the node: a pod may have thousands.
func placedPod(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, PriorityClassName: pod.Spec.PriorityClassName, Overhead: pod.Spec.Overhead,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds, HostNetwork: pod.Spec.HostNetwork,
			PreemptionPolicy: pod.Spec.PreemptionPolicy, ResourceClaims: pod.Spec.ResourceClaims, Containers: []corev1.Container{bareContainer(pod)},
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}
	out.OwnerReferences = ownerOf(pod)
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		out.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	}
	podspec.Bound(out, pod)
	return out
}

// bareContainer takes of a node what all containers of a pod do: as the scheduler sums it, also while a pod is resized, and its ports.
func bareContainer(pod *corev1.Pod) corev1.Container {
	of := podspec.OnNode()
	of.ExcludeOverhead = true
	c := corev1.Container{Name: "all", Resources: corev1.ResourceRequirements{
		Requests: bareList(resourcehelper.PodRequests(pod, of)), Limits: bareList(resourcehelper.PodLimits(pod, of)),
	}}
	add := func(one *corev1.Container) {
		for _, p := range one.Ports {
			if p.HostPort > 0 || pod.Spec.HostNetwork {
				p.Name = ""
				c.Ports = append(c.Ports, p)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if one := &pod.Spec.InitContainers[i]; ptr.Deref(one.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			add(one)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return c
}

// bareList drops what is asked for with nothing of it, and all but what every node has of a list that is too long: kubelet runs no pod that
// asks for what its node does not have, and no node has so many resources or sizes of huge pages.
func bareList(list corev1.ResourceList) corev1.ResourceList {
	list = maps.Clone(list)
	maps.DeleteFunc(list, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.IsZero() })
	bytes := 0
	for name := range list {
		bytes += len(name)
	}
	if bytes > maxResources {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
		})
	}
	return list
}
