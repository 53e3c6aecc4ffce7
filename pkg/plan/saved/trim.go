// SPDX-License-Identifier: Apache-2.0

// Package saved writes snapshots of clusters as files that plans are made of, with what decides about devices and nothing else, and with
// other names where it may not be known whose cluster it is.
package saved

import (
	"maps"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// Trim returns a snapshot of new objects that have only the fields that decide which pod gets which node and devices. Pods that have
// ended are left out.
func Trim(s plan.Snapshot) plan.Snapshot {
	out := plan.Snapshot{Version: s.Version, Gates: maps.Clone(s.Gates)}
	for _, o := range s.Nodes {
		out.Nodes = append(out.Nodes, Node(o.DeepCopy()))
	}
	for _, o := range s.Namespaces {
		out.Namespaces = append(out.Namespaces, &corev1.Namespace{ObjectMeta: trimMeta(o, labels)})
	}
	for _, o := range s.Pods {
		if !podspec.Ended(o) {
			out.Pods = append(out.Pods, Pod(o.DeepCopy()))
		}
	}
	for _, o := range s.Quotas {
		out.Quotas = append(out.Quotas, &corev1.ResourceQuota{ObjectMeta: trimMeta(o, 0), Spec: *o.Spec.DeepCopy(), Status: *o.Status.DeepCopy()})
	}
	for _, o := range s.Slices {
		out.Slices = append(out.Slices, &resourceapi.ResourceSlice{ObjectMeta: trimMeta(o, 0), Spec: *o.Spec.DeepCopy()})
	}
	for _, o := range s.Classes {
		out.Classes = append(out.Classes, &resourceapi.DeviceClass{ObjectMeta: trimMeta(o, 0), Spec: *o.Spec.DeepCopy()})
	}
	for _, o := range s.Claims {
		out.Claims = append(out.Claims, Claim(o.DeepCopy()))
	}
	for _, o := range s.Templates {
		out.Templates = append(out.Templates, Template(o.DeepCopy()))
	}
	for _, o := range s.TaintRules {
		out.TaintRules = append(out.TaintRules, &resourceapi.DeviceTaintRule{ObjectMeta: trimMeta(o, 0), Spec: *o.Spec.DeepCopy()})
	}
	for _, o := range s.PodGroups {
		spec := o.Spec.DeepCopy()
		out.PodGroups = append(out.PodGroups, &schedulingapi.PodGroup{ObjectMeta: trimMeta(o, 0), Spec: schedulingapi.PodGroupSpec{
			SchedulingPolicy: spec.SchedulingPolicy, SchedulingConstraints: spec.SchedulingConstraints, ResourceClaims: spec.ResourceClaims,
			ParentCompositePodGroupName: spec.ParentCompositePodGroupName,
		}})
	}
	return out
}

// kept says what is kept of an object's metadata beside its name, UID, owners and times.
type kept int

const (
	labels kept = 1 << iota
	owners
	annotations
)

// trimMeta keeps what tells objects apart, their owners, and when they were made and marked for deletion.
func trimMeta(o metav1.Object, keep kept) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		CreationTimestamp: o.GetCreationTimestamp(), DeletionTimestamp: o.GetDeletionTimestamp(),
	}
	if keep&labels != 0 {
		m.Labels = maps.Clone(o.GetLabels())
	}
	if keep&owners != 0 {
		if owner := metav1.GetControllerOf(o); owner != nil {
			m.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: owner.Controller,
			}}
		}
	}
	if keep&annotations == 0 {
		return m
	}
	for _, name := range []string{
		resourceapi.PodResourceClaimAnnotation, resourceapi.ExtendedResourceClaimAnnotation, corev1.MirrorPodAnnotationKey,
	} {
		if value, set := o.GetAnnotations()[name]; set {
			if m.Annotations == nil {
				m.Annotations = map[string]string{}
			}
			m.Annotations[name] = value
		}
	}
	return m
}

// Node keeps labels, taints and resources. What it keeps it shares with the node.
func Node(o *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: trimMeta(o, labels),
		Spec:       corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable},
		Status: corev1.NodeStatus{
			Allocatable: o.Status.Allocatable, Capacity: o.Status.Capacity, DeclaredFeatures: o.Status.DeclaredFeatures,
		},
	}
}

// Pod keeps of containers their names, what they ask for and their ports of the host, but no image, command or environment. Of what a
// plan does not look at, it keeps that there is some. Labels are what anti-affinities of other pods select by. What it keeps it shares with
// the pod.
func Pod(o *corev1.Pod) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: trimMeta(o, labels|owners|annotations),
		Spec: corev1.PodSpec{
			NodeName: o.Spec.NodeName, NodeSelector: o.Spec.NodeSelector, Affinity: trimAffinity(o.Spec.Affinity),
			Tolerations: o.Spec.Tolerations, SchedulerName: o.Spec.SchedulerName, SchedulingGates: o.Spec.SchedulingGates,
			Priority: o.Spec.Priority, Overhead: o.Spec.Overhead, Resources: o.Spec.Resources, ResourceClaims: o.Spec.ResourceClaims,
			InitContainers: trimContainers(&o.Spec, o.Spec.InitContainers), Containers: trimContainers(&o.Spec, o.Spec.Containers),
			HostNetwork: o.Spec.HostNetwork, HostUsers: o.Spec.HostUsers, SecurityContext: trimSecurity(o.Spec.SecurityContext),
			OS: o.Spec.OS, SchedulingGroup: o.Spec.SchedulingGroup,
			TopologySpreadConstraints: trimSpread(o.Spec.TopologySpreadConstraints), Volumes: trimVolumes(o.Spec.Volumes),
		},
		Status: corev1.PodStatus{
			Phase: o.Status.Phase, ResourceClaimStatuses: o.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: o.Status.ExtendedResourceClaimStatus,
		},
	}
	resized := isResized(o)
	if resized {
		pod.Status.ContainerStatuses = trimStatuses(o.Status.ContainerStatuses)
		pod.Status.InitContainerStatuses = trimStatuses(o.Status.InitContainerStatuses)
		pod.Status.AllocatedResources, pod.Status.Resources = o.Status.AllocatedResources, requestsOnly(o.Status.Resources)
	}
	for _, condition := range o.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue ||
			condition.Type == corev1.PodResizePending && resized {
			pod.Status.Conditions = append(pod.Status.Conditions, condition)
		}
	}
	return pod
}

