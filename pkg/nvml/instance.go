// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"io"
	"os"
	"strconv"
	"time"
)

// migTimeout bounds a question about instances. To make or destroy one takes about a second, and ten under load.
const migTimeout = 30 * time.Second

// MIGPlace is where an instance is or shall be.
type MIGPlace struct {
	// PCIBusID is the GPU's address, in any of NVIDIA's and the kernel's forms. Parent is its UUID; another GPU at the address is ErrGone.
	PCIBusID string
	Parent   string
	// ProfileID is MIGProfile.ID, Start the first memory slice.
	ProfileID uint32
	Start     uint32
}

// MIGIdentity tells an instance from a later one in the same place.
type MIGIdentity struct {
	// ID is that of the GPU instance, UUID that of its compute instance.
	ID   uint32
	UUID string
}

// MIGAnswer is what the child says after it looked at a GPU's instances or changed something about them.
type MIGAnswer struct {
	// Minor is the minor number of the GPU's node. It may change with the MIG mode and with a reset.
	Minor *int `json:"minor,omitempty"`
	// Current and Pending are as in MIG. Activation is what became of a change of the mode, in NVIDIA's words.
	Current    bool   `json:"current"`
	Pending    bool   `json:"pending"`
	Activation string `json:"activation,omitempty"`
	// Instances are all GPU instances of the GPU, where the question was for them.
	Instances []MIGInstance `json:"instances,omitempty"`
	// Instance is what is in the place now. Nil: nothing.
	Instance *MIGInstance `json:"instance,omitempty"`
	// Other says that Instance was not made for the caller, and was left alone.
	Other bool `json:"other,omitempty"`
}

// Validate checks what a reader computes with.
func (a MIGAnswer) Validate() error {
	all := a.Instances
	if a.Instance != nil {
		all = append([]MIGInstance{*a.Instance}, all...)
	}
	return (&MIG{Instances: all}).validate()
}

// DecodeMIGAnswer reads one answer of at most 1 MiB: strict JSON with nothing after it.
func DecodeMIGAnswer(r io.Reader) (MIGAnswer, error) { return decode[MIGAnswer](r, "answer about MIG") }

// ListMIG lists the instances of the GPU, with the compute instances of those only that take slices of the place.
//
// All questions about MIG take a file that the caller has locked (flock), or nil. The child keeps it open as long as it lives, so that the
// lock outlives a caller that is killed: nobody else acts while an orphaned child still does.
func (p *Prober) ListMIG(ctx context.Context, lock *os.File, place MIGPlace) (MIGAnswer, error) {
	return p.mig(ctx, lock, "list", place, place.flags()...)
}

// CreateMIG makes a GPU instance in the place, and the compute instance that takes all of it. With finish, a GPU instance of the profile
// that is there already is the caller's, and is given the compute instance if it lacks one. Without, it is ErrOccupied. After any other
// error there may be an instance, with or without a compute instance.
func (p *Prober) CreateMIG(ctx context.Context, lock *os.File, place MIGPlace, finish bool) (MIGAnswer, error) {
	args := place.flags()
	if finish {
		args = append(args, "-finish")
	}
	return p.mig(ctx, lock, "create", place, args...)
}

// DestroyMIG destroys the instance in the place. Nothing there is no error. With an identity it leaves an instance that has another alone,
// and says Other. Without, it leaves alone one that CreateMIG cannot have made. ErrInUse: the instance is still there, with or without
// its compute instance.
func (p *Prober) DestroyMIG(ctx context.Context, lock *os.File, place MIGPlace, identity *MIGIdentity) (MIGAnswer, error) {
	args := place.flags()
	if identity != nil {
		args = append(args, "-id", strconv.FormatUint(uint64(identity.ID), 10), "-uuid", identity.UUID)
	}
	return p.mig(ctx, lock, "destroy", place, args...)
}

// SetMIGMode switches the MIG mode of the GPU that place names. It refuses to switch it off while there are instances. With pending, a
// change that needs a reset of the GPU (Ampere), or cannot be activated because the GPU is in use, stays pending, which ErrNeedsReset and
// ErrInUse say beside the answer. Without, nothing has changed after an error, and an Ampere GPU is not touched at all.
func (p *Prober) SetMIGMode(ctx context.Context, lock *os.File, place MIGPlace, on, pending bool) (MIGAnswer, error) {
	args := []string{"-off"}
	if on {
		args = []string{"-on"}
	}
	if pending {
		args = append(args, "-pending")
	}
	return p.mig(ctx, lock, "mode", place, args...)
}

func (m MIGPlace) flags() []string {
	return []string{"-profile", strconv.FormatUint(uint64(m.ProfileID), 10), "-start", strconv.FormatUint(uint64(m.Start), 10)}
}

func (p *Prober) mig(ctx context.Context, lock *os.File, verb string, place MIGPlace, more ...string) (MIGAnswer, error) {
	args := []string{"mig", verb, "-device", place.PCIBusID}
	if place.Parent != "" {
		args = append(args, "-parent", place.Parent)
	}
	return probe(ctx, p, ask[MIGAnswer]{
		args: append(args, more...), decode: DecodeMIGAnswer, lock: lock, timeout: max(p.command.Timeout, migTimeout), always: true,
		makes: verb == "create",
	})
}
