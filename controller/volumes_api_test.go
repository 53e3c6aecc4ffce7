// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/tools/txtar"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/signed"
)

const (
	oneDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	twoDigest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// testVolumes makes the volumes of caches as they come from the older API, with the test in the place of what runs Jobs. It has an API
// server of its own.
func testVolumes(t *testing.T) {
	c := newCluster(t, nil)
	definitions, err := crd.Load(crds.Files)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range definitions {
		if err := crd.Apply(t.Context(), c.client, d, "test"); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Eventually(t, func() string {
		return errorText(c.client.List(t.Context(), &v1alpha1.ClusterGPUKernelCacheList{}))
	})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "myns1"}})
	for _, node := range []string{"n1", "n2"} {
		c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		c.create(t, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- controller.Controller{
			Config: c.config, CRDs: crds.Files, Registry: prometheus.NewRegistry(), Clock: clock.RealClock{},
			Options: controller.Options{
				Namespace: namespace, Metrics: httpserver.Metrics{Address: "0"}, ProbeAddress: "127.0.0.1:0", BitstreamInterval: time.Second,
				KernelCacheVolumes: volumes.Options{Enabled: true, Image: "registry.example/fettle:v1"},
			},
			Table: func(p controller.Parts) []reconciler.Row { return []reconciler.Row{volumes.New(p.Services, p.Volumes)} },
		}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with: %v", err)
		}
	})
	t.Run("one volume", c.testROXVolume)
	t.Run("a volume of each node", c.testRWOVolumes)
	t.Run("namespaces", c.testVolumeNamespaces)
	t.Run("converted", c.testConverted)
}

// resolvedCache is what the controller says of an image that is verified.
func (c cluster) resolvedCache(t *testing.T, o client.Object, status *v1alpha1.GPUKernelCacheStatus, digest string) {
	t.Helper()
	before, _ := o.DeepCopyObject().(client.Object)
	status.ObservedGeneration, status.ResolvedDigest = o.GetGeneration(), digest
	status.Image = &v1alpha1.CacheImage{Digest: digest, CompressedBytes: 1 << 20}
	status.Verification = &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictVerified}
	if err := c.client.Status().Patch(t.Context(), o, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// volumesOf are the claims and Jobs of a cache, "claim NAMESPACE/NAME DIGEST" and "job NAMESPACE/NAME", without those that are going.
func (c cluster) volumesOf(t *testing.T, o client.Object) []string {
	t.Helper()
	its := client.MatchingLabels{volumes.UIDLabel: string(o.GetUID())}
	var claims corev1.PersistentVolumeClaimList
	var jobs batchv1.JobList
	for _, list := range []client.ObjectList{&claims, &jobs} {
		if err := c.client.List(t.Context(), list, its); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for _, v := range claims.Items {
		if v.DeletionTimestamp == nil {
			all = append(all, strings.TrimSpace(fmt.Sprintf("claim %s/%s %.9s", v.Namespace, v.Name, v.Annotations[volumes.DigestAnnotation])))
		}
	}
	for _, j := range jobs.Items {
		if j.DeletionTimestamp == nil {
			all = append(all, "job "+j.Namespace+"/"+j.Name)
		}
	}
	return all
}

// wantVolumes waits for claims and Jobs.
func (c cluster) wantVolumes(t *testing.T, o client.Object, want ...string) {
	t.Helper()
	apitest.Eventually(t, func() string { return gocmp.Diff(want, c.volumesOf(t, o)) })
}

// complete ends a Job well, as the Job controller does.
func (c cluster) complete(t *testing.T, namespace, name string) {
	t.Helper()
	job := &batchv1.Job{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, job); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}}
	if err := c.client.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
}

// finished removes the finalizer by which the garbage collector, which is not here, would wait for a Job's pods.
func (c cluster) finished(t *testing.T, namespace, name string) {
	t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	if err := client.IgnoreNotFound(c.client.Patch(t.Context(), job, patch)); err != nil {
		t.Fatal(err)
	}
}

func cacheOf(name string, kind v1alpha1.CacheDistributionType) *v1alpha1.GPUKernelCache {
	k := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "myns1", Name: name}}
	k.Spec.Image, k.Spec.Distribution = "registry.example/kernels:v1", &v1alpha1.CacheDistribution{Type: kind}
	return k
}

