// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/fpgasim"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	fpgaClass = "fpga.fettle.dev"
	// fpgaNode has the machine with FPGAs while the specs of them run.
	fpgaNode = mixedNode
	// arriaInterface is the interface id of the two ports of one card, as the first release of its shell had it.
	arriaInterface = "ce48969398f05f33946d560708be108a"
	// n6000Interface is the interface id of a card whose IOMMU does not translate.
	n6000Interface = "98b4d5bc98ba5f4b98d9a2841ccf11b0"
	// nlb3 and openCL are accelerators that many examples load, blankAFU what a wiped region shows.
	nlb3     = "f7df405cbd7acf7222f144b0b93acd18"
	openCL   = "18b79ffa2ee54aa096ef4230dafacb5f"
	blankAFU = "00000000000000000000000000000b1a"
	// bitstreamStore is where files for FPGAs are staged on nodes.
	bitstreamStore = "/srv/intel.com/fpga"
	// simulatedNodes is where the simulator serves what can be programmed.
	simulatedNodes = "sys/fpgasim"
	// clearTime is how long the blank image takes to clear the memory of a simulated card: longer than to load another image after it.
	clearTime = time.Second
)

// fpgas is the machine that the specs of FPGAs share.
type fpgas struct {
	*fpgasim.Sim
	// card is the index of the card with two ports among the simulator's.
	card int
	// registry is the host and port of one that the cluster may speak plain http to.
	registry string
}

// programsFPGAs runs on a node whose attributes and device nodes answer: nothing is known of a region but what it says.
func programsFPGAs() {
	var f fpgas

	BeforeAll(func(ctx SpecContext) {
		f = startFPGAs(ctx)
	}, NodeTimeout(h.Patient(5*time.Minute)))

	each := func(text string, do func(*fpgas, SpecContext), decorators ...any) {
		It(text, decorators, func(ctx SpecContext) { do(&f, ctx) }, NodeTimeout(h.Patient(3*time.Minute)))
	}
	each("programs a region from a file of the node, as the vendor's plugin did", (*fpgas).convertedExample)
	each("gives each of two containers a region with a bitstream of its own", (*fpgas).twoRegions, ofNode)
	each("programs what the controller found in a registry, once", (*fpgas).fromRegistry, ofNode)
	each("programs only what is signed, where policies and classes demand it", (*fpgas).signatures, ofNode)
	each("leaves a region alone that must not be programmed", (*fpgas).never, ofNode, later("further causes of a refusal"))
	each("refuses what policies, namespaces and ranges do not allow", (*fpgas).refusals)
	each("keeps other namespaces off a chip that is held", (*fpgas).tenants, differs, later("scenario 24 of the demo shows it"))
	if older {
		each("binds a pod at once where the API server knows no binding conditions, and says so", (*fpgas).bindAtOnce, differs)
	} else {
		each("binds a pod only after its bitstream is loaded, where the class asks for it", (*fpgas).bindLate)
	}
	each("blanks a region before another namespace gets it", (*fpgas).between, ofNode)
	each("takes a region out of use when it cannot be programmed, until it is proven to work", (*fpgas).broken)
	each("never publishes a region as good whose programming was cut off", (*fpgas).cutOff, ofNode,
		later("crash tests cut programming off at every step"))
}

// startFPGAs has the node be a machine with FPGAs, and lets the plugin program them.
func startFPGAs(ctx context.Context) fpgas {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
	f := simulateFPGAs(ctx)
	Expect(h.Install(ctx, values().Merge(f.values()))).To(Succeed())
	pluginReady(ctx, fpgaNode)
	return f
}

// values are those of the chart that let the plugin program the simulated regions.
func (f *fpgas) values() harness.Values {
	plain := []string{f.registry, kernels.Host, kernels.bare.Host}
	return harness.Values{
		"fpga": map[string]any{
			"programming": true, "stores": []string{bitstreamStore}, "simulatedNodes": simulatedNodes, "bindingConditions": true,
		},
		"bitstreams": map[string]any{"registries": map[string]any{"plainHTTP": plain}, "resolveInterval": "10m"},
	}
}

// simulateFPGAs places the machine, serves its sys, and starts a registry.
func simulateFPGAs(ctx context.Context) fpgas {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(h.Root, "test/machines/4xfpga.txtar"))
	Expect(err).NotTo(HaveOccurred())
	// The shell and the driver that the proposal's example was written for.
	for _, change := range [][2]string{
		{"69528db6eb31577a8c3668f9faa081f6", arriaInterface},
		// The N6000 is a card past which an administrator turned the IOMMU off.
		{"\n61/type DMA-FQ\n", "\n61/type identity\n"},
		{"region2/dfl-port.1/ltr 0\n", "region2/dfl-port.1/ltr 0\nfpga_region/region2/dfl-port.1/debug 0\n"},
		{"region2/dfl-port.2/ltr 0\n", "region2/dfl-port.2/ltr 0\nfpga_region/region2/dfl-port.2/debug 0\n"},
	} {
		Expect(string(text)).To(ContainSubstring(change[0]))
		text = []byte(strings.ReplaceAll(string(text), change[0], change[1]))
	}
	machine, err := sim.Parse(text)
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	file, program := filepath.Join(dir, "machine.txtar"), filepath.Join(dir, "fpgasim")
	Expect(os.WriteFile(file, text, 0o600)).To(Succeed())
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./test/fpgasim/cmd")
	build.Dir = h.Root
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)

	placeChanged(ctx, fpgaNode, machine, "4xfpga")
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
	// The node shares the root of this machine, and is to have a store of its own.
	_, err = h.OnNode(ctx, fpgaNode, "mount", "-t", "tmpfs", "bitstreams", "/srv")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.OnNode(ctx, fpgaNode, "umount", "-l", "/srv")
		Expect(err).NotTo(HaveOccurred())
	})
	openable, err := machine.Openable()
	Expect(err).NotTo(HaveOccurred())
	served, err := fpgasim.FromTree(openable)
	Expect(err).NotTo(HaveOccurred())
	root := h.MachineDir(fpgaNode)
	command := exec.Command(program, "-root", filepath.Join(root, "sys"), "-machine", file, "-openable", "-shared",
		"-dev", filepath.Join(root, "dev"))
	f := fpgas{Sim: fpgasim.Attach(GinkgoTB(), command, served, filepath.Join(root, "sys"))}
	f.card = slices.IndexFunc(served.Cards, func(c fpgasim.Card) bool { return len(c.Ports) == 2 })
	Expect(f.card).To(BeNumerically(">=", 0))
	f.registry, err = h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })
	return f
}

