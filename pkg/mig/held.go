// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Held is the file of a device: what Fettle made, or is about to make, in its place.
type Held struct {
	// Version is the version of the file's format.
	Version int `json:"version"`
	Partition
	// BootID is the boot in which that holds.
	BootID string `json:"bootID"`
	// Made is nil while it is not known whether there is an instance: it was begun.
	Made *Made `json:"made,omitempty"`
}

// Made is an instance and how a container reaches it.
type Made struct {
	GPUInstance     uint32 `json:"gpuInstance"`
	ComputeInstance uint32 `json:"computeInstance"`
	// UUID is that of the compute instance, "MIG-…".
	UUID string `json:"uuid"`
	// Minor is that of the GPU's node. The capability minors are those of the two nodes in /dev/nvidia-caps.
	Minor             int   `json:"minor"`
	GPUCapability     int64 `json:"gpuCapability"`
	ComputeCapability int64 `json:"computeCapability"`
}

// complete reports whether a container can be given the instance. The driver has no instance's capability at minor 0.
func (m *Made) complete() bool {
	return m.UUID != "" && m.GPUCapability > 0 && m.ComputeCapability > 0
}

const (
	heldVersion = 1
	suffix      = ".json"
)

//nolint:gochecknoglobals // a constant that Go cannot express as one
var deviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func (i *Instances) path(device string) string { return filepath.Join(i.config.Dir, device+suffix) }

// makeDir makes the directory.
func (i *Instances) makeDir() error {
	if err := disk.MkdirAll(i.config.FS, i.config.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of MIG instances: %w", err)
	}
	return nil
}

// read returns nil where there is no file. If a file lacks a part of what was made, its instance counts as begun: the next Apply finishes
// it and completes the file. A file that cannot be understood is an error: the instance in its place is left to a person.
func (i *Instances) read(device string) (*Held, error) {
	if !deviceName.MatchString(device) {
		return nil, fmt.Errorf("device name %q: want lower-case letters, digits and dashes", device)
	}
	path := i.path(device)
	data, err := i.config.FS.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is an answer
	}
	h := &Held{}
	if err == nil {
		err = json.Unmarshal(data, h)
	}
	if err == nil && (h.Version != heldVersion || h.Device != device) {
		err = fmt.Errorf("version %d and device %q, want version %d and device %q", h.Version, h.Device, heldVersion, device)
	}
	if err != nil {
		return nil, fmt.Errorf("read which MIG instance device %s has: %s: %w: "+
			"destroy its instance by hand, if there is one, and remove the file", device, path, err)
	}
	if h.Made != nil && !h.Made.complete() {
		h.Made = nil
	}
	return h, nil
}

// current returns the file of a place if it holds now. Stale is a file of another boot, or of a GPU that was there before: the instance
// ended with it.
func (i *Instances) current(w *Partition) (h *Held, stale bool, err error) {
	h, err = i.read(w.Device)
	switch {
	case err != nil || h == nil:
		return nil, false, err
	case h.BootID != i.config.BootID || !h.sameGPU(w):
		return nil, true, nil
	case h.ProfileID != w.ProfileID || h.placement() != w.placement():
		return nil, false, fmt.Errorf("%s: its file %s is about another place, %s: destroy the instance there by hand and remove the file",
			w, i.path(w.Device), &h.Partition)
	}
	return h, false, nil
}

