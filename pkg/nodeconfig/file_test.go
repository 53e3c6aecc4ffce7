// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/test/check"
)

const header = "apiVersion: config.fettle.dev/v1alpha1\nkind: KubeletPluginConfiguration\n"

func TestParse(t *testing.T) {
	whole := File{
		TypeMeta:    metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		HostDevices: []discover.HostDevice{{Name: "localssd", Directories: []string{"/mnt/disks/*"}}},
		NVML: NVML{
			Disabled: true, Timeout: metav1.Duration{Duration: 5 * time.Second}, DriverRoot: "/driver-root", HostDriverRoot: "/run/nvidia/driver",
		},
		DiscoveryInterval: metav1.Duration{Duration: time.Minute}, ReconcileInterval: metav1.Duration{Duration: time.Hour},
		DeviceMetadata: true,
		Health: Health{
			Rules: []health.Rule{
				{Source: "xid", Code: "94", Severity: health.Fatal, Message: "drain it"},
				{Source: "aer", Code: "nonfatal.*", Severity: health.Degraded, RecoverAfter: metav1.Duration{Duration: 2 * time.Hour}},
			},
			Interval: metav1.Duration{Duration: 5 * time.Second}, DisabledSources: []string{"ras"}, DisableEviction: true,
		},
		Artifacts: Artifacts{MaxSize: resource.MustParse("5Gi"), KeepFree: resource.MustParse("100Mi")},
		FPGA: FPGA{
			Programming: true, Backends: []string{"fpga_manager", "xrt"}, XRT: XRT{DriverRoot: "/xrt-root"}, SimulatedNodes: "sys/sim",
			BindingConditions: true, MaxFailedProgrammings: 7,
		},
		KernelCaches: KernelCaches{Enabled: true, FetchAhead: true, BindingConditions: true},
		Budget:       Budget{MaxSeedEntries: 100, Memory: Share{"10%", "1Gi"}, Unpacking: Count{Node: 9}}.withDefaults(),
		FPGARegions: []discover.FPGARegion{{
			Device: "amd-x", InterfaceID: "5f2c81d0a4b94e0fb7c36d1e8f02a957", Nodes: []string{"/dev/dpu"}, Partial: true,
		}},
	}
	bare := File{TypeMeta: whole.TypeMeta}.WithDefaults()
	tests := []struct {
		name, text string
		want       File
		// wantErrs are all in the error; none: no error.
		wantErrs []string
	}{
		{name: "defaults", text: header, want: bare},
		{name: "everything", want: whole, text: header + `
discoveryInterval: 1m
reconcileInterval: 1h
deviceMetadata: true
fpgaRegions: [{device: amd-x, interfaceID: 5f2c81d0a4b94e0fb7c36d1e8f02a957, nodes: [/dev/dpu], partial: true}]
nvml: {disabled: true, timeout: 5s, driverRoot: /driver-root, hostDriverRoot: /run/nvidia/driver}
hostDevices:
- name: localssd
  directories: ["/mnt/disks/*"]
artifacts: {maxSize: 5Gi, keepFree: 100Mi}
fpga:
  programming: true
  simulatedNodes: sys/sim
  bindingConditions: true
  maxFailedProgrammings: 7
  backends: [fpga_manager, xrt]
  xrt: {driverRoot: /xrt-root}
kernelCaches: {enabled: true, fetchAhead: true, bindingConditions: true}
budget: {maxSeedEntries: 100, memory: {node: 10%, namespace: 1Gi}, unpacking: {node: 9}}
health:
  interval: 5s
  disabledSources: [ras]
  disableEviction: true
  rules:
  - {source: xid, code: "94", severity: fatal, message: drain it}
  - {source: aer, code: nonfatal.*, severity: degraded, recoverAfter: 2h}
`},
		{name: "JSON", text: `{"apiVersion":"config.fettle.dev/v1alpha1","kind":"KubeletPluginConfiguration"}`, want: bare},
		{name: "comments before the document", text: "# Made by hand.\n---\n" + header + "---\n", want: bare},
		{
			name: "two objects", text: `{"apiVersion":"config.fettle.dev/v1alpha1","kind":"KubeletPluginConfiguration"}{}`,
			wantErrs: []string{"one document"},
		},
		{name: "a list for an object", text: header + "nvml: []", wantErrs: []string{"nvml: got a list, want an object"}},
		{name: "empty", text: "", wantErrs: []string{Kind}},
		{name: "another kind", text: strings.Replace(header, "Kubelet", "Cubelet", 1), wantErrs: []string{"CubeletPlugin", "expected"}},
		{name: "another version", text: strings.Replace(header, "v1alpha1", "v1", 1), wantErrs: []string{"config.fettle.dev/v1\""}},
		{name: "unknown key", text: header + "discoveryIntervall: 1m", wantErrs: []string{`"discoveryIntervall"`}},
		{name: "unknown nested key", text: header + "nvml: {root: /}", wantErrs: []string{`"root"`}},
		{name: "unknown key of a host device", text: header + "hostDevices: [{name: a, dirs: [/b]}]", wantErrs: []string{`dirs`}},
		{
			name: "devices of another driver that cannot be selected", text: header + "foreignDevices: [{owner: other, selector: 'device.nothing'}]",
			wantErrs: []string{"foreignDevices[0].selector", "nothing"},
		},
		{name: "unknown key of a foreign device", text: header + "foreignDevices: [{to: other}]", wantErrs: []string{`"to"`}},
		{name: "unknown key of a region", text: header + "fpgaRegions: [{device: x, node: /dev/x}]", wantErrs: []string{`node`}},
		{name: "key twice", text: header + "deviceMetadata: true\ndeviceMetadata: false", wantErrs: []string{"deviceMetadata"}},
		{name: "wrong type", text: header + "deviceMetadata: sometimes", wantErrs: []string{"deviceMetadata"}},
		{name: "nothing to bind pods after", text: header + "fpga: {bindingConditions: true}", wantErrs: []string{"fpga.programming"}},
		{
			name: "no cache to bind pods after", text: header + "kernelCaches: {bindingConditions: true}",
			wantErrs: []string{"kernelCaches.enabled"},
		},
		{name: "fetched ahead for nothing", text: header + "fpga: {fetchAhead: true}", wantErrs: []string{"fpga.fetchAhead: needs"}},
		{name: "unknown key of health", text: header + "health: {rule: []}", wantErrs: []string{`"rule"`}},
		{name: "unknown key of a rule", text: header + "health: {rules: [{source: xid, codes: [1]}]}", wantErrs: []string{`codes`}},
		{name: "not a duration", text: header + "discoveryInterval: soon", wantErrs: []string{"soon"}},
		{name: "not YAML", text: header + "\t:", wantErrs: []string{"yaml"}},
		{name: "two documents", text: header + "---\n" + header, wantErrs: []string{"one document"}},
		{
			name: "lent below what a container may link elsewhere", text: header +
				"presets: {allowedHostPaths: [{path: /mnt/disks, writable: true}]}\n" + "hostDevices: [{name: ssd, directories: [/mnt/d*/*]}]",
			wantErrs: []string{"hostDevices[0]", "/mnt/d*/*", "keep the two apart"},
		},
		{
			name: "lent below what others may read", text: header +
				"presets: {allowedHostPaths: [{path: /mnt/disks}]}\n" + "hostDevices: [{name: ssd, directories: [/mnt/d*/ssd*]}]",
			wantErrs: []string{"hostDevices[0]", "/mnt/d*/ssd*", "keep the two apart"},
		},
		{
			name: "lent with what others may read in it", text: header +
				"presets: {allowedHostPaths: [{path: /mnt/disks/ssd1/models}]}\n" + "hostDevices: [{name: ssd, directories: [/mnt/disks/*]}]",
			wantErrs: []string{"hostDevices[0]", "/mnt/disks/*", "/mnt/disks/ssd1/models", "keep the two apart"},
		},
		{name: "all faults at once", text: header + `
discoveryInterval: 10ms
reconcileInterval: 999ms
nvml: {timeout: -1s, driverRoot: run, hostDriverRoot: /a/../b}
artifacts: {maxSize: -1, keepFree: -1Gi}
fpga: {bindingConditions: true, maxFailedProgrammings: 101, backends: [f2, dfl, dfl], xrt: {driverRoot: /a/../b}}
fpgaRegions: [{device: x, interfaceID: 5F2C}, {device: x, interfaceID: 5f2c81d0a4b94e0fb7c36d1e8f02a957, nodes: [/dev/mem]}]
budget:
  maxWritableLimit: -1
  maxSeedEntries: -1
  memory: {node: 101%, namespace: much}
  seedBytes: {node: 5%}
  pinnedBytes: {node: "-5"}
  pins: {node: -1}
presets:
  hostDirectories: [/]
  allowedHostPaths: [{path: /}, {path: /etc/ssl}, {path: /var}, {path: /data/../etc}, {path: /usr, writable: true}]
hostDevices: [{name: UPPER, directories: [relative]}, {name: fine, directories: [/a]}, {name: none}]
health: {interval: 1ms, disabledSources: [xid], rules: [{source: x, severity: bad}, {source: xid, code: "[", severity: fatal}]}
`, wantErrs: []string{
			"health.interval: 1ms", "health.disabledSources[0]: \"xid\"", "health.rules[0]: source: \"x\"", "severity: \"bad\"",
			"health.rules[1]: code", "artifacts.maxSize", "artifacts.keepFree", "fpga.bindingConditions", "fpga.maxFailedProgrammings: is 101",
			"fpga.backends[0]: \"f2\"", "fpga.backends[2]", "fpga.xrt.driverRoot", "fpgaRegions[0]: interfaceID",
			"fpgaRegions[1]: nodes[0]", "device \"x\" appears twice",
			"budget.maxWritableLimit: must be above 0", "budget.maxSeedEntries", "budget.memory.node: must be a quantity or a percentage",
			"budget.memory.namespace", "budget.seedBytes.node: must be a quantity, is \"5%\"", "budget.pinnedBytes.node", "budget.pins",
			"presets.hostDirectories[0]", "presets.allowedHostPaths[0]: /: ", "presets.allowedHostPaths[1]: /etc/ssl: whoever has /etc ",
			"presets.allowedHostPaths[2]: /var: ", "presets.allowedHostPaths[3]: must be absolute and clean", "presets.allowedHostPaths[4]: /usr: ",
			"discoveryInterval: 10ms", "reconcileInterval: 999ms", "nvml.timeout", "nvml.driverRoot", "nvml.hostDriverRoot",
			"hostDevices[0]", "relative", "hostDevices[2]",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text))
			if len(tt.wantErrs) == 0 {
				check.Must(t, err)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("configuration (-want +got):\n%s", diff)
				}
				return
			}
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			for _, want := range tt.wantErrs {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// TestDocumentedHealth: what the user's page shows is a configuration.
func TestDocumentedHealth(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "user", "health.md"))
	check.Must(t, err)
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	c, err := Parse([]byte(text))
	check.Must(t, err)
	if len(c.Health.Rules) != 4 {
		t.Errorf("rules %+v", c.Health.Rules)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(header + "discoveryInterval: 1m\nhostDevices: [{name: a, directories: [/b]}]"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err == nil && (min(c.DiscoveryInterval.Duration, c.ReconcileInterval.Duration) < minInterval || c.NVML.Timeout.Duration <= 0) {
			t.Errorf("accepted %+v", c)
		}
	})
}

func TestLoad(t *testing.T) {
	got, err := Load("")
	check.Must(t, err)
	if got.DiscoveryInterval.Duration != defaultDiscoveryInterval {
		t.Errorf("without a file: %+v", got)
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names the file", err)
	}
	check.Must(t, os.WriteFile(path, []byte("kind: Pod"), 0o600))
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names the file", err)
	}
}
