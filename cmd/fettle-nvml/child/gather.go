// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"fmt"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// gather asks an initialised library for everything a Report has. Only the driver's version and the number of GPUs are
// essential; any other question that fails is a fault in the report.
func gather(lib gonvml.Interface) (nvml.Report, error) {
	driver, ret := lib.SystemGetDriverVersion()
	if ret != gonvml.SUCCESS {
		return nvml.Report{}, fmt.Errorf("read driver version: %w", ret)
	}
	count, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nvml.Report{}, fmt.Errorf("count GPUs: %w", ret)
	}
	report := nvml.Report{DriverVersion: driver, Devices: []nvml.Device{}}
	if cuda, ret := lib.SystemGetCudaDriverVersion(); ret == gonvml.SUCCESS {
		report.CUDADriverVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	for i := range count {
		gpu, ret := lib.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			report.Faults = append(report.Faults, nvml.Fault{Device: fmt.Sprintf("device %d", i), Message: ret.Error()})
			continue
		}
		info, ret := gpu.GetPciInfo()
		if ret != gonvml.SUCCESS {
			report.Faults = append(report.Faults, nvml.Fault{Device: fmt.Sprintf("device %d", i), Field: "pciBusID", Message: ret.Error()})
			continue
		}
		q := questions{lib: lib, gpu: gpu, device: nvml.Device{PCIBusID: text(info.BusId[:])}}
		q.ask()
		report.Devices = append(report.Devices, q.device)
		report.Faults = append(report.Faults, q.faults...)
	}
	return report, nil
}

// questions fills in one device.
type questions struct {
	lib    gonvml.Interface
	gpu    gonvml.Device
	device nvml.Device
	faults []nvml.Fault
}

// answered says whether an answer can be used. That a GPU does not have a thing is an answer, and no fault.
func (q *questions) answered(field string, ret gonvml.Return) bool {
	switch ret {
	case gonvml.SUCCESS:
		return true
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return false
	}
	q.faults = append(q.faults, nvml.Fault{Device: q.device.PCIBusID, Field: field, Message: ret.Error()})
	return false
}

// has says whether the library has a function that older drivers lack: calling one that is missing ends the process.
func (q *questions) has(symbol string) bool { return q.lib.Extensions().LookupSymbol(symbol) == nil }

func (q *questions) ask() {
	q.identity()
	q.ability()
	if minor, ret := q.gpu.GetMinorNumber(); q.answered("minor", ret) {
		q.device.Minor = &minor
	}
	if !q.has("nvmlDeviceGetMigMode") {
		return
	}
	if current, pending, ret := q.gpu.GetMigMode(); q.answered(nvml.FieldMIGMode, ret) {
		on := current == gonvml.DEVICE_MIG_ENABLE
		q.device.MIGMode = &on
		q.mig(&nvml.MIG{Current: on, Pending: pending == gonvml.DEVICE_MIG_ENABLE})
	}
}

// mig asks how a GPU with a MIG mode can be divided and is divided. A GPU without one is not asked, so it costs nothing there. What cannot
// be read withholds all of it: an instance that is not known of could be given away twice.
func (q *questions) mig(mig *nvml.MIG) {
	if !q.has("nvmlDeviceGetMaxMigDeviceCount") {
		return
	}
	profiles, err := profilesOf(q.gpu)
	for _, p := range profiles {
		if err != nil {
			break
		}
		var described nvml.MIGProfile
		var ok bool
		if described, ok, err = p.describe(q.lib, q.gpu, q.device.MemoryBytes); ok {
			mig.Profiles = append(mig.Profiles, described)
		}
	}
	var instances []instance
	if err == nil && mig.Current {
		instances, err = instancesOf(q.gpu, profiles)
	}
	if err != nil {
		q.faults = append(q.faults, nvml.Fault{Device: q.device.PCIBusID, Field: nvml.FieldMIG, Message: err.Error()})
		return
	}
	mig.Instances = plain(instances)
	q.device.MIG = mig
}

