// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
)

// cacheRule is a spec that the API server takes, or refuses with the words of want.
type cacheRule struct {
	name   string
	change func(*v1alpha1.ClusterGPUKernelCacheSpec)
	want   string
}

// testCacheRules: the API server itself refuses what the definitions say, of both kinds.
func (c cluster) testCacheRules(t *testing.T) {
	apitest.Eventually(t, func() string {
		return cmp.Or(errorText(c.client.List(t.Context(), &v1alpha1.GPUKernelCacheList{})),
			errorText(c.client.List(t.Context(), &v1alpha1.ClusterGPUKernelCacheList{})))
	})
	rules := append(imageRules(), volumeRules()...)
	rules = append(rules, mountRules()...)
	for _, test := range append(rules, namespaceRules()...) {
		t.Run(test.name, func(t *testing.T) {
			all := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
			all.Spec.Image, all.Spec.WorkloadNamespaces = "registry.example:5000/team/kernels:v1", []string{"a"}
			test.change(&all.Spec)
			own := ownCache("x", "")
			own.Spec = all.Spec.GPUKernelCacheSpec
			objects := []client.Object{all, own}
			if strings.HasPrefix(test.name, "namespaces") {
				objects = objects[:1]
			}
			for _, object := range objects {
				if wrong := judged(c.client.Create(t.Context(), object, client.DryRunAll), test.want); wrong != "" {
					t.Errorf("%T: %s", object, wrong)
				}
			}
		})
	}
}

// testCacheDocuments: the API server takes what the user's page shows.
func (c cluster) testCacheDocuments(t *testing.T) {
	page, err := os.ReadFile("../docs/user/kernel-caches.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for i, block := range strings.Split(string(page), "```yaml\n") {
		text, _, _ := strings.Cut(block, "```")
		for document := range strings.SplitSeq(text, "\n---\n") {
			var object unstructured.Unstructured
			if i == 0 {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
				t.Fatal(err)
			}
			if object.GetNamespace() != "" {
				object.SetNamespace(team)
			}
			if err := c.client.Create(t.Context(), &object, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
			}
			seen[object.GetKind()]++
		}
	}
	if diff := gocmp.Diff(map[string]int{
		"GPUKernelCache": 2, "ClusterGPUKernelCache": 1, "TrustPolicy": 3, "ResourceClaimTemplate": 1, "Pod": 1,
	}, seen); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

// judged says what is wrong with the API server's answer. It repeats the value between the two parts of some errors.
func judged(err error, want string) string {
	if want == "" {
		return errorText(err)
	}
	for _, part := range strings.SplitAfterN(want, "Invalid value: ", 2) {
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), part) {
			return fmt.Sprintf("got %v, want it refused with %q", err, part)
		}
	}
	return ""
}

func imageRules() []cacheRule {
	type spec = v1alpha1.ClusterGPUKernelCacheSpec
	const (
		digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		form   = "spec.image: Invalid value: must be registry/repository:TAG or registry/repository@sha256:DIGEST, in lower case"
		path   = "spec.image: Invalid value: must have a repository of at most 255 characters"
		place  = "spec.image: Invalid value: must name its registry by a host with a dot or a port, such as docker.io"
	)
	image := func(text string) func(*spec) { return func(s *spec) { s.Image = text } }
	update := func(kind v1alpha1.CacheUpdateType, interval time.Duration, image string) func(*spec) {
		return func(s *spec) {
			s.Image, s.UpdatePolicy = image, &v1alpha1.CacheUpdatePolicy{Type: kind, Interval: &metav1.Duration{Duration: interval}}
		}
	}
	secrets := func(names ...string) func(*spec) {
		return func(s *spec) {
			for _, n := range names {
				s.ImagePullSecrets = append(s.ImagePullSecrets, corev1.LocalObjectReference{Name: n})
			}
		}
	}
	return []cacheRule{
		{"tag", image("registry.example/a/b_c/d--e.f:v1"), ""},
		{"digest", image("registry.example/a@" + digest), ""},
		{"longest", image("registry.example/" + strings.Repeat("a", 255)), ""},
		{"long path", image("registry.example/" + strings.Repeat("a", 256)), path},
		{"too long", image("registry.example/" + strings.Repeat("a", 526-17)), "spec.image: Too long: may not be more than 525"},
		{"upper case", image("registry.example/A"), form},
		{"traversal", image("registry.example/../a"), form},
		{"Docker Hub's by accident", image("team/kernels:v1"), place},
		{"secrets", secrets("a", "b"), ""},
		{"secret without a name", secrets(""), "spec.imagePullSecrets: Invalid value: name each Secret"},
		{"secret twice", secrets("a", "a"), "spec.imagePullSecrets[1]: Duplicate value"},
		{"pinned", update("Pinned", time.Minute, "registry.example/a@"+digest), ""},
		{"pinned tag", update("Pinned", time.Minute, "registry.example/a:v1"), "updatePolicy.type Pinned needs an image by digest"},
		{"interval", update("OnTagMove", 30*time.Second, "registry.example/a:v1"), ""},
		{"short interval", update("", 29*time.Second, "registry.example/a:v1"), "must be 30s to 168h"},
		{"long interval", update("", 169*time.Hour, "registry.example/a:v1"), "must be 30s to 168h"},
		{"unknown update", update("Always", time.Hour, "registry.example/a:v1"), `Unsupported value: "Always"`},
	}
}

