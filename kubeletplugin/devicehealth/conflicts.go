// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

const (
	// conflictInterval is how often conflicts with other drivers are looked up. They change when a driver is installed or removed. What it
	// takes is mostly at hand.
	conflictInterval = time.Minute
	// conflictPause lets a burst of snapshots cause one look-up.
	conflictPause = 5 * time.Second
)

// watchConflicts finds devices that another driver on the node allocates, too. kubelet does not notice that a device plugin and a DRA
// driver give one device to two pods.
func (m *Monitor) watchConflicts(ctx context.Context) {
	if slices.Contains(m.File.Health.DisabledSources, health.SourceRival) {
		return
	}
	ticker := time.NewTicker(conflictInterval)
	defer ticker.Stop()
	for {
		_, changed := m.Holder.Get()
		if err := m.reportConflicts(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Cannot look up conflicts with other drivers", "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(conflictPause):
			}
		case <-ticker.C:
		}
	}
}

func (m *Monitor) reportConflicts(ctx context.Context) error {
	v, _ := m.Holder.Get()
	if v == nil || len(v.Devices) == 0 || m.Retirement.On() {
		return nil
	}
	node, err := m.ReadNode(ctx)
	if err != nil {
		return err
	}
	slices, err := m.ReadSlices(ctx)
	if err != nil {
		return err
	}
	if m.Retirement.On() {
		return nil // the node's files may be gone by now
	}
	// Of divided GPUs, too: what they had against them while they were whole ends here.
	devices := append(v.Hardware(), v.Devices...)
	m.logLedgerError(ctx, m.ledger.Report(conflictReports(devices, v.Foreign, node, slices)...))
	m.announceExcess(ctx, v.Foreign, node)
	return nil
}

// maker is what device plugins are known by: the vendor and the kind of their devices.
type maker struct {
	vendor string
	kind   device.Kind
}

// announceExcess makes an Event if a device plugin gives out more GPUs than are left to it. It is no more than a hint: a plugin that
// divides its GPUs, or shares them by time, counts each of them several times.
func (m *Monitor) announceExcess(ctx context.Context, foreign map[string]inventory.Foreign, node *corev1.Node) {
	note := excess(foreign, node)
	if note != "" && note != m.excess {
		klog.FromContext(ctx).Info("A device plugin gives out more GPUs than are left to it", "message", note)
		m.Event("", corev1.EventTypeWarning, "DevicePluginHasMore", note)
	}
	m.excess = note
}

// excess says which device plugin gives out more GPUs than are left to it. Empty: none does.
func excess(foreign map[string]inventory.Foreign, node *corev1.Node) string {
	left := leftDevices(foreign)
	plugins := conflictingPlugins(node)
	for _, vendor := range vendors.Names(vendors.WithGPUs()) {
		of := maker{vendor, device.KindGPU}
		resource := plugins[of]
		if n := node.Status.Capacity[corev1.ResourceName(resource)]; left[of] > 0 && resource != "" && n.Value() > int64(left[of]) {
			return fmt.Sprintf("the node's capacity has %s: %s, and %d of its %s GPUs are left to another driver (foreignDevices in the plugin's "+
				"configuration): unless the device plugin divides or shares its GPUs, limit it to these, or two pods may get one GPU",
				resource, n.String(), left[of], vendor)
		}
	}
	return ""
}

// leftDevices counts the devices that are left to other drivers.
func leftDevices(foreign map[string]inventory.Foreign) map[maker]int {
	left := map[maker]int{}
	for _, of := range foreign {
		left[maker{of.Vendor, of.Kind}]++
	}
	return left
}

// conflictReports reports for each device whether a device plugin or another DRA driver allocates it. A device plugin that devices of its
// vendor are left to has nothing of the others: it only conflicts with the claim that still has one of those.
func conflictReports(
	devices []device.Device, foreign map[string]inventory.Foreign, node *corev1.Node, others []resourceapi.ResourceSlice,
) []health.Report {
	left := leftDevices(foreign)
	plugins, drivers := conflictingPlugins(node), conflictingDrivers(others)
	reports := make([]health.Report, 0, len(devices))
	for i := range devices {
		d := &devices[i]
		plugin := health.Reading{Code: health.RivalPlugin, Kind: health.Level}
		of := maker{device.StringOf(d.Attributes[device.AttributeVendor]), d.Kind}
		known := left[of] > 0 && foreign[cmp.Or(d.Parent, d.Name)].Owner == ""
		if name := plugins[of]; name != "" && !known {
			plugin.Value, plugin.Message = 1, "resource "+name+" in the node's capacity"
		}
		driver := health.Reading{Code: health.RivalDriver, Kind: health.Level}
		if name := drivers[device.StringOf(d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID])]; name != "" {
			driver.Value, driver.Message = 1, "driver "+name+" publishes it in a ResourceSlice"
		}
		reports = append(reports, health.Report{
			Device: d.Name, Source: health.SourceRival, Readings: []health.Reading{plugin, driver},
		})
	}
	return reports
}

// conflictingPlugins returns the extended resources by which device plugins allocate devices, the first by name for each maker. A removed
// plugin leaves its resource behind, at zero.
func conflictingPlugins(node *corev1.Node) map[maker]string {
	found := map[maker]string{}
	for name, quantity := range node.Status.Capacity {
		resource := string(name)
		// Intel's resources for monitoring allocate no GPU.
		if quantity.IsZero() || strings.HasSuffix(resource, "_monitoring") {
			continue
		}
		if of := pluginOf(resource); of.vendor != "" && (found[of] == "" || resource < found[of]) {
			found[of] = resource
		}
	}
	return found
}

// pluginOf returns what the device plugin of a resource allocates. It is empty for other resources.
func pluginOf(resource string) maker {
	for _, v := range vendors.All() {
		for kind, prefixes := range v.Plugins {
			if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(resource, prefix) }) {
				return maker{v.Name, kind}
			}
		}
	}
	return maker{}
}

// conflictingDrivers returns the other DRA drivers that publish PCI devices, the first by name for each address.
func conflictingDrivers(slices []resourceapi.ResourceSlice) map[string]string {
	found := map[string]string{}
	for i := range slices {
		spec := &slices[i].Spec
		if spec.Driver == v1alpha1.DriverName {
			continue
		}
		for j := range spec.Devices {
			address := device.StringOf(spec.Devices[j].Attributes[deviceattribute.StandardDeviceAttributePCIBusID])
			if address != "" && (found[address] == "" || spec.Driver < found[address]) {
				found[address] = spec.Driver
			}
		}
	}
	return found
}
