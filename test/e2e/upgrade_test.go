// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

// previousCommit is a commit that divides and shares devices, runs MPS and brings drivers: what it wrote on nodes must be read and served
// for ever. Move it to a release once there is one.
const previousCommit = "fc8b91ac19d9c2df7e74f07b1f416b7c3d4ff0c4"

// previousVersion is the name that the suite gives to its build.
const previousVersion = "v0.0.0-previous"

// previous is the version before this one. Its chart takes the values of the suite.
type previous struct {
	chart string
}

// buildPrevious builds it from the repository's history, which CI must have.
func buildPrevious(ctx context.Context) previous {
	GinkgoHelper()
	chart, err := h.BuildCommit(ctx, previousCommit, previousVersion, filepath.Join(h.Cache, "e2e", "previous"))
	if errors.Is(err, harness.ErrNoHistory) && os.Getenv("CI") != "true" {
		Skip(fmt.Sprintf("upgrades are not tested: %v", err))
	}
	Expect(err).NotTo(HaveOccurred())
	return previous{chart: chart}
}

// install upgrades or downgrades to it.
func (p previous) install(ctx context.Context, v harness.Values) {
	GinkgoHelper()
	Expect(h.InstallChart(ctx, p.chart, v.Merge(h.ValuesOf(previousVersion)))).To(Succeed())
	eventuallyVersion(ctx, previousVersion)
}

