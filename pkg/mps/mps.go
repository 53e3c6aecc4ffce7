// SPDX-License-Identifier: Apache-2.0

// Package mps shares the GPUs of one claim by NVIDIA's Multi-Process Service: one control daemon for each claim, which all containers of
// the claim are clients of. The daemons must outlive the kubelet plugin, so a supervisor of its own runs them (command fettle-mps, package
// supervise). The plugin asks it over a socket, as the step of a claim. This package is the step, the protocol and its two ends.
//
// Not seen on a card (docs/design/hardware.md): all of it.
package mps

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// StepKind is the kind of the step by which a claim has a control daemon.
const StepKind = "gpu.mps"

// Program is NVIDIA's control daemon, and the program that talks to one.
const Program = "nvidia-cuda-mps-control"

// ClaimsDir is the directory of claims' plain directories, as the daemons see it: in the driver root. A claim has one there, named by the
// id of its daemon, if the supervisor was of an earlier version when the claim was prepared. Others have theirs in MemoryDir.
const ClaimsDir = "/run/fettle/mps"

// The names in the directory of a claim.
const (
	// PipeName has the daemon's sockets and pipes. Containers of the claim get it, and nothing else.
	PipeName = "pipe"
	// LogName has the daemon's logs.
	LogName = "log"
)

// PipeDirectory is the variable by which clients find their daemon, and ContainerPath its value: where a container has the pipe directory.
const (
	PipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"
	ContainerPath = "/run/fettle/mps"
)

// Daemon says what one control daemon is. Its JSON is that of the protocol and of the supervisor's list, which earlier versions read
// strictly, and part of the step's parameters.
type Daemon struct {
	// ID names the daemon on its node, and its directory: the claim's UID, with a suffix where a claim has several.
	ID string `json:"id"`
	// Devices are the UUIDs of the GPUs, or the UUID of one MIG instance: a daemon serves at most one instance.
	Devices []string `json:"devices"`
	// ActiveThreadPercentage limits the threads that one client may use, 1 to 100. 0: NVIDIA's default, which is 100.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// PinnedMemoryMiB limits the device memory of one client, by the device's UUID. A device that is not here has no limit.
	PinnedMemoryMiB map[string]int64 `json:"pinnedMemoryMiB,omitempty"`
	// MultiUser lets clients of different users be clients at one time. Their server runs as root then, and their memory is apart only as
	// far as the GPU keeps clients of one user apart. Otherwise clients of a second user wait until those of the first have ended.
	MultiUser bool `json:"multiUser,omitempty"`
	// Context is the SELinux context of the pipe directory, by which containers may use it. Empty: the host has no SELinux. Only the plugin
	// sees whether it has.
	Context string `json:"context,omitempty"`
}

const (
	maxDevices = 64
	// maxMemoryMiB is beyond any card, and small enough for all arithmetic.
	maxMemoryMiB = 1 << 30
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	// ids are names of files, and never hidden ones.
	ids = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,99}$`)
	// uuids are what NVIDIA's library calls GPUs and instances. The older form of an instance has slashes: MIG-GPU-<uuid>/1/0.
	contexts = regexp.MustCompile(`^[a-z_]{1,32}:[a-z_]{1,32}:[a-z_]{1,64}:s[0-9][0-9a-z:.,-]{0,64}$`)
	uuids    = regexp.MustCompile(`^(GPU-[0-9A-Fa-f-]{8,64}|MIG-(GPU-)?[0-9A-Fa-f-]{8,64}(/[0-9]{1,3}/[0-9]{1,3})?)$`)
)

// ErrInvalid refuses a daemon that cannot be run.
var ErrInvalid = errors.New("cannot be run")

// Validate checks everything that can be known without a GPU. The values become arguments and the lines of commands, so nothing else may be
// in them.
func (d *Daemon) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !ids.MatchString(d.ID) {
		fault("id %q: want at most 100 letters, digits, dots and dashes", d.ID)
	}
	if n := len(d.Devices); n < 1 || n > maxDevices {
		fault("%d devices: want 1 to %d", n, maxDevices)
	}
	seen := map[string]bool{}
	for _, uuid := range d.Devices {
		switch {
		case !uuids.MatchString(uuid):
			fault("device %q: want the UUID of a GPU or a MIG instance", uuid)
		case seen[uuid]:
			fault("device %s is there twice", uuid)
		case uuid[0] == 'M' && len(d.Devices) > 1:
			fault("device %s: a MIG instance needs a daemon of its own", uuid)
		}
		seen[uuid] = true
	}
	if d.Context != "" && !contexts.MatchString(d.Context) {
		fault("SELinux context %.80q: want user:role:type:level", d.Context)
	}
	faults = append(faults, d.validateLimits()...)
	if len(faults) > 0 {
		return fmt.Errorf("MPS daemon %w: %w", ErrInvalid, errors.Join(faults...))
	}
	return nil
}

func (d *Daemon) validateLimits() (faults []error) {
	if p := d.ActiveThreadPercentage; p < 0 || p > 100 {
		faults = append(faults, fmt.Errorf("active thread percentage %d: want 1 to 100", p))
	}
	for _, uuid := range slices.Sorted(maps.Keys(d.PinnedMemoryMiB)) {
		if !slices.Contains(d.Devices, uuid) {
			faults = append(faults, fmt.Errorf("memory limit of %q, which is not one of the devices", uuid))
		}
		if m := d.PinnedMemoryMiB[uuid]; m < 1 || m > maxMemoryMiB {
			faults = append(faults, fmt.Errorf("memory limit of %s: %d MiB: want 1 to %d", uuid, m, maxMemoryMiB))
		}
	}
	return faults
}

// Same reports whether two daemons are the same with the same settings.
func (d *Daemon) Same(other *Daemon) bool {
	return d.ID == other.ID && slices.Equal(d.Devices, other.Devices) && d.ActiveThreadPercentage == other.ActiveThreadPercentage &&
		maps.Equal(d.PinnedMemoryMiB, other.PinnedMemoryMiB) && d.MultiUser == other.MultiUser && d.Context == other.Context
}
