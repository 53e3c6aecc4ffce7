// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// chartField is a value of the chart that a program reads from its configuration file.
type chartField struct {
	// path leads to the value, or to the list of which it is in one element.
	path string
	// element makes an element of the list of the i-th value. Nil: the value itself is at path.
	element func(i int, value string) any
	good    []string
	// beside are other values.
	beside map[string]any
}

func itself(_ int, value string) any { return value }

func listOf(path string, element func(int, string) any, good []string) chartField {
	return chartField{path: path, element: element, good: good}
}

// chartFields are the values that are text. The chart's schema says of the others what they may be.
func chartFields() []chartField {
	in := func(key string) func(int, string) any {
		return func(_ int, value string) any { return map[string]any{key: value} }
	}
	host := func(set func(value string) map[string]any) func(int, string) any {
		return func(i int, value string) any {
			h := set(value)
			if h["name"] == nil {
				h["name"] = fmt.Sprint("disk", i)
			}
			if h["directories"] == nil && h["charDevices"] == nil {
				h["directories"] = []string{fmt.Sprint("/mnt/own", i)}
			}
			return h
		}
	}
	region := func(set func(value string) map[string]any) func(int, string) any {
		return func(i int, value string) any {
			r := map[string]any{"device": fmt.Sprint("fpga", i), "interfaceID": "5f2c81d0a4b94e0fb7c36d1e8f02a957"}
			for key, v := range set(value) {
				r[key] = v
			}
			return r
		}
	}
	foreign := func(set func(value string) map[string]any) func(int, string) any {
		return func(i int, value string) any {
			e := map[string]any{"owner": "other", "pciAddresses": []string{fmt.Sprintf("0000:%02x:00.0", i)}}
			maps.Copy(e, set(value))
			return e
		}
	}
	durations := []string{"30s", "1m", "1h30m", "90s", "600m"}
	sizes := []string{"1Gi", "64Mi", "1048576", "2Ti"}
	shares := append([]string{"5%", "100%"}, sizes...)
	hosts := []string{"registry.example", "registry.local:5000", "10.0.0.1:5000", "a.b.example:443"}
	ranges := []string{"10.96.0.0/12", "fd01::/48", "192.168.0.0/16", "10.0.0.1/32"}
	taintKeys := []string{"example.com/shared", "shared", "a.b.example/x_y.z"}
	paths := []string{"/mnt/disks", "/opt/data", "/srv/models.d", "/data"}
	scalars := map[string][]string{
		"nvidia.driverRoot": {"/run/nvidia/driver", "/", "/opt/driver"}, "nvidia.timeout": durations, "fpga.firmwareDir": paths,
		"fpga.xrt.driverRoot": {"/", "/opt/xilinx"}, "artifacts.maxSize": sizes, "artifacts.keepFree": sizes,
		"budget.maxWritableLimit": sizes, "budget.maxSizeLimit": sizes, "budget.memory.node": shares, "budget.memory.namespace": shares,
		"budget.seedBytes.node": sizes, "budget.seedBytes.namespace": sizes, "budget.pinnedBytes.node": shares,
		"budget.pinnedBytes.namespace": shares, "discoveryInterval": durations, "reconcileInterval": durations, "health.interval": durations,
	}
	fields := []chartField{
		listOf("hostDevices", host(func(v string) map[string]any { return map[string]any{"name": v} }), []string{"ssd", "local-ssd", "nvme0"}),
		listOf(
			"hostDevices", host(func(v string) map[string]any { return map[string]any{"directories": []string{v}} }),
			[]string{"/mnt/disks/ssd*", "/mnt/disks/[0-9]", "/data/é x", "/srv/a?"},
		),
		listOf(
			"hostDevices", host(func(v string) map[string]any { return map[string]any{"charDevices": []string{v}} }),
			[]string{"/dev/ttyUSB*", "/dev/dri/card[0-9]", "/dev/kvm"},
		),
		listOf(
			"hostDevices", host(func(v string) map[string]any { return map[string]any{"containerPath": v} }),
			[]string{"/mnt/ssd", "/scratch"},
		),
		listOf("fpgaRegions", region(func(v string) map[string]any { return map[string]any{"device": v} }), []string{"region0", "dfl-region1"}),
		listOf(
			"fpgaRegions", region(func(v string) map[string]any { return map[string]any{"interfaceID": v} }),
			[]string{"5f2c81d0a4b94e0fb7c36d1e8f02a957", "00000000000000000000000000000001"},
		),
		listOf(
			"fpgaRegions", region(func(v string) map[string]any { return map[string]any{"nodes": []string{v}} }),
			[]string{"/dev/dfl-port.0", "/dev/dri/renderD128"},
		),
		listOf(
			"foreignDevices", foreign(func(v string) map[string]any { return map[string]any{"owner": v} }),
			[]string{"NVIDIA device plugin", "gpu.nvidia.com (DRA)", "kubevirt/device-plugin:v1"},
		),
		listOf(
			"foreignDevices", foreign(func(v string) map[string]any { return map[string]any{"pciAddresses": []string{v}} }),
			[]string{"0000:1b:00.0", "10000:e1:1f.7", "ffff:00:00.0"},
		),
		listOf(
			"foreignDevices", foreign(func(v string) map[string]any { return map[string]any{"uuids": []string{v}} }),
			[]string{"GPU-5a1f0c2e-7d43-4b8e-9c11-0f2d6a7b8c90", "0x1234abcd"},
		),
		listOf(
			"foreignDevices", foreign(func(v string) map[string]any {
				return map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{v: "a"}}}
			}),
			[]string{"pool", "example.com/pool", "a.b.example/x_y.z"},
		),
		listOf(
			"foreignDevices", foreign(func(v string) map[string]any {
				return map[string]any{"nodeSelector": map[string]any{"matchExpressions": []any{
					map[string]any{"key": "pool", "operator": "NotIn", "values": []string{v}},
				}}}
			}),
			[]string{"a", "mixed-gpus_1.0", ""},
		),
		{
			path: "hostDevices", element: host(func(v string) map[string]any { return map[string]any{"directories": []string{v}} }),
			beside: map[string]any{"presets": map[string]any{"allowedHostPaths": []any{
				map[string]any{"path": "/srv/teams/x"}, map[string]any{"path": "/srv/up"},
			}}},
			good: []string{"/srv/lent*", "/srv/team*/a", "/srv/teams?/x", "/srv/tea.s/x/y", "/srv/u?per/*", "/srv/[a-t]*/z"},
		},
		listOf("presets.hostDirectories", itself, paths),
		listOf("presets.allowedHostPaths", in("path"), append([]string{"/opt/vendor", "/var/cache/x"}, paths...)),
		listOf(
			"presets.allowedHostPaths", func(_ int, v string) any { return map[string]any{"path": v, "writable": true} },
			[]string{"/mnt/disks", "/srv/models.d", "/home/a/b", "/data"},
		),
		listOf("fpga.stores", itself, paths),
		listOf("partitions.sharedTaintKeys", itself, taintKeys),
		listOf("partitions.noExecuteTaintKeys", itself, taintKeys),
		listOf("bitstreams.registries.allowedDestinations", itself, append(append([]string{"[fd00::7]:5000", "[::1]"}, hosts...), ranges...)),
		listOf("bitstreams.registries.clusterCIDRs", itself, ranges),
		listOf("bitstreams.registries.plainHTTP", itself, hosts),
		listOf(
			"bitstreams.registries.mirrors.registry~example", itself,
			[]string{"mirror.example", "mirror.example:5000/cache", "m.example/a_b/c-d"},
		),
		listOf(
			"bitstreams.registries.mirrors.registry~example", in("host"),
			[]string{"mirror.example", "mirror.example:5000/cache", "m.example/a_b/c-d"},
		),
		listOf(
			"bitstreams.registries.mirrors.registry~example",
			func(_ int, v string) any {
				return map[string]any{"host": "m.example", "headers": map[string]any{v: "x"}}
			},
			[]string{"X-Dragonfly-Registry", "x-a", "X-1-b-2"},
		),
		listOf(
			"bitstreams.registries.mirrors.registry~example",
			func(_ int, v string) any {
				return map[string]any{"host": "m.example", "headers": map[string]any{"X-A": v}}
			},
			[]string{"https://index.docker.io", "a", "two words, and more"},
		),
		listOf(
			"health.rules", func(_ int, v string) any { return map[string]any{"source": "xid", "severity": "fatal", "code": v} },
			[]string{"94", "14[4-9]", "nonfatal.*", "?"},
		),
		listOf(
			"health.rules", func(_ int, v string) any {
				return map[string]any{"source": "xid", "severity": "degraded", "recoverAfter": v}
			},
			durations,
		),
	}
	for _, path := range slices.Sorted(maps.Keys(scalars)) {
		fields = append(fields, chartField{path: path, good: scalars[path]})
	}
	return fields
}

