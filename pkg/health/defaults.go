// SPDX-License-Identifier: Apache-2.0

package health

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultTable is the shipped table. Xids follow the immediate action of NVIDIA's catalogue
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of October 2025): what asks for a restart of the program or
// for nothing is ignored, what asks for a reset or a reboot is fatal. The exceptions are commented.
func DefaultTable() Table {
	var t Table
	for _, rules := range [][]Rule{xidFatal(), xidDegraded(), xidIgnored(), nvmlRules(), otherRules()} {
		t = append(t, rules...)
	}
	return t
}

const (
	resetGPU   = "drain the GPU and reset it (nvidia-smi --gpu-reset), or reboot the node"
	rebootNode = "reboot the node; if it comes back, replace the GPU"
)

func xidFatal() []Rule {
	return each(SourceXid, Fatal, map[string]string{
		"46":  "the GPU stopped processing: " + resetGPU,
		"54":  "auxiliary power is not connected to the GPU board: check the board",
		"62":  "an internal micro-controller halted: " + resetGPU,
		"64":  "remapping a row of memory failed: " + resetGPU + "; if it comes back, replace the GPU",
		"79":  "the GPU fell off the bus: " + rebootNode,
		"95":  "an uncontained memory error: " + resetGPU,
		"110": "a security fault: " + resetGPU,
		"119": "the GPU's system processor does not answer: " + resetGPU,
		"120": "the GPU's system processor failed: " + resetGPU,
		"136": "training of a link failed: " + resetGPU,
		"140": "an unrecovered ECC error: " + resetGPU,
		"143": "the GPU could not be initialised: " + resetGPU,
		"151": "a key rotation failed: restart the virtual machine, or reboot the node",
		"155": "an NVLink error that the driver defines: " + resetGPU,
		"156": "a resource was retired: " + resetGPU,
		"158": "a fatal timeout of the GPU: " + resetGPU,
	})
}

// xidDegraded are errors after which the program is gone and the GPU works on, until it is reset at a convenient time, and those
// for which the catalogue describes a procedure instead of an action.
func xidDegraded() []Rule {
	const soon = "; no new claims until the GPU is reset, when it is convenient"
	rules := each(SourceXid, Degraded, map[string]string{
		"48":  "an uncorrectable ECC error" + soon,
		"74":  "an NVLink error: see nvidia-smi nvlink --errorcounters; " + resetGPU,
		"94":  "a contained memory error" + soon,
		"171": "an uncorrectable error of DRAM" + soon,
		"172": "an uncorrectable error of SRAM" + soon,
	})
	return append(rules, Rule{
		Source: SourceXid, Code: "14[4-9]", Severity: Degraded, Message: "an NVLink error: see the kernel log; " + resetGPU,
	}, Rule{
		Source: SourceXid, Code: "150", Severity: Degraded, Message: "an NVLink error: see the kernel log; " + resetGPU,
	})
}

// xidIgnored are errors of programs, consequences of other errors, and notices.
func xidIgnored() []Rule {
	codes := []string{
		"8", "11", "13", "25", "31", "32", "39", "40", "41", "60", "68", "69", "70", "71", "72", "75", "76", "77", "80", "82", "83", "84",
		"85", "86", "88", "89", "9[6-9]", "10[0-5]", "12[6-9]", "13[0-5]", "139", // restart the program
		"14", "37", "38", "43", "44", "63", "66", "67", "92", "93", "106", "107", "108", "121", "137", "141", "152", "153", "157", "160", "161",
		// Cleanup after another error, which has a rule of its own.
		"45",
		// A context switch timed out. The catalogue asks for a reset; NVIDIA's device plugin takes it for an error of the program, which
		// it mostly is. Where a reset is needed, the driver says so by its recovery action.
		"109",
		// The recovery action changed, which is read from the library.
		"154",
		// Power smoothing; the catalogue names no action. Not verified.
		"16[2-5]",
	}
	rules := make([]Rule, 0, len(codes)+1)
	for _, code := range codes {
		rules = append(rules, Rule{Source: SourceXid, Code: code, Severity: Ignored})
	}
	return append(rules, Rule{
		Source: SourceXid, Severity: Degraded, RecoverAfter: metav1.Duration{Duration: time.Hour},
		Message: "a critical error that NVIDIA's catalogue gives no action for: see the kernel log",
	})
}