// testROXVolume follows one volume: filled once, not changed while a pod uses it, filled again then.
func (c cluster) testROXVolume(t *testing.T) {
	k := cacheOf("rox", v1alpha1.CacheROXVolume)
	c.create(t, k)
	c.resolvedCache(t, k, &k.Status, oneDigest)
	c.wantVolumes(t, k, "claim myns1/rox", "job myns1/rox-111111111111")
	c.complete(t, "myns1", "rox-111111111111")
	c.wantVolumes(t, k, "claim myns1/rox sha256:11", "job myns1/rox-111111111111")

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "myns1", Name: "reader"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "rox"},
		}}},
	}}
	c.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "myns1", Name: "default"}})
	c.create(t, pod)
	c.resolvedCache(t, k, &k.Status, twoDigest)
	c.wantVolumes(t, k, "claim myns1/rox sha256:11")
	c.finished(t, "myns1", "rox-111111111111")
	if err := c.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	c.update(t, k, func() { k.Labels = map[string]string{"look": "again"} }) // pods tell nothing, and the interval is long
	c.wantVolumes(t, k, "claim myns1/rox", "job myns1/rox-222222222222")
}

// testVolumesStatus: the status has the state of volumes and their users; nothing is made of an image without a signature.
func (c cluster) testVolumesStatus(t *testing.T) {
	key := signed.NewKey(t)
	c.create(t, c.policyFor(t, "volumes", "volumes/*", key))
	d := c.images.Image(t, "volumes/kernels", "v1", "one", signed.Labels("90"))
	c.images.SignV3(t, "volumes/kernels", d, key)
	c.images.Image(t, "volumes/unsigned", "v1", "two", signed.Labels("90"))
	inVolume := func(name, repository string) *v1alpha1.GPUKernelCache {
		k := ownCache(name, c.registry.Host+"/volumes/"+repository+":v1")
		k.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
		c.create(t, k)
		return k
	}
	unsigned, k := inVolume("unsigned", "unsigned"), inVolume("volume", "kernels")
	job := volumes.JobName("volume", d.String(), "")
	said := func(want string, phase v1alpha1.CachePhase) {
		t.Helper()
		apitest.Eventually(t, func() string {
			if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(k), k); err != nil {
				return err.Error()
			}
			distributed := meta.FindStatusCondition(k.Status.Conditions, v1alpha1.ConditionDistributed)
			if distributed == nil || len(k.Status.Volumes) != 1 {
				return fmt.Sprintf("status %+v", k.Status)
			}
			v := k.Status.Volumes[0]
			got := fmt.Sprintf("%s %s %s %.9s, %s %s", v.ClaimName, v.JobName, v.Phase, v.Digest, distributed.Status, distributed.Reason)
			return gocmp.Diff(want+string(phase), got+string(k.Status.Phase))
		})
	}
	said("volume "+job+" Pending , False Distributing", v1alpha1.CacheDownloading)
	apitest.Eventually(t, func() string {
		err := c.client.Get(t.Context(), client.ObjectKeyFromObject(k), k)
		if err != nil || !strings.Contains(k.Status.Volumes[0].Message, "not bound") {
			return fmt.Sprintf("%v, volumes %+v", err, k.Status.Volumes)
		}
		return ""
	})
	c.complete(t, team, job)
	said(fmt.Sprintf("volume %s Filled %.9s, True Distributed", job, d), v1alpha1.CacheExtracted)
	c.awaitCache(t, unsigned, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
	if got := c.volumesOf(t, unsigned); len(got) > 0 || len(unsigned.Status.Volumes) != 1 ||
		unsigned.Status.Volumes[0].Phase != v1alpha1.CacheVolumePending {
		t.Errorf("of an image without a signature there are %v, status %+v", got, unsigned.Status.Volumes)
	}
	c.finished(t, team, job)
}

