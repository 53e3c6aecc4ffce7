// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// foreignInstances tells the MIG instances that others made from ours. NVIDIA's library is asked seldom, so what it listed is compared with
// what the kernel shows.
type foreignInstances struct {
	tree    *sysfs.Tree
	mig     *mig.Instances
	requery notify.Signal
	// pictures are the instances that the kernel showed last of each GPU. They belong to Review, which runs in one goroutine.
	pictures map[string]string

	mu sync.Mutex
	// owned are the instances that were claims' or layouts' when the library was asked last, ownedBefore when it last told of all GPUs.
	owned, ownedBefore []mig.Held
}

// placesOn lists the places of instances that neither a claim nor a layout of ours has. Those that were ours when the library was asked,
// and are destroyed since, do not count.
func (f *foreignInstances) placesOn(c *seen, held []mig.Held) []nvml.MIGPlacement {
	f.mu.Lock()
	held = slices.Concat(held, f.owned, f.ownedBefore)
	f.mu.Unlock()
	return mig.ForeignPlaces(c.Address, device.StringOf(c.Device.Attributes[device.AttributeUUID]), c.MIG, held)
}

// askAgain requests a new query of NVIDIA's library where the kernel shows an instance that the library did not list and that is not ours.
// It does so too where the kernel no longer shows one that somebody else had made. It requests one query for each such picture, and none
// where only ours come and go.
func (f *foreignInstances) askAgain(c *seen, held []mig.Held) {
	node, err := discover.NVIDIANode(f.tree, c.Address)
	if err != nil {
		return // a virtual machine has the GPU
	}
	shown, err := f.tree.MIGInstances(int(node.Minor))
	if err != nil {
		return // Review says what it cannot read
	}
	stale := f.outdated(c, shown, held)
	if stale { // an instance may have been made since held was read
		now, err := f.mig.Held()
		stale = err == nil && f.outdated(c, shown, now)
	}
	picture := fmt.Sprint(shown)
	if stale && f.pictures[c.Device.Name] != picture {
		f.requery.Send()
	}
	f.pictures[c.Device.Name] = picture
}

// outdated says whether the library's last answer cannot have what the kernel shows of a GPU. Nothing is known while an instance is made.
func (f *foreignInstances) outdated(c *seen, shown []uint32, held []mig.Held) bool {
	foreign := f.placesOn(c, held)
	listed := map[uint32]bool{}
	outdated := false
	for _, one := range c.MIG.Instances {
		listed[one.ID] = true
		outdated = outdated || slices.Contains(foreign, one.Placement) && !slices.Contains(shown, one.ID)
	}
	for _, h := range held {
		switch {
		case h.PCIAddress != c.Address:
		case h.Made == nil:
			return false
		default:
			listed[h.Made.GPUInstance] = true
		}
	}
	return outdated || slices.ContainsFunc(shown, func(id uint32) bool { return !listed[id] })
}

// query wraps the question to NVIDIA's library: it notes which instances are Fettle's at that time.
func (f *foreignInstances) query(ask func(context.Context) (nvml.Report, error)) func(context.Context) (nvml.Report, error) {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context) (nvml.Report, error) {
		var report nvml.Report
		var err error
		owned := f.mig.HeldDuring(func() { report, err = ask(ctx) }) // Review reports what it cannot read
		if err == nil {
			f.mu.Lock()
			f.owned = owned
			if len(report.UnknownMIG()) == 0 {
				f.ownedBefore = owned
			}
			f.mu.Unlock()
		}
		return report, err
	}
}