// upgrades begins with the previous version on nodes on which this one has left nothing.
func upgrades() {
	var p previous

	BeforeAll(func(ctx SpecContext) {
		p = buildPrevious(ctx)
		eventuallyUnused(ctx)
		_, err := h.Uninstall(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
		for _, node := range h.NodeNames() {
			nothingOn(ctx, node)
		}
		p.install(ctx, values())
	}, NodeTimeout(h.Patient(15*time.Minute)))

	It("serves pods that come all the time, until 60 wait, while the chart is upgraded and rolled back, without a pause",
		later("two upgrades of a loaded cluster take minutes"),
		underLoad)

	It("serves what the version before prepared and stored, and the other way round",
		later("an upgrade between versions builds the version before"), func(ctx SpecContext) { bothWays(ctx, p) },
		SpecTimeout(h.Patient(15*time.Minute)))

	It("gives back what the version before divided, shared, bound and drove, and the other way round",
		later("an upgrade between versions builds the version before"), func(ctx SpecContext) { dividedBothWays(ctx, p) },
		SpecTimeout(h.Patient(15*time.Minute)))
}

// eventuallyUnused waits until no node has a prepared claim.
func eventuallyUnused(ctx context.Context) {
	GinkgoHelper()
	for _, node := range h.NodeNames() {
		Eventually(ctx, func(g Gomega) {
			accelerators, err := h.AcceleratorNode(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(accelerators.Status.PreparedClaims).To(BeZero())
		}, reconciled).Should(Succeed())
	}
}

// bothWays has each of the two versions take over from the other, on nodes with running pods.
func bothWays(ctx SpecContext, p previous) {
	f := simulateFPGAs(ctx)
	with := values().Merge(f.values())
	p.install(ctx, with)
	showBootID(ctx)
	regions := f.regions(ctx, newFPGAClass) // what the version before left on a card is of a name, which may be another namespace's by now
	say("the version before prepares claims of every sort")
	stays := regions.beside(ctx, "stays")
	overtaken := newOvertaken(ctx, regions)
	before := recorded(ctx)
	Expect(before).To(ContainSubstring("fettle.dev/common=n"), "names with a secret")

	say("upgrade")
	Expect(h.Install(ctx, with)).To(Succeed())
	eventuallyVersion(ctx, h.Version)
	stays.restart(ctx)
	Expect(recorded(ctx)).To(Equal(before), "no claim was prepared again")
	overtaken.served(ctx)
	stays.end(ctx) // its record does not tell its namespace from one of the same name, so nothing joins it on the card

	say("this version prepares claims of every sort, on what the version before left")
	stays = regions.beside(ctx, "stays-too")
	overtaken = newOvertaken(ctx, regions)
	before = recorded(ctx)
	Expect(before).To(ContainSubstring("fettle.dev/common=n"), "names with a secret")
	say("downgrade")
	Expect(h.Rollback(ctx, 0)).To(Succeed())
	eventuallyVersion(ctx, previousVersion)
	stays.restart(ctx)
	Expect(recorded(ctx)).To(Equal(before))
	overtaken.served(ctx)
	stays.end(ctx)
}

// recorded are the CDI names in the claims' records of all nodes, and when each record was written last.
func recorded(ctx context.Context) (all string) {
	GinkgoHelper()
	const script = `cd /var/lib/fettle/claims && for f in *.json; do
		[ ! -f "$f" ] || { stat -c '%n %i %y' "$f"; grep -ao 'fettle.dev/[a-z]*=[a-z0-9]*' "$f" | sort -u; }; done`
	for _, node := range h.NodeNames() {
		out, err := h.OnNode(ctx, node, "sh", "-c", script)
		Expect(err).NotTo(HaveOccurred())
		all += node + ":\n" + out
	}
	return all
}

// overtaken are pods whose claims one version prepared and another one serves.
type overtaken struct {
	*tenants
	region *region
	// programmings is how often the card was programmed before they were.
	programmings int
}

func newOvertaken(ctx context.Context, regions *regions) overtaken {
	GinkgoHelper()
	t := newTenants(ctx)
	newTemplate(ctx, t.namespace, "seeded", withKernelsBy(v1alpha1.CacheAccessSeed, spec(request("gpu", gpuClass))))
	seeded := t.add(ctx, "", "seeded", withTemplate("seeded"))
	seeded.kernels = true
	seeded.settle(ctx)
	t.right(ctx)
	held := regions.hold(ctx, "overtaken", 0)
	return overtaken{tenants: t, region: held, programmings: regions.programmings()}
}

// served expects that the pods run on, that their containers restart with what they had, also after the node did, that nothing is left of
// them, and that the store serves the next claim by itself.
func (o overtaken) served(ctx context.Context) {
	GinkgoHelper()
	say("pods run on")
	o.right(ctx)
	say("containers restart")
	for _, one := range o.all {
		crash(ctx, one.pod)
		one.restarted(ctx)
	}
	o.right(ctx)
	o.region.restarts(ctx)
	Expect(o.region.programmings()).To(Equal(o.programmings), "what was programmed was not programmed again")
	say("the node restarts")
	reboot(ctx, o.tenants)
	o.right(ctx)
	say("the claims are given back")
	o.leave(ctx)
	for _, one := range o.all {
		for _, claim := range one.claims {
			eventuallyForgotten(ctx, claim)
		}
	}
	o.region.end(ctx, o.region.pod)
	say("a cache that the other version fetched is given to the next claim, without a registry")
	kernels.Down.Store(true)
	defer kernels.Down.Store(false)
	next := newPod(ctx, o.namespace, "stored", withTemplate("pair"), onNode(gpuNode))
	running(ctx, next)
	Expect(inside(ctx, next, main, found)).To(Equal("3 at /opt/kernels\n"))
	remove(ctx, next)
}

// regions are the two ports of a card, which claims of one namespace may load with logic.
type regions struct {
	*fpgas
	namespace string
}

// regions makes the namespace, the templates and the class of the two ports. newClass says what the class accepts.
func (f *fpgas) regions(ctx context.Context, newClass func(context.Context, string, v1alpha1.FPGAPolicy)) *regions {
	GinkgoHelper()
	r := &regions{fpgas: f, namespace: newNamespace(ctx, nil)}
	stage(ctx, arriaInterface, openCL, "auto")
	staged(ctx, "e2e-upgrade", openCL, false, "*")
	newClass(ctx, "fpga-upgrade", open("e2e-upgrade"))
	for port := range 2 {
		c := named("e2e-upgrade")
		c.Program = v1alpha1.ProgramAlways
		claim := claimRegion("fpga-upgrade", port, c)
		tolerates(ctx, &claim, r.namespace)
		newTemplate(ctx, r.namespace, fmt.Sprintf("port%d", port), claim)
	}
	return r
}

// region is a port of the card that a pod holds.
type region struct {
	*regions
	pod  *corev1.Pod
	port int
}

// hold has a pod program a port.
func (r *regions) hold(ctx context.Context, name string, port int) *region {
	GinkgoHelper()
	before := r.programmings()
	pod := newPod(ctx, r.namespace, name, withTemplate(fmt.Sprintf("port%d", port)))
	running(ctx, pod)
	Expect(r.programmings()).To(Equal(before + 1))
	held := &region{regions: r, pod: pod, port: port}
	held.right(ctx)
	return held
}

// staying are pods whose claims are prepared by one version and end with the other.
type staying []*region

// beside has a pod hold the other port of the card, none where the API keeps no taints: the ports beside a held one are withheld there.
func (r *regions) beside(ctx context.Context, name string) staying {
	GinkgoHelper()
	if older {
		return nil
	}
	return staying{r.hold(ctx, name, 1)}
}

func (s staying) restart(ctx context.Context) {
	GinkgoHelper()
	for _, one := range s {
		one.restarts(ctx)
	}
}

func (s staying) end(ctx context.Context) {
	GinkgoHelper()
	for _, one := range s {
		one.end(ctx, one.pod)
	}
}

// right expects that the pod has its region, with what was programmed.
func (r *region) right(ctx context.Context) {
	GinkgoHelper()
	hasExactly(ctx, r.pod, main, devicesOf(results(onlyClaim(ctx, r.pod)))...)
	Expect(r.attribute(r.port, "afu_id")).To(Equal(openCL))
}

// restarts ends the container, and expects that the next one has the same.
func (r *region) restarts(ctx context.Context) {
	GinkgoHelper()
	r.right(ctx)
	restarted(ctx, r.pod)
	r.right(ctx)
}

// crash ends a pod's container from inside and waits until it runs again.
func crash(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	_, _ = h.Exec(ctx, pod.Namespace, pod.Name, main, "kill -TERM 1") // the connection ends with the container
	Eventually(ctx, func(g Gomega) {
		p, err := h.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Status.ContainerStatuses[0].RestartCount).To(BeEquivalentTo(1))
	}).Should(Succeed())
	running(ctx, pod)
}

// eventuallyVersion waits until one plugin of a version serves each node, and no other.
func eventuallyVersion(ctx context.Context, version string) {
	GinkgoHelper()
	for _, node := range h.NodeNames() {
		Eventually(ctx, func(g Gomega) {
			accelerators, err := h.AcceleratorNode(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(accelerators.Status.PluginVersion).To(Equal(version))
			_, err = h.PluginPod(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
		}).Should(Succeed())
	}
}

func underLoad(ctx SpecContext) {
	t := newTenants(ctx)
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	logs := followPlugins(ctx)
	stop := make(chan struct{})
	done := make(chan struct{})
	begin := time.Now()
	var created atomic.Int64
	go func() {
		defer GinkgoRecover()
		defer close(done)
		load(ctx, ns, stop, &created)
	}()
	// What a change of the version takes is this machine's: pods have to come and to run to their end during each.
	during := func(what string, change func()) {
		from := time.Now()
		was, ended := created.Load(), len(succeeded(ctx, ns))
		change()
		came, served := created.Load()-was, len(succeeded(ctx, ns))-ended
		tell("load", time.Since(from), fmt.Sprintf("%s: %d pods came, and %d ran to their end", what, came, served))
		Expect(came).To(BeNumerically(">", 0), "there was no load")
		Expect(served).To(BeNumerically(">", 0), "no pod was served")
	}
	during("the upgrade", func() {
		Expect(h.Install(ctx, values())).To(Succeed())
		eventuallyVersion(ctx, h.Version)
	})
	during("the way back", func() {
		Expect(h.Rollback(ctx, 0)).To(Succeed())
		eventuallyVersion(ctx, previousVersion)
	})
	close(stop)
	<-done
	Expect(created.Load()).To(BeNumerically(">=", 25))

	say("every pod ran to its end")
	Expect(h.Poll(ctx, "all pods to succeed", 6*time.Minute, func(ctx context.Context) error {
		return allSucceeded(ctx, ns, int(created.Load()))
	})).To(Succeed())
	tell("load", longestPause(ctx, ns),
		fmt.Sprintf("the longest pause between two containers' starts, in %.0f s", time.Since(begin).Seconds()))
	say("no Prepare failed")
	events, err := h.Kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, e := range events.Items {
		if e.Reason == "FailedPrepareDynamicResources" && !beforeUs(e.Message) {
			Fail("failed Prepare: " + e.InvolvedObject.Name + ": " + e.Message)
		}
	}
	say("old and new plugins served, and none refused")
	served := logs.end()
	Expect(served).To(HaveLen(3*len(h.NodeNames())), "old, new and old again on each node")
	versions := map[string]int{}
	for pod, text := range served {
		Expect(text).NotTo(ContainSubstring("refus"), pod)
		if strings.Contains(text, `"Prepared"`) {
			versions[versionIn(text)]++
		}
	}
	Expect(versions).To(And(HaveKey(h.Version), HaveKey(previousVersion)), "%v", versions)
	say("and the pods that ran all the time have what they had")
	t.right(ctx)
	t.leave(ctx)
}

// beforeUs is a failure of kubelet's before it called the plugin: the API server lets a node read a claim a moment after it bound
// the pod to the node (the node authorizer's graph is eventually consistent), and kubelet tries again.
func beforeUs(message string) bool {
	return strings.Contains(message, "no relationship found between node")
}

// longestPause is the longest time between the starts of two containers of a namespace in which none started.
func longestPause(ctx context.Context, namespace string) time.Duration {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	var starts []time.Time
	for i := range pods.Items {
		for j := range pods.Items[i].Status.ContainerStatuses {
			if ended := pods.Items[i].Status.ContainerStatuses[j].State.Terminated; ended != nil {
				starts = append(starts, ended.StartedAt.Time)
			}
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	var longest time.Duration
	for i := 1; i < len(starts); i++ {
		longest = max(longest, starts[i].Sub(starts[i-1]))
	}
	return longest
}

// mostLoad is how many pods of load may wait for their turn.
const mostLoad = 60

// load creates a pod every 200 ms until stop, as long as not too many wait for their turn, and counts them.
func load(ctx context.Context, namespace string, stop <-chan struct{}, created *atomic.Int64) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if len(unfinished(ctx, namespace, "")) < mostLoad {
			newPod(ctx, namespace, fmt.Sprintf("load-%d", created.Load()), withTemplate("gpu"), script("exit 0"), func(p *corev1.Pod) {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
			})
			created.Add(1)
		}
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// succeeded are the pods of a namespace that ran to their end.
func succeeded(ctx context.Context, namespace string) []corev1.Pod {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Succeeded"})
	Expect(err).NotTo(HaveOccurred())
	return pods.Items
}

func allSucceeded(ctx context.Context, namespace string, want int) error {
	pods, err := h.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	phases := map[corev1.PodPhase]int{}
	for i := range pods.Items {
		phases[pods.Items[i].Status.Phase]++
	}
	if phases[corev1.PodSucceeded] != want {
		return fmt.Errorf("pods by phase: %v, want %d to have succeeded", phases, want)
	}
	return nil
}

// versionIn is the version that a plugin's log says it starts as.
func versionIn(log string) string {
	_, after, _ := strings.Cut(log, `"Starting" version="`)
	version, _, _ := strings.Cut(after, `"`)
	return version
}

// followed are the logs of every plugin pod that was there at some time.
type followed struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	logs map[string]*bytes.Buffer
}

// followPlugins reads the logs of all plugin pods, those that come later too, until end.
func followPlugins(ctx context.Context) *followed {
	ctx, stop := context.WithCancel(ctx)
	f := &followed{stop: stop, logs: map[string]*bytes.Buffer{}}
	f.wg.Go(func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if pods, err := h.PluginPods(ctx, ""); err == nil {
				f.join(ctx, pods)
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	return f
}

func (f *followed) join(ctx context.Context, pods []corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range pods {
		p := &pods[i]
		if harness.PluginContainer(p).State.Running == nil || f.logs[p.Name] != nil {
			continue
		}
		f.logs[p.Name] = &bytes.Buffer{}
		f.wg.Go(func() { f.read(ctx, p.Name) })
	}
}

func (f *followed) read(ctx context.Context, pod string) {
	stream, err := h.Kube.CoreV1().Pods(harness.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true, Container: "plugin"}).Stream(ctx)
	if err != nil {
		return // its absence shows in the count
	}
	defer stream.Close()
	_, _ = io.Copy(writer(func(p []byte) (int, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.logs[pod].Write(p)
	}), stream)
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// end stops reading and returns the logs by pod.
func (f *followed) end() map[string]string {
	f.stop()
	f.wg.Wait()
	out := map[string]string{}
	for pod, text := range f.logs {
		out[pod] = text.String()
	}
	return out
}
