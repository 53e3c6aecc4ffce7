// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// watchNVML keeps a child that watches NVIDIA's GPUs while there are any. It is started anew with every change of the set, since
// the library knows the GPUs of its start only.
func (k *Keeper) watchNVML(ctx context.Context) {
	if k.watcher == nil {
		return
	}
	for ctx.Err() == nil {
		retired := k.Retirement.Changed()
		_, changed := k.Holder.Get()
		gpus := k.targets("nvidia")
		var life sync.WaitGroup
		child, stop := context.WithCancel(ctx)
		if len(gpus) > 0 {
			life.Go(func() { k.watchGPUs(child, gpus) })
		}
		for ctx.Err() == nil && slices.Equal(gpus, k.targets("nvidia")) {
			select {
			case <-ctx.Done():
			case <-changed:
			case <-retired:
			}
			retired = k.Retirement.Changed()
			_, changed = k.Holder.Get()
		}
		stop()
		life.Wait()
		k.expectNVML(nil)
	}
}

// watchGPUs is the life of a watcher for a set of GPUs.
func (k *Keeper) watchGPUs(ctx context.Context, gpus []health.Target) {
	names := make(map[pci.Address]string, len(gpus))
	for _, gpu := range gpus {
		if address, err := pci.ParseBusID(gpu.Address); err == nil { // discovery made it
			names[address] = gpu.Name
		}
	}
	k.expectNVML(gpus)
	receive := func(m nvml.Message) {
		switch {
		case m.State != nil:
			k.expectNVML(gpus)
			k.takeState(ctx, names, m.State)
		case m.Event != nil:
			k.takeEvent(ctx, names, *m.Event)
		}
	}
	k.watcher.Run(ctx, receive, func(err error) {
		k.metrics.restarts.Inc()
		klog.FromContext(ctx).V(1).Info("Watching NVIDIA GPUs was interrupted", "reason", err)
		if errors.Is(err, nvml.ErrNoLibrary) {
			k.expectNVML(nil) // discovery says that it is missing; nobody waits for it
			return
		}
		for _, gpu := range gpus {
			k.pulse.heard(health.SourceNVML, gpu.Name, time.Now(), err)
		}
	})
}

// expectNVML sets the GPUs that the library is to speak of.
func (k *Keeper) expectNVML(gpus []health.Target) {
	file := k.File
	limit := max(missedReadings*file.Health.Interval.Duration, kubeletForgets) + file.NVML.Timeout.Duration
	names := make([]string, 0, len(gpus))
	for _, gpu := range gpus {
		names = append(names, gpu.Name)
	}
	k.pulse.expect(health.SourceNVML, limit, time.Now(), names...)
}

func (k *Keeper) takeState(ctx context.Context, names map[pci.Address]string, s *nvml.State) {
	faults := map[pci.Address]error{}
	for _, fault := range s.Faults {
		if address, err := pci.ParseBusID(fault.Device); err == nil {
			faults[address] = errors.Join(faults[address], fmt.Errorf("%s: %s", fault.Field, fault.Message))
		}
	}
	reports := make([]health.Report, 0, len(s.Devices))
	for _, dev := range s.Devices {
		address, err := pci.ParseBusID(dev.PCIBusID)
		name := names[address]
		if err != nil || name == "" {
			continue
		}
		reports = append(reports, health.NVML(name, dev))
		k.pulse.heard(health.SourceNVML, name, time.Now(), faults[address])
	}
	k.note(ctx, k.ledger.Report(reports...))
}

func (k *Keeper) takeEvent(ctx context.Context, names map[pci.Address]string, e nvml.Event) {
	address, err := pci.ParseBusID(e.PCIBusID)
	name := names[address]
	if err != nil || name == "" {
		// The state that follows each event shows which GPU is lost.
		klog.FromContext(ctx).Info("An Xid of a GPU that is not known", "xid", e.Xid, "busID", e.PCIBusID)
		return
	}
	klog.FromContext(ctx).Info("Xid", "xid", e.Xid, "device", name)
	k.note(ctx, k.ledger.Happened(health.Xid(name, e)))
}
