// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
)

const (
	// conflictInterval is how often it is looked up who else hands out the node's devices: that changes when somebody installs something.
	conflictInterval = time.Minute
	// conflictPause gathers a burst of changes here into one question.
	conflictPause = 5 * time.Second
)

// watchConflicts finds devices that somebody else on the node hands out, too: kubelet keeps device plugins and DRA drivers apart, but
// not from giving one device to two pods.
func (k *Keeper) watchConflicts(ctx context.Context) {
	if slices.Contains(k.File.Health.DisabledSources, health.SourceRival) {
		return
	}
	ticker := time.NewTicker(conflictInterval)
	defer ticker.Stop()
	for {
		_, changed := k.Holder.Get()
		if err := k.reportConflicts(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Who else hands out the node's devices is not known now", "reason", err)
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

func (k *Keeper) reportConflicts(ctx context.Context) error {
	v, _ := k.Holder.Get()
	if v == nil || len(v.Devices) == 0 || k.Retirement.On() {
		return nil
	}
	// The API server answers both from memory; what it does not know yet is seen the next time.
	get := metav1.GetOptions{ResourceVersion: "0"}
	node, err := k.Client.CoreV1().Nodes().Get(ctx, k.Node, get)
	if err != nil {
		return fmt.Errorf("look at the node: %w", err)
	}
	slices, err := k.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, k.Node).String(),
	})
	if err != nil {
		return fmt.Errorf("look at the node's ResourceSlices: %w", err)
	}
	if k.Retirement.On() {
		return nil // its files may be gone by now
	}
	k.note(ctx, k.ledger.Report(conflictReports(v.Devices, node, slices.Items)...))
	return nil
}

// conflictReports says of each device whether a device plugin or another DRA driver hands it out.
func conflictReports(devices []device.Device, node *corev1.Node, others []resourceapi.ResourceSlice) []health.Report {
	plugins, drivers := conflictingPlugins(node), conflictingDrivers(others)
	reports := make([]health.Report, 0, len(devices))
	for i := range devices {
		d := &devices[i]
		plugin := health.Reading{Code: health.RivalPlugin, Kind: health.Level}
		if name := plugins[device.StringOf(d.Attributes[device.AttributeVendor])]; name != "" && d.Kind == device.KindGPU {
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

// conflictingPlugins are the extended resources by which the vendors' device plugins hand out GPUs, the first by vendor. A plugin that left
// leaves its resource behind, at zero.
func conflictingPlugins(node *corev1.Node) map[string]string {
	prefixes := map[string]string{
		"nvidia.com/gpu": "nvidia", "nvidia.com/mig-": "nvidia", // NVIDIA/k8s-device-plugin
		"amd.com/gpu": "amd", "amd.com/spx_": "amd", "amd.com/dpx_": "amd", "amd.com/tpx_": "amd", "amd.com/qpx_": "amd",
		"amd.com/cpx_":   "amd",   // ROCm/k8s-device-plugin, the names of partitions by compute and memory mode
		"gpu.intel.com/": "intel", // intel/intel-device-plugins-for-kubernetes
	}
	found := map[string]string{}
	for name, quantity := range node.Status.Capacity {
		resource := string(name)
		// Intel's resources for monitoring give out no GPU: everybody may have them.
		if quantity.IsZero() || strings.HasSuffix(resource, "_monitoring") {
			continue
		}
		for prefix, vendor := range prefixes {
			if strings.HasPrefix(resource, prefix) && (found[vendor] == "" || resource < found[vendor]) {
				found[vendor] = resource
			}
		}
	}
	return found
}

// conflictingDrivers are the other DRA drivers that publish a PCI device, the first by the device's address.
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
