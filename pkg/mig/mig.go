// SPDX-License-Identifier: Apache-2.0

// Package mig implements the step that makes an instance of an NVIDIA GPU for a claim (Multi-Instance GPU) and destroys it afterwards.
//
// A GPU carries no mark of who made an instance. So the step keeps a durable file for each device. It writes "begun" after it saw that the
// place is empty and before it changes anything. After a crash, an instance of the same profile in the same place of the same GPU is
// therefore its own. What no file owns belongs to somebody else and is never touched. Instances do not outlive a boot, so a file of
// another boot owns nothing.
package mig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Kind is the kind of the step. Its target is the name of the device.
const Kind = "gpu.mig"

// Partition is the place of an instance: the parameters of the step.
type Partition struct {
	// Device is the name of the published device.
	Device string `json:"device"`
	// Parent is the UUID of the GPU, PCIAddress where it is.
	Parent     string      `json:"parent"`
	PCIAddress pci.Address `json:"pciAddress"`
	// ProfileID and Profile are nvml.MIGProfile's, Start and Size the place in memory slices.
	ProfileID uint32 `json:"profileID"`
	Profile   string `json:"profile"`
	Start     uint32 `json:"start"`
	Size      uint32 `json:"size"`
}

// Step makes the step.
func (w *Partition) Step() (step.Step, error) { return step.New(Kind, w.Device, w) }

func (w *Partition) String() string {
	return fmt.Sprintf("device %s (%s from memory slice %d of GPU %s)", w.Device, w.Profile, w.Start, w.PCIAddress)
}

// placement is the place in memory slices.
func (w *Partition) placement() nvml.MIGPlacement {
	return nvml.MIGPlacement{Start: w.Start, Size: w.Size}
}

// place is the place as fettle-nvml is told it.
func (w *Partition) place() nvml.MIGPlace {
	return nvml.MIGPlace{PCIBusID: w.PCIAddress.String(), Parent: w.Parent, ProfileID: w.ProfileID, Start: w.Start}
}

// sameGPU reports whether two partitions are of one GPU.
func (w *Partition) sameGPU(other *Partition) bool {
	return w.PCIAddress == other.PCIAddress && w.Parent == other.Parent
}

// isAt reports whether an instance is of the partition's profile and in its place.
func (w *Partition) isAt(one nvml.MIGInstance) bool {
	return one.ProfileID == w.ProfileID && one.Placement == w.placement()
}

// library asks fettle-nvml; *nvml.Prober does.
type library interface {
	ListMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace) (nvml.MIGAnswer, error)
	CreateMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace, finish bool) (nvml.MIGAnswer, error)
	DestroyMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace, identity *nvml.MIGIdentity) (nvml.MIGAnswer, error)
	SetMIGMode(ctx context.Context, lock *os.File, place nvml.MIGPlace, on, pending bool) (nvml.MIGAnswer, error)
}

// Config configures Instances.
type Config struct {
	// FS changes the files. Dir is their directory, which is made when the first instance is.
	FS  disk.FS
	Dir string
	// HostRoot is the directory of the host's tree. BootID identifies the boot of the host.
	HostRoot, BootID string
	// Library asks NVIDIA's library.
	Library library
}

// Instances makes and destroys instances. It is safe for concurrent use, and beside another process with the same directory.
type Instances struct {
	config Config

	mu sync.Mutex
	// notes are those of the calls of HeldDuring that run now.
	notes map[*[]Held]struct{}
}

// New makes Instances. It reads and changes nothing.
func New(c Config) *Instances { return &Instances{config: c, notes: map[*[]Held]struct{}{}} }

// Kinds returns the step kinds.
func (i *Instances) Kinds() step.Kinds {
	return step.Kinds{
		Kind:     {Apply: step.Do(i.apply), Undo: step.Do(i.undo), Verify: step.Do(i.verify)},
		ModeKind: {Apply: step.Do(i.setMode), Undo: keepMode},
	}
}

// lockName is the file whose lock allows to change instances of this node.
const lockName = ".lock"