func (q *questions) identity() {
	for _, question := range []struct {
		field string
		ask   func() (string, gonvml.Return)
		into  *string
	}{
		{"uuid", q.gpu.GetUUID, &q.device.UUID},
		{"name", q.gpu.GetName, &q.device.Name},
		{"serial", q.gpu.GetSerial, &q.device.Serial},
		{"vbiosVersion", q.gpu.GetVbiosVersion, &q.device.VBIOSVersion},
	} {
		if value, ret := question.ask(); q.answered(question.field, ret) {
			*question.into = value
		}
	}
	if brand, ret := q.gpu.GetBrand(); q.answered("brand", ret) {
		q.device.Brand = brandName(brand)
	}
}

func (q *questions) ability() {
	if memory, ret := q.gpu.GetMemoryInfo(); q.answered("memoryBytes", ret) {
		q.device.MemoryBytes = memory.Total
	}
	if q.has("nvmlDeviceGetArchitecture") {
		if architecture, ret := q.gpu.GetArchitecture(); q.answered("architecture", ret) {
			q.device.Architecture = architectureName(architecture)
		}
	}
	major, minor, ret := q.gpu.GetCudaComputeCapability()
	if !q.answered("computeCapability", ret) {
		return
	}
	q.device.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	if !q.has("nvmlDeviceGetNumGpuCores") {
		return
	}
	if cores, ret := q.gpu.GetNumGpuCores(); q.answered("multiprocessors", ret) {
		q.device.Multiprocessors = multiprocessors(cores, major, minor)
	}
}

// multiprocessors counts them by the cores that one has (CUDA C++ Programming Guide, compute capabilities). 0 if that is not
// known.
func multiprocessors(cores, major, minor int) int {
	per := map[[2]int]int{
		{6, 0}: 64, {6, 1}: 128, {7, 0}: 64, {7, 5}: 64, {8, 0}: 64, {8, 6}: 128, {8, 9}: 128, {9, 0}: 128,
		{10, 0}: 128, {10, 3}: 128, {12, 0}: 128, {12, 1}: 128,
	}[[2]int{major, minor}]
	if per == 0 {
		return 0
	}
	return cores / per
}

func architectureName(architecture gonvml.DeviceArchitecture) string {
	return map[gonvml.DeviceArchitecture]string{
		gonvml.DEVICE_ARCH_KEPLER: "Kepler", gonvml.DEVICE_ARCH_MAXWELL: "Maxwell", gonvml.DEVICE_ARCH_PASCAL: "Pascal",
		gonvml.DEVICE_ARCH_VOLTA: "Volta", gonvml.DEVICE_ARCH_TURING: "Turing", gonvml.DEVICE_ARCH_AMPERE: "Ampere",
		gonvml.DEVICE_ARCH_ADA: "Ada Lovelace", gonvml.DEVICE_ARCH_HOPPER: "Hopper", gonvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
		gonvml.DEVICE_ARCH_RUBIN: "Rubin",
	}[architecture]
}

func brandName(brand gonvml.BrandType) string {
	return map[gonvml.BrandType]string{
		gonvml.BRAND_QUADRO: "Quadro", gonvml.BRAND_TESLA: "Tesla", gonvml.BRAND_GEFORCE: "GeForce", gonvml.BRAND_TITAN: "Titan",
		gonvml.BRAND_NVIDIA: "Nvidia", gonvml.BRAND_NVIDIA_RTX: "NvidiaRTX", gonvml.BRAND_GEFORCE_RTX: "GeForceRTX",
		gonvml.BRAND_TITAN_RTX: "TitanRTX", gonvml.BRAND_QUADRO_RTX: "QuadroRTX",
	}[brand]
}

// text reads a C string from a fixed array.
func text(array []int8) string {
	var b strings.Builder
	for _, c := range array {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