// stage puts a bitstream into the node's store.
func stage(ctx context.Context, interfaceID, afu, clock string) {
	GinkgoHelper()
	const passing = "image.gbs" // on its way into the node
	file := filepath.Join(h.MachineDir(fpgaNode), passing)
	gbs := fpgasim.GBS(interfaceID, afu, clock, 1<<20)
	if afu == blankAFU {
		gbs = fpgasim.ClearingGBS(interfaceID, afu, clock, 1<<20, clearTime)
	}
	Expect(os.WriteFile(file, gbs, 0o644)).To(Succeed())
	_, err := h.OnNode(ctx, fpgaNode, "sh", "-c", `mkdir -p "$1" && mv "$0" "$1/$2.gbs"`, filepath.Join(harness.MachineRoot, passing),
		filepath.Join(bitstreamStore, interfaceID), afu)
	Expect(err).NotTo(HaveOccurred())
}

// staged makes the object that names a file of the node's store.
func staged(ctx context.Context, name, afu string, blank bool, namespaces ...string) {
	GinkgoHelper()
	object := &v1alpha1.ClusterFPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ClusterFPGABitstreamSpec{
			HostFile: &v1alpha1.HostBitstream{Store: bitstreamStore, ID: afu}, Blank: blank, Namespaces: namespaces,
		},
	}
	if blank {
		object.Spec.MemoryClearTime = &metav1.Duration{Duration: clearTime}
	}
	create(ctx, "clusterfpgabitstreams", "", object)
}

// create makes an object of ours that is gone after the spec.
func create(ctx context.Context, resource, namespace string, object any) {
	GinkgoHelper()
	var made *unstructured.Unstructured
	var err error
	Eventually(ctx, func() bool { // the API server may serve a kind a moment after it is there
		made, err = tryCreate(ctx, resource, namespace, object)
		return apierrors.IsNotFound(err)
	}).Should(BeFalse())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).
			Delete(ctx, made.GetName(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) { // The spec may have deleted it.
			Expect(err).NotTo(HaveOccurred())
		}
	})
}

func tryCreate(ctx context.Context, resource, namespace string, object any) (*unstructured.Unstructured, error) {
	GinkgoHelper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	delete(content, "status")
	return h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).
		Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
}

// fpgaConfig is an FPGAConfig in JSON.
func fpgaConfig(c v1alpha1.FPGAConfig) string {
	GinkgoHelper()
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGAConfig}
	data, err := json.Marshal(c)
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// newFPGAClass makes a class with a policy. It accepts that a card's memory is not cleared: each spec has a namespace of its own, and most
// are not about what the one before left.
func newFPGAClass(ctx context.Context, name string, policy v1alpha1.FPGAPolicy) {
	GinkgoHelper()
	policy.AllowUnclearedMemory = true
	newStrictFPGAClass(ctx, name, policy)
}

// newStrictFPGAClass makes a class with a policy and nothing else.
func newStrictFPGAClass(ctx context.Context, name string, policy v1alpha1.FPGAPolicy) {
	GinkgoHelper()
	newClass(ctx, name, fpgaClass, objects.Config(v1alpha1.DriverName, fpgaConfig(v1alpha1.FPGAConfig{Policy: &policy})))
}

// setFPGAPolicy gives a class another policy.
func setFPGAPolicy(ctx context.Context, name string, policy v1alpha1.FPGAPolicy) {
	GinkgoHelper()
	class, err := h.Kube.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	config := objects.Config(v1alpha1.DriverName, fpgaConfig(v1alpha1.FPGAConfig{Policy: &policy}))
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: config.DeviceConfiguration}}
	_, err = h.Kube.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