func trimContainers(spec *corev1.PodSpec, containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for i := range containers {
		c := &containers[i]
		kept := corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		for _, p := range c.Ports {
			if p.HostPort == 0 && !spec.HostNetwork {
				continue
			}
			if p.Name = ""; p.HostIP == "0.0.0.0" {
				p.HostIP = "" // the same: all addresses
			}
			kept.Ports = append(kept.Ports, p)
		}
		keepUnjudged(&kept, c)
		out = append(out, kept)
	}
	return out
}

// keepUnjudged keeps of a container that it has what a plan says that it does not look at.
func keepUnjudged(into, from *corev1.Container) {
	for _, rule := range from.RestartPolicyRules {
		into.RestartPolicyRules = append(into.RestartPolicyRules, corev1.ContainerRestartRule{Action: rule.Action})
	}
	if slices.ContainsFunc(from.VolumeMounts, func(m corev1.VolumeMount) bool { return len(m.BindMountOptions) > 0 }) {
		into.VolumeMounts = []corev1.VolumeMount{{Name: "volume", BindMountOptions: []string{""}}}
	}
	if from.SecurityContext != nil && from.SecurityContext.WindowsOptions != nil {
		into.SecurityContext = &corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}
	}
}

// isResized says whether a pod has something else of its node than it asks for, since it or its containers are resized where they are.
func isResized(pod *corev1.Pod) bool {
	asked := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	has := resourcehelper.PodRequests(pod, podspec.OnNode())
	return !apiequality.Semantic.DeepEqual(asked, has)
}

// trimStatuses keeps what containers have.
func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, s := range statuses {
		out = append(out, corev1.ContainerStatus{
			Name: s.Name, AllocatedResources: s.AllocatedResources, Resources: requestsOnly(s.Resources),
		})
	}
	return out
}

func requestsOnly(r *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if r == nil {
		return nil
	}
	return &corev1.ResourceRequirements{Requests: r.Requests}
}

// trimAffinity keeps what a pod requires of nodes and of other pods, and what it would rather have of nodes.
func trimAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil {
		return nil
	}
	out := &corev1.Affinity{NodeAffinity: a.NodeAffinity}
	if a.PodAffinity != nil {
		out.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}
	}
	if a.PodAntiAffinity != nil {
		out.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}
	}
	return out
}

// trimSpread keeps that pods are to be spread, since a plan says that it ignores it.
func trimSpread(constraints []corev1.TopologySpreadConstraint) []corev1.TopologySpreadConstraint {
	var out []corev1.TopologySpreadConstraint
	for _, c := range constraints {
		out = append(out, corev1.TopologySpreadConstraint{
			MaxSkew: c.MaxSkew, TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable,
		})
	}
	return out
}

// trimVolumes keeps for the same reason of which kinds there are volumes that are on some nodes only, and nothing of them.
func trimVolumes(volumes []corev1.Volume) []corev1.Volume {
	var out []corev1.Volume
	seen := map[string]bool{}
	for i := range volumes {
		kinds := podspec.Unjudged(&corev1.PodSpec{Volumes: volumes[i : i+1]})
		if len(kinds) == 0 || seen[kinds[0]] {
			continue
		}
		seen[kinds[0]] = true
		kept := corev1.Volume{Name: "volume-" + strconv.Itoa(len(out))}
		from, to := reflect.ValueOf(volumes[i].VolumeSource), reflect.ValueOf(&kept.VolumeSource).Elem()
		for j := range from.NumField() {
			if !from.Field(j).IsNil() {
				to.Field(j).Set(reflect.New(from.Field(j).Type().Elem()))
			}
		}
		out = append(out, kept)
	}
	return out
}

// trimSecurity keeps that the pod sets variables of the kernel, or something of Windows, for the same reason.
func trimSecurity(s *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if s == nil || len(s.Sysctls) == 0 && s.WindowsOptions == nil {
		return nil
	}
	out := &corev1.PodSecurityContext{}
	if len(s.Sysctls) > 0 {
		out.Sysctls = []corev1.Sysctl{{}}
	}
	if s.WindowsOptions != nil {
		out.WindowsOptions = &corev1.WindowsSecurityContextOptions{}
	}
	return out
}

// Claim keeps of the devices' own status their conditions, which binding waits for. What it keeps it shares with the claim.
func Claim(o *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: trimMeta(o, owners|annotations), Spec: o.Spec, Status: o.Status}
	for i := range claim.Status.Devices {
		claim.Status.Devices[i].Data, claim.Status.Devices[i].NetworkData = nil, nil
	}
	return claim
}

// Template keeps the spec of the claims, which it shares with the template.
func Template(o *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplate {
	spec := resourceapi.ResourceClaimTemplateSpec{Spec: o.Spec.Spec}
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: trimMeta(o, 0), Spec: spec}
}
