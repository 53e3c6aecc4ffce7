// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// meta makes an object's metadata as kubectl prints it.
func (m *configMaker) meta(labels object) object {
	meta := m.pick(20, object{
		"finalizers": list{"example.com/" + m.text("f")}, "uid": m.text("uid"), "resourceVersion": "12345", "generation": 3,
		"creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": list{object{
			"apiVersion": "v1", "kind": "Node", "name": m.text("node"), "uid": m.text("uid"),
		}},
	})
	meta["name"], meta["namespace"] = m.text("name"), "ns"
	labels[m.text("label")] = m.text("v")
	if labels := m.pick(50, labels); len(labels) > 0 {
		meta["labels"] = labels
	}
	if m.maybe(50) {
		meta["annotations"] = object{
			m.text("note"): m.text("v"), "kubectl.kubernetes.io/last-applied-configuration": m.text("{}"),
		}
	}
	return meta
}

// podPreset makes one.
func (m *configMaker) podPreset() object {
	var env, volumes, mounts list
	for range m.IntN(3) {
		env = append(env, object{"name": fmt.Sprintf("V%d", m.IntN(1e6)), "value": m.text("v")})
	}
	if m.maybe(30) {
		env = append(env, object{"name": "FROM", "valueFrom": object{"configMapKeyRef": object{"name": m.text("map"), "key": m.text("k")}}})
	}
	for range m.IntN(3) {
		name := m.text("volume")
		volume := object{"name": name, "hostPath": object{"path": "/" + m.text("host")}}
		if m.maybe(30) {
			volume["hostPath"].(object)["type"] = []string{"Directory", "DirectoryOrCreate", "File"}[m.IntN(3)]
		}
		if m.maybe(20) {
			volume = object{"name": name, "emptyDir": object{"sizeLimit": "1234Mi"}}
		}
		volumes = append(volumes, volume)
		if m.maybe(80) {
			mounts = append(mounts, object{"name": name, "mountPath": "/" + m.text("at")})
		}
	}
	spec := object{"selector": object{"matchLabels": object{m.text("app"): m.text("x")}}}
	if m.maybe(50) {
		spec["resourceSelector"] = list{[]string{"nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb"}[m.IntN(3)]}
	}
	for name, value := range map[string]list{"env": env, "volumes": volumes, "volumeMounts": mounts} {
		if len(value) > 0 {
			spec[name] = value
		}
	}
	return object{"apiVersion": "settings.k8s.io/v1alpha1", "kind": "PodPreset", "metadata": m.meta(object{}), "spec": spec}
}

// cache makes a cache of kernels.
func (m *configMaker) cache() object {
	spec := m.pick(30, object{
		"storageClassName": m.text("class"), "accessModes": list{"ReadOnlyMany"}, "podTemplate": object{"spec": object{
			"nodeSelector": object{m.text("pool"): m.text("a")},
		}},
	})
	spec["image"] = m.text("registry.example/image")
	out := object{"apiVersion": "gkm.io/v1alpha1", "kind": "GKMCache", "spec": spec, "metadata": m.meta(object{
		"gkm.io/signature-format": "cosign-v2", "gkm.io/other": m.text("v"), "kyverno.io/verify": m.text("v"),
	})}
	if m.maybe(30) {
		out["status"] = object{"resolvedDigest": m.text("digest")}
	}
	if m.maybe(30) {
		spec["workloadNamespaces"] = list{m.text("team")}
	}
	return out
}

// claim makes a claim for NVIDIA's driver.
func (m *configMaker) claim() object {
	exactly := object{"deviceClassName": "gpu.nvidia.com"}
	for key, value := range m.pick(20, object{
		"count": 2, "adminAccess": true, "capacity": object{"requests": object{"memory": "1234Mi"}},
		"tolerations": list{object{"key": "gpu.nvidia.com/unhealthy", "operator": "Exists"}, object{"key": m.text("mine"), "operator": "Exists"}},
		"selectors": list{object{"cel": object{
			"expression": fmt.Sprintf(`device.attributes["gpu.nvidia.com"].productName == %q`, m.text("model")),
		}}},
	}) {
		exactly[key] = value
	}
	devices := object{"requests": list{object{"name": "gpu", "exactly": exactly}}}
	if m.maybe(70) {
		sharing := object{"strategy": []string{"TimeSlicing", "MPS"}[m.IntN(2)]}
		if m.maybe(60) {
			sharing["timeSlicingConfig"] = object{"interval": []string{"Default", "Short", "Long"}[m.IntN(3)]}
		}
		if m.maybe(40) {
			sharing["mpsConfig"] = m.pick(50, object{
				"defaultActiveThreadPercentage": 37, "defaultPinnedDeviceMemoryLimit": "1234Mi",
				"defaultPerDevicePinnedMemoryLimit": object{m.text("GPU"): "1234Mi"}, "multiUser": m.maybe(50),
			})
		}
		config := object{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
		entry := object{"opaque": object{"driver": "gpu.nvidia.com", "parameters": config}}
		if m.maybe(50) {
			entry["requests"] = list{"gpu"}
		}
		devices["config"] = list{entry}
	}
	out := object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": m.meta(object{})}
	out["spec"] = object{"devices": devices}
	return out
}

// TestObjectsLoseNothing converts random claims, PodPresets and caches. Each leaf is in what the object became, or a note names it or what
// it is below; or the whole is refused by the name of a field that it has.
func TestObjectsLoseNothing(t *testing.T) {
	m := &configMaker{Rand: seed.New(t)}
	converted := 0
	for i := range 1000 {
		before := []func() object{m.podPreset, m.cache, m.claim}[m.IntN(3)]()
		in, err := yaml.Marshal(before)
		check.Must(t, err)
		out, err := IntelFPGA(in, "in", Options{})
		if err != nil {
			if !strings.Contains(err.Error(), "sharing") {
				t.Fatalf("object %d: %v\n%s", i, err, in)
			}
			continue
		}
		converted++
		losesNothing(t, fmt.Sprint("object ", i), leavesOf(before), out, kept)
		checkConverted(t, in, out)
	}
	if converted < 600 {
		t.Errorf("%d of 1000 objects were converted", converted)
	}
}

// kept reports whether a leaf of an object is in what it became, or a note names it or what it is below.
func kept(l leaf, out Result) bool {
	text := string(out.YAML)
	key := l.path[len(l.path)-1]
	if key == "apiVersion" || key == "kind" || key == "namespace" || key == "name" && strings.Contains(l.path[1], "olume") {
		return true // a volume's name only ties it to where it is mounted
	}
	_, err := strconv.Atoi(l.value)
	if value := strings.TrimPrefix(l.value, "/"); len(value) > 2 && err != nil && l.value != "true" && l.value != "false" {
		// a selector has the value in it, and a name of Fettle's for that of the other driver is in a note
		if strings.Contains(text+strings.Join(out.Notes, "\n"), value) || strings.Contains(l.value, "device.attributes") &&
			strings.Contains(text, madeUp.FindString(strings.Trim(l.value, `"`))) {
			return true
		}
	}
	plain := strings.ReplaceAll(text, `"`, "")
	if strings.Contains(plain, key+": "+l.value) || l.value == "37" && strings.Contains(plain, ": 37") {
		return true
	}
	return slices.ContainsFunc(l.path, func(name string) bool {
		general := []string{
			"spec", "devices", "requests", "metadata", "labels", "annotations", "config", "sharing", "opaque", "parameters", "name",
		}
		_, err := strconv.Atoi(name)
		return err != nil && !slices.Contains(general, name) && named(out.Notes, name)
	})
}
