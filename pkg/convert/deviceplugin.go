// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/sources"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// pluginConfig is a configuration of NVIDIA's device plugin (k8s-device-plugin, api/config/v1). What has no meaning for shares is named.
type pluginConfig struct {
	Version   string `json:"version"`
	Flags     any    `json:"flags"`
	Resources any    `json:"resources"`
	Imex      any    `json:"imex"`
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
	file, notes, err := pluginFile(in, o.Config)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	c, err := readPlugin(file.Text)
	if err != nil {
		return Result{}, inFile(name, err)
	}
	config := cmp.Or(file.Name, "gpu")
	entries, err := c.sliced()
	if err != nil {
		return Result{}, fmt.Errorf("%s: sharing: %w", name, err)
	}
	result := Result{Notes: []string{
		"each replica is a share: the scheduler counts them, and counts memory too if the policy gets sharing.memory",
		"stop NVIDIA's device plugin on these nodes before Fettle publishes their GPUs",
	}}
	result.Notes = slices.Concat(result.Notes, c.settings(), notes)
	for i := range entries {
		text, err := entries[i].policy(legalName(numbered("shares-"+config, i, len(entries))), o)
		if err != nil {
			return Result{}, fmt.Errorf("%s: sharing.timeSlicing.resources[%d]: %w", name, i, err)
		}
		result.add(text)
		for _, note := range c.renamed(&entries[i]) {
			if !slices.Contains(result.Notes, note) {
				result.Notes = append(result.Notes, note)
			}
		}
	}
	if by := c.Sharing.TimeSlicing.RenameByDefault; by && !slices.ContainsFunc(entries, func(g timeSlicedGPU) bool { return g.Rename == "" }) {
		result.Notes = append(result.Notes, "left out: renameByDefault: each entry has a name of its own")
	}
	if len(o.NodeSelector) == 0 {
		result.Notes = append(result.Notes, forAllNodes)
	}
	return result, nil
}

// policy makes the PartitionPolicy of an entry.
func (g *timeSlicedGPU) policy(name string, o PolicyOptions) ([]byte, error) {
	selector, err := selectedGPUs(g.Devices, o.GPUs)
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

// readPlugin reads a configuration strictly.
func readPlugin(text string) (*pluginConfig, error) {
	raw, err := manifest.JSON([]byte(text))
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	c := &pluginConfig{}
	unknown, err := strictjson.UnmarshalStrict(raw, c)
	if err != nil {
		return nil, errors.New(oneLine(manifest.WithoutTypes(err)))
	}
	return c, errors.Join(unknown...)
}

// pluginFile finds the configuration. A ConfigMap and the values of a chart have one for each key.
func pluginFile(in []byte, config string) (sources.File, []string, error) {
	found, err := findSources(in)
	if err != nil {
		return sources.File{}, nil, err
	}
	files := found.Of(sources.DevicePlugin)
	if len(files) == 0 {
		return sources.File{}, nil, found.None(sources.DevicePlugin)
	}
	var names []string
	var chosen []sources.File
	for _, file := range files {
		names = append(names, file.Name)
		if file.Name == config {
			chosen = append(chosen, file)
		}
	}
	slices.Sort(names)
	switch {
	case len(files) == 1 && config == "":
		chosen = files
	case len(files) == 1 && files[0].Name == "":
		return sources.File{}, nil, fmt.Errorf("configuration %q: the file has one without a name: leave --config out", config)
	case config == "":
		return sources.File{}, nil, fmt.Errorf("say which configuration holds: %s", strings.Join(names, ", "))
	case len(chosen) != 1:
		return sources.File{}, nil, fmt.Errorf("configuration %q: expected one of %s, once", config, strings.Join(names, ", "))
	}
	return chosen[0], besides(found, chosen[0]), nil
}

// settings says what becomes of the settings that are not about shares.
func (c *pluginConfig) settings() []string {
	var notes, unknown []string
	kept := map[string][]string{}
	for _, part := range []struct {
		name    string
		content any
	}{{"flags", c.Flags}, {"resources", c.Resources}, {"imex", c.Imex}} {
		for _, path := range pathsIn(part.content, part.name) {
			if fate := pluginFates()[indexes.ReplaceAllString(path, "")]; fate != "" {
				kept[fate] = append(kept[fate], path)
			} else {
				unknown = append(unknown, path)
			}
		}
	}
	for _, fate := range slices.Sorted(maps.Keys(kept)) {
		notes = append(notes, fmt.Sprintf("left out: %s: %s", strings.Join(kept[fate], ", "), fate))
	}
	if len(unknown) > 0 {
		notes = append(notes, fmt.Sprintf("left out: %s: not known of NVIDIA's device plugin", strings.Join(unknown, ", ")))
	}
	if f := c.Sharing.TimeSlicing.FailRequestsGreaterThanOne; f != nil {
		notes = append(notes, "left out: sharing.timeSlicing.failRequestsGreaterThanOne: a claim has one share of a GPU, so that one for "+
			"several is of several GPUs")
	}
	return notes
}

// pluginFates says what becomes of the settings of the device plugin, by their paths without the places in lists.
func pluginFates() map[string]string {
	const drivers, operators = "where the driver is on nodes is a value of Fettle's chart", "a setting of the plugin itself"
	fates := map[string]string{
		"flags.migStrategy": "a PartitionPolicy with nvidia.mig divides GPUs", "flags.nvidiaDriverRoot": drivers, "flags.nvidiaDevRoot": drivers,
		"flags.gdsEnabled": "a claim has no device nodes of GPUDirect Storage", "flags.gdrcopyEnabled": "a claim has no device node of GDRCopy",
		"flags.mofedEnabled": "a claim has no device nodes of InfiniBand", "flags.mpsRoot": "each claim with MPS has a daemon of its own",
		"imex.channelIDs": "a claim has no IMEX channels", "imex.required": "a claim has no IMEX channels",
	}
	for _, name := range []string{
		"failOnInitError", "restartOnDeviceUnhealthy", "useNodeFeatureAPI", "deviceDiscoveryStrategy", "driverRootCtrPath",
		"plugin.passDeviceSpecs",
		"plugin.deviceListStrategy", "plugin.deviceIDStrategy", "plugin.cdiAnnotationPrefix", "plugin.nvidiaCTKPath", "plugin.nvidiaCDIHookPath",
		"plugin.containerDriverRoot", "gfd.oneshot", "gfd.noTimestamp", "gfd.sleepInterval", "gfd.outputFile", "gfd.machineTypeFile",
	} {
		fates["flags."+name] = operators
	}
	for _, list := range []string{"gpus", "migs"} {
		for _, field := range []string{"pattern", "name"} {
			fates["resources."+list+"."+field] = "the plugin does not read it either: a DeviceClass with extendedResourceName names resources"
		}
	}
	return fates
}

// indexes are those of the items of lists in a path.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var indexes = regexp.MustCompile(`\[[0-9]+\]`)

// pathsIn lists the paths of the values in a part of a configuration, in order.
func pathsIn(content any, path string) (all []string) {
	switch v := content.(type) {
	case nil:
		return nil
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, pathsIn(v[key], path+"."+key)...)
		}
		return all
	case []any:
		for i, item := range v {
			all = append(all, pathsIn(item, fmt.Sprintf("%s[%d]", path, i))...)
		}
		return all
	}
	return []string{path}
}

