// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/signed"
	"github.com/fettle-dev/fettle/test/treesum"
)

// artifactStore is the node's store of blobs and trees.
const artifactStore = "/var/lib/fettle/artifacts"

// onDemand has nobody fetch a cache before a claim asks.
func onDemand(c *v1alpha1.GPUKernelCache) {
	c.Spec.Distribution = &v1alpha1.CacheDistribution{Prewarm: v1alpha1.CachePrewarmNone}
}

// large is a cache with a file of so many bytes that no compressor makes smaller.
func large(seed uint64, size int) (files map[string]string, sum string) {
	content := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = random.Read(content)
	files = mi300(fmt.Sprint("large ", seed))
	files["LARGE/content"] = string(content)
	return files, fmt.Sprintf("%x", sha256.Sum256(content))
}

const sumLarge = "cd $TRITON_CACHE_DIR && sha256sum < LARGE/content | cut -d ' ' -f 1"

// ready waits until claims may have a cache, so that what they are told is about the node.
func (k *kernelCaches) ready(ctx context.Context, namespace string, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		k.condition(ctx, namespace, name, v1alpha1.ConditionReady, metav1.ConditionTrue)
	}
}

// away: one registry does not answer when a claim comes; the other one ends three connections halfway through a layer.
func (k *kernelCaches) away(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.bare, "team/away", "v1", mi300("away"))
	const size = 4 << 20
	files, sum := large(1, size)
	half := k.LayerOf(k.push(k.Registry, "team/half", "v1", files))
	k.cache(ctx, ns, "away", k.bare.Host+"/team/away:v1", onDemand)
	k.cache(ctx, ns, "half", k.Host+"/team/half:v1", onDemand)
	k.claim(ctx, ns, "away", v1alpha1.KernelCacheSource{Name: "away"})
	k.claim(ctx, ns, "half", v1alpha1.KernelCacheSource{Name: "half"})
	k.ready(ctx, ns, "away", "half")

	k.bare.Down.Store(true)
	DeferCleanup(func() { k.bare.Down.Store(false) })
	var mu sync.Mutex
	var asked []int
	random := bySeed()
	k.Around(signed.BrokenOff(func(digest string) bool { return digest == half }, func(length int) int {
		mu.Lock()
		defer mu.Unlock()
		if asked = append(asked, length); len(asked) > 3 {
			return -1
		}
		return length/4 + random.IntN(length/4)
	}))
	DeferCleanup(func() { k.Around(nil) })
	waits, broken := newPod(ctx, ns, "away", withTemplate("away")), newPod(ctx, ns, "half", withTemplate("half"))
	running(ctx, broken)
	Expect(inside(ctx, broken, main, sumLarge)).To(Equal(sum + "\n"))
	mu.Lock()
	say("the registry was asked for %v bytes", asked)
	Expect(asked).To(HaveLen(4))
	for i, n := range asked[1:] {
		Expect(n).To(BeNumerically("<", asked[i]), "it goes on where it was broken off")
	}
	mu.Unlock()

	say("the other registry is away; a tenant reads no more than that")
	k.claimTold(ctx, waits, "KernelCacheNotReady", "GPUKernelCache "+ns+"/away is not ready", k.bare.Host, "not available now",
		"could not be reached, or did not answer as a registry does")
	k.bare.Down.Store(false)
	running(ctx, waits)
	Expect(inside(ctx, waits, main, found)).To(Equal("3 at " + kernelHome + "\n"))
}

