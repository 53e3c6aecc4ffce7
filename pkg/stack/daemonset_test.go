// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

func driver() *v1alpha1.DaemonSetDriver {
	return &v1alpha1.DaemonSetDriver{
		Repository: "registry.example/drivers/nvidia", Tag: "${DRIVER_VERSION}-${KERNEL}-${OS}", Version: "580.95.05", Privileged: new(true),
	}
}

// TestImageFor: the image of a driver for a node. A kernel's release with a plus is no tag and no label; what is not known holds the
// node.
func TestImageFor(t *testing.T) {
	for _, tc := range []struct{ name, tag, os, kernel, want, reason string }{
		{"Debian", "", "Debian GNU/Linux 12 (bookworm)", "6.1.0-1", "580.95.05-6.1.0-1-debian12", ""},
		{"Ubuntu", "", "Ubuntu 24.04.1 LTS", "6.8.0-45-generic", "580.95.05-6.8.0-45-generic-ubuntu24.04", ""},
		{"Red Hat", "", "Red Hat Enterprise Linux 9.4 (Plow)", "5.14.0-427.el9.x86_64", "580.95.05-5.14.0-427.el9.x86_64-rhel9.4", ""},
		{
			"OpenShift", "", "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0", "5.14.0-427.el9_4.x86_64",
			"580.95.05-5.14.0-427.el9_4.x86_64-rhcos418.94", "",
		},
		{"SUSE", "", "SUSE Linux Enterprise Server 15 SP5", "5.14.21", "580.95.05-5.14.21-sles15.5", ""},
		{"Azure", "", "Microsoft Azure Linux 3.0", "6.6.150.1-1.azl3", "580.95.05-6.6.150.1-1.azl3-azurelinux3.0", ""},
		{"a plus", "${KERNEL}", "Ubuntu 24.04", "6.1.0+", "6.1.0_", ""},
		{"the architecture", "${ARCH}-x", "Ubuntu 24.04", "6.1.0", "amd64-x", ""},
		{"a system that is not known", "", "Plan 9", "6.1.0-1", "", stack.ReasonOSUnknown},
		{"one that is of no account", "${KERNEL}", "Plan 9", "6.1.0-1", "6.1.0-1", ""},
		{"no version", "", "Ubuntu rolling", "6.1.0-1", "", stack.ReasonOSUnknown},
		{"too long", strings.Repeat("${KERNEL}", 14), "Ubuntu 24.04", "6.1.0-0123", "", stack.ReasonDriverTagInvalid},
		{"no tag", ".${KERNEL}", "Ubuntu 24.04", "6.1.0-1", "", stack.ReasonDriverTagInvalid},
		{"kubelet has not reported", "", "Ubuntu 24.04", "", "", stack.ReasonDriverPending},
	} {
		d, n := driver(), healthy("a")
		if tc.tag != "" {
			d.Tag = tc.tag
		}
		if tc.want != "" {
			tc.want = d.Repository + ":" + tc.want
		}
		n.OSImage, n.KernelVersion = tc.os, tc.kernel
		got, _, why := stack.ImageFor(d, n)
		if got != tc.want || why.Reason != tc.reason {
			t.Errorf("%s: %q %+v, want %q %s", tc.name, got, why, tc.want, tc.reason)
		}
	}
}

