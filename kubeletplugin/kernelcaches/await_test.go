// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// await is what the binder asks before the pod of a claim is bound.
func (n *node) await(ctx context.Context, sources ...v1alpha1.KernelCacheSource) error {
	n.Helper()
	for i := range sources {
		sources[i].Default()
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "claim", UID: "claim"}}
	c.Status.ReservedFor = n.reserved
	a := claim.Allocation{Namespace: "team-a", Name: "claim", UID: c.UID, Results: []claim.Result{{
		Request: "gpu", BaseRequest: "gpu", Pool: "node/gpu", Device: "gpu-0", Kind: device.KindGPU,
		Config: claim.Effective{GPU: &claim.GPUEffective{KernelCaches: sources}},
	}}}
	return n.Await(ctx, c, a, func(*claim.Result) (device.Device, bool) { return hopper(), true })
}

// TestAwait: what a pod wants to wait for is fetched, and what a claim would be refused for is refused before the pod is bound.
func TestAwait(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	wrong, wrongDigest := n.push("team/wrong", "v1", triton(80, 32))
	n.cache("team-a", "add", image, digest)
	n.cache("team-a", "wrong", wrong, wrongDigest)
	n.cache("team-a", "unresolved", image, "")
	wanted := func(name string) v1alpha1.KernelCacheSource {
		return v1alpha1.KernelCacheSource{Name: name, BindAfter: v1alpha1.BindAfterFetched}
	}
	n.must(n.await(t.Context(), v1alpha1.KernelCacheSource{Name: "nothing"}))
	if reads := n.registry.Reads.Load(); reads > 0 {
		t.Errorf("%d blobs were read for a pod that waits for nothing", reads)
	}
	n.must(n.await(t.Context(), wanted("add")))
	if reads := n.registry.Reads.Load(); reads != 2 {
		t.Errorf("%d blobs were read", reads)
	}
	for name, c := range map[string]struct {
		want  string
		later bool
	}{
		"nothing":    {"it does not exist", false},
		"wrong":      {"for cuda sm_80", false},
		"unresolved": {"its image is not resolved", true},
	} {
		source := wanted(name)
		err := n.await(t.Context(), wanted("add"), source)
		if err == nil || !strings.Contains(err.Error(), c.want) || IsRefused(err) == c.later || IsNotReady(err) != c.later || IsUnderway(err) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		source.Optional = true
		n.must(n.await(t.Context(), source))
	}
}

// TestUnderway: what is on its way is no failure, whether the claim can do without it or not.
func TestUnderway(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	whole, let := n.Store, make(chan struct{})
	n.Store = func() (*artifact.Store, error) {
		<-let
		return whole()
	}
	for _, optional := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errUnderway) // as after a moment
		err := n.await(ctx, v1alpha1.KernelCacheSource{Name: "add", BindAfter: v1alpha1.BindAfterFetched, Optional: optional})
		if !IsUnderway(err) || IsRefused(err) {
			t.Errorf("optional %v: while it is fetched: %v", optional, err)
		}
	}
	close(let)
	n.must(n.await(t.Context(), v1alpha1.KernelCacheSource{Name: "add", BindAfter: v1alpha1.BindAfterFetched}))
}

// TestNoAnswerIsUnderway: an API server that answers too late for Await has refused nothing. The scheduler looks for no other node.
func TestNoAnswerIsUnderway(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	wanted := v1alpha1.KernelCacheSource{Name: "add", BindAfter: v1alpha1.BindAfterFetched}
	n.must(n.await(t.Context(), wanted))
	n.reserved = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod"}}
	n.unread = context.DeadlineExceeded
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errUnderway) // as after a moment
	if err := n.await(ctx, wanted); !IsUnderway(err) || IsRefused(err) {
		t.Errorf("while the API server does not answer: %v", err)
	}
	if err := n.await(t.Context(), wanted); err == nil || IsUnderway(err) {
		t.Errorf("an answer that is an error: %v", err)
	}
}

// TestWaitingForATurnIsNoRefusal: a claim whose call ends while the caches of others are looked through is told to ask again.
func TestWaitingForATurnIsNoRefusal(t *testing.T) {
	n := newNode(t)
	n.trusting()
	o := n.added()
	tree, err := n.ensureLocal(t.Context(), o)
	n.must(err)
	n.Mounter.Turns = budget.NewTurns(budget.Limit{Node: 1})
	done, err := n.Mounter.Turns.Take(t.Context(), "team-b")
	n.must(err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errUnderway) // as after a moment
	if _, err := n.read(ctx, o, tree); !IsUnderway(err) || !IsNotReady(err) || IsRefused(err) {
		t.Errorf("while it waits: %v", err)
	}
	done()
	_, err = n.read(t.Context(), o, tree)
	n.must(err)
}

// TestStatusDoesNotWaitForACache: a cache that takes long to look through is in a later report, and what is known is in each.
func TestStatusDoesNotWaitForACache(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	use := n.only(n.decide("team-a", "claim", named))
	n.restart() // nothing is remembered
	n.Mounter.Turns = budget.NewTurns(budget.Limit{Node: 1})
	done, err := n.Mounter.Turns.Take(t.Context(), "team-b")
	n.must(err)
	changed := make(chan struct{}, 1)
	n.Changed = func() { changed <- struct{}{} }
	gpus, uses := []device.Device{hopper()}, [][]cachemount.Use{{*use}}
	over, cancel := context.WithCancel(t.Context())
	cancel() // as after some seconds
	for range 2 {
		if got := n.status(over, gpus, uses); len(got) != 1 || got[0].Phase != v1alpha1.NodeCacheExtracted || got[0].CompatibleDevices != 0 {
			t.Errorf("before the cache was looked through: %+v", got)
		}
	}
	done()
	<-changed
	if got := n.status(over, gpus, uses); len(got) != 1 || got[0].CompatibleDevices != 1 {
		t.Errorf("after that: %+v", got)
	}
	if got := n.status(over, gpus, nil); len(got) != 0 || len(n.judgements) != 0 {
		t.Errorf("without the claim: %+v, and %d judgements are kept", got, len(n.judgements))
	}
}

// TestSlowRegistriesHoldUpEachOther: two namespaces whose registries send nothing for as long as they like keep no turn that the cache of
// another namespace waits for.
func TestSlowRegistriesHoldUpEachOther(t *testing.T) {
	n := newNode(t)
	n.trusting()
	n.Unpacking = budget.NewLanes(budget.Limit{Node: 1}, budget.Limit{Namespace: 1}, time.Millisecond)
	let, asked := make(chan struct{}), make(chan struct{}, 2)
	defer close(let)
	n.registry.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/mallory/") && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
				select {
				case asked <- struct{}{}:
				default:
				}
				<-let
			}
			next.ServeHTTP(w, r)
		})
	})
	for i := range 4 {
		name, namespace := fmt.Sprint("slow-", i), fmt.Sprint("mallory-", i%2)
		image, digest := n.push("mallory/"+name, "v1", triton(90, 16+i))
		n.cache(namespace, name, image, digest)
		o, err := n.objects.get(t.Context(), v1alpha1.KindGPUKernelCache, namespace, name)
		n.must(err)
		n.startFetch(o, fetchOptions{})
		if i < 2 {
			<-asked
		}
	}
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.only(n.decide("team-a", "claim", named))
}
