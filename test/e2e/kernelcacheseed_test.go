// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/signed"
)

// seeded does in both places of a cache what programs do there: a hit, a miss, a write to a file of the store and one put in its place.
const seeded = `for TRITON_CACHE_DIR in "$TRITON_CACHE_DIR" /cache; do ` + found + `
	file=` + signed.TritonFile + `
	[ -L $file ] && cat $file && echo
	mkdir MISSED && echo own > MISSED/kernel && cat MISSED/kernel
	(echo over > $file) 2>&1 | grep -o "Read-only file system"
	echo replaced > MISSED/new && mv -f MISSED/new $file && cat $file
done`

func (k *kernelCaches) seeds(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/seeds", "v1", mi300("seeds"))
	k.cache(ctx, ns, "home", k.Host+"/team/seeds:v1")
	k.cache(ctx, ns, "elsewhere", k.Host+"/team/seeds:v1", func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Mount = &v1alpha1.CacheMount{Path: "/cache", Env: v1alpha1.CacheEnvNone}
	})
	k.claim(ctx, ns, "unsaid", v1alpha1.KernelCacheSource{Name: "home"}, v1alpha1.KernelCacheSource{Name: "elsewhere"})
	const seed = v1alpha1.CacheAccessSeed
	k.claim(ctx, ns, "said",
		v1alpha1.KernelCacheSource{Name: "home", Access: seed}, v1alpha1.KernelCacheSource{Name: "elsewhere", Access: seed})
	mapped := newPod(ctx, ns, "mapped", withTemplate("unsaid"), userNamespace)
	user := newPod(ctx, ns, "user", withTemplate("said"), asUser)
	var want strings.Builder
	for _, dir := range []string{kernelHome, "/cache"} {
		want.WriteString("3 at " + dir + "\n" + signed.TritonText + "\nown\nRead-only file system\nreplaced\n")
	}
	running(ctx, mapped)
	Expect(inside(ctx, mapped, main, seeded)).To(Equal(want.String()))
	running(ctx, user)
	Expect(inside(ctx, user, main, seeded)).To(Equal(want.String()), "which sees nothing of what the other wrote")

	say("gone with the pods")
	remove(ctx, mapped)
	remove(ctx, user)
	Eventually(ctx, func() (string, error) {
		return h.OnNode(ctx, mixedNode, "sh", "-c", "grep -c '/var/lib/fettle/mounts/.*-files' /proc/self/mountinfo || true")
	}).Should(Equal("0\n"))
}
