// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The chart's default values for memory (docs/user/install.md, "Budgets").
const (
	namespacePercent, nodePercent = 25, 50
	// defaultAdds is how much a claim may add to a cache whose object does not say.
	defaultAdds = 1 << 30
	// mostAdds is what one object may say at most.
	mostAdds = 16 << 30
	page     = 4096
)

// counted is what a limit counts in a budget: a quarter more.
func counted(bytes int64) int64 { return bytes + bytes/4 }

// limitFor is the largest limit of whole pages that counts as no more than this. Two pages more count as more.
func limitFor(budget int64) int64 { return budget / 5 * 4 / page * page }

// percentOfMemory is a part of this machine's memory, which is that of its nodes.
func percentOfMemory(percent int64) int64 {
	GinkgoHelper()
	var info unix.Sysinfo_t
	Expect(unix.Sysinfo(&info)).To(Succeed())
	return int64(info.Totalram) * int64(info.Unit) / 100 * percent
}

// budgets has claims ask for all of what the chart's own values leave to a namespace and to a node. Nothing is written, so it takes no
// memory.
func (k *kernelCaches) budgets(ctx SpecContext) {
	share, node := percentOfMemory(namespacePercent), percentOfMemory(nodePercent)
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/budget", "v1", mi300("budget"))
	create(ctx, "gpukernelcaches", ns, &v1alpha1.GPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: "add", Namespace: ns}, Spec: v1alpha1.GPUKernelCacheSpec{Image: k.Host + "/team/budget:v1"},
	})
	k.claim(ctx, ns, "cached", v1alpha1.KernelCacheSource{Name: "add"})
	usual := newPod(ctx, ns, "usual", withTemplate("cached"), onNode(mixedNode))
	running(ctx, usual)
	Expect(inside(ctx, usual, main, found)).To(Equal("3 at " + kernelHome + "\n"))
	Expect(inside(ctx, usual, main, "df -k $TRITON_CACHE_DIR | tail -n 1 | awk '{print $2}'")).To(Equal(fmt.Sprintln(defaultAdds / 1024)))

	say("the rest of the namespace's budget, and a little more")
	over := limitFor(share-counted(defaultAdds)) + 2*page
	rest := memoryPod(ctx, ns, "rest", over)
	overBudget(ctx, rest, "the claim needs %d bytes of memory to write to, and claims of namespace %s have %d of at most %d on this node",
		counted(over), ns, counted(defaultAdds), share)
	remove(ctx, usual)
	running(ctx, rest)
	Expect(inside(ctx, rest, main, "df -k /budget/0 | tail -n 1 | awk '{print $2}'")).To(Equal(fmt.Sprintln(split(over)[0] / 1024)))

	say("more than any namespace may have")
	never := limitFor(share) + 2*page
	overBudget(ctx, memoryPod(ctx, ns, "never", never),
		"the claim needs %d bytes of memory to write to, and a node gives at most %d: ask for less, or have the chart's budget.memory raised",
		counted(never), share)

	say("two namespaces have nearly all that the node gives, and a third one waits")
	second, third := newNamespace(ctx, nil), newNamespace(ctx, nil)
	all := limitFor(share)
	full := memoryPod(ctx, second, "full", all)
	running(ctx, full)
	left := limitFor(node-counted(over)-counted(all)) + 2*page
	late := memoryPod(ctx, third, "late", left)
	overBudget(ctx, late, "the claim needs %d bytes of memory to write to beside the 0 that claims of namespace %s have on this node, "+
		"and all claims together leave too little", counted(left), third)
	remove(ctx, full)
	running(ctx, late)

	say("what one object may say")
	mayAdd(ctx, ns, mostAdds, true)
	mayAdd(ctx, ns, mostAdds+1, false)
}

// split divides an amount of whole pages into equal parts, each of which one object may say.
func split(bytes int64) []int64 {
	parts := make([]int64, bytes/mostAdds+2)
	each := bytes / int64(len(parts)) / page * page
	for i := range parts {
		parts[i] = each
	}
	parts[len(parts)-1] = bytes - each*int64(len(parts)-1)
	return parts
}

// memoryPod starts a pod of the mixed node whose claim is given so much memory, by a preset for it alone.
func memoryPod(ctx context.Context, namespace, name string, bytes int64) *corev1.Pod {
	GinkgoHelper()
	var mounts []v1alpha1.PresetMount
	for i, part := range split(bytes) {
		mounts = append(mounts, v1alpha1.PresetMount{
			ContainerPath: fmt.Sprintf("/budget/%d", i), Scratch: &v1alpha1.PresetScratch{SizeLimit: fmt.Sprint(part)},
		})
	}
	create(ctx, "devicepresets", namespace, presetOfPods(namespace, name, mounts...))
	newTemplate(ctx, namespace, name, spec(request("gpu", gpuClass, where(onVendor("amd")))))
	return newPod(ctx, namespace, name, withTemplate(name), onNode(mixedNode), labelled(name))
}

// overBudget waits until a pod's claim is refused for the budget, in these words.
func overBudget(ctx context.Context, pod *corev1.Pod, words string, values ...any) {
	GinkgoHelper()
	eventuallyRefused(ctx, pod, "OverBudget", fmt.Sprintf(words, values...))
	staysPending(ctx, pod)
}

// mayAdd says whether the API server takes a cache and a preset with a limit.
func mayAdd(ctx context.Context, namespace string, bytes int64, may bool) {
	GinkgoHelper()
	name := fmt.Sprint("limit-", bytes)
	_, err := tryCreate(ctx, "gpukernelcaches", namespace, &v1alpha1.GPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.GPUKernelCacheSpec{
			Image: kernels.Host + "/team/budget:v1",
			Mount: &v1alpha1.CacheMount{WritableLimit: resource.NewQuantity(bytes, resource.BinarySI)},
		},
	})
	_, errPreset := tryCreate(ctx, "devicepresets", namespace, presetOfPods(namespace, name, v1alpha1.PresetMount{
		ContainerPath: "/budget", Scratch: &v1alpha1.PresetScratch{SizeLimit: fmt.Sprint(bytes)},
	}))
	if may {
		Expect(err).NotTo(HaveOccurred())
		Expect(errPreset).NotTo(HaveOccurred())
		return
	}
	for field, err := range map[string]error{"spec.mount.writableLimit": err, "spec.mounts[].scratch.sizeLimit": errPreset} {
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(strings.Contains(err.Error(), field+" must be at most 16Gi, which is the limit of this cluster")).To(BeTrue(), err.Error())
	}
}
