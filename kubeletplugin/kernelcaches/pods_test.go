// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestUsers: of the pods of a claim those count that are there, and that are no others by now.
func TestUsers(t *testing.T) {
	pod := func(name, uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)}}
	}
	kube := kubefake.NewClientset(pod("known", "uid-1"), pod("new", "uid-9"), pod("other", "uid-2"))
	p := &pods{kube: kube}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "gone", UID: "uid-0"},
		{Resource: "pods", Name: "known", UID: "uid-1"},
		{Resource: "pods", Name: "new", UID: "uid-3"},
		{APIGroup: "example.com", Resource: "pods", Name: "known", UID: "uid-1"},
		{Resource: "pods", Name: "other", UID: "uid-2"},
	}
	var got []string
	for pod, err := range p.users(t.Context(), c) {
		check.Must(t, err)
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff([]string{"known", "other"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	away := errors.New("the API server is away")
	kube.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, away })
	for pod, err := range p.users(t.Context(), c) {
		if !errors.Is(err, away) || pod != nil {
			t.Errorf("pod %v, error %v", pod, err)
		}
	}
}

// TestMissedCache: a container that will certainly find no entry of its cache has one that does not fit; others of its pod, and variables
// that nobody knows here, do not matter. Pods are read only where the cache tells something that the claim does not set.
func TestMissedCache(t *testing.T) {
	const dir = "io.vllm.cache/torch_compile_cache/0123456789/rank_0_0/backbone/"
	n := newNode(t)
	n.trusting()
	labels := map[string]string{
		"cache.vllm.image/summary":    `{"targets":[{"backend":"cuda","arch":"90","warp_size":32}]}`,
		"io.kserve.km/cache-root-env": "VLLM_CACHE_ROOT=/home/bake/.cache/vllm",
	}
	push := func(name, env string, mount *v1alpha1.CacheMount) {
		d := n.registry.Files(t, "team/"+name, "v1", map[string]string{
			dir + "artifact_0": "code", dir + "cache_key_factors.json": `{"env": {"VLLM_TARGET_DEVICE": "cuda"` + env + `}}`,
		}, labels)
		n.cache("team-a", name, n.registry.Host+"/team/"+name+":v1", d.String(), func(c *v1alpha1.GPUKernelCache) { c.Spec.Mount = mount })
	}
	overlay := v1alpha1.CacheAccessOverlay
	const home, library = `, "VLLM_CONFIG_ROOT": "/home/bake/.config/vllm"`, `, "CUDA_HOME": "/usr/local/cuda"`
	push("home", home, &v1alpha1.CacheMount{Access: overlay})
	push("library", home+library, &v1alpha1.CacheMount{Access: overlay})
	push("none", home, &v1alpha1.CacheMount{Access: overlay, Env: v1alpha1.CacheEnvNone})

	n.known = map[string]*corev1.Pod{}
	n.reserved = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "user", UID: "user"}}
	for name, c := range map[string]struct {
		cache string
		env   []corev1.EnvVar
		other []corev1.EnvVar
		want  string
		reads int
		// sidecar has one more container use the GPU, which says nothing.
		sidecar bool
	}{
		"the claim sets it": {cache: "home", env: []corev1.EnvVar{{Name: "VLLM_CONFIG_ROOT", Value: "/etc/vllm"}}},
		"nothing is known":  {cache: "library", reads: 1},
		"the same":          {cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/usr/local/cuda"}}, reads: 1},
		"another": {
			cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}}, want: "container main of pod user: CUDA_HOME", reads: 1,
		},
		"another finds it": {
			cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}}, reads: 1, sidecar: true,
		},
		"of a container without GPU": {cache: "library", other: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}}, reads: 1},
		"the last one counts": {
			cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}, {Name: "CUDA_HOME", Value: "/usr/local/cuda"}}, reads: 1,
		},
		"of another variable": {cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "$(CUDA)"}}, reads: 1},
		"of a ConfigMap": {
			cache: "library", env: []corev1.EnvVar{{Name: "CUDA_HOME", ValueFrom: &corev1.EnvVarSource{}}}, reads: 1,
		},
		"the claim sets nothing": {
			cache: "none", env: []corev1.EnvVar{{Name: "VLLM_CONFIG_ROOT", Value: "/etc/vllm"}}, want: "VLLM_CONFIG_ROOT", reads: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.asked = nil
			n.known["user"] = &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "user", UID: "user"},
				Spec: corev1.PodSpec{
					ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("claim")}},
					Containers: []corev1.Container{
						{Name: "main", Env: c.env, Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}},
						{Name: "other", Env: c.other},
					},
				},
			}
			if c.sidecar {
				spec := &n.known["user"].Spec
				spec.InitContainers = []corev1.Container{{Name: "side", Resources: spec.Containers[0].Resources}}
			}
			_, err := n.decide("team-a", "claim", v1alpha1.KernelCacheSource{Name: c.cache})
			if (err == nil) != (c.want == "") || err != nil && (!IsRefused(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("decided %v, want %q", err, c.want)
			}
			if len(n.asked) != c.reads {
				t.Errorf("%d pods were read, want %d", len(n.asked), c.reads)
			}
		})
	}
	// One that has ended, or is about to, keeps no kernels from those that share its claim.
	pod := n.known["user"].DeepCopy()
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}}
	for name, change := range map[string]func(*corev1.Pod){
		"succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"deleted":   func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) },
	} {
		n.known["user"] = pod.DeepCopy()
		change(n.known["user"])
		if _, err := n.decide("team-a", "claim", v1alpha1.KernelCacheSource{Name: "library"}); err != nil {
			t.Errorf("beside a pod that was %s: %v", name, err)
		}
	}
	n.unread = errors.New("the API server is away")
	if _, err := n.decide("team-a", "claim", v1alpha1.KernelCacheSource{Name: "library"}); !IsNotReady(err) {
		t.Errorf("pods cannot be read: %v", err)
	}
}

