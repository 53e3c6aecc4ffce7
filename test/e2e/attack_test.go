// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// attackFor is how long the attack goes on: a moment, or what "make attack" says.
func attackFor() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ATTACK")); err == nil {
		return d
	}
	return 5 * time.Second
}

// seedAttack is what each attacker has: templates of claims with many seeds of one image of empty files.
type seedAttack struct {
	name string
	// files are in each seed, of which a claim has so many.
	files, seeds int
	// says is in the Event of the claim. Empty: the claim is prepared.
	says string
}

func seedAttacks() []seedAttack {
	return []seedAttack{
		{name: "huge", files: 39000, seeds: 16, says: "more than 8192 files"},
		{name: "many", files: 4000, seeds: 16, says: "a node gives at most 32768"},
		{name: "fits", files: 4000, seeds: 7},
	}
}

// plainClaim is the template of claims without a seed.
const plainClaim = "plain"

// attacked has three tenants ask for more than the plugin has memory for, again and again, while another one starts pods. The plugin keeps
// running, and the other's claims are prepared. With ATTACK=5m they take no more than twice as long as while the three start as many pods
// that ask for nothing special: how busy a machine is with pods is not what the attack is about.
func (k *kernelCaches) attacked(ctx SpecContext) {
	victim := newNamespace(ctx, nil)
	k.push(k.Registry, "team/victim", "v1", mi300("victim"))
	k.cache(ctx, victim, "add", k.Host+"/team/victim:v1")
	k.claim(ctx, victim, "gpu", v1alpha1.KernelCacheSource{Name: "add"})
	k.starts(ctx, victim, "first") // which fetches the cache
	images := map[int]string{}
	for _, a := range seedAttacks() {
		if images[a.files] == "" {
			repository := fmt.Sprintf("team/empty-%d", a.files)
			files := mi300(repository)
			for i := range a.files {
				files[fmt.Sprintf("EMPTY/%d/%d", i/1000, i)] = ""
			}
			k.push(k.Registry, repository, "v1", files)
			images[a.files] = k.Host + "/" + repository + ":v1"
		}
	}
	var attackers []string
	for range 3 {
		attackers = append(attackers, newNamespace(ctx, nil))
	}
	for _, ns := range attackers {
		k.seedClaims(ctx, ns, images)
		newTemplate(ctx, ns, plainClaim, spec(request("gpu", gpuClass)))
	}
	plugin, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	long := attackFor() >= time.Minute
	var quiet, busy []float64
	if long {
		say("nobody else starts pods")
		quiet = k.keepsStarting(ctx, victim, "quiet", attackFor()/5)
		say("three tenants start pods")
		busy, _ = k.beside(ctx, victim, "busy", attackFor(), attackers, func(ns string, i int) {
			k.attackOnce(ctx, ns, seedAttack{name: plainClaim}, i)
		})
	}

	say("three tenants attack for %s", attackFor())
	during, attempts := k.beside(ctx, victim, "during", attackFor(), attackers, func(ns string, i int) {
		k.attackOnce(ctx, ns, seedAttacks()[i%len(seedAttacks())], i)
	})
	after, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	Expect(after.Name).To(Equal(plugin.Name))
	Expect(after.Status.ContainerStatuses[0].RestartCount).To(Equal(plugin.Status.ContainerStatuses[0].RestartCount), "restarts of the plugin")
	tell("attack", attackFor(), fmt.Sprintf(
		"%d attempts; others' Prepare: %s alone, %s beside plain pods, %s meanwhile; most memory of the plugin: %s",
		attempts, times(quiet), times(busy), times(during), strings.TrimSpace(peakMemory(ctx, string(plugin.UID)))))
	if long {
		Expect(percentile(during, 99)).To(BeNumerically("<=", 2*percentile(busy, 99)), "p99 of the other tenant's Prepares in seconds")
	}
}

// beside has every tenant do something again and again, and starts a victim's pods meanwhile. It returns what keepsStarting does, and how
// often something was done.
func (k *kernelCaches) beside(
	ctx context.Context, victim, name string, during time.Duration, tenants []string, do func(ns string, i int),
) ([]float64, int64) {
	GinkgoHelper()
	ended, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var done atomic.Int64
	var wg sync.WaitGroup
	for _, ns := range tenants {
		wg.Go(func() {
			defer GinkgoRecover()
			for i := 0; ended.Err() == nil; i++ {
				do(ns, i)
				done.Add(1)
			}
		})
	}
	took := k.keepsStarting(ctx, victim, name, during)
	wg.Wait()
	return took, done.Load()
}

