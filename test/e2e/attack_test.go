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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
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

// attacker is a tenant who wants the programs of Fettle to end, in a namespace of his own.
type attacker struct {
	namespace string
	// once is done again and again, and ends within a minute or so.
	once func(ctx context.Context, ns string, i int)
}

// attackers have all that they need.
func (k *kernelCaches) attackers(ctx context.Context) []attacker {
	GinkgoHelper()
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
	seeds := func(ctx context.Context, ns string, i int) {
		k.attackOnce(ctx, ns, seedAttacks()[i%len(seedAttacks())], i)
	}
	all := []attacker{{once: seeds}, {once: seeds}, {once: manyPresets}, {once: k.presetsAndPods}, {once: connections}}
	for i := range all {
		all[i].namespace = newNamespace(ctx, nil)
		k.seedClaims(ctx, all[i].namespace, images)
		newTemplate(ctx, all[i].namespace, plainClaim, spec(request("gpu", gpuClass)))
	}
	return all
}

// attacked has tenants do at once, again and again, what ended a program in a second review: claims that want more memory than the plugin
// has, many large presets, with and without pods, and pods that take all connections. No program starts again, and another tenant's claims
// are prepared. With ATTACK=10m they take no more than twice as long as while the same tenants start pods that ask for nothing special: how
// busy a machine is with pods is not what the attack is about.
func (k *kernelCaches) attacked(ctx SpecContext) {
	victim := newNamespace(ctx, nil)
	k.push(k.Registry, "team/victim", "v1", mi300("victim"))
	k.cache(ctx, victim, "add", k.Host+"/team/victim:v1")
	k.claim(ctx, victim, "gpu", v1alpha1.KernelCacheSource{Name: "add"})
	k.starts(ctx, victim, "first") // which fetches the cache
	attackers := k.attackers(ctx)
	before, plugin := restarts(ctx), pluginOf(ctx, mixedNode)
	long := attackFor() >= time.Minute
	var quiet, busy []float64
	if long {
		say("nobody else starts pods")
		quiet = k.keepsStarting(ctx, victim, "quiet", attackFor()/5)
		say("the tenants start pods")
		busy, _ = k.beside(ctx, victim, "busy", attackFor(), attackers, func(a attacker, i int) {
			k.attackOnce(ctx, a.namespace, seedAttack{name: plainClaim}, i)
		})
	}

	say("they attack for %s", attackFor())
	during, attempts := k.beside(ctx, victim, "during", attackFor(), attackers, func(a attacker, i int) { a.once(ctx, a.namespace, i) })
	Expect(restarts(ctx)).To(Equal(before), "how often the containers of Fettle started again")
	tell("attack", attackFor(), fmt.Sprintf(
		"%d attempts; others' Prepare: %s alone, %s beside plain pods, %s meanwhile; most memory of the plugin: %s",
		attempts, times(quiet), times(busy), times(during), strings.TrimSpace(peakMemory(ctx, string(plugin.UID)))))
	if long {
		Expect(percentile(during, 99)).To(BeNumerically("<=", 2*percentile(busy, 99)), "p99 of the other tenant's Prepares in seconds")
	}
}

