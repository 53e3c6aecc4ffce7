// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

const (
	// user is the user of the Jobs' pods, and the group that owns the volumes.
	user = 65532
	// deadlineSeconds is how long a Job may take, including the pull of its own image. ttlSeconds is when a finished Job is deleted; a
	// failed one is then made again.
	deadlineSeconds = 1800
	ttlSeconds      = 3600
	attempts        = 3

	cachePath       = "/cache"
	credentialsPath = "/credentials"
	registriesPath  = "/registries"
	container       = "extract"
)

// The files of [Options.Registries], and the annotations of pods that hold them, so that no other object is needed in the namespaces of
// users.
const (
	registriesFile, authoritiesFile             = "registries.yaml", "ca.crt"
	registriesAnnotation, authoritiesAnnotation = v1alpha1.DriverName + "/registries", v1alpha1.DriverName + "/registries-ca"
	// maxRegistries is below the 256Ki that the annotations of an object may have.
	maxRegistries = 192 << 10
)

// Options are the administrator's choices.
type Options struct {
	// Enabled says that the controller may make claims and Jobs.
	Enabled bool
	// Image is the container image with /fettle in it, and PullPolicy when it is pulled.
	Image      string
	PullPolicy corev1.PullPolicy
	// Registries says how registries are reached, as the files that the controller was given.
	Registries registry.Files
}

// Validate returns an error if Jobs could not be made with the options.
func (o Options) Validate() error {
	if size := len(o.Registries.Config) + len(o.Registries.Authorities); o.Enabled && size > maxRegistries {
		return fmt.Errorf("how registries are reached, certificates and all, takes %d bytes: the Jobs that fill volumes can be told at most %d",
			size, maxRegistries)
	}
	return nil
}

// pinned returns the reference of the image by its digest, without the tag or digest of the spec.
func (o Object) pinned() string {
	name, _, _ := strings.Cut(o.Spec.Image, "@")
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		name = name[:at]
	}
	return name + "@" + o.digest()
}

// job returns a new Job that fills a claim.
func (o Object) job(v v1alpha1.CacheVolume, options Options) *batchv1.Job {
	j := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: o.meta(v.Namespace, v.JobName),
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(attempts)), ActiveDeadlineSeconds: new(int64(deadlineSeconds)),
			TTLSecondsAfterFinished: new(int32(ttlSeconds)),
			Template:                corev1.PodTemplateSpec{Spec: o.podSpec(v.ClaimName, options)},
		},
	}
	options.addRegistries(&j.Spec.Template)
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

// hashOf returns a hash of a spec, which can always be encoded as JSON.
func hashOf(spec batchv1.JobSpec) string {
	raw, err := json.Marshal(spec)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:hashDigits]
}

// podSpec returns the spec of a pod that needs no trust: it has no privileges and no token, and can write only to the claim and a small
// emptyDir.
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
			// The program prints its error last.
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
	if at := o.path(); at != "" {
		args = append(args, "--mount-path", at)
	}
	if options.Registries.Config != "" {
		args = append(args, "--registries", path.Join(registriesPath, registriesFile))
	}
	if len(o.Spec.ImagePullSecrets) > 0 {
		args = append(args, "--registry-config", credentialsPath)
	}
	return args
}

// addRegistries mounts the files that say how registries are reached.
func (o Options) addRegistries(pod *corev1.PodTemplateSpec) {
	if o.Registries.Config == "" {
		return
	}
	var files []corev1.DownwardAPIVolumeFile
	add := func(name, annotation, content string) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, content)
		field := &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.annotations['%s']", annotation)}
		files = append(files, corev1.DownwardAPIVolumeFile{Path: name, FieldRef: field})
	}
	add(registriesFile, registriesAnnotation, o.Registries.Config)
	if o.Registries.Authorities != "" {
		add(authoritiesFile, authoritiesAnnotation, o.Registries.Authorities)
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "registries", VolumeSource: corev1.VolumeSource{
		DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files},
	}})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "registries", MountPath: registriesPath, ReadOnly: true})
}

// credentials mounts the pull secrets of the Job's own namespace as the files of one directory; Secrets of other namespaces cannot be
// mounted. A missing Secret does not block the pod, since the registry may not need it, and neither does a missing key: each type of pull
// secret has one of the two. The Job's own image may be in the same registry.
func (o Object) credentials(spec *corev1.PodSpec) {
	if len(o.Spec.ImagePullSecrets) == 0 {
		return
	}
	spec.ImagePullSecrets = slices.Clone(o.Spec.ImagePullSecrets)
	files := &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o440))}
	for i, secret := range o.Spec.ImagePullSecrets {
		files.Sources = append(files.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: secret, Optional: new(true),
			Items: []corev1.KeyToPath{
				{Key: corev1.DockerConfigJsonKey, Path: fmt.Sprintf("%02d.json", i)},
				{Key: corev1.DockerConfigKey, Path: fmt.Sprintf("%02d.dockercfg", i)},
			},
		}})
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "credentials", VolumeSource: corev1.VolumeSource{Projected: files}})
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "credentials", MountPath: credentialsPath, ReadOnly: true})
}

// addTemplate adds the object's pod template.
func addTemplate(pod *corev1.PodTemplateSpec, t *v1alpha1.CachePodTemplate) {
	pod.Labels = maps.Clone(t.Metadata.Labels)
	for name, value := range t.Metadata.Annotations {
		if _, own := pod.Annotations[name]; !own {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, value)
		}
	}
	pod.Spec.NodeSelector = maps.Clone(t.Spec.NodeSelector)
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, t.Spec.Tolerations...)
	pod.Spec.Affinity = t.Spec.Affinity.DeepCopy()
	pod.Spec.PriorityClassName = t.Spec.PriorityClassName
}

// pin binds a pod to a node by its node affinity. One term of the affinity has to hold, so each term gets the node. The scheduler still
// places the pod, since volumes may wait for that.
func pin(spec *corev1.PodSpec, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := spec.Affinity.NodeAffinity
	var terms []corev1.NodeSelectorTerm
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for _, term := range required.NodeSelectorTerms {
			if len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty term matches no node, and must not begin to match one
				terms = append(terms, term)
			}
		}
	}
	if len(terms) == 0 {
		terms = make([]corev1.NodeSelectorTerm, 1)
	}
	for i := range terms {
		terms[i].MatchFields = append(slices.Clone(terms[i].MatchFields), corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		})
	}
	affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
}
