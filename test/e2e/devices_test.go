// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/objects"
)

func givesDevices() {
	It("gives one GPU by template, with exactly its own nodes", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
		pod := newPod(ctx, ns, "one", withTemplate("gpu"))
		running(ctx, pod)
		got := results(onlyClaim(ctx, pod))
		Expect(got).To(HaveLen(1))
		hasExactly(ctx, pod, main, devicesOf(got)...)
	})

	It("gives two GPUs of one PCIe root with matchAttribute", later("scenario 02 of the demo shows it"), func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		pair := spec(request("pair", gpuClass, count(2)))
		root := resourceapi.FullyQualifiedName(pcieRoot)
		pair.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &root}}
		newTemplate(ctx, ns, "pair", pair)
		pod := newPod(ctx, ns, "two", withTemplate("pair"))
		running(ctx, pod)
		devices := devicesOf(results(onlyClaim(ctx, pod)))
		Expect(devices).To(HaveLen(2))
		Expect(devices[0].Name).NotTo(Equal(devices[1].Name))
		Expect(devices[0].Root).To(Equal(devices[1].Root))
		hasExactly(ctx, pod, main, devices...)
	})

	It("gives one claim to two pods, which share its device", later("scenario 03 of the demo shows it"), func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newClaim(ctx, ns, "shared", spec(request("gpu", gpuClass)))
		first, second := newPod(ctx, ns, "first", withClaim("shared")), newPod(ctx, ns, "second", withClaim("shared"))
		running(ctx, first, second)
		devices := devicesOf(results(readClaim(ctx, ns, "shared")))
		Expect(devices).To(HaveLen(1))
		hasExactly(ctx, first, main, devices...)
		hasExactly(ctx, second, main, devices...)
		say("the first pod leaves, the second keeps the device")
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, first)
		hasExactly(ctx, second, main, devices...)
	})

	It("gives two containers one request each of the same claim", later("scenario 04 of the demo shows it"),
		func(ctx SpecContext) {
			ns := newNamespace(ctx, nil)
			newTemplate(ctx, ns, "both", spec(request("left", gpuClass), request("right", gpuClass)))
			pod := newPod(ctx, ns, "split", withTemplate("both"), func(p *corev1.Pod) {
				right := *p.Spec.Containers[0].DeepCopy()
				right.Name, right.Resources.Claims[0].Request = "right", "right"
				p.Spec.Containers[0].Name, p.Spec.Containers[0].Resources.Claims[0].Request = "left", "left"
				p.Spec.Containers = append(p.Spec.Containers, right)
			})
			running(ctx, pod)
			claim := onlyClaim(ctx, pod)
			left, right := devicesOf(results(claim, "left")), devicesOf(results(claim, "right"))
			Expect(left[0].Name).NotTo(Equal(right[0].Name))
			hasExactly(ctx, pod, "left", left...)
			hasExactly(ctx, pod, "right", right...)
		})

	It("gives the second choice of firstAvailable, with the configuration of the main request", later("scenario 05 of the demo shows it"),
		func(ctx SpecContext) {
			ns := newNamespace(ctx, nil)
			choice := func(name, class, expression string) resourceapi.DeviceSubRequest {
				return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: class, Selectors: objects.Selectors(expression)}
			}
			s := spec(
				resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
					choice("huge", gpuClass, memoryAtLeast("1Ti")), choice("amd", gpuClass, onVendor("amd")),
				}},
			)
			s.Devices.Config = []resourceapi.DeviceClaimConfiguration{
				objects.Config("fettle.dev", config("GPUConfig", `"sharing":{"strategy":"Exclusive"}`), "gpu"),
			}
			disks := spec(resourceapi.DeviceRequest{Name: "disk", FirstAvailable: []resourceapi.DeviceSubRequest{
				choice("none", hostClass, onProduct("nothing-of-that-name")), choice("ssd", hostClass, onProduct("ssd")),
			}})
			disks.Devices.Config = []resourceapi.DeviceClaimConfiguration{
				objects.Config("fettle.dev", config("HostConfig", `"mountPath":"/data/fast"`), "disk"),
			}
			newTemplate(ctx, ns, "gpu", s)
			newTemplate(ctx, ns, "disk", disks)
			gpu, disk := newPod(ctx, ns, "gpu", withTemplate("gpu")), newPod(ctx, ns, "disk", withTemplate("disk"))
			running(ctx, gpu, disk)
			got := results(onlyClaim(ctx, gpu), "gpu/amd")
			Expect(got).To(HaveLen(1))
			hasExactly(ctx, gpu, main, devicesOf(got)...)
			Expect(results(onlyClaim(ctx, disk), "disk/ssd")).To(HaveLen(1))
			Expect(inside(ctx, disk, main, `grep -c " /data/fast " /proc/self/mountinfo; grep -c " /mnt/" /proc/self/mountinfo || true`)).
				To(Equal("1\n0\n"), "the mount must be where the configuration of the main request says")
		})

	It("selects by vendor, memory and driver version with CEL", later("scenario 06 of the demo shows it"), func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newer := `device.attributes["fettle.dev"].driverVersion.isGreaterThan(semver("%s"))`
		newTemplate(ctx, ns, "amd", spec(request("gpu", gpuClass,
			where(onVendor("amd"), memoryAtLeast("100Gi"), fmt.Sprintf(newer, "6.10.0")))))
		newTemplate(ctx, ns, "none", spec(request("gpu", gpuClass, where(onVendor("amd"), fmt.Sprintf(newer, "7.0.0")))))
		amd, none := newPod(ctx, ns, "amd", withTemplate("amd")), newPod(ctx, ns, "none", withTemplate("none"))
		running(ctx, amd)
		devices := devicesOf(results(onlyClaim(ctx, amd)))
		Expect(devices[0].Vendor).To(Equal("amd"))
		hasExactly(ctx, amd, main, devices...)
		eventuallyUnschedulable(ctx, none, "cannot allocate")
	})

	It("gives GPUs of NVIDIA, AMD and Intel to one container", later("scenario 13 of the demo shows it"), func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "mixed", spec(request("nvidia", gpuClass, where(onVendor("nvidia"))),
			request("amd", gpuClass, where(onVendor("amd"))), request("intel", gpuClass, where(onVendor("intel")))))
		pod := newPod(ctx, ns, "mixed", withTemplate("mixed"))
		running(ctx, pod)
		claim := onlyClaim(ctx, pod)
		for _, vendor := range []string{"nvidia", "amd", "intel"} {
			d := devicesOf(results(claim, vendor))
			Expect(d).To(HaveLen(1))
			Expect(d[0].Vendor).To(Equal(vendor))
		}
		hasExactly(ctx, pod, main, devicesOf(results(claim))...)
	})

	It("lets an admin look at a device that somebody holds, and not write to it", later("scenario 07 of the demo shows it"), adminAccess)
	if older {
		It("has a pod wait that asks for fettle.dev/gpu where the API has no extended resources of DRA, and says so", differs, noExtendedResource)
	} else {
		It("gives a GPU as extended resource fettle.dev/gpu", extendedResource)
	}
	It("keeps other GPUs out of the container's reach", ofNode, deniesOthers)
	It("serves pods as they come: as a user, with a read-only root, in a user namespace", ofNode, podsAsTheyCome)
}