func onInterface(id string) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].interfaceID == %q`, id)
}

// onPort selects one port of the card.
func onPort(index int) string {
	return fmt.Sprintf(`device.attributes["fettle.dev"].regionIndex == %d`, index)
}

// attribute reads an attribute of a port of the card.
func (f *fpgas) attribute(port int, name string) string {
	GinkgoHelper()
	// The simulator's names are those of the host's tree, and it serves sys of it.
	at := strings.TrimPrefix(f.Place(f.card, port).Attributes, "sys/")
	data, err := os.ReadFile(filepath.Join(f.Root, at, name))
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(string(data))
}

// programmings counts what the simulator was asked to program.
func (f *fpgas) programmings() int {
	GinkgoHelper()
	n := 0
	for _, e := range f.Trace() {
		if e.Op == "ioctl" && e.Request == fpgasim.OnPR {
			n++
		}
	}
	return n
}

// refusedAtPrepare waits until a pod whose claim is made from a template cannot have it.
func refusedAtPrepare(ctx context.Context, pod *corev1.Pod, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		now, err := h.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Status.ResourceClaimStatuses).NotTo(BeEmpty())
	}).Should(Succeed())
	eventuallyRefused(ctx, pod, reason, text)
}

// engineDenied makes nodes of the card's engine in a container whose root may do that: only the device cgroup is in the way.
func (f *fpgas) engineDenied(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	engine := strings.TrimPrefix(f.Machine.Cards[f.card].Directory, "sys/")
	number, err := os.ReadFile(filepath.Join(f.Root, engine, "dev"))
	Expect(err).NotTo(HaveOccurred())
	container := pod.Spec.Containers[0].Name
	major, minor, ok := strings.Cut(strings.TrimSpace(string(number)), ":")
	Expect(ok).To(BeTrue())
	Expect(inside(ctx, pod, container, `ls /dev | grep fme || echo none`)).To(Equal("none\n"))
	Expect(inside(ctx, pod, container, fmt.Sprintf(`mknod /tmp/fme c %s %s && ( exec 3<>/tmp/fme ) 2>&1 || true`, major, minor))).
		To(ContainSubstring("not permitted"))
}

// end deletes a pod and waits until its claim has left the node.
func (f *fpgas) end(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	claim := onlyClaim(ctx, pod)
	Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	eventuallyNothingLeft(ctx, fpgaNode, claim)
}

// claimRegion is a claim of one port of the card.
func claimRegion(class string, port int, c v1alpha1.FPGAConfig) resourceapi.ResourceClaimSpec {
	GinkgoHelper()
	s := spec(request("region", class, where(onInterface(arriaInterface), onPort(port))))
	s.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config(v1alpha1.DriverName, fpgaConfig(c))}
	return s
}

// claimOn is a claim of a region with an interface, of which the machine has one.
func claimOn(interfaceID, class string, c v1alpha1.FPGAConfig) resourceapi.ResourceClaimSpec {
	GinkgoHelper()
	s := spec(request("region", class, where(onInterface(interfaceID))))
	s.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config(v1alpha1.DriverName, fpgaConfig(c))}
	return s
}

// tolerates lets a claim have a region of a chip that a namespace holds. Releases before an upgrade may publish the namespace's name.
func tolerates(ctx context.Context, claim *resourceapi.ResourceClaimSpec, namespace string) {
	GinkgoHelper()
	for _, value := range []string{namespaceUID(ctx, namespace), namespace} {
		claim.Devices.Requests[0].Exactly.Tolerations = append(claim.Devices.Requests[0].Exactly.Tolerations, resourceapi.DeviceToleration{
			Key: "fettle.dev/tenant", Operator: resourceapi.DeviceTolerationOpEqual, Value: value,
		})
	}
}

func namespaceUID(ctx context.Context, namespace string) string {
	GinkgoHelper()
	ns, err := h.Kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return string(ns.UID)
}

// named is a configuration that loads a ClusterFPGABitstream.
func named(name string) v1alpha1.FPGAConfig {
	return v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Kind: v1alpha1.KindClusterFPGABitstream, Name: name}}
}

// open is a policy that lets claims load the named ClusterFPGABitstreams.
func open(names ...string) v1alpha1.FPGAPolicy { return v1alpha1.FPGAPolicy{AllowedBitstreams: names} }

// kepPod is the example pod of the proposal that FPGA programming from a pod began with, for this cluster: an image that is here, no huge
// pages, and a clock that the card can have.
func kepPod(clock string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(h.Root, "pkg/convert/testdata/kep.txtar"))
	Expect(err).NotTo(HaveOccurred())
	text, _, found := bytes.Cut(bytes.TrimPrefix(text, []byte("-- in.yaml --\n")), []byte("-- out.yaml --\n"))
	Expect(found).To(BeTrue())
	pod := string(text)
	for _, change := range [][2]string{
		{"intel-fpga-demo-compress:devel", image},
		{`["sh", "/opt/intel/intel-fpga-demo-compress/demo/demo.sh"]`, fmt.Sprintf(`["sh", "-c", %q]`, stay)},
		{"        hugepages-2Mi: 20Mi\n", ""},
		{"clock=1000", "clock=" + clock},
		{"imagePullPolicy: IfNotPresent", "imagePullPolicy: Never"},
	} {
		Expect(pod).To(ContainSubstring(change[0]))
		pod = strings.Replace(pod, change[0], change[1], 1)
	}
	return pod
}

// fettle runs the command line's program.
func fettle(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, filepath.Join(h.Root, "dist", "linux_"+goruntime.GOARCH, "fettle"), args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		Expect(err).NotTo(HaveOccurred(), "%s", exit.Stderr)
	}
	Expect(err).NotTo(HaveOccurred())
	return string(out)
}

// converted makes of the proposal's pod what the converter makes of it.
func converted(ctx context.Context, namespace, clock string) *corev1.Pod {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "pod.yaml")
	Expect(os.WriteFile(file, []byte(kepPod(clock)), 0o600)).To(Succeed())
	made := fettle(ctx, "convert", "-f", file, "-n", namespace, "--class", "fpga-demo")
	_, err := h.Kubectl(ctx, "-n", namespace, "apply", "-f", writeTemp(made))
	Expect(err).NotTo(HaveOccurred())
	pod, err := h.Kube.CoreV1().Pods(namespace).Get(ctx, "intel-fpga-demo-compress", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return pod
}

func writeTemp(text string) string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "objects.yaml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	return file
}

// convertedExample is the proposal's pod, as the converter makes a claim of it. Its clock of 1000 is more than the card's clock generator
// can do, which is said; so the one that runs asks for less.
func (f *fpgas) convertedExample(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	const name = "intel-" + arriaInterface + "-" + openCL
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams")).
			Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	})
	policy := open(name)
	for _, name := range []string{v1alpha1.ParamClock, v1alpha1.ParamDebug} {
		policy.AllowedDriverParams = append(policy.AllowedDriverParams, v1alpha1.FPGAParamRule{Name: name})
	}
	newFPGAClass(ctx, "fpga-demo", policy)
	before := f.programmings()
	say("with a clock that the card cannot have")
	pod := converted(ctx, namespace, "1000")
	refusedAtPrepare(ctx, pod, "RegionUnusable", "1000")
	Expect(f.programmings()).To(Equal(before))
	Expect(h.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	Expect(h.Kube.ResourceV1().ResourceClaimTemplates(namespace).Delete(ctx, pod.Name+"-fpga", metav1.DeleteOptions{})).To(Succeed())

	say("with one that it can")
	clocks := []string{f.clock(0), f.clock(1)}
	pod = converted(ctx, namespace, "400")
	running(ctx, pod)
	claim := onlyClaim(ctx, pod)
	got := devicesOf(results(claim))
	hasExactly(ctx, pod, pod.Spec.Containers[0].Name, got...)
	port := slices.IndexFunc([]int{0, 1}, func(port int) bool { return f.device(port) == got[0].Name })
	Expect(port).To(BeNumerically(">=", 0))
	f.engineDenied(ctx, pod)
	Expect(f.attribute(port, "afu_id")).To(Equal(openCL))
	Expect(f.clock(port)).To(Equal("400000 200000"))
	Expect(f.attribute(port, "debug")).To(Equal("1"))
	eventuallyEvent(ctx, namespace, "ResourceClaim", claim.Name, "Programmed", openCL)
	Eventually(ctx, func() []resourceapi.AllocatedDeviceStatus { // it is written after kubelet's answer
		claim = readClaim(ctx, claim.Namespace, claim.Name)
		return claim.Status.Devices
	}).Should(HaveLen(1))
	Expect(meta.IsStatusConditionTrue(claim.Status.Devices[0].Conditions, "Programmed")).To(BeTrue())
	Expect(string(claim.Status.Devices[0].Data.Raw)).To(MatchRegexp(`"digest":"sha256:[0-9a-f]{64}"`))
	f.end(ctx, pod)
	Expect(f.clock(port)).To(Equal(clocks[port]))
	Expect(f.attribute(port, "debug")).To(Equal("0"))
}

// clock is the last that the port's clock generator was set to, high and low in kHz.
func (f *fpgas) clock(port int) string {
	GinkgoHelper()
	at, last := f.Place(f.card, port).Attributes, "312500 156250"
	for _, e := range f.Trace() {
		if e.Op == "clock" && strings.HasSuffix(at, e.Path) {
			last = e.Data
		}
	}
	return last
}

func (f *fpgas) twoRegions(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	stage(ctx, arriaInterface, nlb3, "auto")
	staged(ctx, "first", openCL, false, "*")
	staged(ctx, "second", nlb3, false, "*")
	newFPGAClass(ctx, "fpga-two", open("first", "second"))
	s := spec(request("a", "fpga-two", where(onInterface(arriaInterface))), request("b", "fpga-two", where(onInterface(arriaInterface))))
	s.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		objects.Config(v1alpha1.DriverName, fpgaConfig(named("first")), "a"),
		objects.Config(v1alpha1.DriverName, fpgaConfig(named("second")), "b"),
	}
	newTemplate(ctx, namespace, "two", s)
	pod := newPod(ctx, namespace, "two", withTemplate("two"), func(p *corev1.Pod) {
		second := p.Spec.Containers[0].DeepCopy()
		second.Name = "second"
		p.Spec.Containers[0].Resources.Claims[0].Request = "a"
		second.Resources.Claims[0].Request = "b"
		p.Spec.Containers = append(p.Spec.Containers, *second)
	})
	running(ctx, pod)
	claim := onlyClaim(ctx, pod)
	hasExactly(ctx, pod, main, devicesOf(results(claim, "a"))...)
	hasExactly(ctx, pod, "second", devicesOf(results(claim, "b"))...)
	want := map[string]string{}
	for request, afu := range map[string]string{"a": openCL, "b": nlb3} {
		want[devicesOf(results(claim, request))[0].Name] = afu
	}
	got := map[string]string{}
	for port := range 2 {
		got[f.device(port)] = f.attribute(port, "afu_id")
	}
	Expect(got).To(Equal(want))
	f.end(ctx, pod)
}

// device is the name under which a port of the card is published.
func (f *fpgas) device(port int) string { return fmt.Sprintf("intel-0000-3d-00-0-port%d", port) }

func (f *fpgas) never(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, blankAFU, "auto")
	staged(ctx, "other", blankAFU, false, "*")
	newFPGAClass(ctx, "fpga-never", open("other"))
	c := named("other")
	c.Program = v1alpha1.ProgramNever
	newTemplate(ctx, namespace, "never", claimRegion("fpga-never", 1, c))
	before := len(f.ioctls())
	pod := newPod(ctx, namespace, "never", withTemplate("never"))
	refusedAtPrepare(ctx, pod, "RegionUnusable", "program is Never")
	Expect(f.ioctls()[before:]).To(BeEmpty())
}

// ioctls are all that the simulator was asked.
func (f *fpgas) ioctls() []string {
	GinkgoHelper()
	var out []string
	for _, e := range f.Trace() {
		if e.Op == "ioctl" {
			out = append(out, e.Request)
		}
	}
	return out
}

func (f *fpgas) refusals(ctx SpecContext) {
	mine, theirs := newNamespace(ctx, nil), newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	staged(ctx, "theirs", openCL, false, theirs)
	staged(ctx, "once-ours", openCL, false, mine)
	staged(ctx, "everybodys", openCL, false, "*")
	create(ctx, "fpgabitstreams", theirs, &v1alpha1.FPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: "private"}, Spec: v1alpha1.FPGABitstreamSpec{Image: "registry.invalid/team/private:1"},
	})
	signed := open("everybodys")
	signed.RequireSignature = true
	ranged := open("everybodys")
	ranged.AllowedDriverParams = []v1alpha1.FPGAParamRule{{Name: v1alpha1.ParamClock, Min: new(int32(100)), Max: new(int32(300))}}
	newFPGAClass(ctx, "fpga-open", open("theirs", "once-ours", "everybodys"))
	newFPGAClass(ctx, "fpga-signed", signed)
	clocked := named("everybodys")
	clocked.DriverParams = &v1alpha1.FPGADriverParams{ClockMHz: new(int32(400))}
	digest := "@sha256:" + strings.Repeat("1", 64)
	for name, c := range map[string]struct {
		class        string
		config       v1alpha1.FPGAConfig
		reason, text string
	}{
		"another-namespaces": {
			"fpga-open",
			v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Name: "private"}},
			"BitstreamUnusable",
			mine + "/private: does not exist",
		},
		"unsigned": {"fpga-signed", named("everybodys"), "ForbiddenByPolicy", "requireSignature"},
	} {
		say("%s", name)
		before := len(f.ioctls())
		newTemplate(ctx, mine, name, claimRegion(c.class, 1, c.config))
		pod := newPod(ctx, mine, name, withTemplate(name))
		refusedAtPrepare(ctx, pod, c.reason, c.text)
		Expect(f.ioctls()[before:]).To(BeEmpty())
		Expect(h.Kube.CoreV1().Pods(mine).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
	}
	for name, c := range map[string]struct {
		narrowed v1alpha1.FPGAPolicy
		config   v1alpha1.FPGAConfig
		text     string
	}{
		"closed": {v1alpha1.FPGAPolicy{}, named("everybodys"), "allows any bitstream"},
		"range":  {ranged, clocked, "driverParams.clockMHz: Invalid value: 400: must be 100 to 300"},
		"other-registry": {
			v1alpha1.FPGAPolicy{AllowedRegistries: []string{"registry.invalid/good"}},
			v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Ref: "registry.invalid/bad/x" + digest}},
			"allowedRegistries",
		},
	} {
		say("%s, after the template was made", name)
		class := "fpga-" + name
		newFPGAClass(ctx, class, v1alpha1.FPGAPolicy{
			AllowedBitstreams: []string{"everybodys"}, AllowedRegistries: []string{"registry.invalid"},
			AllowedDriverParams: []v1alpha1.FPGAParamRule{{Name: v1alpha1.ParamClock}},
		})
		newTemplate(ctx, mine, name, claimRegion(class, 1, c.config))
		newClaim(ctx, mine, name, claimRegion(class, 1, c.config))
		setFPGAPolicy(ctx, class, c.narrowed)
		before := len(f.ioctls())
		pod := newPod(ctx, mine, name, withClaim(name))
		eventuallyRefused(ctx, pod, "ForbiddenByPolicy", c.text)
		Expect(f.ioctls()[before:]).To(BeEmpty())
		Expect(h.Kube.CoreV1().Pods(mine).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
		say("%s, when a claim is made", name)
		_, err := h.Kube.ResourceV1().ResourceClaims(mine).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-late"}, Spec: claimRegion(class, 1, c.config),
		}, metav1.CreateOptions{})
		Expect(err).To(MatchError(And(ContainSubstring(c.text), ContainSubstring("spec.devices.config[0].opaque.parameters"))))
		say("%s, when a claim is made from the template", name)
		waiting := newPod(ctx, mine, name+"-late", withTemplate(name))
		eventuallyEvent(ctx, mine, "Pod", waiting.Name, "FailedResourceClaimCreation", c.text)
		Expect(h.Kube.CoreV1().Pods(mine).Delete(ctx, waiting.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, waiting)
	}
	say("a card whose IOMMU does not translate")
	newTemplate(ctx, mine, "identity", claimOn(n6000Interface, "fpga-open", named("everybodys")))
	identity := newPod(ctx, mine, "identity", withTemplate("identity"))
	refusedAtPrepare(ctx, identity, "ForbiddenByPolicy", `has type "identity"`)
	Expect(h.Kube.CoreV1().Pods(mine).Delete(ctx, identity.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, identity)
	say("no longer for this namespace")
	newClaim(ctx, mine, "once-ours", claimRegion("fpga-open", 1, named("once-ours")))
	giveTo(ctx, "once-ours", theirs)
	before := len(f.ioctls())
	pod := newPod(ctx, mine, "not-for-us", withClaim("once-ours"))
	eventuallyRefused(ctx, pod, "ForbiddenByPolicy", "once-ours is not for namespace "+mine)
	Expect(f.ioctls()[before:]).To(BeEmpty())
	Expect(h.Kube.CoreV1().Pods(mine).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	say("another namespace's, when the claim is created")
	_, err := h.Kube.ResourceV1().ResourceClaims(mine).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "not-for-us"}, Spec: claimRegion("fpga-open", 1, named("theirs")),
	}, metav1.CreateOptions{})
	Expect(err).To(MatchError(And(ContainSubstring("bitstream.name"), ContainSubstring("not for namespace "+mine))))
	say("a file's name that is a path")
	object := &v1alpha1.ClusterFPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: "path"}, Spec: v1alpha1.ClusterFPGABitstreamSpec{
			HostFile: &v1alpha1.HostBitstream{Store: bitstreamStore, ID: "../../../etc/shadow"}, Namespaces: []string{"*"},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	_, err = h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams")).
		Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	Expect(err).To(MatchError(ContainSubstring("spec.hostFile.id")))
}

// giveTo makes a ClusterFPGABitstream another namespace's.
func giveTo(ctx context.Context, name, namespace string) {
	GinkgoHelper()
	patch := fmt.Appendf(nil, `{"spec":{"namespaces":[%q]}}`, namespace)
	_, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams")).
		Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
}

func (f *fpgas) tenants(ctx SpecContext) {
	ours, others := newNamespace(ctx, nil), newNamespace(ctx, nil)
	// What other claims left there is wiped.
	stage(ctx, arriaInterface, blankAFU, "auto")
	staged(ctx, "blank", blankAFU, true)
	for _, ns := range []string{ours, others} {
		for port := range 2 {
			newTemplate(ctx, ns, fmt.Sprintf("port%d", port), claimRegion(fpgaClass, port, v1alpha1.FPGAConfig{}))
		}
	}
	// While a claim has the card, nothing clears what others left in the other region, since the memory is the card's.
	before := newPod(ctx, ours, "before", withTemplate("port1"))
	running(ctx, before)
	f.end(ctx, before)
	first := newPod(ctx, ours, "first", withTemplate("port0"))
	running(ctx, first)
	f.eventuallyKept(ctx, 1, ours)
	second := newPod(ctx, others, "second", withTemplate("port1"))
	eventuallyUnschedulable(ctx, second, "cannot allocate all claims")
	if !older { // there the taint is not kept, so nobody can tolerate it
		joins := claimRegion(fpgaClass, 1, v1alpha1.FPGAConfig{})
		tolerates(ctx, &joins, ours)
		newTemplate(ctx, ours, "joins", joins)
		beside := newPod(ctx, ours, "beside", withTemplate("joins"))
		running(ctx, beside)
		f.end(ctx, beside)
	}
	f.end(ctx, first)
	running(ctx, second)
	f.end(ctx, second)
}

// eventuallyKept waits until a port is for the claims of a namespace alone: by a taint or, where the API keeps none, by being withheld.
func (f *fpgas) eventuallyKept(ctx context.Context, port int, namespace string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		region, err := publishedRegion(ctx, f.device(port))
		g.Expect(err).NotTo(HaveOccurred())
		if older {
			g.Expect(region).To(BeNil())
			return
		}
		g.Expect(region).NotTo(BeNil())
		var kept []string
		for _, t := range region.Taints {
			kept = append(kept, t.Key+"="+t.Value)
		}
		g.Expect(kept).To(ContainElement("fettle.dev/tenant=" + namespaceUID(ctx, namespace)))
	}).Should(Succeed())
}

// bindLate: a pod whose region takes long to program, or cannot be, is not bound to the node meanwhile.
func (f *fpgas) bindLate(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	staged(ctx, "logic", openCL, false, "*")
	policy := open("logic", "late")
	policy.BindAfter = v1alpha1.BindAfterLoaded
	newFPGAClass(ctx, "fpga-bind", policy)
	for name, bitstream := range map[string]string{"logic": "logic", "late": "late"} {
		c := named(bitstream)
		c.Program = v1alpha1.ProgramAlways
		newTemplate(ctx, namespace, name, claimRegion("fpga-bind", 0, c))
	}
	f.Fault(fpgasim.Fault{Card: f.card, Port: 0, On: fpgasim.OnPR, Hold: true})
	before := f.programmings()
	pod := newPod(ctx, namespace, "logic", withTemplate("logic"))
	Eventually(ctx, f.programmings).Should(Equal(before + 1))
	now, err := h.Kube.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Spec.NodeName).To(BeEmpty(), "bound although its region is being programmed")
	f.Go()
	running(ctx, pod)
	Expect(f.programmings()).To(Equal(before+1), "kubelet's call programmed again")
	Expect(f.attribute(0, "afu_id")).To(Equal(openCL))
	f.end(ctx, pod)

	say("a bitstream that is not there keeps the pod off the node")
	pod = newPod(ctx, namespace, "late", withTemplate("late"))
	refusedAtPrepare(ctx, pod, "BitstreamUnusable", "late: does not exist")
	now, err = h.Kube.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Spec.NodeName).To(BeEmpty())
	staged(ctx, "late", openCL, false, "*")
	running(ctx, pod)
	f.end(ctx, pod)
}

// bindAtOnce: an API server that drops binding conditions has the pod wait on its node, which its administrator can see.
func (f *fpgas) bindAtOnce(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	staged(ctx, "logic", openCL, false, "*")
	policy := open("logic")
	policy.BindAfter = v1alpha1.BindAfterLoaded
	newFPGAClass(ctx, "fpga-bind", policy)
	c := named("logic")
	c.Program = v1alpha1.ProgramAlways
	newTemplate(ctx, namespace, "logic", claimRegion("fpga-bind", 0, c))
	f.Fault(fpgasim.Fault{Card: f.card, Port: 0, On: fpgasim.OnPR, Hold: true})
	before := f.programmings()
	pod := newPod(ctx, namespace, "logic", withTemplate("logic"))
	Eventually(ctx, f.programmings).Should(Equal(before + 1))
	now, err := h.Kube.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Spec.NodeName).To(Equal(fpgaNode))
	staysPending(ctx, pod)
	eventuallyDropped(ctx, fpgaNode, bindingConditions)
	f.Go()
	running(ctx, pod)
	Expect(f.attribute(0, "afu_id")).To(Equal(openCL))
	f.end(ctx, pod)
}

func (f *fpgas) between(ctx SpecContext) {
	ours, others := newNamespace(ctx, nil), newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	stage(ctx, arriaInterface, blankAFU, "auto")
	staged(ctx, "logic", openCL, false, "*")
	newFPGAClass(ctx, "fpga-between", open("logic"))
	newStrictFPGAClass(ctx, "fpga-between-strict", open("logic"))
	newTemplate(ctx, ours, "logic", claimRegion("fpga-between", 0, named("logic")))
	newTemplate(ctx, others, "logic", claimRegion("fpga-between-strict", 0, named("logic")))
	newTemplate(ctx, ours, "plain", claimRegion(fpgaClass, 0, v1alpha1.FPGAConfig{}))
	first := newPod(ctx, ours, "first", withTemplate("logic"), f.withMemory(0))
	running(ctx, first)
	inside(ctx, first, main, `yes "data of the first tenant" | head -c 65536 | dd of=/card bs=4096 conv=notrunc`)
	Expect(remembers(ctx, first)).To(BeTrue(), "the card's memory keeps what a program writes")
	f.end(ctx, first)
	Expect(f.attribute(0, "afu_id")).To(Equal(openCL), "a reset leaves the logic")
	say("another namespace does not get what is in the card's memory, until an image clears it")
	before := f.programmings()
	refused := newPod(ctx, others, "refused", withTemplate("logic"))
	refusedAtPrepare(ctx, refused, "RegionUnusable", "memoryClearTime")
	Expect(f.programmings()).To(Equal(before))
	Expect(h.Kube.CoreV1().Pods(others).Delete(ctx, refused.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, refused)
	staged(ctx, "blank", blankAFU, true)
	second := newPod(ctx, others, "second", withTemplate("logic"), f.withMemory(0))
	running(ctx, second)
	Expect(remembers(ctx, second)).To(BeFalse(), "a program reads what the claim of another namespace left in the card's memory")
	eventuallyEvent(ctx, others, "ResourceClaim", onlyClaim(ctx, second).Name, "Programmed", "scrub")
	f.end(ctx, second)
	say("nothing but the blank image is in a region that the next claim takes as it is")
	third := newPod(ctx, ours, "third", withTemplate("plain"), f.withMemory(0))
	running(ctx, third)
	Expect(f.attribute(0, "afu_id")).To(Equal(blankAFU))
	Expect(remembers(ctx, third)).To(BeFalse())
	f.end(ctx, third)
}

// withMemory gives a pod's container the memory of the card as /card, through the port that its claim is for: a simulated port's logic is
// commanded by reading and writing the simulator's node, which is beside the device node that the claim brings.
func (f *fpgas) withMemory(port int) func(*corev1.Pod) {
	node := filepath.Join(harness.MachineRoot, simulatedNodes, filepath.Base(f.Place(f.card, port).Node))
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "card", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: node, Type: new(corev1.HostPathFile)},
		}})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "card", MountPath: "/card"})
	}
}

// remembers reads all memory of the card in a container and looks for what the first tenant wrote.
func remembers(ctx context.Context, pod *corev1.Pod) bool {
	GinkgoHelper()
	content := inside(ctx, pod, main, `dd if=/card bs=4096 2>/dev/null | tr '\000' 0`)
	Expect(content).To(HaveLen(fpgasim.MemorySize))
	return strings.Contains(content, "first tenant")
}

// broken: a region that cannot be programmed leaves the slices. The pod that wanted it is deleted by force, so that nothing but the slices
// keeps the next one from it.
func (f *fpgas) broken(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	staged(ctx, "logic", openCL, false, "*")
	newFPGAClass(ctx, "fpga-broken", open("logic"))
	c := named("logic")
	c.Program = v1alpha1.ProgramAlways
	newTemplate(ctx, namespace, "logic", claimRegion("fpga-broken", 1, c))
	f.Fault(fpgasim.Fault{Card: f.card, Port: 1, On: fpgasim.OnPR, Errno: "EIO", Status: "reconfig CRC error", Times: 2})
	pod := newPod(ctx, namespace, "broken", withTemplate("logic"))
	refusedAtPrepare(ctx, pod, "ProgramFailed", "reconfig CRC error")
	staysPending(ctx, pod)
	before := f.programmings()

	say("the region is in no slice, and the node says why")
	eventuallyPublishedRegion(ctx, f.device(1), BeNil())
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, fpgaNode)
		g.Expect(err).NotTo(HaveOccurred())
		var told []string
		for _, p := range node.Status.Problems {
			told = append(told, p.Subject+" "+p.Reason)
		}
		g.Expect(told).To(ConsistOf(f.device(1)+" RegionUnknown", "0000:3d:00.0 UndoFailed"))
	}).Should(Succeed())

	say("the next pod does not get it, although no claim is allocated it any more")
	claim := onlyClaim(ctx, pod)
	Expect(h.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))).To(Succeed())
	eventuallyGone(ctx, pod)
	Eventually(ctx, func() bool {
		_, err := h.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}).Should(BeTrue(), "claim %s goes with its pod", claim.Name)
	second := newPod(ctx, namespace, "second", withTemplate("logic"))
	eventuallyUnschedulable(ctx, second, "cannot allocate all claims")
	Expect(f.programmings()).To(Equal(before), "a region in an unknown state was programmed again")

	say("bind the card anew")
	f.Set(fpgasim.Set{Card: f.card, Port: 1, Rebind: true})
	eventuallyFree(ctx, f.device(1))
	running(ctx, second)
	Expect(f.attribute(1, "afu_id")).To(Equal(openCL))
	f.end(ctx, second)
}

// publishedRegion is a region as the node's slices have it, nil if they do not.
func publishedRegion(ctx context.Context, name string) (*resourceapi.Device, error) {
	devices, err := poolDevices(ctx, fpgaNode+"/fpga")
	if err != nil {
		return nil, err
	}
	for i := range devices {
		if devices[i].Name == name {
			return &devices[i], nil
		}
	}
	return nil, nil //nolint:nilnil // documented above
}

// eventuallyPublishedRegion waits until a region is published as wanted.
func eventuallyPublishedRegion(ctx context.Context, name string, want gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(ctx, func() (*resourceapi.Device, error) { return publishedRegion(ctx, name) }).Should(want)
}

// holding is a region that is published with the digest of what it holds. This is how the plugin says that it saw the programming's end.
func holding() gomegatypes.GomegaMatcher {
	return And(Not(BeNil()), HaveField("Attributes", HaveKey(resourceapi.QualifiedName("bitstreamDigest"))))
}

// staysPending expects that a pod which was refused has not started all the same.
func staysPending(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		now, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(now.Status.Phase).To(Equal(corev1.PodPending), "pod %s/%s", p.Namespace, p.Name)
		for i := range now.Status.ContainerStatuses {
			status := &now.Status.ContainerStatuses[i]
			Expect(status.ContainerID).To(BeEmpty(), "container %s of pod %s/%s was started", status.Name, p.Namespace, p.Name)
		}
	}
}

// eventuallyFree waits until a device is published without a taint.
func eventuallyFree(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(ctx, func() (*resourceapi.Device, error) { return publishedRegion(ctx, name) }, h.Patient(2*time.Minute)).Should(
		And(Not(BeNil()), HaveField("Taints", BeEmpty())))
}

// cutOff has a programming end without the plugin, and one without its pod. As long as nobody saw how it ended, no slice says what the
// region holds, and the next namespace gets the blank image.
func (f *fpgas) cutOff(ctx SpecContext) {
	namespace, others := newNamespace(ctx, nil), newNamespace(ctx, nil)
	stage(ctx, arriaInterface, openCL, "auto")
	stage(ctx, arriaInterface, blankAFU, "auto")
	staged(ctx, "logic", openCL, false, "*")
	staged(ctx, "blank", blankAFU, true)
	newFPGAClass(ctx, "fpga-cut", open("logic"))
	c := named("logic")
	c.Program = v1alpha1.ProgramAlways
	newTemplate(ctx, namespace, "logic", claimRegion("fpga-cut", 1, c))
	f.Fault(fpgasim.Fault{Card: f.card, Port: 1, On: fpgasim.OnPR, Hold: true})
	before := f.programmings()
	pod := newPod(ctx, namespace, "cut", withTemplate("logic"))
	Eventually(ctx, f.programmings).Should(BeNumerically(">", before))
	say("kill the plugin while the card is being programmed: its process ends when the driver lets it")
	plugin, err := h.PluginPod(ctx, fpgaNode)
	Expect(err).NotTo(HaveOccurred())
	eventuallyPublishedRegion(ctx, f.device(1), Not(holding()))
	Expect(h.KillContainer(ctx, fpgaNode, harness.PluginContainer(plugin).ContainerID)).To(Succeed())
	staysPending(ctx, pod)
	f.Go()
	say("the card ends what it was at, and the claim is prepared")
	pluginRestarted(ctx, fpgaNode, harness.PluginContainer(plugin).RestartCount)
	claim := onlyClaim(ctx, pod)
	running(ctx, pod)
	Expect(f.attribute(1, "afu_id")).To(Equal(openCL))
	eventuallyEvent(ctx, namespace, "ResourceClaim", claim.Name, "Programmed", "ClusterFPGABitstream blank, AFU id "+blankAFU)
	eventuallyPublishedRegion(ctx, f.device(1), holding())
	f.end(ctx, pod)
	eventuallyFree(ctx, f.device(1))

	say("a pod that goes while its region is programmed leaves it to nobody before it is wiped")
	f.Fault(fpgasim.Fault{Card: f.card, Port: 1, On: fpgasim.OnPR, Hold: true})
	before = f.programmings()
	gone := newPod(ctx, namespace, "gone", withTemplate("logic"))
	Eventually(ctx, f.programmings).Should(BeNumerically(">", before))
	eventuallyPublishedRegion(ctx, f.device(1), Not(holding()))
	Expect(h.Kube.CoreV1().Pods(namespace).Delete(ctx, gone.Name, *metav1.NewDeleteOptions(0))).To(Succeed())
	eventuallyGone(ctx, gone)
	newTemplate(ctx, others, "plain", claimRegion(fpgaClass, 1, v1alpha1.FPGAConfig{}))
	next := newPod(ctx, others, "next", withTemplate("plain"))
	Consistently(ctx, func() error { return h.PodDone(ctx, others, next.Name, corev1.PodPending) }, h.Pace(2*time.Second)).Should(Succeed())
	f.Go()
	running(ctx, next)
	Expect(f.attribute(1, "afu_id")).To(Equal(blankAFU), "another namespace got the logic")
	f.end(ctx, next)
	eventuallyFree(ctx, f.device(1))
}

// resolved waits until the controller has read what a bitstream names, and gives the digest it found.
func resolved(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	var digest string
	Eventually(ctx, func(g Gomega) {
		object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("fpgabitstreams")).Namespace(namespace).
			Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var b v1alpha1.FPGABitstream
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &b)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionResolved)).To(BeTrue(), "%v", b.Status.Conditions)
		digest = b.Status.Digest
	}).Should(Succeed())
	return digest
}

// fromRegistry is the life of a bitstream that its author pushes and names: it is fetched once, and what a region holds is not loaded
// again. A registry that is gone keeps nobody from what the node has.
func (f *fpgas) fromRegistry(ctx SpecContext) {
	namespace := newNamespace(ctx, nil)
	file := filepath.Join(GinkgoT().TempDir(), "nlb3.gbs")
	Expect(os.WriteFile(file, fpgasim.GBS(arriaInterface, nlb3, "auto", 1<<20), 0o600)).To(Succeed())
	repository := f.registry + "/team/nlb3"
	pushed := strings.TrimSpace(fettle(ctx, "bitstream", "push", "--plain-http", file, repository+":v1"))
	create(ctx, "fpgabitstreams", namespace, &v1alpha1.FPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: "nlb3"}, Spec: v1alpha1.FPGABitstreamSpec{Image: repository + ":v1"},
	})
	Expect(repository + "@" + resolved(ctx, namespace, "nlb3")).To(Equal(pushed))
	columns, err := h.Kubectl(ctx, "-n", namespace, "get", "fpgabitstreams")
	Expect(err).NotTo(HaveOccurred())
	Expect(columns).To(MatchRegexp(`(?s)NAME +RESOLVED +VERIFIED +INTERFACE +AFU +SIZE +NODES +AGE\nnlb3 +True +Unknown +%s +%s `,
		arriaInterface, nlb3))

	say("it is on the one node that it fits before anybody asks")
	Eventually(ctx, func(g Gomega) {
		object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("fpgabitstreams")).Namespace(namespace).
			Get(ctx, "nlb3", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		nodes, _, err := unstructured.NestedInt64(object.Object, "status", "nodes")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodes).To(BeEquivalentTo(1))
	}, h.Patient(2*time.Minute)).Should(Succeed())

	node := newTrap(ctx, namespace, "node", fpgaNode, true)
	newFPGAClass(ctx, "fpga-registry", v1alpha1.FPGAPolicy{
		AllowedRegistries: []string{f.registry + "/team", kernels.Host + "/mallory", node.host},
	})
	c := v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Name: "nlb3"}}
	newTemplate(ctx, namespace, "nlb3", claimRegion("fpga-registry", 0, c))
	before := f.programmings()
	pod := newPod(ctx, namespace, "first", withTemplate("nlb3"))
	running(ctx, pod)
	Expect(f.attribute(0, "afu_id")).To(Equal(nlb3))
	Expect(f.programmings()).To(Equal(before + 1))
	eventuallyEvent(ctx, namespace, "ResourceClaim", onlyClaim(ctx, pod).Name, "Programmed", "FPGABitstream "+namespace+"/nlb3, AFU id "+nlb3)
	f.end(ctx, pod)

	say("the same again: the region holds it")
	pod = newPod(ctx, namespace, "second", withTemplate("nlb3"))
	running(ctx, pod)
	Expect(f.programmings()).To(Equal(before + 1))
	f.end(ctx, pod)

	say("by its digest, which needs no object")
	c = v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Ref: pushed}}
	newTemplate(ctx, namespace, "ref", claimRegion("fpga-registry", 0, c))
	pod = newPod(ctx, namespace, "ref", withTemplate("ref"))
	running(ctx, pod)
	Expect(f.programmings()).To(Equal(before + 1))
	f.end(ctx, pod)

	say("by a manifest elsewhere that names the file that the node has: the repository there has no such file")
	stolen := steal(ctx, f.registry, "team/nlb3", "v1", kernels.Registry.Registry, "mallory/nlb3")
	f.refusedReference(ctx, namespace, "stolen", kernels.Host+"/mallory/nlb3@"+stolen, "BitstreamUnusable", "not from this repository")
	say("at the node itself, which is not contacted, although the class allows it")
	f.refusedReference(ctx, namespace, "node", node.host+"/x@"+stolen, "PrepareFailed", "bitstreams.registries.allowedDestinations")
	node.expectUntouched(ctx)
	Expect(f.programmings()).To(Equal(before + 1))

	say("loaded anew while the registry is away")
	Expect(h.StopRegistry(ctx)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.StartRegistry(ctx)
		Expect(err).NotTo(HaveOccurred())
	})
	c = v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Name: "nlb3"}, Program: v1alpha1.ProgramAlways}
	newTemplate(ctx, namespace, "again", claimRegion("fpga-registry", 0, c))
	pod = newPod(ctx, namespace, "again", withTemplate("again"))
	running(ctx, pod)
	Expect(f.programmings()).To(Equal(before + 2))
	f.end(ctx, pod)
}

// refusedReference has a claim ask for a bitstream by its digest, and waits until it is refused.
func (f *fpgas) refusedReference(ctx context.Context, namespace, name, ref, reason, text string) {
	GinkgoHelper()
	c := v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Ref: ref}}
	newTemplate(ctx, namespace, name, claimRegion("fpga-registry", 0, c))
	pod := newPod(ctx, namespace, name+"-claim", withTemplate(name))
	refusedAtPrepare(ctx, pod, reason, text)
	Expect(h.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
}
