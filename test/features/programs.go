// SPDX-License-Identifier: Apache-2.0

package features

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Program is a container of a workload.
type Program struct {
	// Kind is that of the workload, such as DaemonSet.
	Kind string
	// Component is the workload's label app.kubernetes.io/component.
	Component string
	Container corev1.Container
	// Pod is what the workload's pods are.
	Pod corev1.PodSpec
}

// Programs returns every container of every workload of what a chart renders.
func Programs(manifests []byte) ([]Program, error) {
	var out []Program
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			slices.SortStableFunc(out, func(a, b Program) int { return strings.Compare(a.Component, b.Component) })
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a manifest: %w", err)
		}
		found, err := programsOf(document)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
}

// programsOf returns the containers of an object: of a pod, or of a template of pods at whatever place.
func programsOf(document []byte) ([]Program, error) {
	var object struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			corev1.PodSpec `json:",inline"`

			Template    *corev1.PodTemplateSpec `json:"template"`
			JobTemplate *struct {
				Spec struct {
					Template corev1.PodTemplateSpec `json:"template"`
				} `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	}
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := sigsyaml.Unmarshal(document, &kind); err != nil {
		return nil, fmt.Errorf("decode a manifest: %w", err)
	}
	switch kind.Kind {
	case "Pod", "Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CronJob":
	default:
		return nil, nil
	}
	if err := sigsyaml.Unmarshal(document, &object); err != nil {
		return nil, fmt.Errorf("decode a %s: %w", kind.Kind, err)
	}
	pod := object.Spec.PodSpec
	switch {
	case object.Spec.JobTemplate != nil:
		pod = object.Spec.JobTemplate.Spec.Template.Spec
	case object.Spec.Template != nil:
		pod = object.Spec.Template.Spec
	}
	var out []Program
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		out = append(out, Program{
			Kind: object.Kind, Component: object.Metadata.Labels["app.kubernetes.io/component"], Container: c, Pod: pod,
		})
	}
	return out, nil
}

// Rights are what a program's manifest gives it, one right a line.
func (p *Program) Rights() []string {
	s := p.Container.SecurityContext
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	out := []string{fmt.Sprintf("account %s, token %s", p.Pod.ServiceAccountName, word(p.Pod.AutomountServiceAccountToken))}
	for name, on := range map[string]bool{"network": p.Pod.HostNetwork, "processes": p.Pod.HostPID, "IPC": p.Pod.HostIPC} {
		if on {
			out = append(out, "the host's "+name)
		}
	}
	out = append(out, fmt.Sprintf("privileged %s, escalation %s, read-only root %s", word(s.Privileged), word(s.AllowPrivilegeEscalation),
		word(s.ReadOnlyRootFilesystem)))
	user, nonRoot, seccomp := s.RunAsUser, s.RunAsNonRoot, s.SeccompProfile
	if of := p.Pod.SecurityContext; of != nil {
		user, nonRoot, seccomp = either(user, of.RunAsUser), either(nonRoot, of.RunAsNonRoot), either(seccomp, of.SeccompProfile)
	}
	profile := "default"
	if seccomp != nil {
		profile = string(seccomp.Type)
	}
	out = append(out, fmt.Sprintf("user %s, not root %s, seccomp %s", word(user), word(nonRoot), profile))
	if c := s.Capabilities; c != nil {
		out = append(out, fmt.Sprintf("capabilities without %v and with %v", c.Drop, c.Add))
	}
	if o := s.SELinuxOptions; o != nil {
		out = append(out, "SELinux type "+o.Type)
	}
	for _, m := range p.Container.VolumeMounts {
		out = append(out, p.mount(m))
	}
	slices.Sort(out)
	return out
}

// mount describes a mount by where it is, how, and of what.
func (p *Program) mount(m corev1.VolumeMount) string {
	text := "mount " + m.MountPath + map[bool]string{true: " ro", false: " rw"}[m.ReadOnly]
	if m.MountPropagation != nil {
		text += " " + string(*m.MountPropagation)
	}
	at := slices.IndexFunc(p.Pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	if at < 0 {
		return text + " of nothing"
	}
	switch v := p.Pod.Volumes[at]; {
	case v.HostPath != nil:
		return text + " of the host's " + v.HostPath.Path
	case v.Secret != nil:
		return text + " of Secret " + v.Secret.SecretName
	case v.Projected != nil:
		return text + " of a projected volume"
	}
	return text
}

// word writes a pointer.
func word[T any](p *T) string {
	if p == nil {
		return "default"
	}
	return fmt.Sprint(*p)
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// Configuration is what of the manifests is the kubelet plugin's configuration.
func Configuration(manifests [][]byte) string {
	var out []string
	for _, document := range manifests {
		if text := string(document); strings.Contains(text, "\nkind: ConfigMap\n") &&
			strings.Contains(text, "app.kubernetes.io/component: kubeletplugin\n") {
			out = append(out, text)
		}
	}
	return strings.Join(out, "\n---\n")
}
