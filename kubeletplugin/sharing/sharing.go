// SPDX-License-Identifier: Apache-2.0

// Package sharing is the feature that sets how programs take turns on NVIDIA's GPUs, as the configuration of a claim chooses it
// (sharing.strategy) and as a PartitionPolicy allows it.
//
//	Settle   has a claim that chose no strategy share a GPU as its policy says
//	Plan     refuses a strategy that the GPU cannot have, and makes the steps of the others
//	Run      reports what becomes of daemons
//	Kinds    gpu.compute-mode and gpu.time-slice, which several claims may have for one GPU, and gpu.mps, a daemon for each claim
package sharing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/timeslice"
)

// Config has the settings and dependencies of the feature.
type Config struct {
	// HostRoot is the directory of the host's tree, StateDir that of the plugin's state. BootID is /proc/sys/kernel/random/boot_id.
	HostRoot, StateDir, BootID string
	// Enabled says that the node sets strategies.
	Enabled bool
	// Supervisor is the directory of the program that runs MPS daemons, empty if there is none. HostDriverRoot is the driver root as the host
	// sees it, in which claims have directories of their own.
	Supervisor, HostDriverRoot string
	// ContainerContext is the SELinux context of files that any container may use, empty on a host without SELinux.
	ContainerContext string
	// DriverRoot is the directory, in the plugin's own tree, that NVIDIA's user-space driver is installed below.
	DriverRoot string
	// Allowed returns the strategies that a policy allows on a device, and the interval that its shares have with TimeSlicing.
	Allowed func(device string) (strategies []string, interval string)
	// Library asks NVIDIA's library.
	Library *nvml.Prober
	// Load reads the record of a claim.
	Load func(uid string) (*record.Record, error)
	// Devices returns the UUIDs of the node's GPUs and their parts by name, "" where the UUID is not known.
	Devices func() map[string]string
	// Level reports as a device's health what is wrong with its claim's daemon. Empty: nothing.
	Level func(ctx context.Context, device, problem string)
	// Event makes an Event on the Node about one of its GPUs, ClaimEvent one on a claim. They must not block.
	Event      func(gpu, eventType, reason, note string)
	ClaimEvent func(r *record.Record, eventType, reason, note string)
}

// Feature sets how programs take turns on GPUs.
type Feature struct {
	Config
	points  *restorepoint.Store
	modes   *computemode.Setter
	slices  *timeslice.Setter
	daemons mps.Runner
}

var (
	_ prepare.Feature = (*Feature)(nil)
	_ prepare.Adopter = (*Feature)(nil)
	_ prepare.Settler = (*Feature)(nil)
)

// pointsDir is the directory, below the state directory, of what GPUs were like before.
const pointsDir = "sharing"

// New makes the feature. It changes nothing yet.
func New(c Config) (*Feature, error) {
	tree, err := sysfs.Open(c.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host tree %s: %w", c.HostRoot, err)
	}
	f := &Feature{Config: c, daemons: mps.Runner{
		Client: mps.Client{Dir: c.Supervisor}, Memory: hostmount.In(mps.HostMemoryDir(c.HostDriverRoot), c.HostRoot),
	}}
	f.points = restorepoint.Open(disk.OS{}, filepath.Join(c.StateDir, pointsDir), c.BootID)
	f.modes = computemode.New(computemode.Config{Library: c.Library, Tree: tree, Points: f.points, Changed: f.changed})
	f.slices = timeslice.New(timeslice.Config{
		Tree: tree, Tools: timeslice.Tools(c.DriverRoot), Points: f.points, Changed: f.changed,
	})
	return f, nil
}

// changed reports a setting that somebody else changed while claims had it.
func (f *Feature) changed(gpu, what string) { f.Event(gpu, "Warning", "SettingChanged", what) }

// Name returns the feature's name in records. The feature records no decision: a later boot sets what the policy says then.
func (f *Feature) Name() string { return "sharing" }

// Kinds returns the steps that set strategies.
func (f *Feature) Kinds() step.Kinds {
	kinds := f.modes.Kinds()
	maps.Copy(kinds, f.slices.Kinds())
	maps.Copy(kinds, f.daemons.Kinds())
	return kinds
}

// Plan makes the steps of the claim's strategies.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	var c prepare.Contribution
	d, err := f.decide(&r)
	if err != nil {
		return c, err
	}
	uid := string(r.Claim.UID)
	for i := range d.sliced {
		steps, err := f.sliced(uid, &d.sliced[i])
		if err != nil {
			return c, err
		}
		c.Steps = append(c.Steps, steps...)
	}
	for i := range d.served {
		g := &d.served[i]
		if g.isInstance() {
			continue // the compute mode is the whole GPU's
		}
		s, err := f.mode(uid, g, nvml.ComputeExclusiveProcess)
		if err != nil {
			return c, err
		}
		c.Steps = append(c.Steps, s)
	}
	if d.daemon == nil {
		return c, nil
	}
	params, err := f.serve(ctx, d.daemon)
	if err != nil {
		return c, err
	}
	run, err := params.Step()
	if err != nil {
		return c, err
	}
	c.Steps, c.Edits = append(c.Steps, run), map[string]prepare.Edits{}
	for i := range d.served {
		c.Edits[d.served[i].result.BaseRequest] = prepare.Edits{Own: params.Edits(f.HostDriverRoot)}
	}
	return c, nil
}