// Lock waits until nobody else changes an instance of this node, or the MIG mode of a GPU. The caller gives the file to nvml.Prober and
// closes it afterwards. A child that outlives its plugin holds the lock to its own end.
func (i *Instances) Lock(ctx context.Context) (*os.File, error) {
	if err := i.makeDir(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(i.config.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = filelock.WaitFlock(ctx, f, filelock.Exclusive)
	}
	if err != nil {
		return nil, fmt.Errorf("wait for the lock of MIG instances: %w", err)
	}
	return f, nil
}

// apply makes the instance, or finishes one that was begun.
func (i *Instances) apply(ctx context.Context, w *Partition) (err error) {
	lock, err := i.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	h, _, err := i.current(w)
	if err != nil {
		return err
	}
	if h == nil {
		return i.begin(ctx, lock, w)
	}
	if h.Made == nil {
		return i.create(ctx, lock, w, true)
	}
	return i.again(ctx, lock, w, h)
}

// again finds the instance of a step that was applied already, and whose record does not know it. It may be gone since, because the GPU was
// reset, or half destroyed. Then it is made anew, which no container can notice.
func (i *Instances) again(ctx context.Context, lock *os.File, w *Partition, h *Held) error {
	answer, err := i.config.Library.ListMIG(ctx, lock, w.place())
	if err != nil {
		return fmt.Errorf("%s: look for its instance: %w", w, err)
	}
	if h.find(answer.Instances) != nil && answer.Minor != nil && *answer.Minor == h.Made.Minor {
		return nil
	}
	if _, err := i.config.Library.DestroyMIG(ctx, lock, w.place(), h.identity()); err != nil {
		return fmt.Errorf("%s: destroy what is left of its instance: %w", w, err)
	}
	return i.begin(ctx, lock, w)
}

// begin makes the instance in an empty place. Before anything is changed, the file says that it may be.
func (i *Instances) begin(ctx context.Context, lock *os.File, w *Partition) error {
	answer, err := i.config.Library.ListMIG(ctx, lock, w.place())
	if err != nil {
		return fmt.Errorf("%s: look whether its place is free: %w", w, err)
	}
	for _, one := range answer.Instances {
		if one.Placement.Overlaps(w.placement()) {
			return fmt.Errorf("%s: %w: GPU instance %d (profile id %d, memory slices %d to %d) was not made for this claim: its owner has to "+
				"destroy it, by nvidia-smi mig -i %s -gi %d with -dci and then with -dgi", w, nvml.ErrOccupied, one.ID, one.ProfileID,
				one.Placement.Start, one.Placement.Start+one.Placement.Size-1, w.PCIAddress, one.ID)
		}
	}
	if err := i.write(&Held{Partition: *w, BootID: i.config.BootID}); err != nil {
		return err
	}
	return i.create(ctx, lock, w, false)
}

// create has the instance made and records what it is. Where the library refused to make any, the file is taken back.
func (i *Instances) create(ctx context.Context, lock *os.File, w *Partition, finish bool) error {
	answer, err := i.config.Library.CreateMIG(ctx, lock, w.place(), finish)
	if err != nil {
		err = fmt.Errorf("%s: make its instance: %w", w, err)
		if errors.Is(err, nvml.ErrOccupied) || noInstances(err) {
			return errors.Join(err, i.remove(w.Device))
		}
		return err
	}
	made, err := i.made(w, answer)
	if err != nil {
		return fmt.Errorf("%s: %w", w, err)
	}
	return i.write(&Held{Partition: *w, BootID: i.config.BootID, Made: made})
}

// noInstances reports whether an error means that there is no instance on the GPU.
func noInstances(err error) bool {
	return errors.Is(err, nvml.ErrMIGOff) || errors.Is(err, nvml.ErrGone)
}

// undo is Destroy at the end of a claim. Where the library is of another driver than the kernel's, a reboot ends that and the instance. A
// node is drained before a reboot, so no claim may wait for it. The file stays, since the instance is nobody else's.
func (i *Instances) undo(ctx context.Context, w *Partition) error {
	if err := i.Destroy(ctx, w); !errors.Is(err, nvml.ErrVersions) {
		return err
	}
	return nil
}

// Destroy destroys the instance, if the file says that it is Fettle's. While a process uses it, Destroy fails with nvml.ErrInUse and the
// file stays: the instance keeps its place, and the next Destroy tries again.
func (i *Instances) Destroy(ctx context.Context, w *Partition) (err error) {
	lock, err := i.Lock(ctx)
	if err != nil {
		// What was never begun needs no lock, for the file of which a full disk may have no space.
		if h, again := i.read(w.Device); h != nil || again != nil {
			return errors.Join(err, again)
		}
		return nil
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	h, stale, err := i.current(w)
	if stale {
		return i.remove(w.Device)
	}
	if err != nil || h == nil {
		return err
	}
	_, err = i.config.Library.DestroyMIG(ctx, lock, w.place(), h.identity())
	switch {
	case errors.Is(err, nvml.ErrInUse):
		return fmt.Errorf("%s: destroy its instance: a process, or a monitor such as DCGM, still has it open. "+
			"The device stays with its claim, and the plugin tries again: %w", w, err)
	case err != nil && !noInstances(err) && !i.driverless(w):
		return fmt.Errorf("%s: destroy its instance: %w", w, err)
	}
	return i.remove(w.Device)
}

// driverless reports whether NVIDIA's driver has let go of the GPU. Instances last no longer than that, and the library answers nothing
// until the driver is back. A claim must not wait for it: what brings the driver back may itself wait until all claims are given back.
func (i *Instances) driverless(w *Partition) bool {
	tree, err := sysfs.Open(i.config.HostRoot)
	if err != nil {
		return false
	}
	defer tree.Close()
	return tree.LetGo(w.PCIAddress.String(), "nvidia")
}

// verify fails unless the instance is still there with the same ids. Programs in a container hold on to these.
func (i *Instances) verify(ctx context.Context, w *Partition) error {
	h, err := i.madeIn(w)
	if err != nil {
		return err
	}
	answer, err := i.config.Library.ListMIG(ctx, nil, w.place())
	if err != nil {
		return fmt.Errorf("%s: look for its instance: %w", w, err)
	}
	if h.find(answer.Instances) == nil || answer.Minor != nil && *answer.Minor != h.Made.Minor {
		return fmt.Errorf("%s: its instance %s is gone, the GPU was reset or the instance destroyed by hand: delete the pod", w, h.Made.UUID)
	}
	return nil
}
