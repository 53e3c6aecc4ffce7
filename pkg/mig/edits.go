// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// VariablePrefix begins the variable that tells a container the UUID of its instance. The name of the device follows, in upper case and
// with underscores. CUDA finds a single instance by itself; a program that has several sets CUDA_VISIBLE_DEVICES to one of them.
const VariablePrefix = "FETTLE_MIG_UUID_"

// Edits returns what a container needs of the instance that Apply made for a device: the node of the GPU, and those of the two
// capabilities. The caller adds the nodes that all of NVIDIA's GPUs share. Without an instance of this boot it is fs.ErrNotExist. It
// asks no library.
func (i *Instances) Edits(device string) (container.Edits, error) {
	h, err := i.read(device)
	if err != nil {
		return container.Edits{}, err
	}
	if h == nil || h.BootID != i.config.BootID || h.Made == nil {
		return container.Edits{}, fmt.Errorf("device %s has no MIG instance in this boot, its step %s was not applied: %w",
			device, Kind, fs.ErrNotExist)
	}
	return i.edits(device, h.Made)
}

// EditsOf returns what a container needs of an instance in a place that somebody else made, on the GPU whose node has this minor.
func (i *Instances) EditsOf(w *Partition, minor int, one nvml.MIGInstance) (container.Edits, error) {
	made, err := i.made(w, nvml.MIGAnswer{Instance: &one, Minor: &minor})
	if err != nil {
		return container.Edits{}, err
	}
	return i.edits(w.Device, made)
}

func (i *Instances) edits(device string, made *Made) (container.Edits, error) {
	tree, err := sysfs.Open(i.config.HostRoot)
	if err != nil {
		return container.Edits{}, err
	}
	defer tree.Close()
	majors, err := tree.CharMajors()
	if err != nil {
		return container.Edits{}, err
	}
	gpu, ok := majors["nvidia"]
	if !ok {
		gpu, ok = majors["nvidia-frontend"] // the older driver's name
	}
	caps, both := majors["nvidia-caps"]
	if !ok || !both {
		return container.Edits{}, fmt.Errorf("%s has no nvidia or no nvidia-caps: load the module nvidia", sysfs.HostPath(sysfs.ProcDevices))
	}
	node := func(path string, major, minor int64) container.Node {
		return container.Node{Path: path, Major: major, Minor: minor, Permissions: "rw"}
	}
	capability := func(minor int64) container.Node {
		return node("/dev/nvidia-caps/nvidia-cap"+strconv.FormatInt(minor, 10), caps, minor)
	}
	return container.Edits{
		Nodes: []container.Node{
			node("/dev/nvidia"+strconv.Itoa(made.Minor), gpu, int64(made.Minor)),
			capability(made.GPUCapability), capability(made.ComputeCapability),
		},
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void", Variable(device) + "=" + made.UUID},
	}, nil
}

// Variable is the name of the variable for a device.
func Variable(device string) string {
	return VariablePrefix + strings.ToUpper(strings.ReplaceAll(device, "-", "_"))
}
