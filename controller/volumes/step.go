// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// patience is how long a Job may wait before the status reports that.
const patience = 30 * time.Second

// step decides the next action for one volume.
type step struct {
	Object

	options  Options
	observed Observed
	plan     *Plan
	volume   v1alpha1.CacheVolume
}

// setPhase sets the phase of the volume, and its message.
func (s *step) setPhase(phase v1alpha1.CacheVolumePhase, format string, args ...any) {
	s.volume.Phase, s.volume.Message = phase, fmt.Sprintf(format, args...)
}

// decide plans by the state of the claim, and then of the Job.
func (s *step) decide() {
	claim, job := s.observed.Claims[Key{s.volume.Namespace, s.volume.ClaimName}], s.observed.Jobs[Key{s.volume.Namespace, s.volume.JobName}]
	switch {
	case claim == nil && s.digest() == "":
		s.setPhase(v1alpha1.CacheVolumePending, "it waits for the image to be resolved and verified")
	case claim == nil && s.owns(labelsOf(job)):
		s.recreateJob(job, "its Job filled an earlier claim, and is made again")
	case claim == nil:
		s.plan.Create = append(s.plan.Create, s.claim(s.volume), s.job(s.volume, s.options))
		s.setPhase(v1alpha1.CacheVolumePending, "its claim and its Job are being made")
	case !s.owns(claim.Labels):
		s.volume.JobName = ""
		s.setPhase(v1alpha1.CacheVolumeFailed,
			"PersistentVolumeClaim %s exists and does not belong to this cache: delete it, or rename the cache", claim.Name)
	case claim.DeletionTimestamp != nil:
		s.releaseClaim(job)
		s.setPhase(v1alpha1.CacheVolumePending, "its claim is being deleted, which waits for the pods that use it%s", s.users())
	case claim.Status.Phase == corev1.ClaimLost:
		s.setPhase(v1alpha1.CacheVolumeFailed, "its PersistentVolume is gone: delete PersistentVolumeClaim %s, and it is made again", claim.Name)
	default:
		s.volume.Digest = claim.Annotations[DigestAnnotation]
		s.fillClaim(claim, job)
	}
}

func labelsOf(job *batchv1.Job) map[string]string {
	if job == nil {
		return nil
	}
	return job.Labels
}

// releaseClaim plans the deletion of a Job whose claim is being deleted: Kubernetes keeps the claim as long as a pod of the Job exists,
// even one that has ended.
func (s *step) releaseClaim(job *batchv1.Job) {
	if s.owns(labelsOf(job)) && job.DeletionTimestamp == nil {
		s.plan.Delete = append(s.plan.Delete, job)
	}
}

// recreateJob plans the deletion of a Job. The next one is made when the Job and its pods are gone.
func (s *step) recreateJob(job *batchv1.Job, message string) {
	if job.DeletionTimestamp == nil {
		s.plan.Delete = append(s.plan.Delete, job)
	}
	s.setPhase(v1alpha1.CacheVolumePending, "%s", message)
}

// fillClaim plans to bring a claim to the wanted digest.
func (s *step) fillClaim(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	digest := s.digest()
	switch {
	case digest == "" && s.volume.Digest != "":
		s.setPhase(v1alpha1.CacheVolumeFilled, "it keeps what it has until the image is resolved and verified")
	case digest == "":
		s.setPhase(v1alpha1.CacheVolumePending, "it waits for the image to be resolved and verified")
	case s.has(claim):
		s.setPhase(v1alpha1.CacheVolumeFilled, "")
	case job != nil:
		s.followJob(claim, job)
	default:
		s.startJob(claim)
	}
}

// followJob plans by the state of an existing Job.
func (s *step) followJob(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	switch {
	case !s.owns(job.Labels):
		s.setPhase(v1alpha1.CacheVolumeFailed, "Job %s exists and does not belong to this cache: delete it", job.Name)
	case job.DeletionTimestamp != nil:
		s.recreateJob(job, "its Job is being deleted, and is made again")
	case ended(job, batchv1.JobComplete) != nil:
		s.plan.Mark = append(s.plan.Mark, Mark{claim, s.digest(), s.path()})
		s.volume.Digest = s.digest()
		s.setPhase(v1alpha1.CacheVolumeFilled, "")
	case job.Annotations[TemplateAnnotation] != s.job(s.volume, s.options).Annotations[TemplateAnnotation]:
		s.recreateJob(job, "its Job was made from another specification, and is made again")
	default:
		s.reportProgress(claim, job)
	}
}

