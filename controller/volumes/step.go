// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
)

// patience is how long a Job may be kept from its work before somebody is told.
const patience = 30 * time.Second

// step is the next for one volume.
type step struct {
	Object

	options Options
	world   World
	plan    *Plan
	volume  v1alpha1.CacheVolume
}

// be says how far the volume is.
func (s *step) be(phase v1alpha1.CacheVolumePhase, format string, args ...any) {
	s.volume.Phase, s.volume.Message = phase, fmt.Sprintf(format, args...)
}

// take looks at the claim, and then at the Job.
func (s *step) take() {
	claim, job := s.world.Claims[Key{s.volume.Namespace, s.volume.ClaimName}], s.world.Jobs[Key{s.volume.Namespace, s.volume.JobName}]
	switch {
	case claim == nil && s.digest() == "":
		s.be(v1alpha1.CacheVolumePending, "it waits for the image to be resolved and verified")
	case claim == nil && s.ours(labelsOf(job)):
		s.again(job, "its Job filled an earlier claim, and is made anew")
	case claim == nil:
		s.plan.Create = append(s.plan.Create, s.claim(s.volume), s.job(s.volume, s.options))
		s.be(v1alpha1.CacheVolumePending, "its claim and its Job are being made")
	case !s.ours(claim.Labels):
		s.volume.JobName = ""
		s.be(v1alpha1.CacheVolumeFailed, "PersistentVolumeClaim %s is there and not of this cache: delete it, or name the cache otherwise",
			claim.Name)
	case claim.DeletionTimestamp != nil:
		s.be(v1alpha1.CacheVolumePending, "its claim is being deleted, which waits for the pods that use it%s", s.users())
	case claim.Status.Phase == corev1.ClaimLost:
		s.be(v1alpha1.CacheVolumeFailed, "its PersistentVolume is gone: delete PersistentVolumeClaim %s, and it is made anew", claim.Name)
	default:
		s.volume.Digest = claim.Annotations[DigestAnnotation]
		s.fill(claim, job)
	}
}

func labelsOf(job *batchv1.Job) map[string]string {
	if job == nil {
		return nil
	}
	return job.Labels
}

// again has a Job deleted. The next one is made when it is gone, pods and all.
func (s *step) again(job *batchv1.Job, message string) {
	if job.DeletionTimestamp == nil {
		s.plan.Delete = append(s.plan.Delete, job)
	}
	s.be(v1alpha1.CacheVolumePending, "%s", message)
}

// fill brings a claim to the digest.
func (s *step) fill(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	digest := s.digest()
	switch {
	case digest == "" && s.volume.Digest != "":
		s.be(v1alpha1.CacheVolumeFilled, "it keeps what it has until the image is resolved and verified")
	case digest == "":
		s.be(v1alpha1.CacheVolumePending, "it waits for the image to be resolved and verified")
	case s.has(claim):
		s.be(v1alpha1.CacheVolumeFilled, "")
	case job != nil:
		s.follow(claim, job)
	default:
		s.start(claim)
	}
}

// follow is a Job that is there.
func (s *step) follow(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	switch {
	case !s.ours(job.Labels):
		s.be(v1alpha1.CacheVolumeFailed, "Job %s is there and not of this cache: delete it", job.Name)
	case job.DeletionTimestamp != nil:
		s.again(job, "its Job is being deleted, and made anew")
	case ended(job, batchv1.JobComplete) != nil:
		s.plan.Mark = append(s.plan.Mark, Mark{claim, s.digest(), s.path()})
		s.volume.Digest = s.digest()
		s.be(v1alpha1.CacheVolumeFilled, "")
	case job.Annotations[TemplateAnnotation] != s.job(s.volume, s.options).Annotations[TemplateAnnotation]:
		s.again(job, "its Job was made otherwise, and is made anew")
	default:
		s.running(claim, job)
	}
}