// TestMissedIsBounded: a pod has as many containers as its owner likes, each of which may miss the cache. A claim of many pods is not
// judged.
func TestMissedIsBounded(t *testing.T) {
	n := newNode(t)
	n.trusting()
	n.known = map[string]*corev1.Pod{}
	for i := range maxMissed + 1 {
		name := fmt.Sprintf("user-%d", i)
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("claim")}}},
		}
		for j := range 1000 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
				Name: fmt.Sprintf("c-%d", j), Env: []corev1.EnvVar{{Name: "CUDA_HOME", Value: "/opt"}},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			})
		}
		n.known[name] = p
		n.reserved = append(n.reserved, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: p.UID})
	}
	d := n.registry.Files(t, "team/library", "v1", map[string]string{
		"io.vllm.cache/torch_compile_cache/0123456789/rank_0_0/backbone/artifact_0":             "code",
		"io.vllm.cache/torch_compile_cache/0123456789/rank_0_0/backbone/cache_key_factors.json": `{"env": {"CUDA_HOME": "/usr/local/cuda"}}`,
	}, map[string]string{
		"cache.vllm.image/summary":    `{"targets":[{"backend":"cuda","arch":"90","warp_size":32}]}`,
		"io.kserve.km/cache-root-env": "VLLM_CACHE_ROOT=/home/bake/.cache/vllm",
	})
	n.cache("team-a", "library", n.registry.Host+"/team/library:v1", d.String(), func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Mount = &v1alpha1.CacheMount{Access: v1alpha1.CacheAccessOverlay}
	})
	source := v1alpha1.KernelCacheSource{Name: "library"}
	if _, err := n.decide("team-a", "claim", source); err != nil || len(n.asked) > 0 {
		t.Errorf("with %d pods: decided %.1000v, %d were read", len(n.reserved), err, len(n.asked))
	}
	n.reserved = n.reserved[1:]
	_, err := n.decide("team-a", "claim", source)
	said := fmt.Sprint(err)
	if !IsRefused(err) || !strings.Contains(said, "container c-0 of pod user-1: CUDA_HOME") || !strings.Contains(said, "7992 more") {
		t.Errorf("decided %.1000v", err)
	}
	if len(said) > 4<<10 || len(n.asked) > maxMissed {
		t.Errorf("the refusal has %d bytes, and %d pods were read for it", len(said), len(n.asked))
	}
}
