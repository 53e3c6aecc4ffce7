// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	// zynqChip is the one device of a ZCU104 board, zynqInterface the id that its administrator chose, and zynqManager its fpga_manager.
	zynqChip      = "amd-firmware-zynqmp-firmware-pcap"
	zynqInterface = "5f2c81d0a4b94e0fb7c36d1e8f02a957"
	zynqManager   = "sys/class/fpga_manager/fpga0"
	// zynqDesign is the id that the author of a raw image gave it.
	zynqDesign = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
	// alveoCard is the user function of the first Alveo card, alveoInterface the id of its shell, and alveoSys what of sys it is below.
	alveoCard      = "0000:3b:00.1"
	alveoInterface = "97088961feaeda91a35bd3a1b3f8d2c5"
	alveoSys       = harness.MachineRoot + "/sys/devices/pci0000:3a"
	// helloUUID is the uuid of the xclbin of the unit tests.
	helloUUID = "5005e1b0c0de4a6f9a1d2b3c4d5e6f70"
)

// otherFPGAs are a ZynqMP board on the mixed node and Alveo cards on the GPU node. Their attributes are files: what the board's manager
// says after a load is what the spec put there, and the cards show what the program in the place of XRT's writes.
type otherFPGAs struct {
	// registry is where the bitstreams are, and namespace who asks for them.
	registry, namespace string
}

func programsOthers() {
	var f otherFPGAs
	BeforeAll(func(ctx SpecContext) { f = startOtherFPGAs(ctx) }, NodeTimeout(h.Patient(4*time.Minute)))
	each := func(text string, do func(*otherFPGAs, SpecContext)) {
		It(text, func(ctx SpecContext) { do(&f, ctx) }, NodeTimeout(h.Patient(3*time.Minute)))
	}
	each("programs a chip through the kernel's fpga_manager, and takes it out of use while that reports an error", (*otherFPGAs).manager)
	each("programs a card by XRT's program, and gives it to nobody when that refuses", (*otherFPGAs).xrt)
}

func startOtherFPGAs(ctx context.Context) otherFPGAs {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Install(ctx, values())).To(Succeed())
		for _, node := range h.NodeNames() {
			pluginReady(ctx, node) // the one before is gone
		}
	}, NodeTimeout(h.Patient(4*time.Minute)))
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
	place(ctx, mixedNode, "zynqmp")
	place(ctx, gpuNode, "2xalveo")
	installXRT(ctx)
	registry, err := h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })
	Expect(h.Install(ctx, values().Merge(harness.Values{
		"hostDevices": nil,
		"fpga": harness.Values{
			"programming": true, "backends": []string{"fpga_manager", "xrt"}, "xrt": harness.Values{"driverRoot": harness.MachineRoot},
		},
		"fpgaRegions": []harness.Values{{"device": zynqChip, "interfaceID": zynqInterface, "nodes": []string{"/dev/dpu"}}},
		"bitstreams":  harness.Values{"registries": harness.Values{"plainHTTP": []string{registry}}},
	}))).To(Succeed())
	pluginReady(ctx, mixedNode)
	pluginReady(ctx, gpuNode)
	return otherFPGAs{registry: registry, namespace: newNamespace(ctx, nil)}
}

// installXRT gives the GPU node a program in the place of XRT's, which sees the node's state directory and may write to what the cards are
// in sys, as on a host.
func installXRT(ctx context.Context) {
	GinkgoHelper()
	place := filepath.Join(h.MachineDir(gpuNode), "opt/xilinx/xrt/bin/unwrapped/xbmgmt2")
	Expect(os.MkdirAll(filepath.Dir(place), 0o755)).To(Succeed())
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", place, "./test/xbmgmt")
	build.Dir, build.Env = h.Root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	Expect(os.Chmod(place, 0o755)).To(Succeed())
	const state = harness.MachineRoot + "/var/lib/fettle"
	const script = `mkdir -p "$0" && mount --bind /var/lib/fettle "$0" && mount --bind "$1" "$1"`
	_, err = h.OnNode(ctx, gpuNode, "sh", "-c", script, state, alveoSys)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.OnNode(ctx, gpuNode, "umount", "-l", state, alveoSys)
		Expect(err).NotTo(HaveOccurred())
	})
}

// load makes a template of a claim that loads a file, and returns its name.
func (f *otherFPGAs) load(ctx context.Context, name, class string, content []byte, device string, flags ...string) string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), name)
	Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	args := append([]string{"bitstream", "push", "--plain-http"}, flags...)
	pushed := strings.TrimSpace(fettle(ctx, append(args, file, f.registry+"/team/"+name+":v1")...))
	c := v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Ref: pushed}, Program: v1alpha1.ProgramAlways}
	s := claimOn("", class, c)
	s.Devices.Requests[0].Exactly.Selectors = objects.Selectors(device)
	newTemplate(ctx, f.namespace, name, s)
	return name
}

// policy lets claims load what is in the spec's registry.
func (f *otherFPGAs) policy() v1alpha1.FPGAPolicy {
	return v1alpha1.FPGAPolicy{AllowedRegistries: []string{f.registry + "/team"}, AllowWithoutIOMMU: true}
}