func volumeRules() []cacheRule {
	type spec = v1alpha1.ClusterGPUKernelCacheSpec
	volumes := func(kind v1alpha1.CacheDistributionType, then func(*spec)) func(*spec) {
		return func(s *spec) {
			s.Distribution = &v1alpha1.CacheDistribution{Type: kind}
			then(s)
		}
	}
	const forVolumes = "storageClassName, accessModes and podTemplate are for volumes"
	class := func(s *spec) { s.StorageClassName = ptr.To("fast") }
	modes := func(list ...corev1.PersistentVolumeAccessMode) func(*spec) {
		return func(s *spec) { s.AccessModes = list }
	}
	selector := func(s *spec) { s.Distribution.NodeSelector = map[string]string{"a": "b"} }
	return []cacheRule{
		{"storage class", volumes("ROXVolume", class), ""},
		{"storage class without volumes", class, forVolumes},
		{"storage class in the node's store", volumes("NodeLocal", class), forVolumes},
		{"access modes without volumes", modes("ReadWriteOnce"), forVolumes},
		{"template without volumes", func(s *spec) { s.PodTemplate = &v1alpha1.CachePodTemplate{} }, forVolumes},
		{"template", volumes("RWOPerNode", func(s *spec) { s.PodTemplate = &v1alpha1.CachePodTemplate{} }), ""},
		{"access modes", volumes("ROXVolume", modes("ReadWriteOnce", "ReadOnlyMany")), ""},
		{"one writer for all", volumes("ROXVolume", modes("ReadWriteOnce")), "ROXVolume needs ReadOnlyMany among accessModes"},
		{"one writer a node", volumes("RWOPerNode", modes("ReadWriteOnce")), ""},
		{"unknown access mode", volumes("ROXVolume", modes("ReadOnlyMany", "Any")), "Unsupported value"},
		{"nodes", volumes("RWOPerNode", selector), ""},
		{"nodes of one volume", volumes("ROXVolume", selector), "a volume for all nodes has no nodeSelector"},
		{"unknown distribution", volumes("Anywhere", func(*spec) {}), `Unsupported value: "Anywhere"`},
	}
}

func mountRules() []cacheRule {
	type spec = v1alpha1.ClusterGPUKernelCacheSpec
	limit := func(text string) func(*spec) {
		return func(s *spec) { s.Mount = &v1alpha1.CacheMount{WritableLimit: ptr.To(resource.MustParse(text))} }
	}
	at := func(path string) func(*spec) { return func(s *spec) { s.Mount = &v1alpha1.CacheMount{Path: path} } }
	const (
		form = "spec.mount.path: Invalid value: must be absolute, clean and printable"
		arch = "spec.compatibility.targets[0]: Invalid value: arch of backend cuda must be one such as"
	)
	targets := func(backend, arch string) func(*spec) {
		return func(s *spec) {
			s.Compatibility = &v1alpha1.CacheCompatibility{Targets: []v1alpha1.CacheTarget{{Backend: backend, Arch: arch}}}
		}
	}
	keep := func(n int32) func(*spec) {
		return func(s *spec) { s.Retention = &v1alpha1.CacheRetention{Policy: "Keep", KeepOldDigests: &n} }
	}
	return []cacheRule{
		{"smallest limit", limit("1Mi"), ""},
		{"largest limit", limit("64Gi"), ""},
		{"limit too small", limit("1023Ki"), "must be 1Mi to 64Gi"},
		{"limit too large", limit("65Gi"), "must be 1Mi to 64Gi"},
		{"path", at("/root/.triton/cache"), ""},
		{"relative path", at("cache"), form},
		{"path with a slash at its end", at("/cache/"), form},
		{"reserved path", at("/etc/cache"), "spec.mount.path: Invalid value: "},
		{"target", targets("cuda", "sm_90a"), ""},
		{"target of AMD's", targets("hip", "gfx942"), ""},
		{"AMD's with CUDA", targets("cuda", "gfx942"), arch},
		{"target that is none", targets("cuda", "hopper"), arch},
		{"kept", keep(16), ""},
		{"kept forever", keep(17), "spec.retention.keepOldDigests in body should be less than or equal to 16"},
		{"type", func(s *spec) { s.Type = v1alpha1.CacheVLLM }, ""},
		{"unknown type", func(s *spec) { s.Type = "Llama" }, `Unsupported value: "Llama"`},
		{"verification", func(s *spec) { s.Verification = &v1alpha1.CacheVerification{Mode: "Warn", Format: "CosignV2"} }, ""},
		{"unknown mode", func(s *spec) { s.Verification = &v1alpha1.CacheVerification{Mode: "Never"} }, `Unsupported value: "Never"`},
	}
}

// namespaceRules are for the cluster's kind alone.
func namespaceRules() []cacheRule {
	type spec = v1alpha1.ClusterGPUKernelCacheSpec
	names := func(list ...string) func(*spec) { return func(s *spec) { s.WorkloadNamespaces = list } }
	volumes := func(list ...string) func(*spec) {
		return func(s *spec) {
			s.WorkloadNamespaces, s.Distribution = list, &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
		}
	}
	return []cacheRule{
		{"namespaces: all", names("*"), ""},
		{"namespaces: none", names(), "spec.workloadNamespaces"},
		{"namespaces: pattern", names("team-*"), "spec.workloadNamespaces[0] in body should match"},
		{"namespaces: twice", names("a", "a"), "spec.workloadNamespaces[1]: Duplicate value"},
		{"namespaces: volumes in some", volumes("a", "b"), ""},
		{"namespaces: volumes in all", volumes("*"), "volumes are made in the namespaces that are named"},
	}
}
