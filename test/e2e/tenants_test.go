// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

// tenants are pods of the GPU node that hold something of every sort, and must not notice what happens around them.
type tenants struct {
	namespace string
	all       []*tenant
	// incidents are those of before.
	incidents map[string]int
	// arrived is how often pods have begun to come.
	arrived int
}

// tenant is one pod and what it was given.
type tenant struct {
	pod *corev1.Pod
	// container is the id of its container, as in the pod's status.
	container string
	// claims are as they were when the pod started, by their names in the pod.
	claims  map[string]*resourceapi.ResourceClaim
	devices []owned
	// dir is where the pod sees the directory that was lent to it. Empty: none.
	dir string
	// kernels says that the pod has a kernel cache.
	kernels bool
}

// marksDir is a directory of the node in which containers write down which GPUs they have. It is where a node has its own: clusters that
// run side by side share the machine's other directories.
const marksDir = "/var/lib/kubelet/fettle-e2e-marks"

// mark is how a container sees for itself that nobody else has its GPUs: it writes its name into a file for each, and looks again and
// again whether that is what it says. A name that it finds in its place is of somebody who has the GPU, too, and it writes its own again,
// so that both know. The name of a container that ended, however that came, is nobody's.
const mark = `
sign() { echo "$HOLDER" > "$1.$HOSTNAME" && mv "$1.$HOSTNAME" "$1"; }
alone() {
	for n in /dev/nvidia[0-9]*; do
		m=/marks/${n##*/}
		if [ -e "$n" ] && [ "$(cat "$m")" != "$HOLDER" ]; then echo "$n is held by $(cat "$m")" >> /tmp/wrong; sign "$m"; fi
	done
	[ ! -e /tmp/wrong ]
}
for n in /dev/nvidia[0-9]*; do [ ! -e "$n" ] || sign "/marks/${n##*/}"; done
touch /tmp/marked
`

const (
	// stayMarked is for containers that stay and end at once when they are asked to.
	stayMarked = `trap 'exit 0' TERM; while :; do alone; sleep 1 & wait $!; done`
	// passMarked is for those that use their device for longer than the others sleep. Where it is not all theirs they never end.
	passMarked = `bad=$( ` + openNodes + ` ); [ -z "$bad" ] || { echo "$bad"; exec sleep 3600; }
sleep 1.5; alone || { cat /tmp/wrong; exec sleep 3600; }`
)

// marking has a pod's container mark its GPUs and run a script. Pods that share a claim mark in the claim's name.
func marking(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		holder := p.Namespace + "/" + p.Name
		for _, c := range p.Spec.ResourceClaims {
			if c.ResourceClaimName != nil {
				holder = p.Namespace + "/claim/" + *c.ResourceClaimName
			}
		}
		made := corev1.HostPathDirectoryOrCreate
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "marks", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: marksDir, Type: &made},
		}})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "marks", MountPath: "/marks"})
		c.Env = append(c.Env, corev1.EnvVar{Name: "HOLDER", Value: holder})
		c.Command = []string{"sh", "-c", mark + text}
	}
}

// newTenants starts the pods on a node where nobody holds anything.
func newTenants(ctx context.Context) *tenants {
	GinkgoHelper()
	eventuallyIdle(ctx)
	t := &tenants{namespace: newNamespace(ctx, nil), incidents: incidents(ctx)}
	presetForTenants(ctx, t.namespace)
	newTemplate(ctx, t.namespace, "gpu", spec(request("gpu", gpuClass)))
	newTemplate(ctx, t.namespace, "pair", withKernels(spec(request("pair", gpuClass, count(2)))))
	newTemplate(ctx, t.namespace, "solo", spec(request("disk", hostClass, where(onProduct("solo")))))
	newTemplate(ctx, t.namespace, "placed", placedDisk())
	newClaim(ctx, t.namespace, "shared", withKernels(spec(request("gpu", gpuClass))))
	kernelsForTenants(ctx, t.namespace)
	t.add(ctx, "", "pair", withTemplate("pair")).kernels = true
	t.add(ctx, "", "first", withClaim("shared")).kernels = true
	t.add(ctx, "", "second", withClaim("shared")).kernels = true
	t.add(ctx, "/scratch/ssd2", "both", withTemplate("gpu"), withTemplate("solo"))
	t.add(ctx, "/data/fast", "placed", withTemplate("placed"))
	for _, one := range t.all {
		one.settle(ctx)
	}
	return t
}

