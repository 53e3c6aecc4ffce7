// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// pluginConfig is a configuration of NVIDIA's device plugin (k8s-device-plugin, api/config/v1). What has no meaning for shares is not read.
type pluginConfig struct {
	Version   string         `json:"version"`
	Flags     map[string]any `json:"flags"`
	Resources map[string]any `json:"resources"`
	Imex      map[string]any `json:"imex"`
	Sharing   struct {
		TimeSlicing *timeSlices    `json:"timeSlicing"`
		MPS         map[string]any `json:"mps"`
	} `json:"sharing"`
}

type timeSlices struct {
	RenameByDefault            bool            `json:"renameByDefault"`
	FailRequestsGreaterThanOne *bool           `json:"failRequestsGreaterThanOne"`
	Resources                  []timeSlicedGPU `json:"resources"`
}

type timeSlicedGPU struct {
	Name     string `json:"name"`
	Rename   string `json:"rename"`
	Devices  any    `json:"devices"`
	Replicas int32  `json:"replicas"`
}

// gpuResource is the resource of whole GPUs.
const gpuResource = "nvidia.com/gpu"

// DevicePlugin makes a PartitionPolicy of each entry of time slices in a configuration of NVIDIA's device plugin, or of a ConfigMap that
// has some: each replica is a share. The name of the input is for errors.
func DevicePlugin(in []byte, name string, o PolicyOptions) (Result, error) {
	text, config, err := pluginText(in, o.Config)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	var c pluginConfig
	if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
		return Result{}, fmt.Errorf("%s: %s", name, oneLine(err))
	}
	entries, err := c.sliced()
	if err != nil {
		return Result{}, fmt.Errorf("%s: sharing: %w", name, err)
	}
	result := Result{Notes: []string{
		"each replica is a share: the scheduler counts them, and counts memory too if the policy gets sharing.memory",
		"stop NVIDIA's device plugin on these nodes before Fettle publishes their GPUs",
	}}
	for i := range entries {
		text, err := entries[i].policy(legalName(numbered("shares-"+config, i, len(entries))), o)
		if err != nil {
			return Result{}, fmt.Errorf("%s: sharing.timeSlicing.resources[%d]: %w", name, i, err)
		}
		result.add(text)
		result.Notes = append(result.Notes, c.renamed(&entries[i])...)
	}
	if len(o.NodeSelector) == 0 {
		result.Notes = append(result.Notes, forAllNodes)
	}
	return result, nil
}

// policy makes the PartitionPolicy of an entry.
func (g *timeSlicedGPU) policy(name string, o PolicyOptions) ([]byte, error) {
	selector, err := selectedGPUs(g.Devices)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	p, err := newPolicy(name, o, v1alpha1.PartitionDevices{
		DeviceSelector: &v1alpha1.PartitionDeviceSelector{CEL: selector}, Sharing: &v1alpha1.DeviceSharing{MaxClaims: g.Replicas},
	})
	if err != nil {
		return nil, err
	}
	return renderObject(p)
}

// pluginText is the configuration itself and its name. A ConfigMap has one for each key.
func pluginText(in []byte, config string) (text, name string, err error) {
	if len(in) > maxInput {
		return "", "", fmt.Errorf("%d bytes, expected at most %d", len(in), maxInput)
	}
	n, err := parse(in)
	if err != nil {
		return "", "", fmt.Errorf("expected YAML: %s", oneLine(err))
	}
	if value(n, "kind") != "ConfigMap" {
		if config != "" {
			return "", "", fmt.Errorf("configuration %q: the file has one without a name: leave --config out", config)
		}
		return string(in), "gpu", nil
	}
	var object struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(in, &object); err != nil {
		return "", "", fmt.Errorf("ConfigMap: %s", oneLine(err))
	}
	names := slices.Sorted(maps.Keys(object.Data))
	switch {
	case len(names) == 0:
		return "", "", errors.New("ConfigMap: expected data with a configuration of NVIDIA's device plugin")
	case config == "" && len(names) > 1:
		return "", "", fmt.Errorf("say which configuration holds: %s", strings.Join(names, ", "))
	case config == "":
		config = names[0]
	}
	text, ok := object.Data[config]
	if !ok {
		return "", "", fmt.Errorf("configuration %q: the ConfigMap has %s", config, strings.Join(names, ", "))
	}
	return text, config, nil
}

// sliced returns the entries, all of whole GPUs, and no two of the same ones.
func (c *pluginConfig) sliced() ([]timeSlicedGPU, error) {
	switch {
	case c.Version != "v1":
		return nil, fmt.Errorf("version %q of the configuration: expected v1", c.Version)
	case len(c.Sharing.MPS) > 0:
		return nil, errors.New("mps: the clients of one daemon are the pods of one claim here: use timeSlicing or MIG instances, or one claim " +
			"for all pods with the strategy MPS")
	case c.Sharing.TimeSlicing == nil || len(c.Sharing.TimeSlicing.Resources) == 0:
		return nil, errors.New("timeSlicing.resources: the configuration shares nothing")
	}
	entries, at := c.Sharing.TimeSlicing.Resources, map[string]int{}
	for i := range entries {
		one := &entries[i]
		if one.Name != gpuResource {
			return nil, fmt.Errorf("timeSlicing.resources[%d].name: %.80q: expected %s; to share MIG instances write sharing.maxClaims into the "+
				"PartitionPolicy that has their layout", i, one.Name, gpuResource)
		}
		gpus, some := one.Devices.([]any)
		if !some && len(entries) > 1 {
			return nil, fmt.Errorf("timeSlicing.resources[%d].devices: %v: another entry is for GPUs of its own: expected a list of UUIDs",
				i, one.Devices)
		}
		for _, gpu := range gpus {
			if before, twice := at[fmt.Sprint(gpu)]; twice {
				return nil, fmt.Errorf("timeSlicing.resources[%d].devices: %v is in resources[%d] already", i, gpu, before)
			}
			at[fmt.Sprint(gpu)] = i
		}
	}
	return entries, nil
}

// selectedGPUs is the condition on GPUs that the entry is for: all of NVIDIA's, or some by their UUIDs.
func selectedGPUs(devices any) (string, error) {
	const vendor = `device.attributes["fettle.dev"].vendor == "nvidia"`
	switch d := devices.(type) {
	case nil:
		return vendor, nil
	case string:
		if d == "all" {
			return vendor, nil
		}
	case []any:
		var uuids []string
		for _, one := range d {
			uuid, ok := one.(string)
			if !ok || !strings.HasPrefix(uuid, "GPU-") {
				return "", fmt.Errorf("%v: a policy selects GPUs by their UUID or other attributes, not by number: write the UUIDs, which "+
					"nvidia-smi -L lists by number", one)
			}
			uuids = append(uuids, strconv.Quote(uuid))
		}
		if len(uuids) > 0 {
			return fmt.Sprintf(`%s && "uuid" in device.attributes["fettle.dev"] && device.attributes["fettle.dev"].uuid in [%s]`, vendor,
				strings.Join(uuids, ", ")), nil
		}
	}
	return "", fmt.Errorf("%v: expected all, or a list of UUIDs", devices)
}

// renamed says how pods ask for what an entry gives another name.
func (c *pluginConfig) renamed(g *timeSlicedGPU) []string {
	resource := g.Rename
	if resource == "" && c.Sharing.TimeSlicing.RenameByDefault {
		resource = gpuResource + ".shared"
	}
	if resource == "" {
		return nil
	}
	return []string{fmt.Sprintf("pods that ask for %s: convert them with --map %s=CLASS, a class for shares", resource, resource)}
}
