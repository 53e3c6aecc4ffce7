// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const (
	driverContainer = "driver"
	// driverPriority keeps the pods of drivers from making way for others.
	driverPriority = "system-node-critical"
	// unloadSeconds is how long a driver may take to unload when its pod is deleted.
	unloadSeconds = 120
	// readySeconds is how often a driver is asked whether it is loaded, readyTimes how often before its container starts again: some
	// drivers are built on the node, which takes minutes.
	readySeconds, readyTimes = 10, 180
	// oldTemplates is how many earlier templates of a DaemonSet are kept. Each has the names of all nodes.
	oldTemplates = 1
)

// driverSet is a DaemonSet of a stack: the driver for one platform, and the nodes that have it.
type driverSet struct {
	platform stack.Platform
	image    string
	nodes    []string
}

func (d *driverSet) add(node string) {
	d.nodes = append(d.nodes, node)
	slices.Sort(d.nodes)
}

// setName returns the name of a stack's DaemonSet for a platform. It is a hash of what is not sanitised: two kernels or two
// architectures never have one name.
func setName(s *v1alpha1.AcceleratorStack, p stack.Platform) string {
	return "driver-" + stack.Digest(s.Name, p.OS, p.KernelVersion, p.Architecture)
}

// daemonSet returns the DaemonSet that runs a driver on nodes of one platform. Its pods are replaced when somebody deletes them, and
// not when the image changes: a driver is not unloaded under the pods that use it.
func daemonSet(s *v1alpha1.AcceleratorStack, set *driverSet) *appsv1.DaemonSet {
	name := setName(s, set.platform)
	labels := map[string]string{names.ManagedByLabel: names.Controller, stack.DriverLabel: name}
	annotations := map[string]string{
		stack.DriverStackAnnotation: s.Name, stack.DriverOSAnnotation: set.platform.OS, stack.DriverKernelAnnotation: set.platform.KernelVersion,
		stack.DriverArchAnnotation: set.platform.Architecture, stack.DriverImageAnnotation: set.image,
	}
	return &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindAcceleratorStack, Name: s.Name, UID: s.UID, Controller: new(true),
			}},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{stack.DriverLabel: name}},
			UpdateStrategy:       appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			RevisionHistoryLimit: new(int32(oldTemplates)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}, Spec: driverSpec(s.Spec.Driver.DaemonSet, set),
			},
		},
	}
}

func driverSpec(d *v1alpha1.DaemonSetDriver, set *driverSet) corev1.PodSpec {
	spec := corev1.PodSpec{
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), HostPID: d.HostPID, PriorityClassName: driverPriority,
		TerminationGracePeriodSeconds: new(int64(unloadSeconds)),
		// Whatever keeps other pods from a node is no reason to unload its driver: taints of policies, upgrades and vendors, and a cordon.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Affinity:    &corev1.Affinity{NodeAffinity: placement.On(set.nodes...), PodAntiAffinity: apart()},
	}
	for _, name := range d.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	c := corev1.Container{
		Name: driverContainer, Image: set.image, Command: d.Command, Args: d.Args,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          &corev1.SecurityContext{Privileged: d.Privileged},
	}
	for _, v := range d.Env {
		c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
	if len(d.ReadyCommand) > 0 {
		c.StartupProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: d.ReadyCommand}},
			PeriodSeconds: readySeconds, TimeoutSeconds: readySeconds, FailureThreshold: readyTimes,
		}
	}
	for i, p := range d.HostPaths {
		name := "host-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: p.Path, Type: new(corev1.HostPathDirectoryOrCreate)},
		}})
		mount := corev1.VolumeMount{Name: name, MountPath: p.MountPath, ReadOnly: p.ReadOnly}
		if p.Shared {
			mount.MountPropagation = new(corev1.MountPropagationBidirectional)
		}
		c.VolumeMounts = append(c.VolumeMounts, mount)
	}
	spec.Containers = []corev1.Container{c}
	return spec
}

// apart keeps a driver's pod waiting until the one before it has left the node: when a node has another kernel, its pod is one of
// another DaemonSet.
func apart() *corev1.PodAntiAffinity {
	return &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: stack.DriverLabel, Operator: metav1.LabelSelectorOpExists},
		}},
		TopologyKey: corev1.LabelHostname,
	}}}
}
