// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

const (
	// half of each GPU's threads, and some of its memory, for programs of any users.
	served = `{"strategy":"MPS","mps":{"activeThreadPercentage":50,"pinnedMemoryLimit":"10Gi","multiUser":true}}`
	// mpsClient is where the stand-in for a CUDA program is on the node and in a pod.
	mpsClient = "/opt/mps-client"
)

// cudaProgram runs the stand-in for a CUDA program, which joins the daemon that its environment names and stays until that ends. The shell
// stays, and starts it again.
func cudaProgram(p *corev1.Pod) {
	script(`while :; do ` + mpsClient + `; echo "status $?"; sleep 1; done`)(p)
	volume := corev1.Volume{Name: "client", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: harness.MachineRoot + harness.MPSClient,
	}}}
	p.Spec.Volumes = append(p.Spec.Volumes, volume)
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: mpsClient, ReadOnly: true})
}

// told waits for what a pod's program was told by its daemon, the last time.
func told(ctx context.Context, p *corev1.Pod, times int) string {
	GinkgoHelper()
	var last string
	Eventually(ctx, func(g Gomega) {
		text, err := h.Kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		found := 0
		for line := range strings.Lines(string(text)) {
			if said, ok := strings.CutPrefix(strings.TrimSpace(line), "joined "); ok {
				found, last = found+1, said
			}
		}
		g.Expect(found).To(Equal(times), string(text))
	}).Should(Succeed())
	return last
}

// untouched holds that the programs of pods are the ones that joined first.
func untouched(ctx context.Context, pods []*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		told(ctx, p, 1)
		text, err := h.Kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).NotTo(ContainSubstring("status"), "its program runs on")
	}
}

// updateAll changes the pod templates of both DaemonSets. The plugin's pods are replaced at once. The pods that run MPS are not: their
// DaemonSet replaces a pod only when somebody deletes it.
func updateAll(ctx context.Context) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"e2e.fettle.dev/update":%q}}}}}`, uuid.NewUUID())
	before, err := h.PluginPod(ctx, gpuNode)
	Expect(err).NotTo(HaveOccurred())
	supervisor := supervisorPod(ctx)
	_, err = h.Kubectl(ctx, "--namespace", harness.Namespace, "patch", "daemonset/fettle-mps", "--type", "strategic", "--patch", patch)
	Expect(err).NotTo(HaveOccurred())
	patchPlugin(ctx, patch)
	after, err := h.PluginPod(ctx, gpuNode)
	Expect(err).NotTo(HaveOccurred())
	Expect(after.UID).NotTo(Equal(before.UID), "the plugin's pod is a new one")
	Expect(supervisorPod(ctx)).To(Equal(supervisor), "the pod that runs MPS stays")
}

// supervisorPod is the UID of the node's pod that runs the daemons.
func supervisorPod(ctx context.Context) types.UID {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=mps", FieldSelector: "spec.nodeName=" + gpuNode,
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(pods.Items).To(HaveLen(1))
	return pods.Items[0].UID
}

// uuid is that of the card at an address.
func (g *dividedGPUs) uuid(address string) string {
	GinkgoHelper()
	return g.card(address).UUID
}

// mps has pods of one claim be clients of one daemon: as root, as a user, and in a user namespace. A kill and an update of the plugin
// change nothing for them. A daemon that dies is reported and started again. Afterwards the GPU is as before.
func (g *dividedGPUs) mps(ctx SpecContext) {
	address := g.address(6)
	newPolicy(ctx, gpuNode, "e2e-mps", turns(address, 0, v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS))
	ns := newNamespace(ctx, nil)
	newClaim(ctx, ns, "one", chosen(address, served))
	user := func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsNonRoot: new(true)}
	}
	pods := []*corev1.Pod{newPod(ctx, ns, "root", withClaim("one"), cudaProgram)}
	running(ctx, pods...)
	pods = append(pods, newPod(ctx, ns, "user", withClaim("one"), cudaProgram, user),
		newPod(ctx, ns, "userns", withClaim("one"), cudaProgram, userNamespace))
	running(ctx, pods...)
	plain := newPod(ctx, ns, "plain")
	running(ctx, plain)
	const shm = "df -k /dev/shm | tail -n 1 | awk '{print $2}'"
	for _, p := range pods {
		say("pod %s", p.Name)
		Expect(told(ctx, p, 1)).To(And(ContainSubstring("percentage=50"), ContainSubstring("pinned:"+g.uuid(address)+"=10240M"),
			ContainSubstring("devices="+g.uuid(address))))
		Expect(inside(ctx, p, main, "echo $CUDA_MPS_PIPE_DIRECTORY; test -e $CUDA_MPS_PIPE_DIRECTORY/control && echo there")).To(
			Equal("/run/fettle/mps\nthere\n"))
		Expect(inside(ctx, p, main, shm)).To(Equal(inside(ctx, plain, main, shm)), "/dev/shm is that of the pod")
	}
	Expect(g.setting(address)).To(Equal(setting{Mode: computeExclusiveProcess}))

	say("a container fills its claim's directory and nothing of the node")
	const fill = `d=$CUDA_MPS_PIPE_DIRECTORY; head -c 9437184 /dev/zero >$d/much 2>/dev/null; ` +
		`[ $(wc -c <$d/much) -le 8388608 ] && echo full; ` +
		`i=0; while mkdir $d/$i 2>/dev/null; do i=$((i+1)); done; [ $i -lt 2048 ] && echo full; rm -r $d/much $d/[0-9]*`
	Expect(inside(ctx, pods[0], main, fill)).To(Equal("full\nfull\n"))

	say("a kill and an update of the plugin end no client")
	killPlugin(ctx, gpuNode)
	untouched(ctx, pods)
	updateAll(ctx)
	untouched(ctx, pods)

	say("a daemon that dies is started again, and the claim says so")
	claim := onlyClaim(ctx, pods[0])
	pid := filepath.Join(harness.MachineRoot, "run/fettle/mps-memory", string(claim.UID), "pipe", "nvidia-cuda-mps-control.pid")
	_, err := h.OnNode(ctx, gpuNode, "sh", "-c", "kill -9 $(cat "+pid+")")
	Expect(err).NotTo(HaveOccurred())
	eventuallyEvent(ctx, ns, "ResourceClaim", claim.Name, "MPSDaemonEnded", "started again")
	for _, p := range pods {
		Expect(told(ctx, p, 2)).To(ContainSubstring("percentage=50"))
	}

	removePods(ctx, pods...)
	Eventually(ctx, func() setting { return g.setting(address) }).Should(Equal(setting{}))
	Eventually(ctx, func() (string, error) {
		return h.OnNode(ctx, gpuNode, "sh", "-c", "find "+harness.MachineRoot+"/run/fettle -mindepth 2 | grep -c . || true")
	}).Should(Equal("0\n"), "the claim's directories are gone")
	dropPolicy(ctx, "e2e-mps")
}
