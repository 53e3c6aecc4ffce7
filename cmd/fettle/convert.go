// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/convert"
	"github.com/fettle-dev/fettle/pkg/pci"
)

const convertHelp = `
Makes claims for Fettle of claims for the drivers gpu.nvidia.com, gpu.amd.com and gpu.intel.com: classes, selectors, constraints and
configurations. Makes claims of pods that ask for GPUs as resources (nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915 and the like), and of
pods that use Intel's FPGA device plugin: resources fpga.intel.com/... and the variables FPGA_REGION_n, FPGA_BITSTREAM_ID_n or FPGA_AFU_n,
and FPGA_DRIVER_PARAMS_n. PodPresets (settings.k8s.io/v1alpha1) become DevicePresets, or
ClusterDevicePresets where they mount files of the host. Caches of GPU kernels (gkm.io/v1alpha1 GKMCache and ClusterGKMCache) become
GPUKernelCaches and ClusterGPUKernelCaches, and pods that mount their volumes get a claim with the cache. Reads YAML or JSON and writes
YAML: the bitstreams, the templates of the claims, the pods, the presets and the caches. Everything else comes out as it came in. What
changed its meaning is said on stderr. Needs no cluster.

With --kind mig-parted, makes a PartitionPolicy of a configuration of NVIDIA's mig-parted. With --kind device-plugin, makes one of each
entry of time slices in a configuration of NVIDIA's device plugin. With --kind amd-config-manager, makes one of each compute mode in a
profile of AMD's device config manager. The input is such a file, or a ConfigMap, a List, values of a Helm chart or a stream of documents
that has one.`

const convertExamples = `
fettle convert -f pods.yaml > converted.yaml
fettle convert --kind mig-parted -f config.yaml --config all-1g.10gb > policy.yaml
fettle convert --kind device-plugin -f time-slicing-config.yaml --config any > policy.yaml
fettle convert --kind amd-config-manager -f config-manager-config.yaml --config cpx-profile > policy.yaml`

func convertFiles(flags *arguments) action {
	options := convert.Options{Functions: map[string]convert.Function{}, Classes: map[string]string{}}
	var mapped list
	name := flags.StringP("filename", "f", "", "`file` to read, or a directory with files; - for standard input")
	kind := flags.String("kind", kindIntelFPGA, "`kind` of the input: "+kindIntelFPGA+", the plugin that the pods use, "+kindMigParted+
		", "+kindDevicePlugin+" or "+kindAMDProfiles)
	kinds := []string{kindIntelFPGA, kindMigParted, kindDevicePlugin, kindAMDProfiles}
	flags.completeFlag("kind", kinds...)
	flags.where("kind", oneOf(kinds...))
	policy := partitionFlags(flags)
	flags.StringVar(&options.Class, "class", convert.DefaultClass, "`DeviceClass` of the requests")
	image := flags.String("image", "", "OCI artifact `REGISTRY/REPOSITORY:TAG` with the bitstreams; unset: files in "+convert.IntelStore)
	flags.StringVarP(&options.Namespace, "namespace", "n", "default", "`namespace` of objects that name none")
	flags.StringVar(&options.GPUClass, "gpu-class", convert.DefaultGPUClass, "`DeviceClass` of the GPUs that pods get; "+
		"unset: the vendor's class where a pod names the vendor, and else this")
	flags.where("class", unless(isName))
	flags.where("namespace", unless(isNamespace))
	flags.where("gpu-class", unless(isName))
	flags.Func("gpu-memory", "memory that the GPUs have of which pods ask for fractions or percentages: a `quantity` such as 80Gi; unset: "+
		"such pods are refused", func(text string) error {
		memory, err := resource.ParseQuantity(text)
		if err == nil && memory.Sign() <= 0 {
			err = errors.New("want more than 0")
		}
		options.GPUMemory = &memory
		return err
	})
	flags.Func("kernel-caches", "`form` in which pods have caches of kernels: claims, or volumes as they were (default claims)",
		func(text string) error {
			if options.KernelCacheVolumes = text == "volumes"; !options.KernelCacheVolumes && text != "claims" {
				return errors.New("want claims or volumes")
			}
			return nil
		})
	flags.Var(&mapped, "map", "what a resource name of the administrator's means: `NAME=INTERFACE[/AFU]`, or the DeviceClass for a resource "+
		"of a container or a PodPreset, or for another driver's class: RESOURCE=CLASS; may be repeated")
	flags.BoolFunc("cluster-presets", "make ClusterDevicePresets of all PodPresets, or with =false of none (default: of those that mount "+
		"files of the host)", func(text string) (err error) {
		options.ClusterPresets = new(bool)
		*options.ClusterPresets, err = strconv.ParseBool(text)
		return err
	})
	return func(_ context.Context, _ []string, stdout, stderr io.Writer) error {
		if err := errors.Join(setImage(&options, *image), setMap(&options, mapped), wantFile(*name)); err != nil {
			return flags.misused(err)
		}
		files, notes, err := readInputs(*name)
		if err != nil {
			return fmt.Errorf("convert: %w", err)
		}
		title := files[0].Name
		if len(files) > 1 {
			title = *name
		}
		var result convert.Result
		switch *kind {
		case kindMigParted:
			result, err = convert.MigParted(joined(files), title, *policy)
		case kindDevicePlugin:
			result, err = convert.DevicePlugin(joined(files), title, *policy)
		case kindAMDProfiles:
			result, err = convert.AMDProfiles(joined(files), title, *policy)
		default:
			result, err = convert.Files(files, title, options)
		}
		if err != nil {
			return fmt.Errorf("convert: %w", err)
		}
		for _, note := range slices.Concat(notes, result.Notes) {
			fmt.Fprintln(stderr, note)
		}
		_, err = stdout.Write(result.YAML)
		return err
	}
}

