// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

// TestLimitRetained: what stays is the same as long as nothing changes, and never more than it may be.
func TestLimitRetained(t *testing.T) {
	of := func(namespace, name, tree string, size int64, kept bool) retainable {
		return retainable{
			object: objectOf(&v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}),
			tree:   artifact.DigestOf([]byte(tree)), size: size, pinned: kept,
		}
	}
	for name, c := range map[string]struct {
		all       []retainable
		most      int64
		stay, not string
	}{
		"nothing": {most: 10},
		"no limit": {
			all: []retainable{of("a", "b", "2", 1<<40, false), of("a", "a", "1", 1<<40, false)}, stay: "a/a a/b",
		},
		"to the last byte": {all: []retainable{of("a", "a", "1", 4, false), of("a", "b", "2", 6, false)}, most: 10, stay: "a/a a/b"},
		"the cluster's first": {
			all: []retainable{of("a", "a", "1", 6, false), of("", "z", "2", 6, false)}, most: 10, stay: "/z", not: "a/a",
		},
		"what is kept before what is not": {
			all: []retainable{of("", "a", "1", 6, false), of("b", "z", "2", 6, true)}, most: 10, stay: "b/z", not: "/a",
		},
		"a smaller one finds room": {
			all:  []retainable{of("a", "a", "1", 6, false), of("a", "b", "2", 6, false), of("a", "c", "3", 4, false)},
			most: 10, stay: "a/a a/c", not: "a/b",
		},
		"one tree of two objects": {
			all: []retainable{of("a", "a", "1", 10, false), of("b", "a", "1", 10, false)}, most: 10, stay: "a/a b/a",
		},
		"another namespace's share, although one has all": {
			all: []retainable{of("a", "a", "1", 5, true), of("a", "b", "2", 5, true), of("b", "a", "3", 5, false)}, most: 10,
			stay: "a/a b/a", not: "a/b",
		},
		"what no other namespace needs": {
			all: []retainable{of("a", "a", "1", 5, false), of("a", "b", "2", 5, false), of("b", "a", "1", 5, false)}, most: 10,
			stay: "a/a b/a a/b",
		},
		"kept, but the store became smaller": {
			all: []retainable{of("a", "a", "1", 6, true), of("a", "b", "2", 6, true)}, most: 10, stay: "a/a", not: "a/b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			names := func(list []retainable) string {
				var out []string
				for i := range list {
					out = append(out, list[i].GetNamespace()+"/"+list[i].GetName())
				}
				return strings.Join(out, " ")
			}
			stay, not := limitRetained(c.all, c.most)
			if names(stay) != c.stay || names(not) != c.not {
				t.Errorf("stay: %s, not: %s, want %s and %s", names(stay), names(not), c.stay, c.not)
			}
		})
	}
}

// TestRetainedImages: one namespace keeps only so many images, however small they are.
func TestRetainedImages(t *testing.T) {
	var all []retainable
	for i := range maxRetained + 5 {
		c := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("c%03d", i)}}
		all = append(all, retainable{object: objectOf(c), tree: artifact.DigestOf([]byte("one")), size: 1})
	}
	stay, exceeding := limitRetained(all, 0)
	if len(stay) != maxRetained || len(exceeding) != 5 {
		t.Errorf("%d stay, %d do not, want %d and 5", len(stay), len(exceeding), maxRetained)
	}
}

func keeps(c *v1alpha1.GPUKernelCache) {
	c.Spec.Retention = &v1alpha1.CacheRetention{Policy: v1alpha1.CacheRetentionKeep}
}

// follow watches all objects, as the plugin does, and tends after each change. It returns how to end that.
func (n *node) follow() (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan struct{})
	before := n.watches()
	stopped := n.Watch(ctx)
	feature := n.Feature
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-feature.retention:
				if err := feature.maintain(ctx); err != nil && ctx.Err() == nil {
					n.Errorf("tend: %v", err)
				}
			}
		}
	}()
	check.Eventually(n.T, "all that is there is known", n.objects.synced)
	check.Eventually(n.T, "both kinds of caches are watched", func() bool { return n.watches() >= before+2 })
	return func() {
		cancel()
		<-done
		stopped()
	}
}

// watches counts the watches that were begun. The fake API server sends a watch only what changes after it began, so what a test
// changes between an informer's list and its watch is lost.
func (n *node) watches() int {
	count := 0
	for _, action := range n.client.Actions() {
		if action.GetVerb() == "watch" {
			count++
		}
	}
	return count
}