// presetForTenants has who holds a GPU be given something of each sort that a preset may keep for one claim.
func presetForTenants(ctx context.Context, namespace string) {
	GinkgoHelper()
	file := ofTeams("tenants/file")
	Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
	Expect(os.WriteFile(file, []byte("of the team\n"), 0o644)).To(Succeed())
	preset := presetOfPods(namespace, "tenants",
		v1alpha1.PresetMount{HostPath: teamFiles + "/tenants", ContainerPath: "/opt/team"},
		v1alpha1.PresetMount{ContainerPath: "/opt/memory", Scratch: &v1alpha1.PresetScratch{SizeLimit: "1Mi"}})
	preset.Spec.PodSelector = nil
	preset.Spec.Env = []v1alpha1.PresetEnv{{Name: "OF_PRESET", Value: new("given")}}
	create(ctx, "devicepresets", namespace, preset)
}

// kernelsForTenants makes a kernel cache, which the simulated GPUs do not run: what counts is that it stays where it is.
func kernelsForTenants(ctx context.Context, namespace string) {
	GinkgoHelper()
	kernels.push(kernels.Registry, "team/tenants", "v1", mi300("of the tenants\n"))
	kernels.cache(ctx, namespace, "tenants", kernels.Host+"/team/tenants:v1", func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Compatibility = &v1alpha1.CacheCompatibility{OnMismatch: v1alpha1.CacheMismatchMount}
	})
}

// withKernels is a claim that is given them.
func withKernels(s resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	GinkgoHelper()
	return withKernelsBy("", s)
}

// withKernelsBy is a claim that is given them with an access of its own choice.
func withKernelsBy(access v1alpha1.CacheAccess, s resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	GinkgoHelper()
	source := v1alpha1.KernelCacheSource{Name: "tenants", MountPath: "/opt/kernels", Access: access}
	s.Devices.Config = append(s.Devices.Config, objects.Config(v1alpha1.DriverName, cacheConfig(source)))
	return s
}

// named is one of the tenants.
func (t *tenants) named(name string) *tenant {
	GinkgoHelper()
	i := slices.IndexFunc(t.all, func(one *tenant) bool { return one.pod.Name == name })
	Expect(i).To(BeNumerically(">=", 0))
	return t.all[i]
}

// forget no longer expects anything of one of the tenants.
func (t *tenants) forget(one *tenant) {
	t.all = slices.DeleteFunc(t.all, func(other *tenant) bool { return other == one })
}

// placedDisk asks for one of two disks at a path of the claim's own, which takes a CDI file of the claim's own.
func placedDisk() resourceapi.ResourceClaimSpec {
	s := spec(request("disk", hostClass, where(onProduct("ssd"))))
	s.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		objects.Config("fettle.dev", config("HostConfig", `"mountPath":"/data/fast"`), "disk"),
	}
	return s
}

func (t *tenants) add(ctx context.Context, dir, name string, modify ...func(*corev1.Pod)) *tenant {
	GinkgoHelper()
	one := &tenant{pod: newPod(ctx, t.namespace, name, append(modify, onNode(gpuNode), marking(stayMarked))...), dir: dir}
	t.all = append(t.all, one)
	return one
}

// settle waits until the pod runs, notes what it has, and leaves a file in its container and one in its directory.
func (t *tenant) settle(ctx context.Context) {
	GinkgoHelper()
	running(ctx, t.pod)
	pod, err := h.Kube.CoreV1().Pods(t.pod.Namespace).Get(ctx, t.pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	t.container, t.claims = pod.Status.ContainerStatuses[0].ContainerID, claimsOf(ctx, t.pod)
	for _, name := range slices.Sorted(maps.Keys(t.claims)) {
		t.devices = append(t.devices, devicesOf(results(t.claims[name]))...)
	}
	if t.dir != "" {
		Expect(inside(ctx, t.pod, main, "ls -A "+t.dir+"; echo "+t.pod.Name+" > "+t.dir+"/name")).To(BeEmpty(), "nobody left anything")
	}
	t.restarted(ctx)
}

// hasFile says whether a CDI file is of one of the pod's claims.
func (t *tenant) hasFile(path string) bool {
	for _, claim := range t.claims {
		if strings.Contains(path, string(claim.UID)) {
			return true
		}
	}
	return false
}

// eventually waits until a container can be entered and has exactly some files of those that tell how it fares.
func (t *tenant) eventually(ctx context.Context, files string) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the container of pod "+t.pod.Name, soon, func(ctx context.Context) error {
		out, err := h.Exec(ctx, t.pod.Namespace, t.pod.Name, main, "cd /tmp; ls -d before marked wrong 2>/dev/null; cat wrong 2>/dev/null; true")
		if err != nil {
			return err
		}
		if out != files {
			return fmt.Errorf("has %q, want %q", out, files)
		}
		return nil
	})).To(Succeed())
}

