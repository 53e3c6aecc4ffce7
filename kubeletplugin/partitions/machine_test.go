// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package partitions_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/device"
	left "github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestMachineThatIsNotThere: what is foretold of a machine under a policy is byte for byte what the plugin publishes there.
func TestMachineThatIsNotThere(t *testing.T) {
	const layout = `[{profile: 3g.40gb, count: 1}, {profile: 1g.10gb, count: 2}]`
	for name, tt := range map[string]struct {
		machine, devices string
		foreign          string
		counters, never  bool
		want             int
	}{
		"MIG as claims ask":      {devices: "nvidia: {mig: {mode: Dynamic, profiles: [3g.40gb]}}", counters: true, want: 24},
		"without counters":       {devices: "nvidia: {mig: {mode: Dynamic, profiles: [3g.40gb]}}", want: 8},
		"a layout":               {devices: "nvidia: {mig: {mode: Static, layout: " + layout + "}}", counters: true, want: 24},
		"MIG is off":             {devices: "nvidia: {mig: {mode: Disabled}}", counters: true, want: 8},
		"virtual functions":      {machine: "2xb60-sriov", devices: "sriov: {virtualFunctions: 2}", counters: true, want: 6},
		"AMD's without counters": {machine: "8xmi300x", devices: "amd: {compute: CPX}", want: 64},
		"shares":                 {devices: "sharing: {maxClaims: 4}", counters: true, want: 8},
		"one of another driver": {
			devices: "nvidia: {mig: {mode: Dynamic, profiles: [3g.40gb]}}", foreign: "0000:18:00.0", counters: true, want: 21,
		},
		"AMD's modes":              {machine: "8xmi300x", devices: "amd: {compute: CPX}", counters: true, want: 72},
		"AMD's modes are refused":  {machine: "8xmi300x", devices: "amd: {compute: CPX}", counters: true, never: true, want: 8},
		"virtual machines":         {machine: "2xrtx-vfio", devices: "passthrough: true", counters: true, want: 3},
		"AMD's of another driver":  {machine: "8xmi300x", devices: "amd: {compute: CPX}", foreign: "0000:05:00.0", counters: true, want: 63},
		"a policy for other nodes": {machine: "8xmi300x", devices: "nvidia: {mig: {mode: Disabled}}", counters: true, want: 8},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeOf(t, tt.machine, tt.counters)
			n.readOnly = tt.never
			if tt.foreign != "" {
				n.foreign = []left.Entry{{Owner: "another", PCIAddresses: []string{tt.foreign}}}
			}
			n.policy("any", "  devices: {"+tt.devices+"}")
			foretold := n.foretold()
			if got := len(foretold) - countPools(foretold); got != tt.want {
				t.Errorf("%d devices are foretold, want %d: %v", got, tt.want, foretold)
			}
			n.process().until("what was foretold", func(s *inventory.Snapshot) bool {
				return len(s.PartitionPolicies) == 1 && cmp.Diff(foretold, published(t, s)) == ""
			})
		})
	}
}

// nodeOf is a node with a machine whose sysfs reacts, or with eight H100 and NVIDIA's library.
func nodeOf(t *testing.T, machine string, counters bool) *node {
	t.Helper()
	if machine == "" {
		return start(t, counters)
	}
	return startPCI(t, machine, counters)
}

// foretold are the slices that the node's machine has without claims.
func (n *node) foretold() []string {
	n.t.Helper()
	tree, err := sysfs.Open(n.root)
	check.Must(n.t, err)
	defer tree.Close()
	file := nodeconfig.File{ForeignDevices: n.foreign}.WithDefaults()
	file.Partitions.PCI = !n.readOnly
	m := publication.Machine{Tree: tree, File: &file, Usable: cdi.Check, Kept: partition.Kept{Shares: true}}
	if n.machine.File != "" {
		command := nvml.Command{Path: nvmlCommand, LibraryPath: n.machine.File, Timeout: time.Minute, State: []string{os.TempDir()}}
		m.NVML = nvml.NewProber(command).Query
	}
	list, err := n.policies.Resource(policyResource).List(n.t.Context(), metav1.ListOptions{})
	check.Must(n.t, err)
	for i := range list.Items {
		var p v1alpha1.PartitionPolicy
		check.Must(n.t, runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &p))
		m.Policies = append(m.Policies, p)
	}
	if n.counters {
		m.Counters, m.Kept.Counters = partition.FormSeparate, true
	}
	found := m.Find(n.t.Context())
	var out []string
	for _, pool := range found.Pools(nodefixture.Node) {
		for _, s := range pool.Slices {
			out = append(out, lines(n.t, pool.Name, s.SharedCounters, s.Devices)...)
		}
	}
	return sorted(out)
}

// published are the slices that the plugin publishes.
func published(t *testing.T, s *inventory.Snapshot) []string {
	t.Helper()
	var out []string
	for name, pool := range publish.Resources(nodefixture.Node, s).Pools {
		for _, s := range pool.Slices {
			out = append(out, lines(t, name, s.SharedCounters, s.Devices)...)
		}
	}
	return sorted(out)
}

func sorted(lines []string) []string { return slices.Sorted(slices.Values(lines)) }

// lines are a slice as text: its pool with the counters, and each device.
func lines(t testing.TB, pool string, counters []resourceapi.CounterSet, devices []resourceapi.Device) []string {
	t.Helper()
	out := []string{poolLine + pool + text(t, counters)}
	for i := range devices {
		out = append(out, pool+": "+text(t, foreseeable(devices[i])))
	}
	return out
}

// foreseeable is a device without what only the machine can say of an instance or a virtual function that is not made yet.
func foreseeable(d resourceapi.Device) resourceapi.Device {
	d.Attributes = maps.Clone(d.Attributes)
	switch *d.Attributes[device.AttributeType].StringValue {
	case device.TypeMIG:
		delete(d.Attributes, device.AttributeUUID)
	case device.TypeVF:
		delete(d.Attributes, device.AttributePCIAddress)
		delete(d.Attributes, deviceattribute.StandardDeviceAttributePCIBusID)
	}
	return d
}

const poolLine = "pool "

func countPools(lines []string) int {
	return len(slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return line[:len(poolLine)] != poolLine }))
}

func text(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	check.Must(t, err)
	return string(data)
}