// TestByDaemonSet: a driver's pod counts if it is for this kernel, of the image that is wanted, and kubelet started its container in
// this boot of the node.
func TestByDaemonSet(t *testing.T) {
	boot := time.Unix(1700000000, 0)
	const image, kernel = "registry.example/d:1", "6.1.0-1"
	good := stack.DriverPod{Name: "p", Image: image, Kernel: kernel, Ready: true, Started: boot.Add(time.Minute)}
	pod := func(change func(*stack.DriverPod)) []stack.DriverPod {
		p := good
		change(&p)
		return []stack.DriverPod{p}
	}
	for _, tc := range []struct {
		name   string
		pods   []stack.DriverPod
		node   func(*stack.Node)
		status stack.Status
		reason string
	}{
		{"ready", []stack.DriverPod{good}, nil, stack.Passed, stack.ReasonPassed},
		{"no pod", nil, nil, stack.Unknown, stack.ReasonDriverPending},
		{"for another kernel", pod(func(p *stack.DriverPod) { p.Kernel = "6.1.0-0" }), nil, stack.Unknown, stack.ReasonDriverOutdated},
		{"being deleted", pod(func(p *stack.DriverPod) { p.Leaving = true }), nil, stack.Unknown, stack.ReasonDriverPending},
		{"of another image", pod(func(p *stack.DriverPod) { p.Image = "registry.example/d:0" }), nil, stack.Unknown, stack.ReasonDriverOutdated},
		{"not ready", pod(func(p *stack.DriverPod) { p.Ready = false }), nil, stack.Unknown, stack.ReasonDriverPending},
		{
			"no image", pod(func(p *stack.DriverPod) { p.Ready, p.Waits, p.Message = false, "ImagePullBackOff", "not found" }), nil,
			stack.Failed, stack.ReasonDriverImageMissing,
		},
		{
			"crashes", pod(func(p *stack.DriverPod) { p.Ready, p.Waits = false, "CrashLoopBackOff" }), nil, stack.Failed, stack.ReasonDriverFailed,
		},
		{
			"ended, and is not started again yet", pod(func(p *stack.DriverPod) { p.Ready, p.Waits = false, "Error" }), nil,
			stack.Failed, stack.ReasonDriverFailed,
		},
		{
			"the status is of the boot before", pod(func(p *stack.DriverPod) { p.Started = boot.Add(-time.Minute) }), nil,
			stack.Unknown, stack.ReasonDriverOtherBoot,
		},
		{
			"the report is of the boot before",
			[]stack.DriverPod{good},
			func(n *stack.Node) { n.BootID = "boot-2" },
			stack.Unknown, stack.ReasonNotCurrent,
		},
		{
			"the plugin does not say when",
			[]stack.DriverPod{good},
			func(n *stack.Node) { n.Accelerator.Facts.BootTime = nil },
			stack.Unknown, stack.ReasonNotReported,
		},
		{
			"another module",
			[]stack.DriverPod{good},
			func(n *stack.Node) { n.Accelerator.Summary.Drivers = "amd 580.95.5.1, nvidia 570.1.1" },
			stack.Failed, stack.ReasonDriverOtherVersion,
		},
		{"beside another vendor's", []stack.DriverPod{good}, func(n *stack.Node) {
			n.Accelerator.Summary.Drivers = "amd 6.12.12, nvidia 580.95.5"
		}, stack.Passed, stack.ReasonPassed},
		{"as the driver prints it", []stack.DriverPod{good}, func(n *stack.Node) {
			n.Accelerator.Summary.Drivers = "nvidia 580.95.5"
		}, stack.Passed, stack.ReasonPassed},
	} {
		n := healthy("a")
		n.Accelerator.Facts.BootTime = new(metav1.NewTime(boot))
		if tc.node != nil {
			tc.node(n)
		}
		d := driver()
		d.ModuleVersion = "580.95.5"
		if tc.name == "as the driver prints it" {
			d.ModuleVersion = "580.95.05"
		}
		v := stack.ByDaemonSet(d, image, n, tc.pods)
		if v.Status != tc.status || v.Reason != tc.reason || v.Message == "" {
			t.Errorf("%s: %+v, want %v %s", tc.name, v, tc.status, tc.reason)
		}
		if tc.reason == stack.ReasonDriverImageMissing && !strings.Contains(v.Message, image) {
			t.Errorf("%s: %s does not name the image", tc.name, v.Message)
		}
	}
}

// TestWantsDriver: a driver goes where a device was found, and stays where it is.
func TestWantsDriver(t *testing.T) {
	n := healthy("a")
	if !stack.WantsDriver(n, false) {
		t.Error("a node with devices has no driver")
	}
	n.Accelerator.Pools = nil
	if stack.WantsDriver(n, false) || !stack.WantsDriver(n, true) {
		t.Error("a node without devices gets a driver, or loses the one it has")
	}
	problems(n, 1, missing)
	if !stack.WantsDriver(n, false) {
		t.Error("a device without a driver gets none")
	}
	n.Accelerator = nil
	if stack.WantsDriver(n, false) {
		t.Error("a node that never reported gets a driver")
	}
}

// TestRebootDeadlock: a node that started again waits for its driver, and nothing of the plugin does: it answers Unprepare, so that
// pods can end, whatever the driver's state is (NVIDIA/k8s-driver-manager#213).
func TestRebootDeadlock(t *testing.T) {
	n := healthy("a")
	n.Delivered = stack.ByDaemonSet(driver(), "registry.example/d:1", n, nil)
	if got := verdicts(n); got != "+Passed ?DriverPending +Passed +Passed +Passed" {
		t.Errorf("without the driver's pod: %s", got)
	}
}