// testRWOVolumes pins each Job to its node, and follows the nodes.
func (c cluster) testRWOVolumes(t *testing.T) {
	k := cacheOf("rwo", v1alpha1.CacheRWOPerNode)
	k.Spec.PodTemplate = &v1alpha1.CachePodTemplate{Spec: v1alpha1.CachePodSpec{
		Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
	}}
	c.create(t, k)
	c.resolvedCache(t, k, &k.Status, oneDigest)
	c.wantVolumes(t, k, "claim myns1/rwo-n1", "claim myns1/rwo-n2", "job myns1/rwo-n1-111111111111", "job myns1/rwo-n2-111111111111")
	job := &batchv1.Job{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "myns1", Name: "rwo-n2-111111111111"}, job); err != nil {
		t.Fatal(err)
	}
	spec := job.Spec.Template.Spec
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || !gocmp.Equal(terms[0].MatchFields[0].Values, []string{"n2"}) || len(spec.Tolerations) != 1 {
		t.Errorf("terms %v, tolerations %v", terms, spec.Tolerations)
	}
	n3 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}
	c.create(t, n3)
	c.create(t, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "n3"}})
	c.wantVolumes(t, k, "claim myns1/rwo-n1", "claim myns1/rwo-n2", "claim myns1/rwo-n3",
		"job myns1/rwo-n1-111111111111", "job myns1/rwo-n2-111111111111", "job myns1/rwo-n3-111111111111")
	if err := c.client.Delete(t.Context(), n3); err != nil {
		t.Fatal(err)
	}
	c.wantVolumes(t, k, "claim myns1/rwo-n1", "claim myns1/rwo-n2", "job myns1/rwo-n1-111111111111", "job myns1/rwo-n2-111111111111")
	c.update(t, k, func() { k.Spec.Distribution, k.Spec.PodTemplate = nil, nil })
	c.wantVolumes(t, k)
}

// testVolumeNamespaces makes a volume where a namespace is, and when it comes.
func (c cluster) testVolumeNamespaces(t *testing.T) {
	stranger := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "myns1", Name: "everywhere"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *minRequest()}},
		},
	}
	c.create(t, stranger)
	k := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "everywhere"}}
	k.Spec.Image, k.Spec.WorkloadNamespaces = "registry.example/kernels:v1", []string{"myns1", "late"}
	k.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
	c.create(t, k)
	c.resolvedCache(t, k, &k.Status, oneDigest)
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late"}})
	c.wantVolumes(t, k, "claim late/everywhere", "job late/everywhere-111111111111")
	claim := &corev1.PersistentVolumeClaim{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "late", Name: "everywhere"}, claim); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(claim); owner == nil || owner.UID != k.UID || owner.Kind != v1alpha1.KindClusterGPUKernelCache {
		t.Errorf("owner %+v", owner)
	}
	c.update(t, k, func() { k.Spec.WorkloadNamespaces = []string{"myns1"} })
	c.wantVolumes(t, k)
}

func minRequest() *resource.Quantity { return resource.NewQuantity(1<<20, resource.BinarySI) }

// testVolumesPage: the API server takes what the page about volumes shows.
func (c cluster) testVolumesPage(t *testing.T) {
	page, err := os.ReadFile("../docs/user/kernel-cache-volumes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	if len(blocks) == 0 {
		t.Error("the page about volumes has no example")
	}
	for _, block := range blocks {
		example, _, _ := strings.Cut(block, "```")
		for text := range strings.SplitSeq(example, "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(text), o); err != nil {
				t.Fatal(err)
			}
			if o.GetNamespace() != "" {
				o.SetNamespace(metav1.NamespaceDefault)
			}
			if err := c.client.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("the page about volumes, %s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// testConverted gives the API server all that conversions of caches gave, and refuses none of it.
func (c cluster) testConverted(t *testing.T) {
	for _, name := range []string{"myns2", "myns3", "gkm-test-ns-rwo-1"} {
		if err := c.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil &&
			!strings.Contains(err.Error(), "already exists") {
			t.Fatal(err)
		}
	}
	archives, err := filepath.Glob("../pkg/convert/testdata/caches-*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	tried := 0
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range archive.Files {
			if !strings.HasSuffix(file.Name, ".yaml") || file.Name == "in.yaml" {
				continue
			}
			for _, text := range bytes.Split(file.Data, []byte("\n---\n")) {
				o := &unstructured.Unstructured{}
				if err := yaml.Unmarshal(text, o); err != nil {
					t.Fatal(err)
				}
				if slices.ContainsFunc([]string{"cacheNs", "gkm.io/v1alpha1", "claimName: cacheCl"}, func(left string) bool {
					return bytes.Contains(text, []byte(left))
				}) {
					continue // left as it was, which is said
				}
				tried++
				if err := c.client.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("%s, %s: %v", path, file.Name, err)
				}
			}
		}
	}
	c.testVolumesPage(t)
	if tried < 30 {
		t.Errorf("only %d objects were tried", tried)
	}
}
