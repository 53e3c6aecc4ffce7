// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// object and list are short for what YAML is made of.
type (
	object = map[string]any
	list   = []any
)

// configMaker makes random configurations. Texts that it makes up are like no others, so that they are found where they went.
type configMaker struct {
	*rand.Rand
	made int
}

func (m *configMaker) maybe(percent int) bool { return m.IntN(100) < percent }

func (m *configMaker) text(kind string) string {
	m.made++
	return fmt.Sprintf("%s-%d-%d", kind, m.made, 1000+m.IntN(9000))
}

// pick sets each of some fields or not.
func (m *configMaker) pick(percent int, fields object) object {
	out := object{}
	for _, p := range pathsOf(fields) {
		if m.maybe(percent) {
			out[p] = fields[p]
		}
	}
	return out
}

func pathsOf(fields object) (names []string) {
	texts := map[string]string{}
	for name := range fields {
		texts[name] = ""
	}
	return sortedKeys(texts)
}

// flags are those of NVIDIA's device plugin, and one that it will have some day.
func (m *configMaker) flags() object {
	flags := m.pick(30, object{
		"migStrategy": "mixed", "failOnInitError": true, "nvidiaDriverRoot": "/run/nvidia/driver", "gdsEnabled": true, "mofedEnabled": false,
		"deviceDiscoveryStrategy": "auto", "useNodeFeatureAPI": true, "newFlag": object{"deep": list{m.text("v")}},
	})
	if m.maybe(40) {
		flags["plugin"] = m.pick(40, object{
			"passDeviceSpecs": true, "deviceListStrategy": list{"envvar", "volume-mounts"}, "deviceIDStrategy": "uuid", "newest": 1,
		})
	}
	if m.maybe(20) {
		flags["gfd"] = m.pick(50, object{"oneshot": true, "sleepInterval": "60s", "outputFile": "/etc/x"})
	}
	return flags
}

func (m *configMaker) devicePlugin() object {
	shared := object{}
	if m.maybe(30) {
		shared["renameByDefault"] = true
	}
	if m.maybe(30) {
		shared["failRequestsGreaterThanOne"] = true
	}
	var entries list
	n := 1 + m.IntN(3)
	for i := range n {
		entry := object{"name": "nvidia.com/gpu", "replicas": 2 + m.IntN(20)}
		if m.maybe(30) {
			entry["rename"] = m.text("nvidia.com/gpu")
		}
		if n > 1 || m.maybe(30) {
			if entry["devices"] = (list{m.text("GPU"), m.text("GPU")}); m.maybe(30) {
				entry["devices"] = list{i}
			}
		}
		entries = append(entries, entry)
	}
	shared["resources"] = entries
	config := object{"version": "v1", "flags": m.flags(), "sharing": object{"timeSlicing": shared}}
	if m.maybe(15) {
		config["resources"] = object{"gpus": list{object{"pattern": "*V100*", "name": m.text("nvidia.com/v")}}}
	}
	if m.maybe(15) {
		config["imex"] = object{"channelIDs": list{0}, "required": true}
	}
	if m.maybe(10) {
		delete(config, "version")
	}
	if m.maybe(5) {
		config["sharing"].(object)["mps"] = object{"resources": list{object{"name": "nvidia.com/gpu", "replicas": 2}}}
	}
	return config
}

func (m *configMaker) amdProfiles() object {
	profile := func() object {
		left := 8
		out := object{}
		if m.maybe(30) {
			out["skippedGPUs"] = object{"ids": list{m.IntN(8)}}
			left--
		}
		var parts list
		memory := []string{"NPS1", "NPS4"}[m.IntN(2)]
		for left > 0 {
			n := 1 + m.IntN(left)
			modes := []string{"CPX", "QPX"}
			if memory == "NPS1" {
				modes = append(modes, "SPX", "DPX")
			}
			parts = append(parts, object{"computePartition": modes[m.IntN(len(modes))], "memoryPartition": memory, "numGPUsAssigned": n})
			left -= n
		}
		out["profiles"] = parts
		return out
	}
	config := object{"gpu-config-profiles": object{"held": profile()}}
	if m.maybe(50) {
		config["gpu-config-profiles"].(object)[m.text("other")] = profile()
	}
	if m.maybe(30) {
		config["gpuClientSystemdServices"] = object{"names": list{m.text("unit")}}
	}
	return config
}

func (m *configMaker) migParted() object {
	entry := func() list {
		if m.maybe(50) {
			return list{object{"devices": "all", "mig-enabled": true, "mig-devices": object{"1g.10gb": 1 + m.IntN(7)}}}
		}
		return list{
			object{"devices": list{0, 1}, "mig-enabled": false},
			object{"device-filter": list{"0x233010DE"}, "devices": list{2}, "mig-enabled": true, "mig-devices": object{"3g.40gb": 2}},
		}
	}
	return object{"version": "v1", "mig-configs": object{"held": entry(), m.text("other"): entry()}}
}