const pcieRoot = "resource.kubernetes.io/pcieRoot"

func memoryAtLeast(quantity string) string {
	return fmt.Sprintf(`"memory" in device.capacity["fettle.dev"] && `+
		`device.capacity["fettle.dev"].memory.compareTo(quantity(%q)) >= 0`, quantity)
}

func onProduct(name string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].productName == %q`, name)
}

// onDevice selects one GPU by its address.
func onDevice(d owned) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress == %q`, d.Address)
}

func adminAccess(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	holder := newPod(ctx, ns, "holder", withTemplate("gpu"))
	running(ctx, holder)
	held := devicesOf(results(onlyClaim(ctx, holder)))[0]
	node := claimNode(onlyClaim(ctx, holder))

	labelled := newNamespace(ctx, map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
	look := spec(request("look", gpuClass, where(onDevice(held)), asAdmin))
	newTemplate(ctx, labelled, "look", look)
	admin := newPod(ctx, labelled, "admin", withTemplate("look"), onNode(node))
	running(ctx, admin)
	Expect(results(onlyClaim(ctx, admin))[0].Device).To(Equal(held.Name))
	own := held.nodes[0].Path
	Expect(lines(inside(ctx, admin, main, listNodes))).To(HaveLen(len(held.nodes)))
	attempts := fmt.Sprintf(`( exec 3<%[1]s ) && echo read; ( exec 3>%[1]s ) 2>&1; ( exec 3<>%[1]s ) 2>&1; true`, own)
	Expect(inside(ctx, admin, main, attempts)).
		To(And(ContainSubstring("read"), MatchRegexp(`(?s)not permitted.*not permitted`)), "read-only edits let nobody write")

	say("nothing happens to the holder when the admin leaves")
	Expect(h.Kube.CoreV1().Pods(labelled).Delete(ctx, admin.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, admin)
	hasExactly(ctx, holder, main, held)

	say("a namespace without the label is refused")
	_, err := h.Kube.ResourceV1().ResourceClaims(ns).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "look"}, Spec: look,
	}, metav1.CreateOptions{})
	Expect(apierrors.IsForbidden(err) || apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	Expect(err).To(MatchError(ContainSubstring("adminAccess")))
}

// claimNode is the node of an allocated claim's first device.
func claimNode(c *resourceapi.ResourceClaim) string {
	GinkgoHelper()
	pool := results(c)[0].Pool
	for _, node := range h.NodeNames() {
		if len(pool) > len(node) && pool[:len(node)+1] == node+"/" {
			return node
		}
	}
	Fail("pool " + pool + " is of no node")
	return ""
}

// asExtended has a pod ask for a GPU without any claim.
func asExtended(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"fettle.dev/gpu": resource.MustParse("1")}
}

