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
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
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
	memory   *memory
	cluster  *cluster
	foreign  *foreignInstances
	observer observer
	layouts  layouts
	// decided is what the last Review decided. Nil before the first.
	decided atomic.Pointer[decision]
	// wanted is sent after each Review, for Run.
	wanted notify.Signal
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
	f := &Feature{Config: c, tree: tree, writer: writer, wanted: notify.New()}
	f.points = restorepoint.Open(disk.OS{}, filepath.Join(c.StateDir, pointsDir), c.BootID)
	f.mig = mig.New(mig.Config{
		FS: disk.OS{}, Dir: filepath.Join(c.StateDir, migDir), HostRoot: c.HostRoot, BootID: c.BootID, Library: c.Library,
	})
	f.binder = vfio.New(vfio.Config{Tree: tree, Write: writer, Points: f.points})
	f.maker = sriov.New(sriov.Config{Tree: tree, Write: writer, Points: f.points})
	f.switcher = amdmode.New(amdmode.Config{Tree: tree, Write: writer})
	f.memory = openMemory(filepath.Join(c.StateDir, memoryFile))
	if f.cluster, err = newCluster(&f.Config); err != nil {
		return nil, err
	}
	f.foreign = &foreignInstances{tree: tree, mig: f.mig, requery: c.Requery, pictures: map[string]string{}}
	holdings := Holdings{node: c.Node, records: c.Records, mig: f.mig, points: f.points, errors: c.Errors, memory: f.memory}
	f.observer = observer{pci: c.PCI, tree: tree, mig: f.mig, points: f.points, holdings: holdings, foreign: f.foreign}
	f.layouts = layouts{
		node: c.Node, records: c.Records, holdings: holdings, mig: f.mig, points: f.points, maker: f.maker, library: c.Library, kinds: f.Kinds(),
		quiesced: c.Quiesced, retired: c.Retired, requery: c.Requery, event: c.Event, errors: c.Errors, said: map[string]string{},
	}
	return f, c.Registry.Register(newShareMetrics(&f.Config, f.decided.Load))
}

// Name returns the feature's name in records. The feature records no decision: a later boot makes the same part again.
func (f *Feature) Name() string { return "partitions" }

// Review replaces the GPUs that are divided by what is published of them.
func (f *Feature) Review(ctx context.Context, s *inventory.Snapshot) {
	if len(s.Physical)+len(f.memory.Cards) == 0 {
		f.decided.Store(&decision{})
		return
	}
	if !f.cluster.wait(ctx) {
		return
	}
	observed := f.observer.observe(ctx, s, f.cluster.wanted(), f.decided.Load())
	next := decide(observed)
	next.publish(s, &observed.setting)
	f.decided.Store(next)
	f.remember(ctx, &observed.setting, next)
	f.wanted.Send()
}

// remember keeps what the next process must know before the API server and the machine tell it.
func (f *Feature) remember(ctx context.Context, now *setting, d *decision) {
	if !now.known {
		return
	}
	if err := f.memory.keep(d.remembered(now), f.Retired != nil && f.Retired()); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note how GPUs are divided, which the plugin needs after a restart")
		f.Errors.WithLabelValues("partitions").Inc()
	}
}

var errNotDecided = errors.New("how GPUs are divided is not known yet: kubelet tries again")

// Query wraps the question to NVIDIA's library: it notes which instances are Fettle's at that time.
func (f *Feature) Query(ask func(context.Context) (nvml.Report, error)) func(context.Context) (nvml.Report, error) {
	return f.foreign.query(ask)
}

// FieldsDropped notes which fields the API server does not keep: counters, or what makes a device one of several claims.
func (f *Feature) FieldsDropped(_ context.Context, dropped *resourceslice.DroppedFieldsError) {
	f.cluster.fieldsDropped(dropped)
}

// Watch follows the policies until ctx ends. stopped waits for its end.
func (f *Feature) Watch(ctx context.Context) (stopped func()) {
	return follow.Run(ctx, f.cluster.policies)
}

// Destroy removes the feature's files. It is called when no claim holds anything of the node; what policies had made stays until the node
// restarts.
func (f *Feature) Destroy() error {
	errs := []error{f.memory.destroy()}
	for _, dir := range []string{migDir, pointsDir} {
		errs = append(errs, removeAll(filepath.Join(f.StateDir, dir)))
	}
	return errors.Join(errs...)
}