// wrap puts a configuration where people have it.
func (m *configMaker) wrap(t *testing.T, config object, key string) []byte {
	t.Helper()
	text, err := yaml.Marshal(config)
	check.Must(t, err)
	meta := object{"name": m.text("map"), "namespace": "ns"}
	if m.maybe(30) {
		meta["labels"] = object{m.text("label"): m.text("v")}
		meta["uid"] = m.text("uid")
	}
	configMap := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": object{key: string(text)}}
	if m.maybe(30) {
		configMap["data"].(object)[m.text("README")] = "text: of another kind"
		configMap["immutable"] = true
	}
	content := configMap
	switch m.IntN(6) {
	case 0:
		return text
	case 1:
		content = object{"apiVersion": "v1", "kind": "List", "items": list{configMap, object{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"name": m.text("service")},
		}}}
	case 2:
		content = object{
			"driver":       object{"enabled": true, "version": m.text("570")},
			"devicePlugin": object{"config": object{"name": m.text("map"), "create": true, "data": object{key: string(text)}, "default": key}},
		}
	case 3:
		content = object{"config": object{"map": object{key: config}}, "affinity": m.text("none")}
	case 4:
		other, err := yaml.Marshal(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": m.text("space")}})
		check.Must(t, err)
		return []byte(string(other) + "---\n" + string(text))
	}
	out, err := yaml.Marshal(content)
	check.Must(t, err)
	return out
}

// TestConfigurationsLoseNothing converts random configurations of other projects. Each leaf is in what the configuration became, or a note
// names it or what it is below; or the whole is refused by the name of a field that it has.
func TestConfigurationsLoseNothing(t *testing.T) {
	m := &configMaker{Rand: seed.New(t)}
	var gpus []string
	for i := range 8 {
		gpus = append(gpus, fmt.Sprintf("0000:%02x:00.0", i))
	}
	converted := 0
	for i := range 1000 {
		o := PolicyOptions{GPUs: gpus}
		var config object
		var key string
		become := DevicePlugin
		switch m.IntN(3) {
		case 0:
			config, key = m.devicePlugin(), "any"
		case 1:
			config, key, o.Config, become = m.amdProfiles(), "config.json", "held", AMDProfiles
		default:
			config, key, o.Config, become = m.migParted(), "config.yaml", "held", MigParted
		}
		in := m.wrap(t, config, key)
		out, err := become(in, "in", o)
		if err != nil {
			if !slices.ContainsFunc([]string{"mps", "NPS4"}, func(word string) bool { return strings.Contains(err.Error(), word) }) {
				t.Fatalf("configuration %d: %v\n%s", i, err, in)
			}
			continue
		}
		converted++
		for _, before := range objectsIn(t, in) {
			losesNothing(t, fmt.Sprint("configuration ", i), leavesOf(before), out, m.accounted)
		}
		checkConverted(t, in, out)
	}
	if converted < 700 {
		t.Errorf("%d of 1000 configurations were converted", converted)
	}
}

// accounted reports whether a leaf of a configuration is in what it became, or in a note. A text that holds a configuration is its leaves.
func (m *configMaker) accounted(l leaf, out Result) bool {
	var below object
	if yaml.Unmarshal([]byte(l.value), &below) == nil && len(below) > 1 {
		for _, inner := range leavesOf(below) {
			if !m.accounted(inner, out) {
				return false
			}
		}
		return true
	}
	text := string(out.YAML)
	key := l.path[len(l.path)-1]
	switch {
	case key == "apiVersion" || key == "kind" || key == "version" && l.value == "v1" || l.value == "nvidia.com/gpu" || key == "namespace":
		return true
	case key == "replicas":
		return strings.Contains(text, "maxClaims: "+l.value)
	case len(l.value) > 2 && strings.Contains(text+strings.Join(out.Notes, "\n"), l.value):
		return true
	case strings.Contains(text, "migParted:") && slices.Contains(l.path, "mig-configs"): // the file is in it as it is
		return strings.Contains(text, key)
	}
	if _, err := strconv.Atoi(key); err == nil { // an item of a list
		if n, err := strconv.Atoi(l.value); err == nil && slices.Contains(l.path, "devices") {
			return strings.Contains(text, fmt.Sprintf(`"0000:%02x:00.0"`, n))
		}
		key = l.path[len(l.path)-2]
	}
	if n, err := strconv.Atoi(l.value); err == nil && key == "numGPUsAssigned" && strings.Count(text, `"0000:`) >= n {
		return true
	}
	above := slices.IndexFunc(l.path, func(name string) bool {
		return madeUp.MatchString(name) || slices.Contains([]string{"labels", "driver", "newFlag", "skippedGPUs"}, name)
	})
	return len(key) > 2 && named(out.Notes, key) || above >= 0 && named(out.Notes, l.path[above])
}

// madeUp are the texts of configMaker.text.
var madeUp = regexp.MustCompile(`-[0-9]+-[0-9]+$`)