// chartValues are values of the chart with some of one field. It leaves out the refused.
func (f *chartField) chartValues(values []string, refused map[int]bool) (tree map[string]any, indexes []int) {
	tree = map[string]any{}
	maps.Copy(tree, f.beside)
	keys := strings.Split(f.path, ".")
	at := tree
	for _, key := range keys[:len(keys)-1] {
		next := map[string]any{}
		at[key], at = next, next
	}
	last := strings.ReplaceAll(keys[len(keys)-1], "~", ".")
	if f.element == nil {
		at[last] = values[0]
		return tree, nil
	}
	list := []any{}
	for i, value := range values {
		if !refused[i] {
			list, indexes = append(list, f.element(i, value)), append(indexes, i)
		}
	}
	at[last] = list
	return tree, indexes
}

// taken returns the values that the chart takes, and what it makes of them.
func (f *chartField) taken(t *testing.T, values []string) (took []string, rendered []unstructured.Unstructured) {
	t.Helper()
	refused := map[int]bool{}
	for range len(values) + 1 {
		tree, indexes := f.chartValues(values, refused)
		text, err := json.Marshal(tree)
		check.Must(t, err)
		file := filepath.Join(t.TempDir(), "values.yaml")
		ascii := regexp.MustCompile(`[^ -~]`).ReplaceAllStringFunc(string(text), func(r string) string {
			return fmt.Sprintf(`\u%04x`, []rune(r)[0])
		})
		check.Must(t, os.WriteFile(file, []byte(ascii), 0o600))
		stdout, stderr, err := helmTemplate(t, "--values="+file)
		if err == nil {
			if f.element == nil {
				return values, parse(t, documents(t, stdout))
			}
			for _, i := range indexes {
				took = append(took, values[i])
			}
			return took, parse(t, documents(t, stdout))
		}
		if f.element == nil {
			return nil, nil
		}
		at := strings.NewReplacer(`\.`, "[./]", "~", `\.`).Replace(regexp.QuoteMeta(f.path)) // a schema has / between keys, a template a dot
		faults := regexp.MustCompile(at+`[/[](\d+)\b`).FindAllStringSubmatch(stderr, -1)
		if len(faults) == 0 {
			t.Fatalf("%s: %s", f.path, stderr)
		}
		for _, fault := range faults {
			i, err := strconv.Atoi(fault[1])
			check.Must(t, err)
			refused[indexes[i]] = true
		}
	}
	t.Fatalf("%s: the chart refuses something each time", f.path)
	return nil, nil
}