// sliced returns the entries, all of whole GPUs, and no two of the same ones.
func (c *pluginConfig) sliced() ([]timeSlicedGPU, error) {
	switch {
	case c.Version != "" && c.Version != "v1": // the plugin takes v1 for none
		return nil, fmt.Errorf("version %q of the configuration: expected v1", c.Version)
	case len(c.Sharing.MPS) > 0:
		return nil, errors.New("mps: the clients of one daemon are the pods of one claim here: use timeSlicing or MIG instances, or one claim " +
			"for all pods with the strategy MPS")
	case c.Sharing.TimeSlicing == nil || len(c.Sharing.TimeSlicing.Resources) == 0:
		return nil, errors.New("timeSlicing.resources: the configuration shares nothing")
	}
	entries, at := c.Sharing.TimeSlicing.Resources, map[string]int{}
	for i := range entries {
		if name := entries[i].Name; name != gpuResource {
			return nil, fmt.Errorf("timeSlicing.resources[%d].name: %.80q: expected %s: convert without this entry; to share MIG instances write "+
				"sharing.maxClaims into the PartitionPolicy that has their layout", i, name, gpuResource)
		}
	}
	for i := range entries {
		one := &entries[i]
		if one.Devices == nil {
			one.Devices = "all"
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

// selectedGPUs is the condition on GPUs that the entry is for: all of NVIDIA's, some by their UUIDs, or some by their numbers among those
// of a node, whose addresses are given.
func selectedGPUs(devices any, addresses []string) (string, error) {
	const vendor = `device.attributes["fettle.dev"].vendor == "nvidia"`
	list, some := devices.([]any)
	if devices == nil || devices == "all" {
		return vendor, nil
	}
	if !some || len(list) == 0 {
		return "", fmt.Errorf("%v: expected all, or a list of UUIDs", devices)
	}
	by := map[string][]string{}
	for _, one := range list {
		text := fmt.Sprint(one)
		n, err := strconv.Atoi(text)
		switch {
		case strings.HasPrefix(text, "GPU-"):
			by["uuid"] = append(by["uuid"], strconv.Quote(text))
		case err == nil && n >= 0 && n < len(addresses):
			by["pciAddress"] = append(by["pciAddress"], strconv.Quote(addresses[n]))
		default:
			return "", fmt.Errorf("%v: a policy selects GPUs by their UUID or other attributes, not by number: write the UUIDs, which "+
				"nvidia-smi -L lists by number, or give --gpu ADDRESS for each GPU of such a node, in that order", one)
		}
	}
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		terms = append(terms, fmt.Sprintf(`"%s" in device.attributes["fettle.dev"] && device.attributes["fettle.dev"].%[1]s in [%s]`, name,
			strings.Join(by[name], ", ")))
	}
	if len(terms) == 1 {
		return vendor + " && " + terms[0], nil
	}
	return vendor + " && (" + strings.Join(terms, " || ") + ")", nil
}

// renamed says how pods ask for what an entry gives another name.
func (c *pluginConfig) renamed(g *timeSlicedGPU) []string {
	resource, by := g.Rename, "rename"
	if resource == "" && c.Sharing.TimeSlicing.RenameByDefault {
		resource, by = gpuResource+".shared", "renameByDefault"
	}
	if resource == "" {
		return nil
	}
	return []string{fmt.Sprintf("pods that ask for %s (%s): convert them with --map %[1]s=CLASS, a class for shares", resource, by)}
}