// write replaces the file. It is synced, so that a power loss leaves none that is cut off. More is not needed: instances end with the boot.
func (i *Instances) write(h *Held) error {
	h.Version = heldVersion
	i.note(h)
	data, err := json.Marshal(h)
	if err == nil {
		err = disk.ReplaceDurably(i.config.FS, i.path(h.Device), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the MIG instance of device %s: %w", h.Device, err)
	}
	return nil
}

// remove removes the file. After a power loss it may be back, and owns nothing then.
func (i *Instances) remove(device string) error {
	if err := disk.RemoveIfThere(i.config.FS, i.path(device)); err != nil {
		return fmt.Errorf("remove the note of device %s's MIG instance: %w", device, err)
	}
	return nil
}

// find returns the instance that was made, whole, among those of its GPU.
func (h *Held) find(instances []nvml.MIGInstance) *nvml.MIGInstance {
	for n, one := range instances {
		if h.isAt(one) && one.ID == h.Made.GPUInstance && len(one.Compute) == 1 && one.Compute[0].UUID == h.Made.UUID {
			return &instances[n]
		}
	}
	return nil
}

// identity tells the instance from a later one in its place. Nil: it was only begun.
func (h *Held) identity() *nvml.MIGIdentity {
	if h.Made == nil {
		return nil
	}
	return &nvml.MIGIdentity{ID: h.Made.GPUInstance, UUID: h.Made.UUID}
}

// covers reports whether an instance is the device's. It may be the one that was made, or one that a step had begun when it was cut off. It
// may also be what is left of the one that was made: the same id without a compute instance, which a step destroys first. fettle-nvml
// decides in the same way what it destroys.
func (h *Held) covers(one nvml.MIGInstance) bool {
	switch {
	case !h.isAt(one):
		return false
	case h.Made == nil:
		return len(one.Compute) == 0 || len(one.Compute) == 1 && one.Compute[0].ID == 0
	case one.ID != h.Made.GPUInstance:
		return false
	}
	return len(one.Compute) == 0 || len(one.Compute) == 1 && one.Compute[0].UUID == h.Made.UUID
}

// made reads how a container reaches the instance that the library answered with.
func (i *Instances) made(w *Partition, answer nvml.MIGAnswer) (*Made, error) {
	one := answer.Instance
	if one == nil || answer.Minor == nil || !w.isAt(*one) || len(one.Compute) != 1 || one.Compute[0].UUID == "" {
		return nil, fmt.Errorf("fettle-nvml answered with %+v, want an instance of profile %d at %d with one compute instance",
			one, w.ProfileID, w.Start)
	}
	compute := one.Compute[0]
	out := &Made{GPUInstance: one.ID, ComputeInstance: compute.ID, UUID: compute.UUID, Minor: *answer.Minor}
	tree, err := sysfs.Open(i.config.HostRoot)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	if out.GPUCapability, err = tree.MIGCapability(out.Minor, one.ID, -1); err != nil {
		return nil, fmt.Errorf("find the node of GPU instance %d: %w", one.ID, err)
	}
	if out.ComputeCapability, err = tree.MIGCapability(out.Minor, one.ID, int(compute.ID)); err != nil {
		return nil, fmt.Errorf("find the node of compute instance %d of GPU instance %d: %w", compute.ID, one.ID, err)
	}
	return out, nil
}

// madeIn reads the file of a place that was made in this boot.
func (i *Instances) madeIn(w *Partition) (*Held, error) {
	h, _, err := i.current(w)
	switch {
	case err != nil:
		return nil, err
	case h == nil || h.Made == nil:
		return nil, fmt.Errorf("%s has no instance: delete the pod", w)
	}
	return h, nil
}

// HeldIn returns what the file of a device owns, nil if it owns nothing.
func (i *Instances) HeldIn(device string) (*Held, error) {
	h, err := i.read(device)
	if h != nil && h.BootID != i.config.BootID {
		h = nil
	}
	return h, err
}

// Held lists what the files of this boot own, by device. A file that cannot be understood is an error beside the others.
func (i *Instances) Held() ([]Held, error) {
	entries, err := i.config.FS.ReadDir(i.config.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the MIG instances of claims: %w", err)
	}
	var out []Held
	var faults []error
	for _, entry := range entries {
		device, ok := strings.CutSuffix(entry.Name(), suffix)
		if !ok || strings.HasPrefix(entry.Name(), disk.TemporaryPrefix) {
			continue
		}
		h, err := i.HeldIn(device)
		faults = append(faults, err)
		if h != nil {
			out = append(out, *h)
		}
	}
	return out, errors.Join(faults...)
}

// HeldDuring lists what the files of this boot own at any time while look runs, which may be about an instance that is made and destroyed
// meanwhile. An instance that look sees and that none of them covers is somebody else's. Files that cannot be understood are left out.
func (i *Instances) HeldDuring(look func()) []Held {
	var noted []Held
	i.mu.Lock()
	i.notes[&noted] = struct{}{}
	i.mu.Unlock()
	before, _ := i.Held()
	look()
	after, _ := i.Held() // another process may have written some
	i.mu.Lock()
	delete(i.notes, &noted)
	i.mu.Unlock()
	return slices.Concat(before, noted, after)
}

// note tells the calls of HeldDuring that a file is about to be written.
func (i *Instances) note(h *Held) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for noted := range i.notes {
		*noted = append(*noted, *h)
	}
}
