// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/harness"
)

// nextVersion is what the suite upgrades to: this source under another name.
const nextVersion = "v99.0.0-next"

func upgrades() {
	BeforeAll(func(ctx SpecContext) {
		dir := filepath.Join(h.Cache, "e2e", "next")
		Expect(h.BuildVersion(ctx, nextVersion, dir)).To(Succeed())
	}, NodeTimeout(10*time.Minute))

	It("gives a container that restarts in place the same devices, also from a newer plugin", func(ctx SpecContext) {
		before, claim := holdOnGPUNode(ctx, "before")
		after, afterClaim := holdOnGPUNode(ctx, "after")
		crash(ctx, before)
		hasExactly(ctx, before, main, devicesOf(ctx, results(claim))...)
		Expect(h.Install(ctx, values().Merge(h.ValuesOf(nextVersion)))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) })
		eventuallyVersion(ctx, nextVersion)
		crash(ctx, after)
		hasExactly(ctx, after, main, devicesOf(ctx, results(afterClaim))...)
		Expect(h.Kube.CoreV1().Pods(after.Namespace).Delete(ctx, after.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyNothingLeft(ctx, gpuNode, afterClaim)
	})

	It("serves a pod every 200 ms while the chart is upgraded and rolled back", underLoad)
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
	done := make(chan int)
	go func() {
		defer GinkgoRecover()
		done <- load(ctx, ns, stop)
	}()
	Expect(h.Install(ctx, values().Merge(h.ValuesOf(nextVersion)))).To(Succeed())
	eventuallyVersion(ctx, nextVersion)
	Expect(h.Rollback(ctx, 0)).To(Succeed())
	eventuallyVersion(ctx, h.Version)
	close(stop)
	created := <-done
	say("%d pods were created", created)
	Expect(created).To(BeNumerically(">=", 25))

	say("every pod ran to its end")
	Expect(harness.Poll(ctx, "all pods to succeed", 6*time.Minute, func(ctx context.Context) error {
		return allSucceeded(ctx, ns, created)
	})).To(Succeed())
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
	Expect(versions).To(And(HaveKey(h.Version), HaveKey(nextVersion)), "%v", versions)
	say("and the pods that ran all the time have what they had")
	t.right(ctx)
	t.leave(ctx)
}

// beforeUs is a failure of kubelet's before it called the plugin: the API server lets a node read a claim a moment after it bound
// the pod to the node (the node authorizer's graph is eventually consistent), and kubelet tries again.
func beforeUs(message string) bool {
	return strings.Contains(message, "no relationship found between node")
}

// load creates a pod every 200 ms until stop, as long as not too many wait for their turn, and returns how many.
func load(ctx context.Context, namespace string, stop <-chan struct{}) int {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	const most = 60
	for n := 0; ; {
		if len(unfinished(ctx, namespace, "")) < most {
			newPod(ctx, namespace, fmt.Sprintf("load-%d", n), withTemplate("gpu"), script("exit 0"), func(p *corev1.Pod) {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
			})
			n++
		}
		select {
		case <-stop:
			return n
		case <-ctx.Done():
			return n
		case <-ticker.C:
		}
	}
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
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil || f.logs[p.Name] != nil {
			continue
		}
		f.logs[p.Name] = &bytes.Buffer{}
		f.wg.Go(func() { f.read(ctx, p.Name) })
	}
}

func (f *followed) read(ctx context.Context, pod string) {
	stream, err := h.Kube.CoreV1().Pods(harness.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
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
