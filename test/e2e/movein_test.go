// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	devicepluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/test/harness"
)

// pluginResource is what the stand-in for NVIDIA's device plugin gives out. Its beginning is by what Fettle knows NVIDIA's device plugins.
const pluginResource = "nvidia.com/gpu.e2e"

// devicePlugin is a stand-in for a vendor's device plugin, in the process of the test. kubelet reaches it by a socket in its directory.
type devicePlugin struct {
	devicepluginapi.UnimplementedDevicePluginServer

	mu      sync.Mutex
	gpus    map[string]owned
	changed chan struct{}
}

// set says which GPUs the plugin gives out from now on.
func (p *devicePlugin) set(gpus ...owned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gpus = map[string]owned{}
	for _, gpu := range gpus {
		p.gpus[gpu.Name] = gpu
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns what the plugin gives out, and a channel that closes when that changes.
func (p *devicePlugin) now() (map[string]owned, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gpus, p.changed
}

func (*devicePlugin) GetDevicePluginOptions(context.Context, *devicepluginapi.Empty) (*devicepluginapi.DevicePluginOptions, error) {
	return &devicepluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(
	_ *devicepluginapi.Empty, stream grpc.ServerStreamingServer[devicepluginapi.ListAndWatchResponse],
) error {
	for {
		gpus, changed := p.now()
		list := &devicepluginapi.ListAndWatchResponse{}
		for name := range gpus {
			list.Devices = append(list.Devices, &devicepluginapi.Device{ID: name, Health: devicepluginapi.Healthy})
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func (p *devicePlugin) Allocate(_ context.Context, asked *devicepluginapi.AllocateRequest) (*devicepluginapi.AllocateResponse, error) {
	gpus, _ := p.now()
	answer := &devicepluginapi.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		given := &devicepluginapi.ContainerAllocateResponse{}
		for _, id := range container.DevicesIds {
			gpu, ok := gpus[id]
			if !ok {
				return nil, fmt.Errorf("no GPU is called %s", id)
			}
			for _, n := range gpu.nodes {
				given.Devices = append(given.Devices, &devicepluginapi.DeviceSpec{HostPath: n.Path, ContainerPath: n.Path, Permissions: "rw"})
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// startDevicePlugin has the kubelet of a node know the stand-in until the spec ends. A process may bind a socket to a short path only, so
// that both sockets are named by way of their directory.
func startDevicePlugin(ctx context.Context, node string) *devicePlugin {
	GinkgoHelper()
	dir, err := os.Open(filepath.Join(filepath.Dir(h.MachineDir(node)), "kubelet", "device-plugins"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(dir.Close)
	const name = "fettle-e2e.sock"
	at := fmt.Sprintf("/proc/self/fd/%d/", dir.Fd())
	listener, err := net.Listen("unix", at+name)
	Expect(err).NotTo(HaveOccurred())
	plugin, server := &devicePlugin{changed: make(chan struct{})}, grpc.NewServer()
	devicepluginapi.RegisterDevicePluginServer(server, plugin)
	go func() { _ = server.Serve(listener) }()
	DeferCleanup(server.Stop)

	kubelet, err := grpc.NewClient("unix://"+at+"kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(kubelet.Close)
	_, err = devicepluginapi.NewRegistrationClient(kubelet).Register(ctx, &devicepluginapi.RegisterRequest{
		Version: devicepluginapi.Version, Endpoint: name, ResourceName: pluginResource,
	})
	Expect(err).NotTo(HaveOccurred())
	// A resource that stays behind would count as a rival in the specs after this one.
	DeferCleanup(func(ctx SpecContext) {
		plugin.set()
		eventuallyOffers(ctx, node, 0)
	})
	return plugin
}

// eventuallyOffers waits until a node's capacity has as many GPUs of the stand-in.
func eventuallyOffers(ctx context.Context, node string, gpus int64) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		n, err := h.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
			amount := list[pluginResource]
			g.Expect(amount.Value()).To(Equal(gpus))
		}
	}).Should(Succeed())
}

// gpusOf returns the GPUs of a node with their device nodes, in the order of their addresses.
func gpusOf(node string) (gpus []owned) {
	GinkgoHelper()
	for _, d := range hardwareOf(node).Devices {
		if d.Kind != "gpu" {
			continue
		}
		nodes, err := d.Nodes(h.MachineDir(node))
		Expect(err).NotTo(HaveOccurred())
		gpus = append(gpus, owned{d, nodes})
	}
	return gpus
}

// movesIn has a device plugin give out the first GPU of a node and Fettle the others, and then moves that GPU over to Fettle.
func movesIn(ctx SpecContext) {
	gpus := gpusOf(gpuNode)
	names := make([]string, 0, len(gpus))
	for _, gpu := range gpus {
		names = append(names, gpu.Name)
	}
	booted, err := h.Kube.CoreV1().Nodes().Get(ctx, gpuNode, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())

	say("the first GPU is left to the device plugin")
	Expect(h.Install(ctx, values().Merge(harness.Values{"foreignDevices": []foreign.Entry{{
		Owner: "the device plugin", PCIAddresses: []string{gpus[0].Address},
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: gpuNode}},
	}}}))).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
	eventuallyPublished(ctx, gpuNode+"/gpu", names[1:]...)
	plugin := startDevicePlugin(ctx, gpuNode)
	plugin.set(gpus[0])
	eventuallyOffers(ctx, gpuNode, 1)

	say("each of the two gives its own GPU")
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "zero", spec(request("gpu", gpuClass, where(onDevice(gpus[0])))))
	newTemplate(ctx, ns, "one", spec(request("gpu", gpuClass, where(onDevice(gpus[1])))))
	old := newPod(ctx, ns, "old", onNode(gpuNode), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{pluginResource: resource.MustParse("1")}
	})
	one, zero := newPod(ctx, ns, "one", withTemplate("one")), newPod(ctx, ns, "zero", withTemplate("zero"))
	running(ctx, old, one)
	hasExactly(ctx, old, main, gpus[0])
	hasExactly(ctx, one, main, gpus[1])
	eventuallyUnschedulable(ctx, zero, "cannot allocate")
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Status.Problems).To(ContainElement(And(
			HaveField("Subject", gpus[0].Address), HaveField("Reason", foreign.ReasonForeign),
			HaveField("Message", ContainSubstring("the device plugin")))))
	}).Should(Succeed())

	say("the first GPU moves over: its pod ends, the device plugin gives it up, and Fettle's configuration leaves it to nobody")
	remove(ctx, old)
	plugin.set()
	eventuallyOffers(ctx, gpuNode, 0)
	Expect(h.Install(ctx, values())).To(Succeed())
	eventuallyPublished(ctx, gpuNode+"/gpu", names...)
	running(ctx, zero, one)
	hasExactly(ctx, zero, main, gpus[0])
	hasExactly(ctx, one, main, gpus[1])

	say("no GPU counted as one that two drivers give out, and neither the node nor the other pod was restarted")
	devices, err := poolDevices(ctx, gpuNode+"/gpu")
	Expect(err).NotTo(HaveOccurred())
	Expect(devices).To(HaveEach(HaveField("Taints", BeEmpty())))
	now, err := h.Kube.CoreV1().Nodes().Get(ctx, gpuNode, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Status.NodeInfo.BootID).To(Equal(booted.Status.NodeInfo.BootID))
	pod, err := h.Kube.CoreV1().Pods(ns).Get(ctx, one.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(pod.UID).To(Equal(one.UID))
	for i := range pod.Status.ContainerStatuses {
		Expect(pod.Status.ContainerStatuses[i].RestartCount).To(BeZero())
	}
}