func (f *otherFPGAs) manager(ctx SpecContext) {
	sidecar := filepath.Join(GinkgoT().TempDir(), "dpu.yaml")
	Expect(os.WriteFile(sidecar, fmt.Appendf(nil, "format: bin\nid: %s\ninterfaceID: %s\n", zynqDesign, zynqInterface), 0o600)).To(Succeed())
	newFPGAClass(ctx, "fpga-manager", f.policy())
	design := f.load(ctx, "dpu", "fpga-manager", []byte(strings.Repeat("design ", 1<<16)), onInterface(zynqInterface), "--sidecar", sidecar)

	say("the kernel is told the image's name, and the pod has the node of its driver alone")
	first := newPod(ctx, f.namespace, "first", withTemplate(design))
	running(ctx, first)
	told := func(attribute string) string {
		GinkgoHelper()
		text, err := os.ReadFile(filepath.Join(h.MachineDir(mixedNode), zynqManager, attribute))
		Expect(err).NotTo(HaveOccurred())
		return strings.TrimSpace(string(text))
	}
	Expect(told("flags")).To(Equal("0"), "the whole chip")
	Expect(told("firmware")).To(MatchRegexp(`^fettle-.*[0-9a-f]{64}\.bin$`))
	hasExactly(ctx, first, main, devicesOf(results(onlyClaim(ctx, first)))...)
	eventuallyEvent(ctx, f.namespace, "ResourceClaim", onlyClaim(ctx, first).Name, "Programmed", "region "+zynqChip)
	eventuallyPublishedRegion(ctx, zynqChip, holding())
	left, err := os.ReadDir(filepath.Join(h.MachineDir(mixedNode), "lib/firmware"))
	Expect(err).NotTo(HaveOccurred())
	Expect(left).To(BeEmpty(), "the image stays where the kernel looks for firmware")
	remove(ctx, first)

	say("a load that fails leaves a chip that no slice has")
	state := filepath.Join(h.MachineDir(mixedNode), zynqManager, "state")
	Expect(os.WriteFile(state, []byte("write error\n"), 0o644)).To(Succeed())
	second := newPod(ctx, f.namespace, "second", withTemplate(design))
	refusedAtPrepare(ctx, second, "ProgramFailed", "write error")
	staysPending(ctx, second)
	eventuallyPublishedRegion(ctx, zynqChip, BeNil())

	say("and one that its administrator has working again is published")
	Expect(os.WriteFile(state, []byte("operating\n"), 0o644)).To(Succeed())
	running(ctx, second)
	f.end(ctx, second)
}

// end deletes a pod and waits until its claim has left its node.
func (f *otherFPGAs) end(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	claim := onlyClaim(ctx, pod)
	node := claimNode(claim)
	Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	eventuallyNothingLeft(ctx, node, claim)
}

// xclbin is that of the unit tests, for the shell of the card and with another platform.
func xclbin(platform string) []byte {
	GinkgoHelper()
	const interfaceAt, platformAt, platformEnd = 336, 352, 416
	file, err := os.ReadFile(filepath.Join(h.Root, "pkg/fpga/testdata/hello.xclbin"))
	Expect(err).NotTo(HaveOccurred())
	shell, err := hex.DecodeString(alveoInterface)
	Expect(err).NotTo(HaveOccurred())
	copy(file[interfaceAt:], shell)
	copy(file[platformAt:platformEnd], bytes.Repeat([]byte{0}, platformEnd-platformAt))
	copy(file[platformAt:], platform)
	return file
}

func (f *otherFPGAs) xrt(ctx SpecContext) {
	newFPGAClass(ctx, "fpga-xrt", f.policy())
	const has = `"pciAddress" in device.attributes["fettle.dev"] && ` // the chip has none, and an expression that fails ends the search
	card := fmt.Sprintf(has+`device.attributes["fettle.dev"].pciAddress == %q`, alveoCard)
	good := f.load(ctx, "hello", "fpga-xrt", xclbin("xilinx_u55c_gen3x16_xdma_base_3"), card)
	bad := f.load(ctx, "broken", "fpga-xrt", xclbin("broken"), card)
	shows := func() string {
		GinkgoHelper()
		text, err := os.ReadFile(filepath.Join(h.MachineDir(gpuNode), "sys/bus/pci/devices", alveoCard, "xclbinuuid"))
		Expect(err).NotTo(HaveOccurred())
		return strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")
	}

	say("the card holds the claim's xclbin, and the pod has the card's node alone")
	first := newPod(ctx, f.namespace, "card", withTemplate(good))
	running(ctx, first)
	Expect(shows()).To(Equal(helloUUID))
	hasExactly(ctx, first, main, devicesOf(results(onlyClaim(ctx, first)))...)
	eventuallyEvent(ctx, f.namespace, "ResourceClaim", onlyClaim(ctx, first).Name, "Programmed", "AFU id "+helloUUID)

	say("and is empty for the next")
	f.end(ctx, first)
	Expect(shows()).To(Equal(strings.Repeat("0", len(helloUUID))))

	say("an xclbin that XRT refuses")
	second := newPod(ctx, f.namespace, "refused", withTemplate(bad))
	refusedAtPrepare(ctx, second, "ProgramFailed", "XCLBIN does not match the shell")
	staysPending(ctx, second)
	Expect(shows()).NotTo(Equal(helloUUID))
}