// The kinds of input.
const (
	kindIntelFPGA = "intel-fpga"
	kindMigParted = "mig-parted"
	// kindDevicePlugin is the configuration of NVIDIA's device plugin, whose time slices become shares.
	kindDevicePlugin = "device-plugin"
	kindAMDProfiles  = "amd-config-manager"
)

// partitionFlags are those of the kinds that become PartitionPolicies.
func partitionFlags(flags *arguments) *convert.PolicyOptions {
	o := &convert.PolicyOptions{}
	flags.StringVar(&o.Config, "config", "",
		"`name` of the configuration that holds, of mig-parted, AMD's config manager or a ConfigMap of the device plugin; unset: the only one")
	flags.StringVar(&o.Name, "name", "", "`name` of the PartitionPolicy; unset: mig-, shares- or amd- and the configuration's")
	flags.Var((*list)(&o.GPUs), "gpu", "PCI `address` of a GPU of the nodes; once for each, as amd-smi list or nvidia-smi -L numbers "+
		"them, where a profile does not treat all alike, or a device plugin's configuration names GPUs by number")
	flags.Var((*list)(&o.NodeSelector), "node-selector", "label `KEY=VALUE` of the nodes that the PartitionPolicy is for; may be repeated")
	flags.Func("priority", "`priority` of the PartitionPolicy (default 0)", func(text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		if err == nil && max(n, -n) > maxPriority {
			err = fmt.Errorf("want -%d to %[1]d", maxPriority)
		}
		o.Priority = int32(n)
		return err
	})
	flags.where("name", unless(isName))
	flags.where("gpu", func(address string) error { return checkGPU(o.GPUs, address) })
	flags.where("node-selector", func(label string) error { return checkLabel(o.NodeSelector, label) })
	return o
}

// maxPriority is the highest of a PartitionPolicy.
const maxPriority = 1_000_000

// checkLabel wants a label that a node may have, of another key than those before.
func checkLabel(before []string, label string) error {
	key, value, ok := strings.Cut(label, "=")
	if !ok {
		return errors.New("want KEY=VALUE")
	}
	if slices.ContainsFunc(before, func(other string) bool { return strings.HasPrefix(other, key+"=") }) {
		return fmt.Errorf("%s is given already: a node has one value of it", key)
	}
	return first(append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...))
}

// checkGPU wants the address of a GPU that is not given yet.
func checkGPU(before []string, address string) error {
	if _, err := pci.Parse(address); err != nil {
		return err
	}
	if slices.Contains(before, address) {
		return fmt.Errorf("%s is given already", address)
	}
	return nil
}

func wantFile(name string) error {
	if name == "" {
		return errors.New("want -f FILE, or -f - for standard input")
	}
	return nil
}

// registryForm is that of the registries that an FPGABitstream may name.
var registryForm = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*(:[0-9]+)?$`)

func setImage(o *convert.Options, image string) error {
	if image == "" {
		return nil
	}
	place, err := parsePlace(image)
	if err != nil {
		return fmt.Errorf("--image: %w", err)
	}
	if place.dir != "" {
		return errors.New("--image: nodes pull from a registry, not from a directory")
	}
	if !registryForm.MatchString(place.remote.Registry()) {
		return fmt.Errorf("--image: registry %q: an FPGABitstream wants letters and digits in lower case, with single dots and dashes between",
			place.remote.Registry())
	}
	o.Image = place.remote.String()
	return nil
}

func setMap(o *convert.Options, mapped []string) error {
	for _, text := range mapped {
		name, meaning, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return fmt.Errorf("--map %q: want NAME=INTERFACE[/AFU] or RESOURCE=CLASS", text)
		}
		_, function := o.Functions[name]
		if _, class := o.Classes[name]; class || function {
			return fmt.Errorf("--map %q: the name is mapped already", text)
		}
		if class, ok := convert.ParseClass(meaning); ok {
			o.Classes[name] = class
			continue
		}
		f, err := convert.ParseFunction(meaning)
		if err != nil {
			return fmt.Errorf("--map %s: %w", name, err)
		}
		o.Functions[name] = f
	}
	return nil
}

// readInputs reads a file, standard input, or the files of a directory with YAML and JSON, in order. Notes name what is not read there.
func readInputs(name string) (files []convert.Input, notes []string, err error) {
	if info, statErr := os.Stat(name); name == "-" || statErr != nil || !info.IsDir() {
		data, title, err := readManifests(name)
		return []convert.Input{{Name: title, Data: data}}, nil, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(name, entry.Name())
		if entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			notes = append(notes, path+": not read: expected a file .yaml, .yml or .json")
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, convert.Input{Name: path, Data: data})
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%s: no file .yaml, .yml or .json is in it", name)
	}
	return files, notes, nil
}

// joined makes a stream of files.
func joined(files []convert.Input) []byte {
	var all [][]byte
	for _, f := range files {
		all = append(all, f.Data)
	}
	return bytes.Join(all, []byte("\n---\n"))
}

// readManifests reads a file whole, and gives its name for people.
func readManifests(name string) (data []byte, title string, err error) {
	if name == "-" {
		data, err = io.ReadAll(os.Stdin)
		return data, "stdin", err
	}
	data, err = os.ReadFile(name)
	return data, name, err
}
