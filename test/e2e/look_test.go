// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/hardware"
)

// running waits until pods run and are ready.
func running(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		err := h.Poll(ctx, "pod "+p.Name+" to run", soon, func(ctx context.Context) error {
			return h.PodDone(ctx, p.Namespace, p.Name, corev1.PodRunning)
		})
		if err != nil {
			err = fmt.Errorf("%w\nwarnings of its namespace: %s", err, warned(ctx, p.Namespace))
		}
		Expect(err).NotTo(HaveOccurred())
	}
}

// warned is the newest warning of each reason about each object of a namespace: why a pod has no sandbox, for one.
func warned(ctx context.Context, namespace string) string {
	list, err := h.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return err.Error()
	}
	newest := map[string]string{}
	for i := range list.Items {
		e := &list.Items[i]
		newest[fmt.Sprintf("%s %s %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason)] = e.Message
	}
	var out []string
	for _, what := range slices.Sorted(maps.Keys(newest)) {
		out = append(out, what+": "+newest[what])
	}
	return strings.Join(out, "; ")
}

// inside runs a shell script in a pod's container.
func inside(ctx context.Context, p *corev1.Pod, container, script string) string {
	GinkgoHelper()
	out, err := h.Exec(ctx, p.Namespace, p.Name, container, script)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// claimsOf reads the claims of a pod, by their names in the pod; one made for extended resources is called "".
func claimsOf(ctx context.Context, p *corev1.Pod) map[string]*resourceapi.ResourceClaim {
	GinkgoHelper()
	pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	names := map[string]string{}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names[c.Name] = *c.ResourceClaimName
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names[""] = s.ResourceClaimName
	}
	claims := map[string]*resourceapi.ResourceClaim{}
	for inPod, name := range names {
		claims[inPod] = readClaim(ctx, p.Namespace, name)
	}
	return claims
}

func readClaim(ctx context.Context, namespace, name string) *resourceapi.ResourceClaim {
	GinkgoHelper()
	claim, err := h.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return claim
}

// onlyClaim is the claim of a pod that has one.
func onlyClaim(ctx context.Context, p *corev1.Pod) *resourceapi.ResourceClaim {
	GinkgoHelper()
	claims := claimsOf(ctx, p)
	Expect(claims).To(HaveLen(1))
	for _, c := range claims {
		return c
	}
	return nil
}

// results are a claim's allocated devices for the given requests, or for all.
func results(c *resourceapi.ResourceClaim, requests ...string) []resourceapi.DeviceRequestAllocationResult {
	GinkgoHelper()
	Expect(c.Status.Allocation).NotTo(BeNil(), "claim %s is not allocated", c.Name)
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range c.Status.Allocation.Devices.Results {
		if len(requests) == 0 || slices.Contains(requests, r.Request) {
			out = append(out, r)
		}
	}
	return out
}

// owned is a device with its device nodes.
type owned struct {
	hardware.Device
	nodes []hardware.Node
}

// devicesOf are the devices of results, as they are written down of the node's machine: what discovery makes of it is not asked.
func devicesOf(results []resourceapi.DeviceRequestAllocationResult) []owned {
	GinkgoHelper()
	var out []owned
	for _, r := range results {
		node, kind, _ := strings.Cut(r.Pool, "/")
		devices := hardwareOf(node).Devices
		i := slices.IndexFunc(devices, func(d hardware.Device) bool { return d.Kind == kind && d.Name == r.Device })
		Expect(i).To(BeNumerically(">=", 0), "%s/%s was allocated and is not on the machine", r.Pool, r.Device)
		nodes, err := devices[i].Nodes(h.MachineDir(node))
		Expect(err).NotTo(HaveOccurred())
		out = append(out, owned{devices[i], nodes})
	}
	return out
}

// hardwareOf is what a node's machine has, with the disks that the values of the suite make devices of.
func hardwareOf(node string) hardware.Machine {
	GinkgoHelper()
	m, err := hardware.Of(placed[node]...)
	Expect(err).NotTo(HaveOccurred())
	if slices.Contains(placed[node], "4xlocalssd") {
		for _, name := range []string{"ssd-ssd0", "ssd-ssd1", "solo-ssd2", "kept-ssd3"} {
			m.Devices = append(m.Devices, hardware.Device{Kind: "host", Name: name})
		}
	}
	return m
}

// standard are the device nodes of every container (OCI runtime specification, config-linux.md, Default Devices).
const standard = `null|zero|full|random|urandom|tty|console|ptmx`

// listNodes prints path and numbers of every device node that not every container has.
const listNodes = `find /dev -type c | grep -vE '^/dev/(` + standard + `|pts/.*)$' | sort | while read -r n; do
	echo "$n $((0x$(stat -c %t "$n"))):$((0x$(stat -c %T "$n")))"; done`

// openNodes opens each of these for reading and writing, and prints what fails. A subshell is no session leader, so that a terminal
// which stands for a device does not become the controlling one.
const openNodes = `find /dev -type c | grep -vE '^/dev/(` + standard + `|pts/.*)$' | sort | while read -r n; do
	( exec 3<>"$n" ) 2>&1 || echo "cannot open $n"; done`

// hasExactly expects that a container's device nodes are those of the devices and no other, with their numbers, and that each opens.
func hasExactly(ctx context.Context, p *corev1.Pod, container string, devices ...owned) {
	GinkgoHelper()
	want := map[string]bool{}
	for _, d := range devices {
		for _, n := range d.nodes {
			want[n.String()] = true
		}
	}
	Expect(want).NotTo(BeEmpty())
	Expect(lines(inside(ctx, p, container, listNodes))).To(Equal(slices.Sorted(maps.Keys(want))))
	Expect(inside(ctx, p, container, openNodes)).To(BeEmpty())
}

func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// ownNode is the first node of a that b does not have: what tells two devices of a vendor apart.
func ownNode(a, b owned) hardware.Node {
	GinkgoHelper()
	for _, n := range a.nodes {
		if !slices.Contains(b.nodes, n) {
			return n
		}
	}
	Fail(fmt.Sprintf("%s has no node of its own beside %s", a.Name, b.Name))
	return hardware.Node{}
}
