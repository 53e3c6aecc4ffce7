// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
)

// readOnly is the device cgroup's permission for a look.
const readOnly = "r"

// NoNodeVariable begins the name of the variable of each region of an FPGA that a container looks at without a device node.
const NoNodeVariable = "FETTLE_NO_NODE_"

// Edits are the container edits of one result: the device's own, moved to the configured mount path, and read-only for adminAccess. With
// adminAccess a region of an FPGA gives no node, and a variable says so: a process that opens a port keeps it from being programmed, and
// resets it when it closes the port. dev is not changed and shares no memory with the answer. An error is a *RefusedError without the
// claim's name.
func Edits(result Result, dev device.Device) (container.Edits, error) {
	if dev.Kind != result.Kind || dev.Name != result.Device {
		fault := field.Invalid(allocationPath().Child("devices", "results"), result.Device,
			fmt.Sprintf("must be the device that the edits are of, not %s of kind %s", dev.Name, dev.Kind))
		return container.Edits{}, &RefusedError{Reason: ReasonDeviceUnknown, Faults: field.ErrorList{fault}}
	}
	edits := container.Edits{
		Nodes:  append([]container.Node(nil), dev.Edits.Nodes...),
		Mounts: append([]container.Mount(nil), dev.Edits.Mounts...),
		Env:    append([]string(nil), dev.Edits.Env...),
	}
	edits.Env = append(edits.Env, result.memoryEnv()...)
	if !result.AdminAccess { // nothing is made for a look, and what another claim had made is not shown
		edits.Made = append([]string(nil), dev.Edits.Made...)
	}
	if host := result.Config.Host; host != nil && host.MountPath != "" {
		if len(edits.Mounts) != 1 {
			return container.Edits{}, mountPathMisfit(result, len(edits.Mounts))
		}
		edits.Mounts[0].ContainerPath = host.MountPath
	}
	if result.AdminAccess && result.Kind == device.KindFPGA {
		return container.Edits{Env: []string{NoNodeVariable + variableName(result.Device) + "=admin-access"}}, nil
	}
	if result.AdminAccess {
		restrict(edits)
	}
	return edits, nil
}

// restrict makes everything read-only in place.
func restrict(edits container.Edits) {
	for i := range edits.Nodes {
		edits.Nodes[i].Permissions = readOnly
	}
	for i := range edits.Mounts {
		edits.Mounts[i].ReadOnly = true
	}
}

func mountPathMisfit(result Result, mounts int) *RefusedError {
	path := field.NewPath(FieldMountPath)
	if source := result.Config.Sources[FieldMountPath]; source.Origin == OriginClass || source.Origin == OriginClaim {
		path = source.parameters().Child(FieldMountPath)
	}
	fault := field.Invalid(path, result.Config.Host.MountPath,
		fmt.Sprintf("device %s of request %s has %d directories and needs exactly 1 for it: remove mountPath",
			result.Device, result.Request, mounts))
	return &RefusedError{Reason: ReasonConfigInvalid, Faults: field.ErrorList{fault}}
}
