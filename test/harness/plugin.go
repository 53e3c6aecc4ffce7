// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// PluginPort is where the plugin serves its metrics.
const PluginPort = 8080

// PluginPods are the plugin's pods on a node, or on all nodes for "", those that are going included.
func (h *Harness) PluginPods(ctx context.Context, node string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=kubeletplugin"}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	list, err := h.Kube.CoreV1().Pods(Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	return list.Items, nil
}

// PluginPod is the one pod of the plugin on a node.
func (h *Harness) PluginPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := h.PluginPods(ctx, node)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("%s has %d pods of the plugin, want one", node, len(pods))
	}
	return &pods[0], nil
}

// PluginContainer is the status of the plugin's own container in its pod, whose process may not have started.
func PluginContainer(pod *corev1.Pod) corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if status := &pod.Status.ContainerStatuses[i]; status.Name == "plugin" {
			return *status
		}
	}
	return corev1.ContainerStatus{}
}

// Metrics reads the plugin's metrics through the API server. The keys are as in the text format, with labels:
// fettle_claim_refusals_total{reason="InvalidConfig"}.
func (h *Harness) Metrics(ctx context.Context, pod string) (map[string]string, error) {
	raw, err := h.Kube.CoreV1().RESTClient().Get().Namespace(Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod, PluginPort)).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", pod, err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if key, value, ok := cutLast(line, " "); ok && !strings.HasPrefix(line, "#") {
			values[key] = value
		}
	}
	return values, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// AcceleratorNode reads what the driver says of a node.
func (h *Harness) AcceleratorNode(ctx context.Context, name string) (*v1alpha1.AcceleratorNode, error) {
	resource := v1alpha1.GroupVersion.WithResource("acceleratornodes")
	object, err := h.Dynamic.Resource(resource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read AcceleratorNode %s: %w", name, err)
	}
	var node v1alpha1.AcceleratorNode
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &node); err != nil {
		return nil, fmt.Errorf("decode AcceleratorNode %s: %w", name, err)
	}
	return &node, nil
}

// PodDone returns nil where a pod has reached a phase and, for Running, is ready; an error that says how it is doing otherwise.
func (h *Harness) PodDone(ctx context.Context, namespace, name string, phase corev1.PodPhase) error {
	pod, err := h.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read pod: %w", err)
	}
	if pod.Status.Phase == phase && (phase != corev1.PodRunning || ready(pod)) {
		return nil
	}
	var why []error
	if pod.Status.Message != "" { // the kubelet's, of a pod that it refused or evicted
		why = append(why, fmt.Errorf("%s: %s", pod.Status.Reason, pod.Status.Message))
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			why = append(why, fmt.Errorf("%s: %s", c.Type, c.Message))
		}
	}
	for i := range pod.Status.ContainerStatuses {
		state := &pod.Status.ContainerStatuses[i].State
		if waiting := state.Waiting; waiting != nil && waiting.Message != "" {
			why = append(why, fmt.Errorf("%s: %s", waiting.Reason, waiting.Message))
		}
		if ended := state.Terminated; ended != nil && ended.ExitCode != 0 {
			why = append(why, fmt.Errorf("%s: exit status %d %s", ended.Reason, ended.ExitCode, ended.Message))
		}
	}
	if len(why) == 0 {
		return fmt.Errorf("pod %s/%s is %s", namespace, name, pod.Status.Phase)
	}
	return fmt.Errorf("pod %s/%s is %s: %w", namespace, name, pod.Status.Phase, errors.Join(why...))
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