func nvmlRules() []Rule {
	return []Rule{
		{Source: SourceNVML, Code: "lost", Severity: Fatal, Message: "NVIDIA's library lost the GPU: " + rebootNode},
		{Source: SourceNVML, Code: "remap-failure", Severity: Fatal, Message: "rows of memory could not be remapped: replace the GPU"},
		// New programs may start on it, says NVIDIA's guide to memory errors; the next reset remaps.
		{Source: SourceNVML, Code: "remap-pending", Severity: Ignored, Message: "rows of memory are remapped at the next reset"},
		{
			Source: SourceNVML, Code: RecoveryPrefix + "unknown-*", Severity: Degraded,
			Message: "NVIDIA's driver asks for a recovery that this release does not know: see nvidia-smi -q",
		},
		{Source: SourceNVML, Code: RecoveryPrefix + "node-reboot", Severity: Fatal, Message: "NVIDIA's driver asks for a reboot of the node"},
		{Source: SourceNVML, Code: RecoveryPrefix + "system-reboot", Severity: Fatal, Message: "NVIDIA's driver asks for a reboot of the node"},
		{Source: SourceNVML, Code: RecoveryPrefix + "*", Severity: Fatal, Message: "NVIDIA's driver asks for a recovery: " + resetGPU},
		{
			Source: SourceNVML, Code: "ecc-uncorrected", Severity: Degraded,
			Message: "uncorrectable ECC errors; no new claims until the GPU is reset, when it is convenient",
		},
		{Source: SourceNVML, Code: "ecc-corrected", Severity: Ignored},
		{Source: SourceNVML, Severity: Degraded},
	}
}

func otherRules() []Rule {
	hour := metav1.Duration{Duration: time.Hour}
	return []Rule{
		// amdgpu counts by block of the chip: uncorrectable, deferred (poison that nothing used yet), correctable. That every
		// uncorrectable error spoils the GPU until it is reset is the cautious reading; not verified on hardware.
		{
			Source: SourceRAS, Code: "*.ue", Severity: Fatal,
			Message: "uncorrectable errors in the GPU: reset it (amd-smi reset --gpureset) or reboot the node",
		},
		{Source: SourceRAS, Code: "*.de", Severity: Degraded, RecoverAfter: hour, Message: "deferred memory errors: see the kernel log"},
		{Source: SourceRAS, Code: "*.ce", Severity: Ignored},
		{Source: SourceRAS, Severity: Degraded},
		{
			Source: SourceAER, Code: "fatal.*", Severity: Fatal,
			Message: "fatal PCI Express errors, after which the link was reset: see the kernel log",
		},
		// Any program that probes a register which is not there makes one.
		{Source: SourceAER, Code: "nonfatal.UnsupReq", Severity: Ignored},
		{Source: SourceAER, Code: "nonfatal.UnsupportedRequest", Severity: Ignored},
		{
			Source: SourceAER, Code: "nonfatal.*", Severity: Degraded, RecoverAfter: hour,
			Message: "uncorrectable PCI Express errors: see the kernel log",
		},
		{Source: SourceAER, Code: "correctable.*", Severity: Ignored},
		{
			Source: GoneSource, Code: GoneCode, Severity: Fatal,
			Message: "the device or its driver left the node while a claim holds it",
		},
		// Nobody new gets the device from here: who has it from there cannot be known.
		{
			Source: SourceRival, Code: RivalPlugin, Severity: Degraded,
			Message: "a device plugin hands it out, too, so two pods may get it: remove one of the two from this node",
		},
		{
			Source: SourceRival, Code: RivalDriver, Severity: Degraded,
			Message: "another DRA driver hands it out, too, so two pods may get it: remove one of the two from this node",
		},
		{Source: SourceMPS, Code: MPSDaemon, Severity: Degraded, Message: "the MPS daemon of the claim that holds it is not well"},
		{
			Source: SourceFPGA, Code: "temperature-trip", Severity: Fatal,
			Message: "the board is too hot: see its sensors and the machine's cooling",
		},
		{
			Source: SourceFPGA, Code: "fatal*", Severity: Fatal,
			Message: "fatal errors of the FPGA: see its error registers; reset or power-cycle it",
		},
		{Source: SourceFPGA, Severity: Degraded, Message: "errors of the FPGA: see its error registers"},
	}
}

// each makes a rule a code, in the order of the codes.
func each(source string, severity Severity, messages map[string]string) []Rule {
	rules := make([]Rule, 0, len(messages))
	for _, code := range sorted(messages) {
		rules = append(rules, Rule{Source: source, Code: code, Severity: severity, Message: messages[code]})
	}
	return rules
}