func noExtendedResource(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	pod := newPod(ctx, ns, "extended", asExtended)
	eventuallyUnschedulable(ctx, pod, "Insufficient fettle.dev/gpu")
	eventuallyEvent(ctx, metav1.NamespaceDefault, "DeviceClass", gpuClass, "ExtendedResourceUnsupported", "")
	claims, err := h.Kube.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(claims.Items).To(BeEmpty(), "a claim that nobody asked for")
	staysPending(ctx, pod)
}

func extendedResource(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	pod := newPod(ctx, ns, "extended", asExtended)
	running(ctx, pod)
	got := results(onlyClaim(ctx, pod))
	Expect(got).To(HaveLen(1))
	hasExactly(ctx, pod, main, devicesOf(got)...)
}

func deniesOthers(ctx SpecContext) { denyOthers(ctx) }

// denyOthers has two pods on the GPU node, changed alike, and expects that the first has its own GPU and cannot reach the second's.
func denyOthers(ctx context.Context, modify ...func(*corev1.Pod)) {
	GinkgoHelper()
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	modify = append(modify, withTemplate("gpu"), onNode(gpuNode))
	first, second := newPod(ctx, ns, "first", modify...), newPod(ctx, ns, "second", modify...)
	running(ctx, first, second)
	mine := devicesOf(results(onlyClaim(ctx, first)))[0]
	other := devicesOf(results(onlyClaim(ctx, second)))[0]
	hasExactly(ctx, first, main, mine)
	own, foreign := ownNode(mine, other), ownNode(other, mine)
	Expect(inside(ctx, first, main, "ls -l "+own.Path)).To(MatchRegexp(`^c.* %d, +%d .*%s\n$`, own.Major, own.Minor, own.Path))
	Expect(inside(ctx, first, main, fmt.Sprintf("ls %s 2>&1 || true", foreign.Path))).To(ContainSubstring("No such file"))
	// The container is root and may make nodes: only the device cgroup is in the way.
	made := fmt.Sprintf(`mknod /tmp/own c %d %d && ( exec 3<>/tmp/own ) && echo own opens
		mknod /tmp/foreign c %d %d && ( exec 3<>/tmp/foreign ) 2>&1; ( exec 3</tmp/foreign ) 2>&1; true`,
		own.Major, own.Minor, foreign.Major, foreign.Minor)
	Expect(inside(ctx, first, main, made)).To(MatchRegexp(`(?s)^own opens\n.*not permitted.*not permitted`))
}

func podsAsTheyCome(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	user := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000)), RunAsNonRoot: new(true),
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	pods := []*corev1.Pod{
		newPod(ctx, ns, "user", withTemplate("gpu"), user),
		newPod(ctx, ns, "read-only", withTemplate("gpu"), readOnlyRoot),
		newPod(ctx, ns, "userns", withTemplate("gpu"), userNamespace),
		newPod(ctx, ns, "all-at-once", withTemplate("gpu"), user, readOnlyRoot, userNamespace),
	}
	running(ctx, pods...)
	for _, pod := range pods {
		say("pod %s", pod.Name)
		hasExactly(ctx, pod, main, devicesOf(results(onlyClaim(ctx, pod)))...)
	}
	Expect(inside(ctx, pods[0], main, "id -u; grep CapEff /proc/self/status")).To(MatchRegexp(`^1000\nCapEff:\s+0{16}\n`))
	Expect(inside(ctx, pods[1], main, "touch /x 2>&1 || true")).To(ContainSubstring("Read-only"))
	Expect(inside(ctx, pods[2], main, "id -u; cat /proc/self/uid_map")).To(MatchRegexp(`^0\n\s+0\s+[1-9]`))
}

func readOnlyRoot(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	c.SecurityContext.ReadOnlyRootFilesystem = new(true)
}

func userNamespace(p *corev1.Pod) { p.Spec.HostUsers = new(false) }

// eventuallyGone waits until a pod is no more.
func eventuallyGone(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		Expect(h.Poll(ctx, "pod "+p.Name+" to go", soon, func(ctx context.Context) error {
			pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && pod.UID != p.UID {
				return nil
			}
			if err != nil {
				return err
			}
			return fmt.Errorf("it is there, deleted at %v: %+v", pod.DeletionTimestamp, pod.Status.ContainerStatuses)
		})).To(Succeed())
	}
}

// eventuallyUnschedulable waits until the scheduler says why a pod has no node.
func eventuallyUnschedulable(ctx context.Context, p *corev1.Pod, why string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var message string
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				message = c.Message
			}
		}
		g.Expect(message).To(ContainSubstring(why))
	}).Should(Succeed())
}

// eventuallyEvent waits for an Event on an object, with a reason and a part of its text.
func eventuallyEvent(ctx context.Context, namespace, kind, name, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		events, err := h.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var seen []string
		for _, e := range events.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name {
				seen = append(seen, e.Reason+": "+e.Note)
			}
		}
		g.Expect(seen).To(ContainElement(And(HavePrefix(reason+": "), ContainSubstring(text))))
	}).Should(Succeed())
}
