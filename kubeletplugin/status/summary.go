// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
	"github.com/fettle-dev/fettle/pkg/record"
)

// heldDevices returns the devices that claims hold, as POOL/DEVICE. Admin access does not hold a device.
func heldDevices(records []*record.Record) map[string]bool {
	held := map[string]bool{}
	for _, r := range records {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess {
				held[d.Pool+"/"+d.Name] = true
			}
		}
	}
	return held
}

// countUse returns how many devices of a pool are held, and how many published ones are free.
func countUse(pool string, all []resourceapi.ResourceSlice, held map[string]bool) (used, free int32) {
	for name := range held {
		if strings.HasPrefix(name, pool+"/") {
			used++
		}
	}
	left := usage.Counters{}
	for i := range all {
		if all[i].Spec.Pool.Name == pool {
			left.Add(all[i].Spec.SharedCounters)
		}
	}
	for d := range devicesOf(pool, all) {
		if held[pool+"/"+d.Name] {
			left.Take(d)
		}
	}
	for d := range devicesOf(pool, all) {
		if !held[pool+"/"+d.Name] && !keepsPodsAway(d) && left.Fit(d) {
			free++
		}
	}
	return used, free
}

// devicesOf lists the published devices of a pool.
func devicesOf(pool string, all []resourceapi.ResourceSlice) iter.Seq[*resourceapi.Device] {
	return func(yield func(*resourceapi.Device) bool) {
		for i := range all {
			if all[i].Spec.Pool.Name != pool {
				continue
			}
			for j := range all[i].Spec.Devices {
				if !yield(&all[i].Spec.Devices[j]) {
					return
				}
			}
		}
	}
}

func keepsPodsAway(d *resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone })
}

// summarize returns the texts for the columns of kubectl.
func summarize(status *v1alpha1.AcceleratorNodeStatus, v *inventory.Snapshot) v1alpha1.NodeSummary {
	var out v1alpha1.NodeSummary
	columns := map[device.Kind]*string{device.KindGPU: &out.GPUs, device.KindFPGA: &out.FPGAs, device.KindHost: &out.Host}
	for i := range status.Pools {
		if column := columns[device.Kind(status.Pools[i].Kind)]; column != nil {
			*column = useText(&status.Pools[i])
		}
	}
	drivers := make([]string, 0, len(status.Vendors))
	for _, vendor := range status.Vendors {
		drivers = append(drivers, strings.TrimSpace(vendor.Name+" "+vendor.DriverVersion))
	}
	out.Drivers = strings.Join(drivers, ", ")
	out.Models = distinct(v, device.AttributeProductName)
	out.Firmware = distinct(v, device.AttributeFirmwareVersion, device.AttributeShellVersion)
	return out
}

// useText returns the text of a pool's column.
func useText(p *v1alpha1.PoolStatus) string {
	if p.Devices == 0 && p.Used == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%d used, %d free)", p.Devices, p.Used, p.Free)
}

// distinct lists the values of attributes of the published devices, each once, sorted.
func distinct(v *inventory.Snapshot, names ...resourceapi.QualifiedName) string {
	values := map[string]bool{}
	for i := range v.Devices {
		if _, held := v.Withheld[v.Devices[i].Name]; held {
			continue
		}
		for _, name := range names {
			if value := device.StringOf(v.Devices[i].Attributes[name]); value != "" {
				values[value] = true
			}
		}
	}
	return v1alpha1.Enumerate(slices.Sorted(maps.Keys(values)))
}