// pinned waits until a tree is kept for these alone.
func (n *node) pinned(tree artifact.Digest, owners ...string) {
	n.Helper()
	var pins []string
	check.Eventually(n.T, "the pins of the tree are "+strings.Join(owners, " "), func() bool {
		var err error
		pins, err = n.host.Pins(tree)
		n.must(err)
		return slices.Equal(pins, owners)
	})
}

func (n *node) there(tree artifact.Digest) bool {
	n.Helper()
	_, err := n.host.PeekTree(tree)
	return err == nil
}

// says are the Events so far that have a text.
func (n *node) says(text string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, note := range n.told {
		if strings.Contains(note, text) {
			out = append(out, note)
		}
	}
	return out
}

// TestKeep: what an object wants kept stays though no claim has it, over restarts, in half of the store.
func TestKeep(t *testing.T) {
	n := newNode(t)
	n.trusting()
	uses := map[string]*cachemount.Use{}
	stop := n.follow()
	size := int64(0)
	for i, name := range []string{"a", "b", "c"} {
		image, digest := n.push("team/"+name, "v1", triton(90-i, 32))
		n.cache("team-a", name, image, digest, func(c *v1alpha1.GPUKernelCache) {
			c.Spec.Compatibility = &v1alpha1.CacheCompatibility{OnMismatch: v1alpha1.CacheMismatchMount}
			if name != "c" {
				keeps(c)
			}
		})
		check.Eventually(t, name+" is known", func() bool { return len(n.objects.list()) == i+1 })
		uses[name] = n.only(n.decide("team-a", "claim", v1alpha1.KernelCacheSource{Name: name}))
		tree, err := n.host.PeekTree(uses[name].Tree)
		n.must(err)
		size = max(size, tree.Size)
	}
	a, b, c := uses["a"].Tree, uses["b"].Tree, uses["c"].Tree
	n.pinned(a, "object.uid-team-a-a")
	n.pinned(b, "object.uid-team-a-b")
	n.pinned(c)
	if left, err := n.leftovers("uid-team-a-a"); err != nil || len(left) > 0 {
		t.Errorf("what an object keeps is taken for a claim's: %v, %v", left, err)
	}
	stop()

	// The store gets smaller with the plugin's restart. As long as nothing is known of the objects, nothing goes.
	n.limit(2 * size)
	n.restart()
	n.must(n.maintain(t.Context()))
	n.pinned(a, "object.uid-team-a-a")
	n.pinned(b, "object.uid-team-a-b")
	stop = n.follow()
	defer stop()
	n.pinned(b)
	n.pinned(a, "object.uid-team-a-a")
	n.must(n.host.Sweep(t.Context()), n.maintain(t.Context()))
	if !n.there(a) {
		t.Error("what was used longest ago went, though it is kept")
	}
	if told := n.says(ReasonNotKept); len(told) != 1 || !strings.Contains(told[0], "team-a/b: its image takes") {
		t.Errorf("told %q", told)
	}

	// A claim comes and goes. Meanwhile the object means another digest.
	u := n.only(n.decide("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "a"}))
	n.apply(u)
	n.pinned(a, "claim-1", "object.uid-team-a-a")
	n.undo(u)
	n.pinned(a, "object.uid-team-a-a")
	n.apply(u)
	image, digest := n.push("team/a", "v2", triton(70, 32))
	n.cache("team-a", "a", image, digest, keeps, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
	n.pinned(a, "claim-1")
	n.undo(u)
	n.empty()
}

// TestKeptNoMore: nothing stays whose object is gone, says otherwise, or is on a node that gives nobody a cache any more.
func TestKeptNoMore(t *testing.T) {
	const owner = "object.uid-team-a-add"
	for name, end := range map[string]func(n *node, image, digest string){
		"deleted": func(n *node, _, _ string) {
			client := n.client.Resource(v1alpha1.GroupVersion.WithResource(cacheResource)).Namespace("team-a")
			n.must(client.Delete(n.Context(), "add", metav1.DeleteOptions{}))
		},
		"says otherwise": func(n *node, image, digest string) {
			n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
		},
		"not resolved any more": func(n *node, image, _ string) { n.cache("team-a", "add", image, "", keeps) },
	} {
		t.Run(name, func(t *testing.T) {
			n, image, digest, tree := newKept(t)
			stop := n.follow()
			defer stop()
			n.pinned(tree, owner)
			end(n, image, digest)
			n.pinned(tree)
			n.empty()
		})
	}
	t.Run("switched off", func(t *testing.T) {
		n, _, _, tree := newKept(t)
		n.Enabled = false
		n.must(n.maintain(t.Context()))
		n.pinned(tree)
		n.empty()
		if n.verified.Get("uid-team-a-add") == nil {
			t.Error("what was found out is forgotten")
		}
	})
	t.Run("kept by another", func(t *testing.T) {
		n, image, digest, tree := newKept(t)
		stop := n.follow()
		defer stop()
		n.cache("team-b", "add", image, digest, keeps)
		check.Eventually(t, "the other is known", func() bool { return len(n.objects.list()) == 2 })
		n.only(n.decide("team-b", "claim-b", named))
		n.pinned(tree, owner, "object.uid-team-b-add")
		n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
		n.pinned(tree, "object.uid-team-b-add")
	})
	t.Run("the node retires", func(t *testing.T) {
		n, _, _, _ := newKept(t)
		stop := n.follow()
		defer stop()
		n.must(n.Destroy())
		n.empty()
		n.must(n.maintain(t.Context()))
	})
}

// newKept is a node that was restarted, with a cache that its object keeps and that a claim had.
func newKept(t *testing.T) (n *node, image, digest string, tree artifact.Digest) {
	t.Helper()
	n = newNode(t)
	n.trusting()
	image, digest = n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest, keeps, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Type = v1alpha1.CacheType("Triton") // which changes nothing of the tree
	})
	stop := n.follow()
	u := n.only(n.decide("team-a", "claim", named))
	n.pinned(u.Tree, "object.uid-team-a-add")
	n.apply(u)
	n.undo(u)
	stop()
	n.restart()
	return n, image, digest, u.Tree
}

// TestKeepIsSeenToLater: a disk that fails hurts no fetch, and what was not done is done the next time.
func TestKeepIsSeenToLater(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest, keeps)
	stop := n.follow()
	defer stop()
	whole := n.Store
	tries := 0
	broken := errors.New("broken")
	n.Store = func() (*artifact.Store, error) {
		if tries++; tries > 100 {
			return nil, broken
		}
		return whole()
	}
	u := n.only(n.decide("team-a", "claim", named))
	n.pinned(u.Tree, "object.uid-team-a-add")
	tries = 100
	if err := n.maintain(t.Context()); !errors.Is(err, broken) {
		t.Errorf("with a broken store: %v", err)
	}
	n.pinned(u.Tree, "object.uid-team-a-add")
	if diff := cmp.Diff([]string(nil), n.says(ReasonNotKept)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestRun: what is kept is seen to at the start and after changes, and let go where the node gives no claim a cache any more.
func TestRun(t *testing.T) {
	for name, end := range map[string]func(n *node, image, digest string){
		"switched off": func(n *node, _, _ string) { n.Enabled = false },
		"not kept any more": func(n *node, image, digest string) {
			n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
		},
	} {
		for _, when := range []string{"before", "meanwhile"} {
			if name == "switched off" && when == "meanwhile" {
				continue // which takes a restart
			}
			t.Run(name+", "+when, func(t *testing.T) {
				n, image, digest, tree := newKept(t)
				if when == "before" {
					end(n, image, digest)
				}
				ctx, cancel := context.WithCancel(t.Context())
				stopped, ran := n.Watch(ctx), make(chan struct{})
				go func() {
					n.Feature.Run(ctx)
					close(ran)
				}()
				if when == "meanwhile" {
					check.Eventually(t, "all that is there is known", n.objects.synced)
					n.pinned(tree, "object.uid-team-a-add")
					end(n, image, digest)
				}
				n.pinned(tree)
				cancel()
				<-ran
				stopped()
				n.empty()
			})
		}
	}
}

// TestLargeObjectsOfATenant: of a cache and of a pod the plugin keeps little, whatever a tenant writes there.
func TestLargeObjectsOfATenant(t *testing.T) {
	large.KeepsLittle(t, &v1alpha1.GPUKernelCache{}, large.Unstructured(decode))
}

// TestNoStore: where the store could not be made, nothing of it is a claim's whose record is lost.
func TestNoStore(t *testing.T) {
	n := newNode(t)
	n.must(os.MkdirAll(n.Mounter.Dir, 0o700))
	n.Store = func() (*artifact.Store, error) { return nil, artifact.ErrNoStore }
	if steps, err := n.leftovers("uid-1"); err != nil || len(steps) > 0 {
		t.Errorf("left over: %v, %v", steps, err)
	}
}
