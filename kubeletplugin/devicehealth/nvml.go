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

// watchNVML runs a child that watches NVIDIA's GPUs while there are any. It restarts the child when the set of GPUs changes, since the
// library knows only the GPUs that were there at its start. A child that runs keeps the driver from being unloaded.
func (m *Monitor) watchNVML(ctx context.Context) {
	if m.watcher == nil {
		return
	}
	for ctx.Err() == nil {
		retired, quiesced := m.Retirement.Changed(), m.Quiesce.Changed()
		_, changed := m.Holder.Get()
		gpus := m.targets("nvidia")
		var life sync.WaitGroup
		child, stop := context.WithCancel(ctx)
		if len(gpus) > 0 {
			life.Go(func() { m.watchGPUs(child, gpus) })
		}
		for ctx.Err() == nil && slices.Equal(gpus, m.targets("nvidia")) {
			select {
			case <-ctx.Done():
			case <-changed:
			case <-retired:
			case <-quiesced:
			}
			retired, quiesced = m.Retirement.Changed(), m.Quiesce.Changed()
			_, changed = m.Holder.Get()
		}
		stop()
		life.Wait()
		m.expectNVML(nil)
	}
}

// watchGPUs runs the watcher for a set of GPUs until ctx ends.
func (m *Monitor) watchGPUs(ctx context.Context, gpus []health.Target) {
	names := make(map[pci.Address]string, len(gpus))
	for _, gpu := range gpus {
		if address, err := pci.ParseBusID(gpu.Address); err == nil { // discovery made the address
			names[address] = gpu.Name
		}
	}
	m.expectNVML(gpus)
	receive := func(message nvml.Message) {
		switch {
		case message.State != nil:
			m.expectNVML(gpus)
			m.recordState(ctx, names, message.State)
		case message.Event != nil:
			m.recordEvent(ctx, names, *message.Event)
		}
	}
	m.watcher.Run(ctx, receive, func(err error) {
		m.metrics.restarts.Inc()
		klog.FromContext(ctx).V(1).Info("Watching NVIDIA GPUs was interrupted", "reason", err)
		if errors.Is(err, nvml.ErrNoLibrary) {
			m.expectNVML(nil) // discovery reports that the library is missing
			return
		}
		for _, gpu := range gpus {
			m.sources.reported(health.SourceNVML, gpu.Name, time.Now(), err)
		}
	})
}

// expectNVML sets the GPUs that the library must report.
func (m *Monitor) expectNVML(gpus []health.Target) {
	file := m.File
	limit := max(missedReadings*file.Health.Interval.Duration, kubeletHealthTimeout) + file.NVML.Timeout.Duration
	names := make([]string, 0, len(gpus))
	for _, gpu := range gpus {
		names = append(names, gpu.Name)
	}
	m.sources.expect(health.SourceNVML, limit, time.Now(), names...)
}

func (m *Monitor) recordState(ctx context.Context, names map[pci.Address]string, s *nvml.State) {
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
		m.sources.reported(health.SourceNVML, name, time.Now(), faults[address])
	}
	m.logLedgerError(ctx, m.ledger.Report(reports...))
}

func (m *Monitor) recordEvent(ctx context.Context, names map[pci.Address]string, e nvml.Event) {
	address, err := pci.ParseBusID(e.PCIBusID)
	name := names[address]
	if err != nil || name == "" {
		// The state that follows each event shows which GPU is lost.
		klog.FromContext(ctx).Info("An Xid of a GPU that is not known", "xid", e.Xid, "busID", e.PCIBusID)
		return
	}
	klog.FromContext(ctx).Info("Xid", "xid", e.Xid, "device", name)
	m.logLedgerError(ctx, m.ledger.Happened(health.Xid(name, e)))
}
