// SPDX-License-Identifier: Apache-2.0

// Package hostdirs is the feature that gives directories of the host to claims as scratch space, and empties them afterwards.
package hostdirs

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Config has the services and functions that the feature uses.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree.
	Node, HostRoot string
	// Held reports whether a claim holds a device, and Recorded whether there is a record of a claim.
	Held     func(pool, name string) bool
	Recorded func(claim string) bool
	// Emptied is sent after a directory was emptied in the background.
	Emptied notify.Signal
	// Errors counts errors outside of kubelet's calls, by source.
	Errors *prometheus.CounterVec
}

// Feature gives directories to claims.
type Feature struct {
	Config
	purger purger
	// reads looks at directories whose disk or server may not answer.
	reads *sysfs.Reads
}

// patience is how long a look at a directory may take. Claims of the same devices, and the next look at the machine, wait meanwhile.
const patience = 10 * time.Second

var (
	_ prepare.Feature    = (*Feature)(nil)
	_ inventory.Reviewer = (*Feature)(nil)
)

// New returns the feature.
func New(c Config) *Feature {
	return &Feature{
		Config: c, purger: purger{errors: c.Errors, emptied: c.Emptied, clock: clock.RealClock{}},
		reads: sysfs.NewReads(clock.RealClock{}, patience),
	}
}

// Name returns the feature's name in records. The feature has no decision to record.
func (f *Feature) Name() string { return "hostDirectories" }

// Kinds returns the step that gives a directory to a claim.
func (f *Feature) Kinds() step.Kinds {
	return step.Kinds{hostdir.StepKind: hostdir.Kind(f.HostRoot, hostdir.OpenRoot)}
}

// Plan adds a step for each scratch directory of the claim. After a reboot a step stays as recorded, since its parameters hold the earlier
// owner and mode. A directory that the claim does not empty must be emptied, too, of what the claim before left.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	var c prepare.Contribution
	for i := range r.Allocation.Results {
		result := &r.Allocation.Results[i]
		if result.AdminAccess || result.Config.Host == nil {
			continue
		}
		dev, _ := r.Find(result)
		for _, mount := range dev.Edits.Mounts {
			steps, err := sysfs.Call(ctx, f.reads, mount.HostPath+" for claim "+string(r.Claim.UID), func() ([]step.Step, error) {
				return f.lend(&r, mount.HostPath, result.Config.Host.OnRelease)
			}, nil)
			if err != nil {
				return c, err
			}
			c.Steps = append(c.Steps, steps...)
		}
	}
	return c, nil
}

// lend returns the step for a directory, none if it is kept on release.
func (f *Feature) lend(r *prepare.Request, path string, release v1alpha1.OnRelease) ([]step.Step, error) {
	s, known := r.EarlierStep(step.Step{Kind: hostdir.StepKind, Target: path})
	claim := string(r.Claim.UID)
	switch {
	case release != v1alpha1.OnReleaseEmpty && r.AfterReboot:
		return nil, nil // what is there is the claim's own
	case release == v1alpha1.OnReleaseEmpty && known:
		return []step.Step{s}, nil
	}
	err := hostdir.CheckLeft(f.HostRoot, path, func(of string) bool { return of == claim || f.Recorded(of) })
	switch {
	case err != nil:
	case release != v1alpha1.OnReleaseEmpty:
		return nil, hostdir.CheckEmptied(f.HostRoot, path)
	default:
		s, err = hostdir.Plan(f.HostRoot, path, claim)
	}
	if err != nil {
		return nil, err
	}
	return []step.Step{s}, nil
}

// Leftovers returns the steps to undo for a device's directories if the record is lost. A directory that its claim had with onRelease Keep
// has none.
func (f *Feature) Leftovers(ctx context.Context, uid string, d device.Device) ([]step.Step, error) {
	if d.Kind != device.KindHost {
		return nil, nil
	}
	var out []step.Step
	for _, mount := range d.Edits.Mounts {
		s, err := sysfs.Call(ctx, f.reads, mount.HostPath+" of claim "+uid, func() (step.Step, error) {
			return hostdir.PlanUndo(f.HostRoot, mount.HostPath, uid)
		}, nil)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, hostdir.ErrNotScratch) {
			continue // the directory left with its disk, or is kept
		}
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// reasonEmptying says why a directory is withheld.
const reasonEmptying = "is being emptied after its last claim"

// Review withholds directories that are not empty yet, and starts to empty them. It skips directories that claims hold, whose content is
// the claim's own.
func (f *Feature) Review(ctx context.Context, s *inventory.Snapshot) {
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Kind != device.KindHost || len(d.Edits.Mounts) == 0 || f.Held(device.PoolName(f.Node, d.Kind), d.Name) {
			continue
		}
		path := d.Edits.Mounts[0].HostPath
		looking := context.WithoutCancel(ctx) // a plugin that ends withholds nothing
		_, err := sysfs.Call(looking, f.reads, path, func() (bool, error) { return false, f.checkFree(path) }, nil)
		switch {
		case err == nil:
		case errors.Is(err, hostdir.ErrDirty):
			s.Withheld[d.Name] = reasonEmptying
			f.purger.start(ctx, filepath.Join(f.HostRoot, path))
		default:
			s.Withhold(d.Name, path, discover.ReasonHostPathUnusable, err)
		}
	}
}

// checkFree fails if a directory that no claim holds has something of a claim.
func (f *Feature) checkFree(path string) error {
	if err := hostdir.CheckEmptied(f.HostRoot, path); err != nil {
		return err
	}
	return hostdir.CheckLeft(f.HostRoot, path, f.Recorded) // a claim that gets it meanwhile is recorded before
}

// Wait returns when no directory is being emptied but those whose disk or server does not answer. The context of the reviews must have
// ended.
func (f *Feature) Wait() { f.purger.wait() }

// purger deletes the data that claims left in host directories, with one goroutine for each directory. The next scan, in this process or
// another, finds what is left.
type purger struct {
	errors *prometheus.CounterVec
	// emptied is sent after a directory was emptied. After a failure the next scan tries again.
	emptied notify.Signal
	clock   clock.Clock

	// running are the paths that are being emptied.
	running sync.Map
	wg      sync.WaitGroup
}

// start starts to empty a directory, unless that is running already.
func (p *purger) start(ctx context.Context, path string) {
	if _, running := p.running.LoadOrStore(path, true); running {
		return
	}
	p.wg.Go(func() {
		err := purge(ctx, path)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot empty a directory, which stays unpublished", "path", path)
			p.errors.WithLabelValues("purge").Inc()
		}
		p.running.Delete(path)
		if err == nil {
			p.emptied.Send()
		}
	})
}

// endPatience is how long the end of the plugin waits for a system call that deletes. The plugin has sockets to remove afterwards.
const endPatience = 5 * time.Second

// wait returns when no purge runs, or what runs does not answer. Their context must have ended. What one deletes later is trash all the
// same.
func (p *purger) wait() {
	ended := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(ended)
	}()
	timer := p.clock.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C():
	}
}

func purge(ctx context.Context, path string) (err error) {
	d, err := hostdir.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Purge(ctx)
}
