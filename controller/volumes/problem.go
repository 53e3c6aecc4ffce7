// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// problem says why a Job's newest pod does not run or failed, empty if it is not known to.
func (s *step) problem(job *batchv1.Job) string {
	var newest *corev1.Pod
	for i := range s.observed.Pods {
		p := &s.observed.Pods[i]
		if p.Namespace == job.Namespace && p.Labels[batchv1.JobNameLabel] == job.Name &&
			(newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			newest = p
		}
	}
	if newest == nil {
		if job.Status.Active == 0 && s.observed.Now.Sub(job.CreationTimestamp.Time) > patience {
			return "Job " + job.Name + " has no pod: its Events say why"
		}
		return ""
	}
	if what := podProblem(newest); what != "" {
		return "pod " + newest.Name + ": " + what
	}
	return ""
}

func podProblem(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + oneLine(c.Message)
		}
	}
	for i := range p.Status.ContainerStatuses {
		state := p.Status.ContainerStatuses[i].State
		if ended := state.Terminated; ended != nil && ended.ExitCode != 0 {
			return strings.TrimSuffix(fmt.Sprintf("exit %d, %s: %s", ended.ExitCode, ended.Reason, oneLine(ended.Message)), ": ")
		}
		if waits := state.Waiting; waits != nil && waits.Reason != "ContainerCreating" && waits.Reason != "PodInitializing" {
			return strings.TrimSuffix(waits.Reason+": "+oneLine(waits.Message), ": ")
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return strings.TrimSuffix(p.Status.Reason+": "+oneLine(p.Status.Message), ": ")
	}
	return ""
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
