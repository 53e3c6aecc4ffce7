// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/test/check"
)

// jobOf is the Job of a node.
func jobOf(o Object, node string, options Options) *batchv1.Job {
	return o.job(v1alpha1.CacheVolume{Namespace: "a", Node: node, ClaimName: "c", JobName: "j"}, options)
}

// TestPinStays wants every way to place a pod to keep it on its node.
func TestPinStays(t *testing.T) {
	term := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}
	}
	required := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	fields := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"n2"}},
	}}
	for name, test := range map[string]struct {
		affinity *corev1.Affinity
		terms    int
	}{
		"none":             {nil, 1},
		"of pods":          {&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}, 1},
		"preferred":        {&corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}, 1},
		"two alternatives": {required(term("a"), term("b")), 2},
		"of names":         {required(fields, term("a")), 2},
		"empty term":       {required(corev1.NodeSelectorTerm{}), 1},
		"empty and not":    {required(corev1.NodeSelectorTerm{}, term("a")), 1},
		"no terms":         {required(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(v1alpha1.CacheRWOPerNode, one, "a")
			before := test.affinity.DeepCopy()
			o.Spec.PodTemplate = &v1alpha1.CachePodTemplate{Spec: v1alpha1.CachePodSpec{
				Affinity: test.affinity, NodeSelector: map[string]string{"kubernetes.io/hostname": "other"},
			}}
			spec := jobOf(o, "n1", on()).Spec.Template.Spec
			terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if len(terms) != test.terms {
				t.Errorf("%d terms, want %d: %v", len(terms), test.terms, terms)
			}
			for _, term := range terms {
				last := term.MatchFields[len(term.MatchFields)-1]
				if last.Key != "metadata.name" || last.Operator != corev1.NodeSelectorOpIn || !cmp.Equal(last.Values, []string{"n1"}) {
					t.Errorf("a term without the node: %v", term)
				}
			}
			if spec.NodeName != "" {
				t.Errorf("the scheduler is passed by: %s", spec.NodeName)
			}
			if diff := cmp.Diff(before, test.affinity); diff != "" {
				t.Errorf("the object's own affinity changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestTemplate adds all that an object says, and keeps what the Job needs.
func TestTemplate(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	tolerations := []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	o.Spec.PodTemplate = &v1alpha1.CachePodTemplate{
		Metadata: v1alpha1.CachePodMetadata{Labels: map[string]string{"team": "a", UIDLabel: "forged"}, Annotations: map[string]string{"x": "y"}},
		Spec: v1alpha1.CachePodSpec{
			NodeSelector: map[string]string{"disk": "ssd"}, Tolerations: tolerations, PriorityClassName: "high",
		},
	}
	pod := jobOf(o, "", on()).Spec.Template
	if pod.Labels["team"] != "a" || pod.Labels[UIDLabel] != "uid" || pod.Annotations["x"] != "y" {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	diff := cmp.Diff(tolerations, pod.Spec.Tolerations)
	if diff != "" || pod.Spec.NodeSelector["disk"] != "ssd" || pod.Spec.PriorityClassName != "high" {
		t.Errorf("selector %v, class %s, tolerations (-want +got):\n%s", pod.Spec.NodeSelector, pod.Spec.PriorityClassName, diff)
	}
	if pod.Spec.Affinity != nil {
		t.Errorf("a volume for all nodes is pinned: %v", pod.Spec.Affinity)
	}
	if o.Spec.PodTemplate.Metadata.Labels[UIDLabel] != "forged" {
		t.Error("the object's own labels changed")
	}
}

// TestUnprivileged wants a pod that the strictest standard takes.
func TestUnprivileged(t *testing.T) {
	j := jobOf(object(v1alpha1.CacheROXVolume, one, "a"), "", on())
	spec := j.Spec.Template.Spec
	c := spec.Containers[0]
	for what, is := range map[string]bool{
		"a user that is not root": *spec.SecurityContext.RunAsNonRoot && *spec.SecurityContext.RunAsUser > 0 && *spec.SecurityContext.FSGroup > 0,
		"seccomp":                 spec.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"no token":                !*spec.AutomountServiceAccountToken,
		"no escalation":           !*c.SecurityContext.AllowPrivilegeEscalation && c.SecurityContext.Privileged == nil,
		"a read-only root":        *c.SecurityContext.ReadOnlyRootFilesystem,
		"no capabilities":         cmp.Equal(c.SecurityContext.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}),
		"limits":                  !c.Resources.Limits.Memory().IsZero() && !c.Resources.Requests.Cpu().IsZero(),
		"an end":                  *j.Spec.ActiveDeadlineSeconds > 0 && *j.Spec.BackoffLimit > 0 && *j.Spec.TTLSecondsAfterFinished > 0,
	} {
		if !is {
			t.Errorf("the pod lacks %s", what)
		}
	}
}

// TestCommand pins the digest, whatever the reference is.
func TestCommand(t *testing.T) {
	for image, want := range map[string]string{
		"registry.example/a":               "registry.example/a@" + one,
		"registry.example:5000/a/b:v1":     "registry.example:5000/a/b@" + one,
		"registry.example:5000/a":          "registry.example:5000/a@" + one,
		"registry.example/a:v1@" + two:     "registry.example/a@" + one,
		"registry.example:5000/a/b@" + two: "registry.example:5000/a/b@" + one,
	} {
		o := object(v1alpha1.CacheROXVolume, one, "a")
		o.Spec.Image = image
		args := jobOf(o, "", on()).Spec.Template.Spec.Containers[0].Args
		if diff := cmp.Diff([]string{"cache", "extract", want, "/cache", "--into", "--digest", one}, args); diff != "" {
			t.Errorf("%s (-want +got):\n%s", image, diff)
		}
	}
}

// TestRegistries gives a Job the files that say how registries are reached, and no user of a cache changes them.
func TestRegistries(t *testing.T) {
	options, o := on(), object(v1alpha1.CacheROXVolume, one, "a")
	plain := jobOf(o, "", options)
	options.Registries = registry.Files{Config: "caFile: ca.crt\n", Authorities: "PEM"}
	o.Spec.PodTemplate = &v1alpha1.CachePodTemplate{Metadata: v1alpha1.CachePodMetadata{
		Annotations: map[string]string{registriesAnnotation: "plainHTTP: [evil.example]", "x": "y"},
	}}
	job := jobOf(o, "", options)
	pod := job.Spec.Template
	if diff := cmp.Diff(map[string]string{registriesAnnotation: "caFile: ca.crt\n", authoritiesAnnotation: "PEM", "x": "y"},
		pod.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	files := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.DownwardAPI != nil {
			for _, f := range v.DownwardAPI.Items {
				files[f.Path] = f.FieldRef.FieldPath
			}
		}
	}
	if diff := cmp.Diff(map[string]string{
		"registries.yaml": "metadata.annotations['fettle.dev/registries']", "ca.crt": "metadata.annotations['fettle.dev/registries-ca']",
	}, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	c := pod.Spec.Containers[0]
	mount := c.VolumeMounts[len(c.VolumeMounts)-1]
	if mount.MountPath != "/registries" || !mount.ReadOnly || !slices.Contains(c.Args, "/registries/registries.yaml") {
		t.Errorf("mount %+v, args %v", mount, c.Args)
	}
	o.Spec.PodTemplate = nil
	if jobOf(o, "", options).Annotations[TemplateAnnotation] == plain.Annotations[TemplateAnnotation] {
		t.Error("a Job that has not done its work yet is not made again for other registries")
	}
	options.Registries.Authorities = strings.Repeat("x", maxRegistries)
	if err := options.Validate(); err == nil {
		t.Error("more than an annotation takes: no error")
	}
	options.Enabled = false
	if err := options.Validate(); err != nil {
		t.Errorf("without volumes: %v", err)
	}
}

// TestCredentials mounts all pull secrets as files and nowhere else.
func TestCredentials(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	o.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s1"}, {Name: "s2"}}
	spec := jobOf(o, "", on()).Spec.Template.Spec
	var secrets []string
	for _, v := range spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for i, source := range v.Projected.Sources {
			secrets = append(secrets, source.Secret.Name)
			want := []corev1.KeyToPath{
				{Key: ".dockerconfigjson", Path: fmt.Sprintf("%02d.json", i)}, {Key: ".dockercfg", Path: fmt.Sprintf("%02d.dockercfg", i)},
			}
			if diff := cmp.Diff(want, source.Secret.Items); diff != "" || !*source.Secret.Optional {
				t.Errorf("optional %t, items (-want +got):\n%s", *source.Secret.Optional, diff)
			}
		}
		if *v.Projected.DefaultMode&0o007 != 0 {
			t.Errorf("mode %o", *v.Projected.DefaultMode)
		}
	}
	c := spec.Containers[0]
	mount := c.VolumeMounts[len(c.VolumeMounts)-1]
	if diff := cmp.Diff([]string{"s1", "s2"}, secrets); diff != "" || mount.MountPath != "/credentials" || !mount.ReadOnly {
		t.Errorf("mount %+v, secrets (-want +got):\n%s", mount, diff)
	}
	if diff := cmp.Diff([]string{"--registry-config", "/credentials"}, c.Args[len(c.Args)-2:]); diff != "" || len(c.Env) > 0 {
		t.Errorf("env %v, args (-want +got):\n%s", c.Env, diff)
	}
	if diff := cmp.Diff(o.Spec.ImagePullSecrets, spec.ImagePullSecrets); diff != "" {
		t.Errorf("for the Job's own image (-want +got):\n%s", diff)
	}
}

// TestOwner has the garbage collector delete what a cache has, also of one of the cluster.
func TestOwner(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	for _, made := range Make(o, on(), observed("a", "")).Create {
		owners := made.GetOwnerReferences()
		if len(owners) != 1 || owners[0].Kind != v1alpha1.KindClusterGPUKernelCache || owners[0].UID != "uid" || !*owners[0].Controller {
			t.Errorf("%s: owners %v", made.GetName(), owners)
		}
	}
	c := &v1alpha1.GPUKernelCache{}
	c.Name, c.Namespace, c.UID = "k", "team", "u"
	if own := Of(c.Common()); own.owner().Kind != v1alpha1.KindGPUKernelCache || !cmp.Equal(own.Namespaces, []string{"team"}) {
		t.Errorf("got %+v", own)
	}
}

// TestClaim asks for what the object says.
func TestClaim(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	v := v1alpha1.CacheVolume{Namespace: "a", ClaimName: "cache"}
	c := o.claim(v)
	if diff := cmp.Diff([]corev1.PersistentVolumeAccessMode{"ReadWriteOnce", "ReadOnlyMany"}, c.Spec.AccessModes); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
	if c.Spec.StorageClassName != nil || c.Spec.Resources.Requests.Storage().String() != "66Mi" {
		t.Errorf("got %+v", c.Spec)
	}
	o.Spec.StorageClassName, o.Spec.AccessModes = new("fast"), []corev1.PersistentVolumeAccessMode{"ReadWriteMany", "ReadOnlyMany"}
	if c := o.claim(v); *c.Spec.StorageClassName != "fast" || len(c.Spec.AccessModes) != 2 || c.Spec.AccessModes[0] != "ReadWriteMany" {
		t.Errorf("got %+v", c.Spec)
	}
	modes := object(v1alpha1.CacheRWOPerNode, one, "a").claim(v).Spec.AccessModes
	if diff := cmp.Diff([]corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, modes); diff != "" {
		t.Errorf("modes of a node's (-want +got):\n%s", diff)
	}
}

// TestGoldenJobs writes what Jobs there are: the plain one, and one with all that an object and an administrator may say. The chart's
// policy is tested with them (test/chart).
func TestGoldenJobs(t *testing.T) {
	full := object(v1alpha1.CacheRWOPerNode, one, "a")
	full.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}, {Name: "more"}}
	full.Spec.Mount = &v1alpha1.CacheMount{Path: "/root/.cache/a b"}
	full.Spec.PodTemplate = &v1alpha1.CachePodTemplate{
		Metadata: v1alpha1.CachePodMetadata{Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"x": "y"}},
		Spec: v1alpha1.CachePodSpec{
			NodeSelector: map[string]string{"disk": "ssd"}, PriorityClassName: "high",
			Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
		},
	}
	all := on()
	all.PullPolicy, all.Registries = corev1.PullAlways, registry.Files{Config: "caFile: ca.crt\n", Authorities: "a\n"}
	plain := jobOf(object(v1alpha1.CacheROXVolume, one, "a"), "", on())
	for name, j := range map[string]*batchv1.Job{"plain": plain, "full": jobOf(full, "n1", all)} {
		content, err := yaml.Marshal(j)
		check.Must(t, err)
		check.Golden(t, filepath.Join("testdata", name+".yaml"), content)
	}
}
