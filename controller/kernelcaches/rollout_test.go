// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/pkg/rollout"
	"github.com/fettle-dev/fettle/test/check"
)

// gpuNodes are nodes with a GPU each.
func gpuNodes(n int) (out []client.Object) {
	for i := range n {
		node := nodeWith(fmt.Sprint("n", i))
		node.Status.Pools = []v1alpha1.PoolStatus{{Name: node.Name + "/gpu", Kind: "gpu", Devices: 1}}
		out = append(out, node)
	}
	return out
}

// report has the admitted nodes of a digest say how far they are, with short as nodes with many caches do.
func (c *cacheCase) report(t *testing.T, o *v1alpha1.GPUKernelCache, phase v1alpha1.NodeCachePhase, short bool) {
	t.Helper()
	var nodes v1alpha1.AcceleratorNodeList
	check.Must(t, c.client.List(t.Context(), &nodes))
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if rollout.Admits(ptr.Deref(o.Status.Admitted, 1000), node.Name, o.Status.ResolvedDigest) {
			entry := v1alpha1.NodeCache{
				Namespace: o.Namespace, Name: o.Name, Digest: o.Status.ResolvedDigest, Phase: phase, CompatibleDevices: 1,
			}
			node.Status.KernelCaches, node.Status.Rest = []v1alpha1.NodeCache{entry}, nil
			if short {
				node.Status.KernelCaches = nil
				node.Status.Rest = &v1alpha1.NodeRest{KernelCaches: node.Status.AddRestCache("", &entry), KernelCacheCount: 1}
			}
			check.Must(t, c.client.Status().Update(t.Context(), node))
		}
	}
}

// TestWaves: a few nodes fetch a cache first, and more when these have it, or after a time. Another digest begins anew.
func TestWaves(t *testing.T) {
	t.Run("listed", func(t *testing.T) { waves(t, false) })
	t.Run("in short", func(t *testing.T) { waves(t, true) })
}

func waves(t *testing.T, short bool) {
	t.Helper()
	object := kernels("a", "kernels", "registry.example/team/kernels:v1")
	c := newCacheCase(t, append(gpuNodes(100), object)...)
	digest := "sha256:" + strings.Repeat("ab", 32)
	judged := artifacts.Outcome{Digest: digest, Judged: digest}
	c.out = artifacts.Outcome{Digest: digest, Refusal: errors.New("no policy is for it")}
	want := func(what string, admitted int32) (look time.Duration) {
		t.Helper()
		look = c.reconcile(t, object)
		if got := ptr.Deref(object.Status.Admitted, -1); got != admitted {
			t.Fatalf("%s: %d are admitted, want %d", what, got, admitted)
		}
		return look
	}
	want("no policy is for it", 0)
	if object.Status.AdmittedSince != nil {
		t.Error("the first wave began while claims may not have it")
	}
	check.Must(t, c.client.Create(t.Context(), skipping("ours", "p1", 1, "registry.example/team/*")))
	c.out = judged
	want("claims may have it", 80)
	c.report(t, object, v1alpha1.NodeCacheDownloading, short)
	c.clock.Step(4 * time.Minute)
	if look := want("they fetch it", 80); look > 65*time.Second {
		t.Errorf("looks again after %s", look)
	}
	c.report(t, object, v1alpha1.NodeCacheExtracted, short)
	want("they have it", 640)
	c.report(t, object, v1alpha1.NodeCacheError, short)
	want("none of the second wave gets it", 640)
	c.clock.Step(5*time.Minute + time.Second)
	want("for a while", 1000)
	c.out = artifacts.Outcome{Digest: "sha256:other", Judged: "sha256:other"}
	c.clock.Step(2 * time.Minute)
	want("another digest", 80)
}

// TestNoWaves: a small cluster, a cache that no node fetches ahead, and one that was there before there were waves have none.
func TestNoWaves(t *testing.T) {
	small := kernels("a", "kernels", "registry.example/team/kernels:v1")
	policy := skipping("ours", "p1", 1, "registry.example/team/*")
	c := newCacheCase(t, append(gpuNodes(16), small, policy)...)
	if c.reconcile(t, small); ptr.Deref(small.Status.Admitted, -1) != 1000 {
		t.Errorf("of 16 nodes %v are admitted", small.Status.Admitted)
	}
	none := kernels("a", "kernels", "registry.example/team/kernels:v1")
	none.Spec.Distribution = &v1alpha1.CacheDistribution{Prewarm: v1alpha1.CachePrewarmNone}
	earlier := kernels("a", "earlier", "registry.example/team/kernels:v1")
	earlier.UID, earlier.Status.ResolvedDigest = "2", "sha256:top"
	c = newCacheCase(t, append(gpuNodes(100), none, earlier, policy.DeepCopy())...)
	for _, o := range []*v1alpha1.GPUKernelCache{none, earlier} {
		if c.reconcile(t, o); o.Status.Admitted != nil || o.Status.ResolvedDigest != "sha256:top" {
			t.Errorf("%s: status %+v", o.Name, o.Status)
		}
	}
}

// TestWaveOfAnotherClock: a wave that a leader with a clock ahead of this one's began is not waited for until this clock is there, too.
func TestWaveOfAnotherClock(t *testing.T) {
	o := kernels("a", "kernels", "registry.example/team/kernels:v1")
	c := newCacheCase(t, append(gpuNodes(100), o, skipping("ours", "p1", 1, "registry.example/team/*"))...)
	c.reconcile(t, o)
	o.Status.AdmittedSince.Time = c.clock.Now().Add(10 * time.Hour)
	check.Must(t, c.client.Status().Update(t.Context(), o))
	if look := c.reconcile(t, o); look > 10*time.Minute || *o.Status.Admitted != 80 {
		t.Errorf("looks again after %s, %d are admitted", look, *o.Status.Admitted)
	}
	c.clock.Step(6 * time.Minute)
	if c.reconcile(t, o); *o.Status.Admitted != 640 {
		t.Errorf("after six minutes in which no node got it %d are admitted", *o.Status.Admitted)
	}
}
