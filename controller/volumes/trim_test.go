// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJobsOfATenant: a tenant gives Jobs of its own the label of caches and makes them large. Of each the cache has what a plan reads.
func TestJobsOfATenant(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	meta := metav1.ObjectMeta{
		Namespace: "a", Name: "j", UID: "u", ResourceVersion: "1", Labels: map[string]string{UIDLabel: "c", "l": long},
		Annotations: map[string]string{TemplateAnnotation: "t", DigestAnnotation: "d", "a": long, ClaimAnnotation: long},
	}
	job := &batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{Active: 1, Conditions: make([]batchv1.JobCondition, 1000)}}
	job.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{long}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	for _, object := range []interface {
		metav1.Object
		Size() int
	}{job, claim} {
		out, err := trim(object)
		kept, ok := out.(interface {
			metav1.Object
			Size() int
		})
		if err != nil || !ok || kept.Size() > 1000 {
			t.Fatalf("%T: %d bytes are kept (%v)", object, kept.Size(), err)
		}
		notes := kept.GetAnnotations()
		if kept.GetLabels()[UIDLabel] != "c" || notes[TemplateAnnotation] != "t" || notes[DigestAnnotation] != "d" {
			t.Errorf("%T: kept %v and %v", object, kept.GetLabels(), notes)
		}
		if object.GetLabels()["l"] != long {
			t.Errorf("%T: the object was changed", object)
		}
	}
}