// startJob plans the Job, if the claim is large enough for the image, no pod uses it, and no other Job writes to it. Pods may use a claim
// that was never filled.
func (s *step) startJob(claim *corev1.PersistentVolumeClaim) {
	if writers := s.writers(); len(writers) > 0 {
		s.volume.JobName = ""
		s.setPhase(v1alpha1.CacheVolumePending, "its Job is made when what still writes there has ended: %s", firstOf(writers))
		return
	}
	need, has, users := Capacity(s.Status.Image), capacityOf(claim), s.users()
	if has.Cmp(need) < 0 {
		s.keepContent(fmt.Sprintf("its claim has %s and the image needs %s: delete PersistentVolumeClaim %s, and it is made again", has.String(),
			need.String(), claim.Name))
		return
	}
	if _, filled := claim.Annotations[DigestAnnotation]; filled && users != "" {
		s.keepContent(fmt.Sprintf("%s is put there when no pod uses the claim%s", s.content(), users))
		return
	}
	if s.volume.Digest != "" { // the Job overwrites the old content
		s.plan.Mark = append(s.plan.Mark, Mark{Claim: claim})
		s.volume.Digest = ""
	}
	s.plan.Create = append(s.plan.Create, s.job(s.volume, s.options))
	s.setPhase(v1alpha1.CacheVolumePending, "its Job is being made")
}

// writers lists the other Jobs of the cache that may still write to the claim, and pods of Jobs, which may outlast these.
func (s *step) writers() (names []string) {
	for _, key := range slices.SortedFunc(maps.Keys(s.observed.Jobs), compareKeys) {
		j := s.observed.Jobs[key]
		if key.Namespace == s.volume.Namespace && j.Annotations[ClaimAnnotation] == s.volume.ClaimName && s.owns(j.Labels) &&
			ended(j, batchv1.JobComplete) == nil && ended(j, batchv1.JobFailed) == nil {
			names = append(names, "Job "+j.Name)
		}
	}
	for i := range s.observed.Pods {
		if p := &s.observed.Pods[i]; s.owns(p.Labels) && s.uses(p) {
			names = append(names, "pod "+p.Name)
		}
	}
	return names
}

// content describes what a claim lacks, for messages.
func (s *step) content() string {
	switch {
	case s.volume.Digest != s.digest():
		return s.digest()
	case s.path() == "":
		return "what is for the producer's path, without mount.path,"
	}
	return "what is for mount.path " + s.path()
}

// keepContent leaves a claim as it is, and says why.
func (s *step) keepContent(message string) {
	s.volume.JobName = ""
	phase := v1alpha1.CacheVolumeFilled
	if s.volume.Digest == "" {
		phase = v1alpha1.CacheVolumeFailed
	}
	s.setPhase(phase, "%s", message)
}

// reportProgress describes a Job that has not finished successfully.
func (s *step) reportProgress(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	problem := s.problem(job)
	if failed := ended(job, batchv1.JobFailed); failed != nil {
		if problem == "" {
			problem = failed.Message
		}
		s.setPhase(v1alpha1.CacheVolumeFailed, "Job %s: %s: %s; it is made again after %ds, or as soon as it is deleted",
			job.Name, failed.Reason, problem, ttlSeconds)
		return
	}
	s.setPhase(v1alpha1.CacheVolumeFilling, "%s", problem)
	if claim.Status.Phase != corev1.ClaimBound {
		const unbound = "the claim is not bound: it needs a PersistentVolume with %s, %v and its class, from the class's provisioner, whose " +
			"Events are at the claim, or from an administrator"
		room := capacityOf(claim)
		s.setPhase(v1alpha1.CacheVolumePending, unbound, room.String(), claim.Spec.AccessModes)
		if problem != "" {
			s.volume.Message += "; " + problem
		}
	}
	// In the beginning no claim is bound and no pod is scheduled.
	if s.volume.Message != "" && s.observed.Now.Sub(job.CreationTimestamp.Time) > patience {
		why := message.Clip(s.volume.Message, maxMessage)
		s.plan.Stuck = append(s.plan.Stuck, fmt.Sprintf("volume claim %s/%s: %s", claim.Namespace, claim.Name, why))
	}
}

// users lists the pods that use the claim, without those that fill it with the wanted digest: ": a, b".
func (s *step) users() string {
	var names []string
	for i := range s.observed.Pods {
		p := &s.observed.Pods[i]
		if s.uses(p) && (s.volume.JobName == "" || p.Labels[batchv1.JobNameLabel] != s.volume.JobName) {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return ": " + firstOf(names)
}

// uses says whether a pod uses the claim, or is going to.
func (s *step) uses(p *corev1.Pod) bool {
	return p.Namespace == s.volume.Namespace && !podspec.Ended(p) &&
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == s.volume.ClaimName
		})
}

// pods returns the scheduled pods that use the volume's content, without those of Jobs. A claim of another owner, or one that is not
// filled, has no digest here.
func (s *step) pods() (users []User) {
	for i := range s.observed.Pods {
		p := &s.observed.Pods[i]
		if s.volume.Digest != "" && p.Spec.NodeName != "" && s.uses(p) && !s.owns(p.Labels) {
			users = append(users, User{Node: p.Spec.NodeName, Digest: s.volume.Digest})
		}
	}
	return users
}

// ended returns the condition by which a Job ended in the given way, nil if it did not.
func ended(job *batchv1.Job, how batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if c := &job.Status.Conditions[i]; c.Type == how && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

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
