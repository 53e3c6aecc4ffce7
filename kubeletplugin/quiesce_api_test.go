// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// simulateNVML has the plugin watch simulated GPUs with a fettle-nvml of its own.
func (n *node) simulateNVML() nvmlsim.Machine {
	n.t.Helper()
	dir := n.t.TempDir()
	nvml.Simulated = os.TempDir()
	n.config.NVMLCommand = filepath.Join(dir, "fettle-nvml")
	check.Must(n.t, nvmlsim.Build(n.t.Context(), n.config.NVMLCommand))
	state := filepath.Join(n.config.HostRoot, nvmlsim.WritableDir)
	check.Must(n.t, os.Mkdir(state, 0o755))
	machine, err := nvmlsim.Adopt(nvmlsim.DefaultFile(state), n.config.HostRoot, nvmlsim.H100)
	check.Must(n.t, err)
	n.config.File.NVML.DriverRoot = n.config.HostRoot
	n.config.File.Health.Interval.Duration = 200 * time.Millisecond
	return machine
}

// watchers lists the processes that run the node's own fettle-nvml.
func (n *node) watchers() (found []string) {
	n.t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	check.Must(n.t, err)
	for _, exe := range processes {
		if program, err := os.Readlink(exe); err == nil && program == n.config.NVMLCommand {
			found = append(found, filepath.Dir(exe))
		}
	}
	return found
}

// watched says whether a child watches the GPUs.
func (n *node) watched() string {
	if len(n.watchers()) == 0 {
		return "no fettle-nvml runs"
	}
	return ""
}

func (n *node) quiescedFault(want metav1.ConditionStatus, reason string) string {
	n.t.Helper()
	status := n.status()
	got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionQuiesced)
	if got == nil || got.Status != want || got.Reason != reason {
		return fmt.Sprintf("condition Quiesced is %+v, want %s, %s", got, want, reason)
	}
	return ""
}

// calls is how often the simulated library was called.
func calls(t *testing.T, machine nvmlsim.Machine) int {
	t.Helper()
	s, err := machine.Look()
	check.Must(t, err)
	return s.Total
}

// testQuiesce: a node lets go of its GPUs step by step, gives up nothing of it when the plugin is replaced meanwhile, and takes them back.
func (c *cluster) testQuiesce(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "quiesce", "8xh100-sxm")
	machine := n.simulateNVML()
	n.start("pod-1")
	n.eventually(func() string { return n.publishedGPUs(8) })
	n.eventually(n.watched)
	gpus := n.gpus()
	held := n.claim("quiesce-held", nil, nodefixture.Result("gpu", device.KindGPU, gpus[0]))
	if answer := n.prepare(held); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	late := n.claim("quiesce-late", nil, nodefixture.Result("gpu", device.KindGPU, gpus[1]))

	n.annotateWith(v1alpha1.QuiesceAnnotation, `"gpus"`)
	n.eventually(func() string { return n.quiescedFault(metav1.ConditionFalse, quiesce.ReasonVendorUnknown) })
	n.annotateWith(v1alpha1.QuiesceAnnotation, `"nvidia"`)
	n.eventually(func() string { return n.publishedGPUs(0) })
	n.eventually(func() string { return n.quiescedFault(metav1.ConditionFalse, quiesce.ReasonClaims) })
	if answer := n.prepare(held); answer.Error != "" {
		t.Errorf("a pod that has its claim lost it: %s", answer.Error)
	}
	if answer := n.prepare(late); !strings.Contains(answer.Error, quiesce.ErrQuiesced.Error()) {
		t.Errorf("answer %q, want a refusal", answer.Error)
	}
	n.refusedWith(late, "DriverQuiesced", v1alpha1.QuiesceAnnotation)

	n.unprepare(held)
	n.eventually(func() string { return n.quiescedFault(metav1.ConditionTrue, quiesce.ReasonQuiesced) })
	if left := n.watchers(); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
	noDeviceFiles(t)

	before := calls(t, machine)
	n.stop()
	n.start("pod-2")
	n.eventually(func() string {
		if status := n.status(); status.Facts == nil || status.Facts.PluginPod != "pod-2" {
			return "the next plugin has not reported"
		}
		return n.quiescedFault(metav1.ConditionTrue, quiesce.ReasonQuiesced)
	})
	n.plugin.review.Send()
	if answer := n.prepare(late); !strings.Contains(answer.Error, quiesce.ErrQuiesced.Error()) {
		t.Errorf("answer %q of the next plugin, want a refusal", answer.Error)
	}
	n.unprepare(late) // kubelet may ask for it again at any time
	if now := calls(t, machine); now != before {
		t.Errorf("NVIDIA's library was called %d times while its driver was changed", now-before)
	}

	n.annotateWith(v1alpha1.QuiesceAnnotation, "null")
	n.eventually(func() string { return n.publishedGPUs(8) })
	n.eventually(n.watched)
	n.eventually(func() string {
		if got := meta.FindStatusCondition(n.status().Conditions, v1alpha1.ConditionQuiesced); got != nil {
			return fmt.Sprintf("still says %+v", got)
		}
		return ""
	})
	if answer := n.prepare(late); answer.Error != "" {
		t.Errorf("after it was taken back: %s", answer.Error)
	}
}

// publishedGPUs wants so many published GPUs, and no other pool.
func (n *node) publishedGPUs(want int) string {
	n.t.Helper()
	got := n.devices()
	if _, there := got[n.name+"/gpu"]; !there || got[n.name+"/gpu"] != want || len(got) != 1 {
		return fmt.Sprintf("%v is published, want %d GPUs", got, want)
	}
	return ""
}

// noDeviceFiles: this process, which is the plugin here, has no file of NVIDIA's open.
func noDeviceFiles(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	check.Must(t, err)
	for _, f := range files {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && strings.Contains(target, "/dev/nvidia") {
			t.Errorf("%s is open", target)
		}
	}
}

// annotateWith sets an annotation of the node's AcceleratorNode to a JSON value.
func (n *node) annotateWith(name, value string) {
	n.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, name, value)
	client := n.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	_, err := client.Patch(n.t.Context(), n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	check.Must(n.t, err)
}
