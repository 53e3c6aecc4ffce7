// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// TestNFDFindsDevices wants a node selected for each PCI function from which the plugin makes a device on one of the repository's machines,
// by what Node Feature Discovery makes of that function alone.
func TestNFDFindsDevices(t *testing.T) {
	labels := nfdLabels(t)
	files, err := filepath.Glob(filepath.Join(repository, "test/machines/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no machines: %v", err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		for _, f := range deviceFunctions(t, file) {
			label := nfdLabel(f)
			seen[label] = true
			if !slices.Contains(labels, label) {
				t.Errorf("%s: the plugin publishes %s (%04x:%04x), and nfd.labels lacks its label %s", filepath.Base(file), f.Address, f.Vendor,
					f.Device, label)
			}
		}
	}
	// The machines have GPUs of three vendors, FPGAs of two, and accelerators of two more.
	for _, want := range []string{"0302_10de", "1200_1002", "0380_8086", "1200_8086", "1200_10ee", "1200_17cb", "1200_1da3"} {
		if label := fmt.Sprintf("feature.node.kubernetes.io/pci-%s.present", want); !seen[label] {
			t.Errorf("no machine has a device with the label %s, but %v", label, seen)
		}
	}
}

// nfdLabels are the labels that the DaemonSet of an installation with nfd.enabled asks for, any of them.
func nfdLabels(t *testing.T) []string {
	t.Helper()
	pod := podOf(t, find(t, renderObjects(t, "--set=nfd.enabled=true"), "DaemonSet", "fettle-kubeletplugin"))
	var labels []string
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			if r.Operator != corev1.NodeSelectorOpIn || !slices.Equal(r.Values, []string{"true"}) || len(term.MatchExpressions) != 1 {
				t.Errorf("term %+v, want one label that is true", term)
			}
			labels = append(labels, r.Key)
		}
	}
	return labels
}

// nfdLabel is what Node Feature Discovery labels a node with for a function: deviceLabelFields are class and vendor, and
// deviceClassWhitelist has 03, 0b40 and 12 (its source/pci, defaults of version 0.19).
func nfdLabel(f pci.Function) string {
	class := f.BaseClass()
	if class>>8 != 0x03 && class>>8 != 0x12 && class != 0x0b40 {
		return "none: its default configuration leaves out class " + fmt.Sprintf("%04x", class)
	}
	return fmt.Sprintf("feature.node.kubernetes.io/pci-%04x_%04x.present", class, f.Vendor)
}

// deviceFunctions are the PCI functions from which the plugin makes devices on a machine.
func deviceFunctions(t *testing.T, file string) []pci.Function {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := machine.Expand(dir, sim.Options{}); err != nil {
		t.Fatal(err)
	}
	tree, err := sysfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	published := map[string]bool{}
	for _, d := range discover.Discover(t.Context(), tree, discover.Options{}).Devices {
		if a := d.Attributes[device.AttributePCIAddress].StringValue; a != nil {
			published[*a] = true
		}
	}
	functions, _ := pci.List(tree) // A machine may be broken on purpose.
	return slices.DeleteFunc(functions, func(f pci.Function) bool { return !published[f.Address.String()] })
}