// restarted waits until the container is a new one, and leaves a file that the next one will not have.
func (t *tenant) restarted(ctx context.Context) {
	GinkgoHelper()
	t.eventually(ctx, "marked\n")
	running(ctx, t.pod)
	inside(ctx, t.pod, main, "touch /tmp/before")
}

// right expects that every pod has what it had, in the same container, that its claims say so, and that nobody else has any of it.
func (t *tenants) right(ctx context.Context) {
	GinkgoHelper()
	for _, one := range t.all {
		one.right(ctx)
	}
	noDeviceTwice(ctx)
	for reason, n := range incidents(ctx) {
		Expect(n).To(Equal(t.incidents[reason]), "%s: nothing happened to a claim that an admin must know", reason)
	}
}

func (t *tenant) right(ctx context.Context) {
	GinkgoHelper()
	t.eventually(ctx, "before\nmarked\n")
	pod, err := h.Kube.CoreV1().Pods(t.pod.Namespace).Get(ctx, t.pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(pod.UID).To(Equal(t.pod.UID))
	for name, now := range claimsOf(ctx, t.pod) {
		Expect(now.UID).To(Equal(t.claims[name].UID))
		Expect(now.Status.Allocation).To(Equal(t.claims[name].Status.Allocation))
		for _, d := range now.Status.Devices {
			Expect(meta.IsStatusConditionFalse(d.Conditions, "Prepared")).To(BeFalse(), "claim %s: %v", now.Name, d.Conditions)
		}
	}
	if slices.ContainsFunc(t.devices, func(d owned) bool { return d.Kind == "gpu" }) {
		hasExactly(ctx, t.pod, main, t.devices...)
		Expect(inside(ctx, t.pod, main, `echo "$OF_PRESET"; cat /opt/team/file; echo > /opt/memory/file; stat -f -c %T /opt/memory`)).
			To(Equal("given\nof the team\ntmpfs\n"))
	} else {
		Expect(inside(ctx, t.pod, main, listNodes)).To(BeEmpty())
	}
	if t.kernels {
		Expect(inside(ctx, t.pod, main, "cd $TRITON_CACHE_DIR; pwd; cat TEXT/text; touch own; "+found)).
			To(Equal("/opt/kernels\nof the tenants\n3 at /opt/kernels\n"))
	}
	if t.dir != "" {
		Expect(inside(ctx, t.pod, main, "cat "+t.dir+"/name; stat -c %a "+t.dir+"; grep -c ' "+t.dir+" ' /proc/self/mountinfo")).
			To(Equal(t.pod.Name + "\n1777\n1\n"))
	}
}

// leave ends the pods and expects that nothing of them is left, for the next pod either.
func (t *tenants) leave(ctx context.Context) {
	GinkgoHelper()
	for _, one := range t.all {
		Expect(h.Kube.CoreV1().Pods(t.namespace).Delete(ctx, one.pod.Name, metav1.DeleteOptions{})).To(Succeed())
	}
	for _, one := range t.all {
		eventuallyGone(ctx, one.pod)
	}
	eventuallyIdle(ctx)
	next := newPod(ctx, t.namespace, "next", withTemplate("solo"), withTemplate("placed"), onNode(gpuNode))
	running(ctx, next)
	Expect(inside(ctx, next, main, "ls -A /scratch/ssd2 /data/fast")).To(Equal("/data/fast:\n\n/scratch/ssd2:\n"))
	Expect(h.Kube.CoreV1().Pods(t.namespace).Delete(ctx, next.Name, metav1.DeleteOptions{})).To(Succeed())
}

// noDeviceTwice expects that the API knows no device that two claims have been allocated, but for a look.
func noDeviceTwice(ctx context.Context) {
	GinkgoHelper()
	claims, err := h.Kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	holders := map[string]string{}
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess == nil || !*r.AdminAccess {
				Expect(holders).NotTo(HaveKey(r.Pool+"/"+r.Device), "also claim %s/%s", c.Namespace, c.Name)
				holders[r.Pool+"/"+r.Device] = c.Namespace + "/" + c.Name
			}
		}
	}
}

