// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

const (
	// somePods is how many random pods there are where PODS does not say another number, livePods how many at a time.
	somePods, livePods = 500, 30
	// tellDevices is what a random pod prints of its devices before it stays.
	tellDevices = `env | grep ^FETTLE_MIG_UUID_; ls /dev | grep -E '^nvidia[0-9]+$'; echo told; ` + stay
)

// randomRun is what is known of the pods of a run.
type randomRun struct {
	g         *dividedGPUs
	namespace string
	random    *rand.Rand
	made      int
	// running are the pods that were seen to have their device, by name: what ends their process.
	running map[string]func()
	seen    int
}

// randomPods has pods ask for instances of two sizes and for whole GPUs, more than there is room for, and deletes some all the time. The
// simulator tells whether two have the same slices: by what is in its cards, and by what it had to refuse.
func (g *dividedGPUs) randomPods(ctx SpecContext) {
	needsCounters()
	total := somePods
	if text := os.Getenv("PODS"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		Expect(err).NotTo(HaveOccurred())
	}
	newPolicy(ctx, gpuNode, "e2e-random", dynamicMIG())
	for i := range g.look().Cards {
		eventuallyPublishes(ctx, gpuNode, wholeName(g.address(i)), migName(g.address(i), small, 0))
	}
	ns := newNamespace(ctx, nil)
	classes := []string{smallClass, smallClass, smallClass, halfClass, halfClass, wholeClass}
	for _, class := range []string{smallClass, halfClass, wholeClass} {
		newTemplate(ctx, ns, class, spec(request("gpu", class, where(onVendor("nvidia")))))
	}
	Expect(g.Script()).To(Succeed())
	begin := time.Now()
	r := &randomRun{g: g, namespace: ns, running: map[string]func(){}, random: bySeed()}
	const limit = 20 * time.Minute
	most := 0
	for deadline := begin.Add(h.Patient(limit)); r.seen < total; {
		Expect(time.Now()).To(BeTemporally("<", deadline), "%d of %d pods got a device", r.seen, total)
		pods := r.look(ctx)
		most = max(most, len(g.occupied()))
		for len(pods) < livePods && r.made < total {
			pods = append(pods, *r.create(ctx, classes[r.random.IntN(len(classes))]))
		}
		r.deleteSome(ctx)
		pause(ctx, 100*time.Millisecond) // pods come and go in the meantime
	}
	for len(r.running) > 0 {
		r.deleteSome(ctx)
	}
	Eventually(ctx, g.occupied).Should(BeEmpty())
	s := g.look()
	Expect(s.Refused).To(BeEmpty(), "the scheduler gave what was not free")
	made := 0
	for _, change := range s.Changes {
		if strings.HasPrefix(change, "Device.CreateGpuInstance") {
			made++
		}
	}
	AddReportEntry("random pods", fmt.Sprintf("%d pods in %.0f s, %d instances made, at most %d at a time, %d changes of the library",
		total, time.Since(begin).Seconds(), made, most, len(s.Changes)))
}

// create makes a pod that wants a device of a class.
func (r *randomRun) create(ctx context.Context, class string) *corev1.Pod {
	GinkgoHelper()
	r.made++
	return newPod(ctx, r.namespace, fmt.Sprintf("random-%d", r.made), withTemplate(class), onNode(gpuNode), script(tellDevices))
}

// look checks the cards, and of each pod that has begun to run that it is the only one with its device. It returns all pods.
func (r *randomRun) look(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	list, err := h.Kube.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i := range list.Items {
		pod := &list.Items[i]
		Expect(pod.Status.Phase).NotTo(Equal(corev1.PodFailed), pod.Name)
		if _, known := r.running[pod.Name]; known || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		if told, ok := logOf(ctx, pod); ok {
			r.running[pod.Name] = r.g.startProcess(told)
			r.seen++
		}
	}
	r.g.disjoint()
	return list.Items
}

// logOf is what a pod has told of its devices; ok is false before it has told all.
func logOf(ctx context.Context, pod *corev1.Pod) (told []string, ok bool) {
	GinkgoHelper()
	text, err := h.Kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return nil, false // its log may not be there yet
	}
	told = lines(string(text))
	return told, slices.Contains(told, "told")
}

// startProcess has a process use what a container has: an instance, known by its UUID, or a whole card, known by its node. Nothing else may
// use it. The function that it returns ends the process.
func (g *dividedGPUs) startProcess(told []string) func() {
	GinkgoHelper()
	uuid, node := "", ""
	for _, line := range told {
		if name, value, ok := strings.Cut(line, "="); ok && strings.HasPrefix(name, mig.VariablePrefix) {
			Expect(uuid).To(BeEmpty(), "%v", told)
			uuid = value
		} else if strings.HasPrefix(line, "nvidia") {
			Expect(node).To(BeEmpty(), "%v", told)
			node = line
		}
	}
	end := func() {}
	Expect(g.Change(func(s *nvmlsim.State) error {
		card := slices.IndexFunc(s.Cards, func(c *nvmlsim.Card) bool { return node == fmt.Sprintf("nvidia%d", c.Minor) })
		if card < 0 {
			return fmt.Errorf("%v: no card has node %q", told, node)
		}
		c := s.Cards[card]
		if uuid == "" {
			end = func() { Expect(g.Use(card, -1)).To(Succeed()) }
			if c.Clients > 0 || c.MIG || len(c.Instances) > 0 {
				return fmt.Errorf("%s was given whole, and is used already: %+v", node, *c)
			}
			c.Clients++
			return nil
		}
		end = func() { Expect(g.Hold(uuid, -1)).To(Succeed()) }
		for _, one := range c.Instances {
			for _, compute := range one.Compute {
				if compute.UUID == uuid && compute.Processes == 0 {
					compute.Processes++
					return nil
				}
			}
		}
		return fmt.Errorf("%s has no unused instance %s", node, uuid)
	})).To(Succeed())
	return end
}

// disjoint expects that no two instances of a card share a memory slice, and that a card which is used whole has none.
func (g *dividedGPUs) disjoint() {
	GinkgoHelper()
	for i, c := range g.look().Cards {
		taken := map[uint32]bool{}
		for _, one := range c.Instances {
			Expect(c.Clients).To(BeZero(), "card %d is used whole and has %+v", i, *one)
			for slice := one.Start; slice < one.Start+one.Size; slice++ {
				Expect(taken[slice]).To(BeFalse(), "card %d: slice %d", i, slice)
				Expect(slice).To(BeNumerically("<", memorySlices))
				taken[slice] = true
			}
		}
	}
}

// deleteSome deletes about a third of the pods that were seen to run. Their processes end first.
func (r *randomRun) deleteSome(ctx context.Context) {
	GinkgoHelper()
	names := slices.Sorted(maps.Keys(r.running))
	for _, name := range names {
		if r.random.IntN(3) > 0 {
			continue
		}
		r.running[name]()
		delete(r.running, name)
		Expect(h.Kube.CoreV1().Pods(r.namespace).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	}
}
