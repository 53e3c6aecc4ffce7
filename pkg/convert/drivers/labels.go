// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
)

// ConvertConstraint gives the qualified name that a claim's matchAttribute or distinctAttribute has for Fettle. It is the same where the
// name is not of a known driver. That of dranet's NUMA node becomes the standard one, which dranet has as well.
func ConvertConstraint(name string) (string, error) {
	domain, short, ok := strings.Cut(name, "/")
	d := Lookup(domain)
	switch {
	case name == "dra.net/numaNode":
		return standard(short).qualified(), nil
	case !ok || d == nil:
		return name, nil
	}
	r, known := access{collection: collectionAttributes, domain: domain, name: short}.rule(d)
	switch {
	case known && r.qualified() != "":
		return r.qualified(), nil
	case known && r.refused != "":
		return "", fmt.Errorf("%s: %s", name, r.refused)
	}
	return "", fmt.Errorf("%s: Fettle has no attribute with the same values; docs/user/attributes.md lists what there is", name)
}

const nvidiaMemory, amdMemory = "nvidia.com/gpu.memory", "amd.com/gpu.vram"

// OfMemory says whether a label has the memory of a GPU.
func OfMemory(key string) bool { return key == nvidiaMemory || key == amdMemory }

// ConvertLabel gives the selector that stands for a label which a vendor's software puts on nodes: GPU feature discovery, AMD's node
// labeller and Intel's rules for node feature discovery. It is false for labels that say nothing of a device.
func ConvertLabel(key, value string) (expression string, ok bool, err error) {
	name := rule{name: string(device.AttributeProductName)}
	guarded := func(r rule, condition string) string {
		return fmt.Sprintf("%q in %s && %s", r.name, r.path(), condition)
	}
	switch key {
	case "nvidia.com/gpu.product":
		if strings.Contains(value, "-SHARED") || strings.Contains(value, "-MIG-") {
			return "", true, fmt.Errorf("label %s=%s: it is of a share or a part: use a class of parts", key, value)
		}
		return guarded(name, fmt.Sprintf(`%s.replace(" ", "-") == %q`, name.ours(), value)), true, nil
	case "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name":
		return guarded(name, fmt.Sprintf(`%s.replace(" ", "_").replace("(", "").replace(")", "") == %q`, name.ours(), value)), true, nil
	case "gpu.intel.com/product":
		return guarded(name, fmt.Sprintf("%s.endsWith(%q)", name.ours(), " "+strings.ReplaceAll(value, "_", " "))), true, nil
	case "nvidia.com/gpu.family":
		r := rule{name: string(device.AttributeArchitecture)}
		return guarded(r, fmt.Sprintf(`%s.lowerAscii().replace(" ", "-") == %q`, r.ours(), value)), true, nil
	case nvidiaMemory, amdMemory:
		return memoryLabel(key, value)
	case "nvidia.com/gpu.compute.major":
		major, err := strconv.Atoi(value)
		if err != nil {
			return "", true, fmt.Errorf("label %s=%s: expected a number", key, value)
		}
		r := rule{name: string(device.AttributeComputeCapability)}
		return guarded(r, fmt.Sprintf("%s.major() == %d", r.ours(), major)), true, nil
	case "amd.com/gpu.device-id":
		return guarded(deviceID(), deviceIDIs(value)), true, nil
	}
	return "", false, nil
}

// memoryLabel is the range of sizes that a label stands for: NVIDIA's is in MiB, cut; AMD's in GiB, rounded.
func memoryLabel(key, value string) (string, bool, error) {
	r := memory()
	number, err := strconv.ParseInt(strings.TrimSuffix(value, "G"), 10, 32)
	if err != nil {
		return "", true, fmt.Errorf("label %s=%s: expected a size", key, value)
	}
	low, high := fmt.Sprintf("%dMi", number), fmt.Sprintf("%dMi", number+1)
	if key == amdMemory {
		low, high = fmt.Sprintf("%dMi", number*1024-512), fmt.Sprintf("%dMi", number*1024+512)
	}
	return fmt.Sprintf(`%q in %s && %s.compareTo(quantity(%q)) >= 0 && %s.compareTo(quantity(%q)) < 0`, r.name, r.path(), r.ours(), low,
		r.ours(), high), true, nil
}