func pluginOf(ctx context.Context, node string) *corev1.Pod {
	GinkgoHelper()
	pod, err := h.PluginPod(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// restarts counts how often each container of Fettle started again, by pod and container.
func restarts(ctx context.Context) map[string]int32 {
	GinkgoHelper()
	out := map[string]int32{}
	for _, pod := range fettlePods(ctx) {
		for _, c := range pod.Status.ContainerStatuses {
			out[pod.Name+"/"+c.Name] = c.RestartCount
		}
	}
	return out
}

func fettlePods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	return pods.Items
}

// largestPreset has as many bytes of values as a preset may have.
func largestPreset(ns, name string) *v1alpha1.DevicePreset {
	preset := presetOfPods(ns, name)
	preset.Spec.PodSelector = nil
	for i := range v1alpha1.MaxPresetEnv >> 14 {
		preset.Spec.Env = append(preset.Spec.Env, v1alpha1.PresetEnv{
			Name: fmt.Sprintf("V%d_%s", i, strings.ReplaceAll(name, "-", "_")), Value: new(strings.Repeat("\U0001f4a3", 4096-1)),
		})
	}
	return preset
}

// createPreset makes a preset that goes with its namespace.
func createPreset(ctx context.Context, preset *v1alpha1.DevicePreset) {
	GinkgoHelper()
	_, err := tryCreate(ctx, "devicepresets", preset.Namespace, preset)
	Expect(err).NotTo(HaveOccurred())
}

// manyPresets makes twice as many large presets as a namespace may have, and deletes them.
func manyPresets(ctx context.Context, ns string, i int) {
	GinkgoHelper()
	for n := range 2 * v1alpha1.MaxPresets {
		createPreset(ctx, largestPreset(ns, fmt.Sprintf("p-%d-%d", i, n)))
	}
	Expect(h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("devicepresets")).Namespace(ns).
		DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})).To(Succeed())
}

// presetsAndPods has pods whose claims a hundred large presets are for.
func (k *kernelCaches) presetsAndPods(ctx context.Context, ns string, i int) {
	GinkgoHelper()
	if i == 0 {
		for n := range 100 {
			createPreset(ctx, largestPreset(ns, fmt.Sprintf("p-%d", n)))
		}
	}
	k.attackOnce(ctx, ns, seedAttack{name: plainClaim, says: "delete some"}, i)
}

// connect keeps as many connections open as a program serves of strangers, to each of some addresses. A half say nothing, the other half
// begin to speak HTTP/2.
const connect = `
mkfifo /tmp/never; exec 9<>/tmp/never
while :; do
	for to in %s; do
		for i in $(seq 32); do
			nc "${to%%:*}" "${to##*:}" <&9 >/dev/null 2>&1 &
			{ printf 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\000\000\000\004\000\000\000\000\000'; cat <&9; } |
				nc "${to%%:*}" "${to##*:}" >/dev/null 2>&1 &
		done
	done
	sleep 20
	kill $(jobs -p) 2>/dev/null; wait
done`

// connections has four pods, two on each node, connect to every port of Fettle, for a minute.
func connections(ctx context.Context, ns string, i int) {
	GinkgoHelper()
	var ports []string
	for _, pod := range fettlePods(ctx) {
		for _, c := range pod.Spec.Containers {
			for _, port := range c.Ports {
				ports = append(ports, fmt.Sprintf("%s:%d", pod.Status.PodIP, port.ContainerPort))
			}
		}
	}
	Expect(ports).NotTo(BeEmpty())
	var pods []*corev1.Pod
	for n, node := range []string{gpuNode, gpuNode, mixedNode, mixedNode} {
		to := script(fmt.Sprintf(connect, strings.Join(ports, " ")))
		pods = append(pods, newPod(ctx, ns, fmt.Sprintf("connect-%d-%d", i, n), onNode(node), to))
	}
	for _, pod := range pods {
		running(ctx, pod)
	}
	select {
	case <-ctx.Done():
	case <-time.After(min(attackFor(), time.Minute)):
	}
	for _, pod := range pods {
		remove(ctx, pod)
	}
}

// beside has every tenant do something again and again, and starts a victim's pods meanwhile. It returns what keepsStarting does, and how
// often something was done.
func (k *kernelCaches) beside(
	ctx context.Context, victim, name string, during time.Duration, tenants []attacker, do func(a attacker, i int),
) ([]float64, int64) {
	GinkgoHelper()
	ended, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var done atomic.Int64
	var wg sync.WaitGroup
	for _, a := range tenants {
		wg.Go(func() {
			defer GinkgoRecover()
			for i := 0; ended.Err() == nil; i++ {
				do(a, i)
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
