// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// upgradeLabel is where NVIDIA's GPU operator keeps how far the upgrade of a node's driver is (k8s-operator-libs, pkg/upgrade).
const upgradeLabel = "nvidia.com/gpu-driver-upgrade-state"

// The reasons of the state Driver with the engine External.
const (
	// ReasonOperatorMissing: the operator has no object that says what it installs.
	ReasonOperatorMissing = "OperatorMissing"
	// ReasonDriverPending: the operator does not report the driver for the kernel that runs.
	ReasonDriverPending = "DriverPending"
	// ReasonDriverChanging: the operator installs or upgrades the node's driver.
	ReasonDriverChanging = "DriverChanging"
	// ReasonDriverFailed: it could not.
	ReasonDriverFailed = "DriverFailed"
)

// Operator is what a vendor's operator shows of its drivers.
type Operator struct {
	Kind v1alpha1.DriverOperator
	// Objects is how many objects configure it. With none it installs nothing.
	Objects int
	// Modules are the drivers that AMD's operator reports, by node.
	Modules map[string]Module
}

// Module is the driver of a node as AMD's operator reports it.
type Module struct {
	Image, KernelVersion, Status string
}

// External says what an operator shows of a node's driver. What it says of all nodes together says nothing of one, so that is not asked.
func External(n *Node, o *Operator) Verdict {
	switch {
	case o.Kind == v1alpha1.OperatorAMD && o.Objects == 0:
		return unknown(ReasonOperatorMissing, "AMD's GPU operator has no DeviceConfig: make one, or use another engine")
	case o.Kind == v1alpha1.OperatorAMD:
		return byAMD(n, o.Modules[n.Name])
	case o.Objects == 0:
		return unknown(ReasonOperatorMissing, "NVIDIA's GPU operator has no ClusterPolicy and no NVIDIADriver: make one, or use another engine")
	}
	return byNVIDIA(n.Labels[upgradeLabel])
}

func byNVIDIA(state string) Verdict {
	switch state {
	case "", "upgrade-done":
		return passed("NVIDIA's GPU operator is not changing the driver")
	case "upgrade-failed":
		return failed(ReasonDriverFailed, "NVIDIA's GPU operator could not upgrade the driver: see its log, and remove the label %s to try again",
			upgradeLabel)
	}
	return unknown(ReasonDriverChanging, "NVIDIA's GPU operator is changing the driver: %s", state)
}

// byAMD believes a report about the kernel that runs, and no other. Without an upgrade policy the operator reports no status.
func byAMD(n *Node, m Module) Verdict {
	switch {
	case m == Module{}:
		return unknown(ReasonDriverPending, "no DeviceConfig of AMD's GPU operator reports a driver on the node: does its selector match, and "+
			"has it spec.driver.enable?")
	case m.KernelVersion != n.KernelVersion:
		return unknown(ReasonDriverPending, "AMD's GPU operator reports a driver for kernel %s, and %s runs", m.KernelVersion, n.KernelVersion)
	case strings.HasSuffix(m.Status, "-Failed"), strings.HasSuffix(m.Status, "-Timed-Out"):
		return failed(ReasonDriverFailed, "AMD's GPU operator reports %s: see its log and the status of the DeviceConfig", m.Status)
	case m.Status == "", strings.HasSuffix(m.Status, "-Complete"):
		return passed("AMD's GPU operator has loaded %s", m.Image)
	}
	return unknown(ReasonDriverChanging, "AMD's GPU operator is changing the driver: %s", m.Status)
}