// full: the store lies on a small disk, which somebody else fills: before a cache is fetched, and while it is.
func (k *kernelCaches) full(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	const size = 24 << 20
	files, sum := large(2, size)
	// What the labels say is what is reserved for it, with a quarter and 64 MiB.
	image := k.Files(GinkgoTB(), "team/full", "v1", files, map[string]string{
		"cache.triton.image/entry-count": "1", "cache.triton.image/cache-size-bytes": fmt.Sprint(size),
		"cache.triton.image/summary": `{"targets":[{"backend":"hip","arch":"gfx942","warp_size":64}]}`,
	})
	k.SignV3(GinkgoTB(), "team/full", image, k.key)
	layer := k.LayerOf(image)
	k.push(k.Registry, "team/first", "v1", mi300("first"))
	for _, name := range []string{"first", "full"} {
		k.cache(ctx, ns, name, k.Host+"/team/"+name+":v1", onDemand)
		k.claim(ctx, ns, name, v1alpha1.KernelCacheSource{Name: name})
	}
	smallStore(ctx, "160M")
	k.ready(ctx, ns, "first", "full")
	first := newPod(ctx, ns, "first", withTemplate("first"))
	running(ctx, first)
	fill := func(megabytes int) {
		GinkgoHelper()
		_, err := h.OnNode(ctx, mixedNode, "sh", "-c", fmt.Sprintf(
			`cd %s && rm -f others; [ %d = 0 ] || { dd if=/dev/zero of=others bs=1M count=%[2]d 2>/dev/null; true; }`, artifactStore, megabytes))
		Expect(err).NotTo(HaveOccurred())
	}

	say("no room before it is fetched")
	reads := k.ReadsOf(layer)
	fill(140)
	early := newPod(ctx, ns, "early", withTemplate("full"))
	object := "GPUKernelCache " + ns + "/full is not ready"
	k.claimTold(ctx, early, "KernelCacheNotReady", object, "no space", "free", "free some of it")
	Expect(k.ReadsOf(layer)).To(Equal(reads), "nothing is fetched that cannot be kept")
	remove(ctx, early)

	say("no room any more while it is")
	fill(0)
	held := &signed.Held{Release: make(chan struct{})}
	k.Around(held.Around(func(digest string) bool { return digest == layer }))
	DeferCleanup(func() { k.Around(nil) })
	late := newPod(ctx, ns, "late", withTemplate("full"))
	Eventually(ctx, held.Waiting.Load).Should(BeNumerically(">", 0))
	fill(200)
	close(held.Release)
	k.claimTold(ctx, late, "KernelCacheNotReady", object, "no space left on device", "free some of the store's disk")
	Expect(inside(ctx, first, main, found)).To(Equal("3 at "+kernelHome+"\n"), "who has a cache does not notice")
	trees, err := h.OnNode(ctx, mixedNode, "sh", "-c", "ls "+artifactStore+"/trees/sha256 | wc -l")
	Expect(err).NotTo(HaveOccurred())
	Expect(trees).To(Equal("1\n"), "what is not whole is not there")

	say("room again")
	fill(0)
	running(ctx, late)
	Expect(inside(ctx, late, main, sumLarge)).To(Equal(sum + "\n"))
	remove(ctx, first)
	remove(ctx, late)
	noCacheMounts(ctx)
}

// smallStore puts the node's store on a disk of its own until the spec ends. No claim has a cache then.
func smallStore(ctx context.Context, size string) {
	GinkgoHelper()
	noCacheMounts(ctx)
	_, err := h.OnNode(ctx, mixedNode, "sh", "-c", "mkdir -p "+artifactStore+" && mount -t tmpfs -o size="+size+" artifacts "+artifactStore)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		// Images stay mounted for the next claim, of which there is none.
		const script = `cd /var/lib/fettle; for tree in $(ls artifacts/trees/sha256); do
			! grep -q "mounts/trees/$tree " /proc/self/mountinfo || umount -l mounts/trees/$tree; done; umount -l artifacts`
		_, err := h.OnNode(ctx, mixedNode, "sh", "-c", script)
		Expect(err).NotTo(HaveOccurred())
		killPlugin(ctx, mixedNode)
	}, NodeTimeout(h.Patient(2*time.Minute)))
	killPlugin(ctx, mixedNode) // it has the directory of before open
}

// noCacheMounts waits until nothing of a cache is mounted on the node.
func noCacheMounts(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func() (string, error) {
		return h.OnNode(ctx, mixedNode, "sh", "-c", idleAside+"grep -c /var/lib/fettle/mounts/ || true")
	}).Should(Equal("0\n"))
}

// killed kills the plugin again and again while pods come that ask for caches which are not there yet, from a registry that is not well.
func (k *kernelCaches) killed(ctx SpecContext) {
	const kills, each = 20, 2
	ns := newNamespace(ctx, nil)
	layers := map[string]bool{}
	var images []artifact.Digest
	for i := range kills {
		var sources []v1alpha1.KernelCacheSource
		for j := range each {
			name := fmt.Sprintf("add-%d-%d", i, j)
			files, _ := large(uint64(100+i*each+j), 200<<10)
			image := k.push(k.Registry, "team/"+name, "v1", files)
			images, layers[k.LayerOf(image)] = append(images, image), true
			k.cache(ctx, ns, name, k.Host+"/team/"+name+":v1", func(c *v1alpha1.GPUKernelCache) {
				c.Spec.Mount = &v1alpha1.CacheMount{Env: v1alpha1.CacheEnvNone} // which only one of a claim's may set
			})
			sources = append(sources, v1alpha1.KernelCacheSource{Name: name, MountPath: fmt.Sprintf("/opt/kernels/%d", j)})
		}
		k.claim(ctx, ns, fmt.Sprint("claim-", i), sources...)
	}
	before := treesOf(mixedNode)
	random := bySeed()
	k.Around(signed.BrokenOff(func(digest string) bool { return layers[digest] }, unwell(ctx)))
	DeferCleanup(func() { k.Around(nil) })
	start, begun := time.Now(), 0
	for i := range kills {
		newPod(ctx, ns, fmt.Sprint("pod-", i), withTemplate(fmt.Sprint("claim-", i)),
			script("cat /opt/kernels/0/LARGE/content /opt/kernels/1/LARGE/content > /dev/null"),
			func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })
		if i%2 == 0 {
			pause(ctx, time.Duration(random.IntN(2000))*time.Millisecond) // at random: this is no check
		} else {
			untilBegun(ctx, mixedNode)
		}
		begun += killAnywhere(ctx, mixedNode)
	}
	pluginReady(ctx, mixedNode)
	say("%d kills in %s, which left %d images begun; every claim is served", kills, time.Since(start), begun)
	Expect(begun).To(BeNumerically(">", 0), "no kill met a fetch")
	Expect(h.Poll(ctx, "the pods to end", 90*time.Second, func(ctx context.Context) error {
		if left := unfinished(ctx, ns, ""); len(left) > 0 {
			return fmt.Errorf("not yet: %v", left)
		}
		return nil
	})).To(Succeed())
	k.hashed(images, before)
}

