// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// user is who the Jobs' pods run as, and the group that volumes are given to.
	user = 65532
	// deadlineSeconds is how long a Job may take, pulls of its own image and all; ttlSeconds is when it goes, after which one that
	// failed is made anew.
	deadlineSeconds = 1800
	ttlSeconds      = 3600
	attempts        = 3

	cachePath       = "/cache"
	credentialsPath = "/credentials"
	container       = "extract"
)

// Options are what the Jobs are made with.
type Options struct {
	// Enabled says that the controller may make claims and Jobs.
	Enabled bool
	// Image is the container image with /fettle in it, PullPolicy its.
	Image      string
	PullPolicy corev1.PullPolicy
	// PlainHTTP are registries that are spoken to in plain http, with their ports.
	PlainHTTP []string
}

// pinned is the digest of the object's image, without what the reference said.
func (o Object) pinned() string {
	name, _, _ := strings.Cut(o.Spec.Image, "@")
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		name = name[:at]
	}
	return name + "@" + o.digest()
}

// job is a new Job that fills a claim.
func (o Object) job(v v1alpha1.CacheVolume, options Options) *batchv1.Job {
	j := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: o.meta(v.Namespace, v.JobName),
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(attempts)), ActiveDeadlineSeconds: new(int64(deadlineSeconds)),
			TTLSecondsAfterFinished: new(int32(ttlSeconds)),
			Template:                corev1.PodTemplateSpec{Spec: o.podSpec(v.ClaimName, options)},
		},
	}
	j.Annotations[DigestAnnotation], j.Annotations[ClaimAnnotation] = o.digest(), v.ClaimName
	if o.Spec.PodTemplate != nil {
		addTemplate(&j.Spec.Template, o.Spec.PodTemplate)
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	maps.Copy(j.Spec.Template.Labels, o.labels())
	if v.Node != "" {
		pin(&j.Spec.Template.Spec, v.Node)
	}
	j.Annotations[TemplateAnnotation] = hashOf(j.Spec)
	return j
}

// hashOf tells specs apart. They are of types that always have a JSON.
func hashOf(spec batchv1.JobSpec) string {
	raw, err := json.Marshal(spec)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:hashDigits]
}

// podSpec is of a pod that nobody has to trust: no privileges, no token, nothing to write to but the claim and a little room for itself.
func (o Object) podSpec(claim string, options Options) corev1.PodSpec {
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: container, Image: options.Image, ImagePullPolicy: options.PullPolicy, Command: []string{"/fettle"}, Args: o.args(options),
			// What went wrong is the last that the program says.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "cache", MountPath: cachePath}, {Name: "tmp", MountPath: "/tmp"}},
		}},
		Volumes: []corev1.Volume{
			{Name: "cache", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(
				16*mebibyte, resource.BinarySI)}}},
		},
	}
	o.credentials(&spec)
	return spec
}

func (o Object) args(options Options) []string {
	args := []string{"cache", "extract", o.pinned(), cachePath, "--into", "--digest", o.digest()}
	host, _, _ := strings.Cut(o.Spec.Image, "/")
	if slices.Contains(options.PlainHTTP, host) {
		args = append(args, "--plain-http")
	}
	return args
}

// credentials mounts pull secrets of the Job's own namespace as files: those of another cannot be. One that is missing does not keep the
// pod, since the registry may do without. Programs read one file of credentials, which is the first.
func (o Object) credentials(spec *corev1.PodSpec) {
	for i, secret := range o.Spec.ImagePullSecrets {
		name, at := fmt.Sprintf("credentials-%d", i), fmt.Sprintf("%s/%d", credentialsPath, i)
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: secret.Name, Optional: new(true), DefaultMode: new(int32(0o440)),
			Items: []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey, Path: "config.json"}},
		}}})
		c := &spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
		if i == 0 {
			c.Env = append(c.Env, corev1.EnvVar{Name: "DOCKER_CONFIG", Value: at})
		}
	}
}