// start makes the Job, if the claim can hold the image and no pod uses it.
func (s *step) start(claim *corev1.PersistentVolumeClaim) {
	need, has, users := Capacity(s.Status.Image), room(claim), s.users()
	if has.Cmp(need) < 0 {
		s.keep(fmt.Sprintf("its claim has %s and the image needs %s: delete PersistentVolumeClaim %s, and it is made anew", has.String(),
			need.String(), claim.Name))
		return
	}
	if s.volume.Digest != "" && users != "" {
		s.keep(fmt.Sprintf("%s is put there when no pod uses the claim%s", s.content(), users))
		return
	}
	if s.volume.Digest != "" { // from here on it has neither
		s.plan.Mark = append(s.plan.Mark, Mark{Claim: claim})
		s.volume.Digest = ""
	}
	s.plan.Create = append(s.plan.Create, s.job(s.volume, s.options))
	s.be(v1alpha1.CacheVolumePending, "its Job is being made")
}

// content is what a claim lacks, for people.
func (s *step) content() string {
	switch {
	case s.volume.Digest != s.digest():
		return s.digest()
	case s.path() == "":
		return "what is for the producer's path, without mount.path,"
	}
	return "what is for mount.path " + s.path()
}

// keep leaves what is there, and says why.
func (s *step) keep(message string) {
	s.volume.JobName = ""
	phase := v1alpha1.CacheVolumeFilled
	if s.volume.Digest == "" {
		phase = v1alpha1.CacheVolumeFailed
	}
	s.be(phase, "%s", message)
}

// running is a Job that has not done it yet.
func (s *step) running(claim *corev1.PersistentVolumeClaim, job *batchv1.Job) {
	trouble := s.trouble(job)
	if failed := ended(job, batchv1.JobFailed); failed != nil {
		if trouble == "" {
			trouble = failed.Message
		}
		s.be(v1alpha1.CacheVolumeFailed, "Job %s: %s: %s; it is made anew when it goes, after %ds, or is deleted",
			job.Name, failed.Reason, trouble, ttlSeconds)
		return
	}
	s.be(v1alpha1.CacheVolumeFilling, "%s", trouble)
	if claim.Status.Phase != corev1.ClaimBound {
		const unbound = "the claim is not bound: it needs a StorageClass with a provisioner, or a PersistentVolume with %s, %v and its class"
		room := room(claim)
		s.be(v1alpha1.CacheVolumePending, unbound, room.String(), claim.Spec.AccessModes)
		if trouble != "" {
			s.volume.Message += "; " + trouble
		}
	}
	// At first no claim is bound and no pod has a place.
	if s.volume.Message != "" && s.world.Now.Sub(job.CreationTimestamp.Time) > patience {
		why := message.Clip(s.volume.Message, maxMessage)
		s.plan.Stuck = append(s.plan.Stuck, fmt.Sprintf("volume claim %s/%s: %s", claim.Namespace, claim.Name, why))
	}
}

// users are the pods that use the claim, but for those that fill it with the digest: ": a, b".
func (s *step) users() string {
	var names []string
	for i := range s.world.Pods {
		p := &s.world.Pods[i]
		if s.uses(p) && (s.volume.JobName == "" || p.Labels[batchv1.JobNameLabel] != s.volume.JobName) {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return ": " + listed(names)
}

// uses says whether a pod has the claim, or is to have it.
func (s *step) uses(p *corev1.Pod) bool {
	return p.Namespace == s.volume.Namespace && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == s.volume.ClaimName
		})
}

// pods are those on nodes that have what is in the volume, but for those of Jobs. A claim that is not the object's, or not filled, has no
// digest here.
func (s *step) pods() (users []User) {
	for i := range s.world.Pods {
		p := &s.world.Pods[i]
		if s.volume.Digest != "" && p.Spec.NodeName != "" && s.uses(p) && !s.ours(p.Labels) {
			users = append(users, User{Node: p.Spec.NodeName, Digest: s.volume.Digest})
		}
	}
	return users
}

// ended is the condition by which a Job ended so. Nil: it did not.
func ended(job *batchv1.Job, how batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if c := &job.Status.Conditions[i]; c.Type == how && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
