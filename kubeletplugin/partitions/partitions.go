// SPDX-License-Identifier: Apache-2.0

// Package partitions is the feature that divides GPUs: it publishes their parts as PartitionPolicies want it, makes the part that a claim
// has allocated, and takes it back afterwards.
//
//	Review   decides what each GPU is published as, by the policies and by what claims hold
//	Plan     makes the steps that make the part of a claim
//	Made     returns what a container needs of a part, once its steps were applied
//	Run      makes what policies want beside claims: static layouts, virtual functions, modes
package partitions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// Config has the settings and dependencies of the feature.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree, StateDir that of the plugin's state.
	Node, HostRoot, StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// PCI says that attributes of PCI devices may be written.
	PCI bool
	// Interval is how often the node's labels are looked at. The API server's version is, a tenth as often.
	Interval time.Duration
	// ReadNode returns the Node, for reading only. Kube tells the version.
	ReadNode func(context.Context) (*corev1.Node, error)
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	// CounterForm finds out in which form of slices the API server keeps counters; empty: in none.
	CounterForm func(context.Context) (partition.Form, error)
	// KeepsShares finds out whether the API server keeps devices that several claims have.
	KeepsShares func(context.Context) (bool, error)
	Records     *record.Store
	Registry    prometheus.Registerer
	// Library asks NVIDIA's library.
	Library *nvml.Prober
	// Quiesced reports whether nothing may be changed of a vendor's devices now. Review is called again when that changes.
	Quiesced func(vendor string) bool
	// Retired reports whether the node was asked to retire. Nil: it never is.
	Retired func() bool
	// Recheck is sent after something changed that Review decides by. Requery is sent after instances changed in a way that the last answer
	// of NVIDIA's library does not have.
	Recheck, Requery notify.Signal
	// Event makes an Event on the Node about one of its devices. It must not block.
	Event func(device, eventType, reason, note string)
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors *prometheus.CounterVec
}

// Feature divides the node's GPUs.
type Feature struct {
	Config
	tree     *sysfs.Tree
	writer   *sysfs.Writer
	mig      *mig.Instances
	points   *restorepoint.Store
	binder   *vfio.Binder
	maker    *sriov.Maker
	switcher *amdmode.Switcher
	policies *follow.Informer
	// resolver, memory and pictures belong to Review, which runs in one goroutine. pictures are the instances that the kernel showed last of
	// each GPU.
	resolver policy.Resolver
	memory   *memory
	pictures map[string]string
	// decided is what the last Review decided. Nil before the first.
	decided atomic.Pointer[decision]
	// wanted is sent after each Review, for Run.
	wanted notify.Signal
	// known closes once the policies and what the API server keeps were read, or could not be for too long.
	known     chan struct{}
	closeOnce sync.Once

	mu sync.Mutex
	// surroundings are what Run read last.
	surroundings surroundings
	// owned are the instances that were claims' or layouts' when NVIDIA's library was asked last, ownedBefore when it last told of all GPUs.
	owned, ownedBefore []mig.Held
}

var (
	_ prepare.Feature    = (*Feature)(nil)
	_ prepare.Maker      = (*Feature)(nil)
	_ prepare.Adopter    = (*Feature)(nil)
	_ inventory.Reviewer = (*Feature)(nil)
)

// The directories below the state directory.
const (
	migDir    = "mig"
	pointsDir = "restore-points"
)

// New makes the feature. It changes nothing yet.
func New(c Config) (*Feature, error) {
	tree, err := sysfs.Open(c.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host tree %s: %w", c.HostRoot, err)
	}
	writer, err := sysfs.OpenWriter(c.HostRoot)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	f := &Feature{Config: c, tree: tree, writer: writer, wanted: notify.New(), known: make(chan struct{}), pictures: map[string]string{}}
	f.points = restorepoint.Open(disk.OS{}, filepath.Join(c.StateDir, pointsDir), c.BootID)
	f.mig = mig.New(mig.Config{
		FS: disk.OS{}, Dir: filepath.Join(c.StateDir, migDir), HostRoot: c.HostRoot, BootID: c.BootID, Library: c.Library,
	})
	f.binder = vfio.New(vfio.Config{Tree: tree, Write: writer, Points: f.points})
	f.maker = sriov.New(sriov.Config{Tree: tree, Write: writer, Points: f.points})
	f.switcher = amdmode.New(amdmode.Config{Tree: tree, Write: writer})
	f.memory = openMemory(filepath.Join(c.StateDir, memoryFile))
	if f.policies, err = follow.Own(c.Dynamic, "partitionpolicies", decodePolicy, c.Recheck.Send); err != nil {
		return nil, err
	}
	return f, c.Registry.Register(newShareMetrics(f))
}

// Name returns the feature's name in records. The feature records no decision: a later boot makes the same part again.
func (f *Feature) Name() string { return "partitions" }

// Kinds returns the steps that make parts.
func (f *Feature) Kinds() step.Kinds {
	kinds := f.mig.Kinds()
	maps.Copy(kinds, f.binder.Kinds())
	kinds[vfio.StepKind] = f.lookingAfter(kinds[vfio.StepKind])
	maps.Copy(kinds, f.switcher.Kinds())
	kinds[amdmode.StepKind] = f.remembering(kinds[amdmode.StepKind], f.formerCompute)
	kinds[mig.ModeKind] = f.remembering(f.noticing(kinds[mig.ModeKind], func(params json.RawMessage, err error) bool {
		m, decodeErr := step.Decode[mig.Mode](params)
		return err == nil && decodeErr == nil && f.decided.Load().modeDiffers(m)
	}), f.formerMode)
	kinds[mig.Kind] = f.noticing(kinds[mig.Kind], func(_ json.RawMessage, err error) bool { return errors.Is(err, nvml.ErrOccupied) })
	return kinds
}

// lookingAfter has the plugin let go of a GPU before a virtual machine gets it, for which the step waits, and has the machine looked at
// after the virtual machine gave it back: its own driver has it again.
func (f *Feature) lookingAfter(kind step.Kind) step.Kind {
	apply, undo := kind.Apply, kind.Undo
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		f.Recheck.Send()
		return apply(ctx, params)
	}
	kind.Undo = func(ctx context.Context, params json.RawMessage) error {
		err := undo(ctx, params)
		if err == nil {
			f.Requery.Send()
		}
		return err
	}
	return kind
}

// noticing has NVIDIA's library asked again after a step if what became of it shows that its last answer is out of date: the MIG mode is
// another, or somebody made an instance.
func (f *Feature) noticing(kind step.Kind, outdated func(params json.RawMessage, err error) bool) step.Kind {
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		err := apply(ctx, params)
		if outdated(params, err) {
			f.Requery.Send()
		}
		return err
	}
	return kind
}

// modeDiffers says whether a GPU was in another MIG mode when NVIDIA's library was asked last.
func (d *decision) modeDiffers(m *mig.Mode) bool {
	c := d.at(m.PCIAddress)
	return c == nil || c.MIG == nil || c.MIG.Current != m.On
}

// Watch follows the policies until ctx ends. stopped waits for its end.
func (f *Feature) Watch(ctx context.Context) (stopped func()) { return follow.Run(ctx, f.policies) }

// Destroy removes the feature's files. It is called when no claim holds anything of the node; what policies had made stays until the node
// restarts.
func (f *Feature) Destroy() error {
	errs := []error{f.memory.destroy()}
	for _, dir := range []string{migDir, pointsDir} {
		errs = append(errs, removeAll(filepath.Join(f.StateDir, dir)))
	}
	return errors.Join(errs...)
}