// serve decides where a daemon has its directories.
func (f *Feature) serve(ctx context.Context, daemon *mps.Daemon) (*mps.Params, error) {
	asked, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	memory, err := f.daemons.Client.Memory(asked, daemon.ID)
	if err != nil {
		return nil, err
	}
	if !memory {
		klog.FromContext(ctx).Info("Nothing bounds what containers write to their MPS daemon's directory, since the pod of fettle-mps is of an " +
			"earlier version: delete it when no claim with MPS is left on the node")
	}
	daemon.Context = f.ContainerContext
	return &mps.Params{Daemon: *daemon, Memory: memory}, nil
}

// sliced returns the steps by which any program may use a GPU, in turns of a length.
func (f *Feature) sliced(uid string, g *gpu) ([]step.Step, error) {
	mode, err := f.mode(uid, g, nvml.ComputeDefault)
	if err != nil {
		return nil, err
	}
	address, err := g.address()
	if err != nil {
		return nil, err
	}
	slice, err := (&timeslice.Params{
		Claim: uid, UUID: g.uuid(), PCIAddress: address, Interval: intervalOf(g.result.Config.GPU.Interval),
	}).Step()
	return []step.Step{mode, slice}, err
}

// mode returns the step by which a GPU has a compute mode.
func (f *Feature) mode(uid string, g *gpu, mode nvml.ComputeMode) (step.Step, error) {
	address, err := g.address()
	if err != nil {
		return step.Step{}, err
	}
	return (&computemode.Params{Claim: uid, UUID: g.uuid(), PCIAddress: address, Mode: mode}).Step()
}

// intervalOf is NVIDIA's number of an interval. The step refuses what is none.
func intervalOf(interval v1alpha1.TimeSliceInterval) timeslice.Interval {
	return timeslice.Interval(slices.Index(timeslice.Intervals(), string(interval)))
}

// Leftovers returns the steps to undo for a device of a claim whose record is lost: its settings, and the claim's daemon.
func (f *Feature) Leftovers(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	if dev.Kind != device.KindGPU {
		return nil, nil
	}
	points, err := f.points.List()
	if err = restorepoint.About(err, func(target string) bool { return nameOf(target) == dev.Name }); err != nil {
		return nil, err
	}
	var steps []step.Step
	for _, p := range points {
		if s, ok := p.Of(uid); ok && (dev.Name == "" || nameOf(p.Step.Target) == dev.Name) {
			steps = append(steps, s)
		}
	}
	if f.Supervisor == "" {
		return steps, nil
	}
	mounts, err := f.daemons.Memory.Names(uid)
	if err != nil {
		return nil, err
	}
	daemons, err := f.running(ctx)
	unsupervised := errors.Is(err, mps.ErrNoSupervisor) // no daemon runs, and the next supervisor would start what is listed
	if err != nil && !unsupervised {
		return nil, err
	}
	isListed := slices.ContainsFunc(daemons, func(s mps.Status) bool { return s.ID == uid })
	if unsupervised || isListed || len(mounts) > 0 {
		stop, err := mps.Leftover(uid)
		return append(steps, stop), err
	}
	return steps, nil
}

// running asks the supervisor for the daemons. A supervisor that hangs holds up nobody.
func (f *Feature) running(ctx context.Context) ([]mps.Status, error) {
	asked, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	return f.daemons.Client.List(asked)
}

// nameOf is the name of the GPU that is the target of a restore point.
func nameOf(target string) string {
	address, err := pci.Parse(target)
	if err != nil {
		return ""
	}
	return "nvidia-" + address.Label()
}

// Orphans returns every GPU whose settings a claim changed, and every device that a claim's MPS daemon serves. A MIG instance has no
// settings, so only its daemon shows which claim has it. The engine adopts the claims that have no record any more.
func (f *Feature) Orphans(ctx context.Context) []prepare.Orphan {
	points, _ := f.points.List() // the next claim for the GPU says what cannot be read
	var out []prepare.Orphan
	for _, p := range points {
		for _, uid := range p.Claims() {
			out = append(out, prepare.Orphan{UID: uid, Device: device.Device{Kind: device.KindGPU, Name: nameOf(p.Step.Target)}})
		}
	}
	out = append(out, f.served(ctx)...)
	slices.SortFunc(out, func(a, b prepare.Orphan) int { return strings.Compare(a.UID, b.UID) })
	return out
}

// served returns the devices of the daemons that run, with the claims that they are for.
func (f *Feature) served(ctx context.Context) []prepare.Orphan {
	if f.Supervisor == "" {
		return nil
	}
	daemons, err := f.running(ctx)
	if err != nil || len(daemons) == 0 {
		return nil // the next pass asks again
	}
	names := map[string]string{}
	for name, uuid := range f.Devices() {
		names[uuid] = name
	}
	var out []prepare.Orphan
	for _, d := range daemons {
		for _, uuid := range d.Devices {
			if name := names[uuid]; name != "" {
				out = append(out, prepare.Orphan{UID: d.ID, Device: device.Device{Kind: device.KindGPU, Name: name}})
			}
		}
	}
	return out
}

// Destroy removes the feature's files. It is called when no claim holds anything of the node.
func (f *Feature) Destroy() error { return os.RemoveAll(filepath.Join(f.StateDir, pointsDir)) }