// imagesBegun counts the images that are being unpacked.
func imagesBegun(node string) int {
	GinkgoHelper()
	found, err := os.ReadDir(filepath.Join(h.StateDir(node), "artifacts", "tmp"))
	Expect(err).To(Or(Not(HaveOccurred()), MatchError(os.ErrNotExist)))
	return len(found)
}

// untilBegun waits until an image is being unpacked, for a few seconds: it may be there already.
func untilBegun(ctx context.Context, node string) {
	GinkgoHelper()
	const interval = 2 * time.Millisecond
	const most = 4 * time.Second
	// fragile: a kill that comes too early is only one that meets no fetch
	for begin := time.Now(); imagesBegun(node) == 0 && time.Since(begin) < most && ctx.Err() == nil; {
		pause(ctx, interval)
	}
}

// killAnywhere ends the plugin's process, wherever it is, also while it starts, and waits until there is another one. It tells how many
// images were being unpacked.
func killAnywhere(ctx context.Context, node string) int {
	GinkgoHelper()
	process := func() (string, error) {
		pod, err := h.PluginPod(ctx, node)
		if err != nil || harness.PluginContainer(pod).State.Running == nil {
			return "", err
		}
		return harness.PluginContainer(pod).ContainerID, nil
	}
	var before string
	Eventually(ctx, func() (string, error) {
		var err error
		before, err = process()
		return before, err
	}).ShouldNot(BeEmpty())
	Expect(h.KillContainer(ctx, node, before)).To(Succeed())
	left := imagesBegun(node)
	Eventually(ctx, process).ShouldNot(Or(BeEmpty(), Equal(before)))
	return left
}

// unwell is slow, and breaks off where it likes every third time. Many ask at the same time.
func unwell(ctx context.Context) func(length int) int {
	var mu sync.Mutex
	random := bySeed()
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	return func(length int) int {
		pause(ctx, time.Duration(draw(400))*time.Millisecond) // it only takes its time
		if draw(3) > 0 || length == 0 {
			return -1
		}
		return draw(length)
	}
}

// bySeed draws what Ginkgo's seed says, which a run prints and takes back as --seed.
func bySeed() *rand.Rand { return rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 18)) }

// pause lets time pass, and is over when the spec is. What is waited for is asked for by Eventually.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// hashed compares each file of each tree in the node's store with what the tree's image has, or with what the tree was before where the
// image is an earlier spec's. Some images are there, and nothing that was begun.
func (k *kernelCaches) hashed(images []artifact.Digest, before map[artifact.Digest]map[string]string) {
	GinkgoHelper()
	there := treesOf(mixedNode)
	for image, is := range there {
		want := k.Tree(image)
		for _, other := range []map[string]string{k.bare.Tree(image), before[image]} {
			if want == nil {
				want = other
			}
		}
		Expect(want).NotTo(BeNil(), "nothing says what image %s has", image)
		Expect(is).To(Equal(want), "the tree of image %s", image)
	}
	say("%d trees are what their images have", len(there))
	for _, image := range images {
		Expect(there).To(HaveKey(image))
	}
	Expect(os.ReadDir(filepath.Join(h.StateDir(mixedNode), "artifacts", "tmp"))).To(BeEmpty())
}

// treesOf hashes each file of each tree in a node's store.
func treesOf(node string) map[artifact.Digest]map[string]string {
	GinkgoHelper()
	store, err := artifact.OpenStore(filepath.Join(h.StateDir(node), "artifacts"), artifact.StoreConfig{})
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(store.Close()).To(Succeed()) }()
	usage, err := store.Usage()
	Expect(err).NotTo(HaveOccurred())
	all := map[artifact.Digest]map[string]string{}
	for _, t := range usage.Trees {
		tree, err := store.OpenTree(t.Digest)
		Expect(err).NotTo(HaveOccurred())
		Expect(store.ReadTree(tree, func(fsys fs.FS) (err error) {
			all[t.Digest], err = treesum.Of(fsys)
			return err
		})).To(Succeed())
	}
	return all
}