// readRegistries reads the configuration of registries as a program does that fetches for tenants.
func readRegistries(data []byte) error {
	file, err := registry.ParseConfig(data)
	if err != nil {
		return err
	}
	_, err = registry.NewClient(registry.Config{
		PlainHTTP: file.PlainHTTP, Mirrors: file.Mirrors, MirrorsOnly: file.MirrorsOnly,
		AllowedDestinations: file.AllowedDestinations, ClusterCIDRs: file.ClusterCIDRs,
	})
	return err
}

// batches are the values of a field that are tried together: good ones first, then worse ones.
func (f *chartField) batches(random *rand.Rand) [][]string {
	worse := map[string]bool{}
	for range 30 {
		worse[seed.Worse(random, f.good)] = true
	}
	values := slices.Sorted(maps.Keys(worse))
	if f.element != nil {
		return [][]string{f.good, values}
	}
	return [][]string{f.good[:1], values[:1], values[len(values)-1:]}
}

// TestChartAndPluginAgree: no program refuses later what the chart takes as a value. It would say so in its log only, and not start.
func TestChartAndPluginAgree(t *testing.T) {
	random := seed.New(t)
	readers := map[string]func([]byte) error{
		"config.yaml": func(data []byte) error { _, err := nodeconfig.Parse(data); return err }, "registries.yaml": readRegistries,
	}
	for _, f := range chartFields() {
		for i, values := range f.batches(random) {
			took, rendered := f.taken(t, values)
			if i == 0 && len(took) < len(values) {
				t.Errorf("%s: the chart takes %q of %q", f.path, took, values)
			}
			for name, read := range readers {
				if rendered == nil {
					break
				}
				text, _, err := unstructured.NestedString(find(t, rendered, "ConfigMap", "fettle-kubeletplugin").Object, "data", name)
				check.Must(t, err)
				if err := read([]byte(text)); err != nil {
					t.Errorf("%s: the chart takes %q, and a program refuses it: %v", f.path, took, err)
				}
			}
		}
	}
}
