// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"fmt"
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// gather asks an initialised library for everything a Report has. Only the driver's version and the number of GPUs are
// essential; any other question that fails is a fault in the report.
func gather(lib gonvml.Interface) (nvml.Report, error) {
	driver, ret := lib.SystemGetDriverVersion()
	if ret != gonvml.SUCCESS {
		return nvml.Report{}, fmt.Errorf("read driver version: %w", said(ret))
	}
	count, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nvml.Report{}, fmt.Errorf("count GPUs: %w", said(ret))
	}
	report := nvml.Report{DriverVersion: driver, Devices: []nvml.Device{}}
	if cuda, ret := lib.SystemGetCudaDriverVersion(); ret == gonvml.SUCCESS {
		report.CUDADriverVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	for i := range count {
		gpu, ret := lib.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			report.Faults = append(report.Faults, faultOf(fmt.Sprintf("device %d", i), "", ret))
			continue
		}
		info, ret := gpu.GetPciInfo()
		if ret != gonvml.SUCCESS {
			report.Faults = append(report.Faults, faultOf(fmt.Sprintf("device %d", i), "pciBusID", ret))
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
	// lacking are the questions that the library said it has no answer to.
	lacking []nvml.Fault
}

// answered says whether an answer of a function can be used.
func (q *questions) answered(function string, ret gonvml.Return) bool {
	if absent(function, ret) {
		q.lacking = append(q.lacking, faultOf(q.device.PCIBusID, callOf(function).Field, ret))
	}
	return answered(function, q.device.PCIBusID, callOf(function).Field, ret, &q.faults)
}

func (q *questions) ask() {
	q.identity()
	q.ability()
	q.surroundings()
	if minor, ret := q.gpu.GetMinorNumber(); q.answered("Device.GetMinorNumber", ret) {
		q.device.Minor = &minor
	}
	if !there(q.lib, "Device.GetMigMode") {
		return
	}
	if current, pending, ret := q.gpu.GetMigMode(); q.answered("Device.GetMigMode", ret) {
		on := current == gonvml.DEVICE_MIG_ENABLE
		q.device.MIGMode = &on
		q.mig(&nvml.MIG{Current: on, Pending: pending == gonvml.DEVICE_MIG_ENABLE})
	}
}

// mig asks how a GPU with a MIG mode can be divided and is divided. A GPU without one is not asked, so it costs nothing there. What cannot
// be read withholds all of it: an instance that is not known of could be given away twice.
func (q *questions) mig(mig *nvml.MIG) {
	if !there(q.lib, "Device.GetMaxMigDeviceCount") || !q.tellsOfMIG() {
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
		q.faults = append(q.faults, nvml.NewFault(q.device.PCIBusID, nvml.FieldMIG, err))
		return
	}
	mig.Instances = plain(instances)
	q.device.MIG = mig
}

// tellsOfMIG says whether the answers are there without which an instance cannot be named, or counts as somebody else's. On a GPU with a
// MIG mode one that the library lacks is a fault too.
func (q *questions) tellsOfMIG() bool {
	needed := func(f nvml.Fault) bool { return slices.Contains(nvml.NeededByMIG(), f.Field) }
	for _, lack := range q.lacking {
		if needed(lack) {
			q.faults = append(q.faults, lack)
		}
	}
	return !slices.ContainsFunc(q.faults, needed)
}

func (q *questions) identity() {
	for _, question := range []struct {
		function string
		ask      func() (string, gonvml.Return)
		into     *string
	}{
		{"Device.GetUUID", q.gpu.GetUUID, &q.device.UUID},
		{"Device.GetName", q.gpu.GetName, &q.device.Name},
		{"Device.GetSerial", q.gpu.GetSerial, &q.device.Serial},
		{"Device.GetVbiosVersion", q.gpu.GetVbiosVersion, &q.device.VBIOSVersion},
	} {
		if value, ret := question.ask(); q.answered(question.function, ret) {
			*question.into = value
		}
	}
	if brand, ret := q.gpu.GetBrand(); q.answered("Device.GetBrand", ret) {
		q.device.Brand = brandName(brand)
	}
}

func (q *questions) ability() {
	if memory, ret := q.gpu.GetMemoryInfo(); q.answered("Device.GetMemoryInfo", ret) {
		q.device.MemoryBytes = memory.Total
	}
	if there(q.lib, "Device.GetArchitecture") {
		if architecture, ret := q.gpu.GetArchitecture(); q.answered("Device.GetArchitecture", ret) {
			q.device.Architecture = architectureName(architecture)
		}
	}
	major, minor, ret := q.gpu.GetCudaComputeCapability()
	if !q.answered("Device.GetCudaComputeCapability", ret) {
		return
	}
	q.device.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	if !there(q.lib, "Device.GetNumGpuCores") {
		return
	}
	if cores, ret := q.gpu.GetNumGpuCores(); q.answered("Device.GetNumGpuCores", ret) {
		q.device.Multiprocessors = multiprocessors(cores, major, minor)
	}
}

// surroundings asks how the GPU reaches the machine's memory and other GPUs.
func (q *questions) surroundings() {
	if there(q.lib, "Device.GetAddressingMode") {
		if mode, ret := q.gpu.GetAddressingMode(); q.answered("Device.GetAddressingMode", ret) {
			q.device.AddressingMode = addressingModeName(gonvml.DeviceAddressingModeType(mode.Value))
		}
	}
	if there(q.lib, "Device.GetGpuFabricInfo") {
		// The versions 2 and 3 of the answer add what is known of the fabric's health, and go-nvml's mocks do not have them.
		info, ret := q.gpu.GetGpuFabricInfo()
		if q.answered("Device.GetGpuFabricInfo", ret) {
			q.device.Fabric = fabricOf(info)
		}
	}
}

// fabricOf translates nvmlGpuFabricInfo_t (nvml.h 13). The status counts only in the state "completed". Nil: the GPU has no fabric.
func fabricOf(info gonvml.GpuFabricInfo) *nvml.Fabric {
	switch info.State {
	case gonvml.GPU_FABRIC_STATE_NOT_STARTED:
		return &nvml.Fabric{State: nvml.FabricNotStarted}
	case gonvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return &nvml.Fabric{State: nvml.FabricInProgress}
	case gonvml.GPU_FABRIC_STATE_COMPLETED:
	default:
		return nil
	}
	if gonvml.Return(info.Status) != gonvml.SUCCESS {
		return &nvml.Fabric{State: nvml.FabricFailed}
	}
	out := &nvml.Fabric{State: nvml.FabricCompleted}
	if id := info.ClusterUuid; id != [gonvml.GPU_FABRIC_UUID_LEN]uint8{} { // zero where the fabric ends with the machine
		out.ClusterUUID = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
		out.CliqueID = info.CliqueId
	}
	return out
}

// addressingModeName is the name that NVIDIA's own driver for DRA publishes.
func addressingModeName(mode gonvml.DeviceAddressingModeType) string {
	return map[gonvml.DeviceAddressingModeType]string{
		gonvml.DEVICE_ADDRESSING_MODE_NONE: "None", gonvml.DEVICE_ADDRESSING_MODE_HMM: "HMM", gonvml.DEVICE_ADDRESSING_MODE_ATS: "ATS",
	}[mode]
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
