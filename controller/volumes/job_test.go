// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
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
	options := on()
	options.PlainHTTP = []string{"registry.example:5000"}
	o := object(v1alpha1.CacheROXVolume, one, "a")
	if args := jobOf(o, "", options).Spec.Template.Spec.Containers[0].Args; args[len(args)-1] != "--plain-http" {
		t.Errorf("a registry in plain http: %v", args)
	}
}

// TestCredentials mounts pull secrets as files and nowhere else.
func TestCredentials(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	o.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s1"}, {Name: "s2"}}
	spec := jobOf(o, "", on()).Spec.Template.Spec
	var secrets []string
	for _, v := range spec.Volumes {
		if v.Secret != nil {
			secrets = append(secrets, v.Secret.SecretName)
			if !*v.Secret.Optional || *v.Secret.DefaultMode&0o007 != 0 || v.Secret.Items[0].Path != "config.json" {
				t.Errorf("got %+v", v.Secret)
			}
		}
	}
	c := spec.Containers[0]
	if diff := cmp.Diff([]string{"s1", "s2"}, secrets); diff != "" || len(c.VolumeMounts) != 4 || !c.VolumeMounts[3].ReadOnly {
		t.Errorf("mounts %v, secrets (-want +got):\n%s", c.VolumeMounts, diff)
	}
	if diff := cmp.Diff([]corev1.EnvVar{{Name: "DOCKER_CONFIG", Value: "/credentials/0"}}, c.Env); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
}

// TestOwner has the garbage collector delete what a cache has, also of one of the cluster.
func TestOwner(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	for _, made := range Make(o, on(), world("a", "")).Create {
		owners := made.GetOwnerReferences()
		if len(owners) != 1 || owners[0].Kind != v1alpha1.KindClusterGPUKernelCache || owners[0].UID != "uid" || !*owners[0].Controller {
			t.Errorf("%s: owners %v", made.GetName(), owners)
		}
	}
	c := &v1alpha1.GPUKernelCache{}
	c.Name, c.Namespace, c.UID = "k", "team", "u"
	if own := OfNamespace(c); own.owner().Kind != v1alpha1.KindGPUKernelCache || !cmp.Equal(own.Namespaces, []string{"team"}) {
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