// incidents are what the plugin of the GPU node has counted since it started that an admin must know, by reason.
func incidents(ctx context.Context) map[string]int {
	GinkgoHelper()
	out := map[string]int{}
	Eventually(ctx, func(g Gomega) {
		plugin, err := h.PluginPod(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		metrics, err := h.Metrics(ctx, plugin.Name)
		g.Expect(err).NotTo(HaveOccurred())
		for _, reason := range []string{"RecordDamaged", "RecordForeign", "RecoveryFailed", "ClaimCollected"} {
			if n, ok := metrics[fmt.Sprintf("fettle_claim_incidents_total{reason=%q}", reason)]; ok {
				out[reason], err = strconv.Atoi(n)
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
	}).Should(Succeed())
	return out
}

// eventuallyIdle waits until no claim holds anything on the GPU node: no record, no device, no file of a claim's own, no content in
// a directory that is emptied, and nothing in AcceleratorNode.
func eventuallyIdle(ctx context.Context) {
	GinkgoHelper()
	const script = `cd /var/lib/fettle && find claims owners damaged ! -type d
		[ ! -d mounts ] || find mounts -mindepth 1 ! -path 'mounts/trees*'; ` + idleAside + `grep -o ' /var/lib/fettle/mounts/[^ ]*'
		find /var/run/cdi -name '*fettle.dev-claim*'; find /mnt/disks/ssd[012] -mindepth 1`
	Expect(h.Poll(ctx, "the end of all claims on "+gpuNode, reconciled, func(ctx context.Context) error {
		out, err := h.OnNode(ctx, gpuNode, "sh", "-c", script)
		if err != nil {
			return err
		}
		if left := lines(out); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		accelerators, err := h.AcceleratorNode(ctx, gpuNode)
		if err != nil {
			return err
		}
		if n := accelerators.Status.PreparedClaims; n != 0 {
			return fmt.Errorf("AcceleratorNode counts %d prepared claims", n)
		}
		return nil
	})).To(Succeed())
}

// arrivals are pods that keep coming to the GPU node, take a GPU for a moment, and end.
type arrivals struct {
	namespace, prefix string
	stop              context.CancelFunc
	done              chan struct{}
	created           atomic.Int64
	// wanted is how many must have come, although many wait: nobody's turn comes while kubelet is away.
	wanted atomic.Int64
}

// arrive creates a pod every 800 ms until end, unless many wait for their turn and more does not want another.
func (t *tenants) arrive(ctx context.Context) *arrivals {
	ctx, stop := context.WithCancel(ctx)
	t.arrived++
	a := &arrivals{namespace: t.namespace, prefix: fmt.Sprintf("arrival-%d-", t.arrived), stop: stop, done: make(chan struct{})}
	go func() {
		defer GinkgoRecover()
		defer close(a.done)
		ticker := time.NewTicker(800 * time.Millisecond)
		defer ticker.Stop()
		const most = 12
		for {
			// Detached, so that the last one is created or not, and the count right.
			detached := context.WithoutCancel(ctx)
			if a.created.Load() < a.wanted.Load() || len(a.unfinished(detached)) < most {
				a.create(detached)
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return a
}

func (a *arrivals) create(ctx context.Context) {
	newPod(ctx, a.namespace, a.prefix+strconv.FormatInt(a.created.Load(), 10), withTemplate("gpu"), onNode(gpuNode),
		marking(passMarked), func(p *corev1.Pod) {
			p.Labels = map[string]string{"arrival": ""}
			p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		})
	a.created.Add(1)
}

func (a *arrivals) unfinished(ctx context.Context) []string {
	GinkgoHelper()
	return unfinished(ctx, a.namespace, "arrival")
}

// unfinished are the pods of a namespace, all or some, that have not ended well, with how they are.
func unfinished(ctx context.Context, namespace, labels string) []string {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels, FieldSelector: "status.phase!=" + string(corev1.PodSucceeded),
	})
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for i := range pods.Items {
		out = append(out, pods.Items[i].Name+" is "+string(pods.Items[i].Status.Phase))
	}
	return out
}

// more waits until some more pods have come.
func (a *arrivals) more(ctx context.Context, n int64) {
	GinkgoHelper()
	want := a.created.Load() + n
	a.wanted.Store(want)
	Eventually(ctx, a.created.Load).Should(BeNumerically(">=", want))
}

// end lets no more pods come and waits until all have had their device and ended well.
func (a *arrivals) end(ctx context.Context) {
	GinkgoHelper()
	a.stop()
	<-a.done
	Expect(h.Poll(ctx, "the end of all pods that came", 3*time.Minute, func(ctx context.Context) error {
		if left := a.unfinished(ctx); len(left) > 0 {
			return errors.New(strings.Join(left, ", "))
		}
		return nil
	})).To(Succeed())
	AddReportEntry("arrivals", fmt.Sprintf("%d pods came meanwhile", a.created.Load()), ReportEntryVisibilityAlways)
}