// seedClaims makes the caches and the templates of an attacker.
func (k *kernelCaches) seedClaims(ctx context.Context, ns string, images map[int]string) {
	GinkgoHelper()
	limit := resource.MustParse("1Mi")
	for _, a := range seedAttacks() {
		var sources []v1alpha1.KernelCacheSource
		for i := range a.seeds {
			name := fmt.Sprintf("%s-%d", a.name, i)
			k.cache(ctx, ns, name, images[a.files], func(c *v1alpha1.GPUKernelCache) {
				c.Spec.Mount = &v1alpha1.CacheMount{
					Path: "/opt/" + name, Access: v1alpha1.CacheAccessSeed, WritableLimit: &limit, Env: v1alpha1.CacheEnvNone,
				}
			})
			sources = append(sources, v1alpha1.KernelCacheSource{Name: name})
		}
		k.claim(ctx, ns, a.name, sources...)
	}
}

// attackOnce starts a pod, waits until its claim is refused with the reason that is expected, or the pod runs, and deletes it.
func (k *kernelCaches) attackOnce(ctx context.Context, ns string, a seedAttack, i int) {
	GinkgoHelper()
	pod := newPod(ctx, ns, fmt.Sprintf("%s-%d", a.name, i), withTemplate(a.name), onNode(mixedNode))
	if a.says == "" {
		running(ctx, pod)
		if a.files > 0 && i < len(seedAttacks()) {
			Expect(inside(ctx, pod, main, "find /opt/fits-6/EMPTY -type l | wc -l")).To(Equal(fmt.Sprintln(a.files)))
		}
	} else {
		Eventually(ctx, func(g Gomega) {
			for _, claim := range claimsOf(ctx, pod) {
				g.Expect(fmt.Sprint(claim.Status.Devices)).To(ContainSubstring(a.says))
			}
		}).Should(Succeed())
	}
	Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})).To(Succeed())
	eventuallyGone(ctx, pod)
}

// starts runs a pod with a GPU and the cache, and deletes it.
func (k *kernelCaches) starts(ctx context.Context, ns, name string) {
	GinkgoHelper()
	pod := newPod(ctx, ns, name, withTemplate("gpu"), onNode(mixedNode))
	running(ctx, pod)
	remove(ctx, pod)
}

// keepsStarting runs pods for some time, three at once, and returns how many seconds the Prepare of each claim took.
func (k *kernelCaches) keepsStarting(ctx context.Context, ns, name string, during time.Duration) []float64 {
	GinkgoHelper()
	until := time.Now().Add(during)
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			defer GinkgoRecover()
			for more := true; more; more = time.Now().Before(until) {
				k.starts(ctx, ns, fmt.Sprintf("%s-%d", name, n.Add(1)))
			}
		})
	}
	wg.Wait()
	plugin, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	log, err := h.Logs(ctx, plugin.Namespace, plugin.Name, plugin.Spec.Containers[0].Name)
	Expect(err).NotTo(HaveOccurred())
	var out []float64
	for line := range strings.Lines(log) {
		if found := prepared.FindStringSubmatch(line); found != nil && found[1] == ns && strings.HasPrefix(found[2], name+"-") {
			seconds, err := strconv.ParseFloat(found[3], 64)
			Expect(err).NotTo(HaveOccurred())
			out = append(out, seconds)
		}
	}
	Expect(len(out)).To(BeNumerically(">=", n.Load()), "lines of the log for %d pods", n.Load())
	slices.Sort(out)
	return out
}

// prepared is the plugin's line of the log for a claim that it prepared.
var prepared = regexp.MustCompile(`"Prepared".* claim="([^/"]+)/([^"]+)".* seconds=([0-9.e+-]+)`)

// percentile returns the value below which so many of a hundred sorted values are.
func percentile(sorted []float64, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

func times(sorted []float64) string {
	ms := func(p int) float64 { return percentile(sorted, p) * 1000 }
	return fmt.Sprintf("n=%d p50=%.1fms p99=%.1fms max=%.1fms", len(sorted), ms(50), ms(99), ms(100))
}

// peakMemory returns the most memory that a pod or one of its containers had, in bytes, by either version of cgroups.
func peakMemory(ctx context.Context, uid string) string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, mixedNode, "sh", "-c", fmt.Sprintf(
		"find /sys/fs/cgroup/ -path '*%s/*' \\( -name memory.peak -o -name memory.max_usage_in_bytes \\) -exec cat {} + | sort -n | tail -1",
		strings.ReplaceAll(uid, "-", "?")))
	Expect(err).NotTo(HaveOccurred())
	return out
}
