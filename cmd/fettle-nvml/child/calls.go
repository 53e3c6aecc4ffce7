// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"fmt"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// Call is a function of the library that this program calls.
type Call struct {
	// Name is the name in go-nvml's interface. Functions that are asked of a MIG device begin with "Device.MIG.".
	Name string
	// Use is what the answer is for.
	Use string
	// Failure is what it costs that there is none.
	Failure string
	// Field is the field of a report or a state that is missing then.
	Field string
	// Symbol is the function of the library where older drivers lack it: calling one that is missing ends the process.
	Symbol string
	// Absent are the answers by which the library says that a thing is not there. They are no failures.
	Absent []gonvml.Return
}

// What a failure costs.
const (
	costsReport   = "there is no report, and GPUs are published with what the kernel tells"
	costsGPU      = "the GPU is withheld; the others are not"
	costsField    = "the GPU is published without it"
	costsParts    = "the GPU is published without it; one with a MIG mode as where MIG's answers fail, also if the library lacks the function"
	costsMode     = "the GPU is not published until a report tells: it may be divided"
	costsMIG      = "no part of the GPU is published until a report tells, and in MIG mode not the whole"
	costsVerb     = "the claim waits, and the step is tried again"
	costsCreation = "the claim waits, and the step is tried again; what was made until then is taken back or found again"
	costsEvents   = "the GPU's errors are seen by its counters only, and a problem says so"
	costsCounter  = "the GPU's health is judged without it"
	costsWatch    = "the program ends, and is started again"
)

// Calls is the table of all functions of the library that this program calls.
func Calls() []Call {
	return slices.Concat(callsForGPUs(), callsForParts(), callsForSettings(), callsForHealth())
}

// lacking are the answers by which the library says that the GPU, or the library itself, does not have a thing.
func lacking(more ...gonvml.Return) []gonvml.Return {
	return append([]gonvml.Return{gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND}, more...)
}

func callsForGPUs() []Call {
	return []Call{
		{Name: "SystemGetDriverVersion", Use: "the driver's version", Failure: costsReport},
		{Name: "SystemGetCudaDriverVersion", Use: "the newest CUDA that the driver serves", Failure: costsField, Absent: lacking()},
		{Name: "DeviceGetCount", Use: "how many GPUs there are", Failure: costsReport},
		{Name: "DeviceGetHandleByIndex", Use: "each GPU", Failure: costsGPU},
		{Name: "DeviceGetHandleByPciBusId", Use: "the GPU of a claim", Failure: costsVerb},

		{Name: "Device.GetPciInfo", Use: "which GPU it is", Failure: costsGPU, Field: "pciBusID"},
		{Name: "Device.GetUUID", Use: "what the GPU is known by", Failure: costsParts, Field: "uuid", Absent: lacking()},
		{Name: "Device.GetName", Use: "the product's name", Failure: costsField, Field: "name", Absent: lacking()},
		{Name: "Device.GetSerial", Use: "the serial number", Failure: costsField, Field: "serial", Absent: lacking()},
		{Name: "Device.GetVbiosVersion", Use: "the firmware's version", Failure: costsField, Field: "vbiosVersion", Absent: lacking()},
		{Name: "Device.GetBrand", Use: "the brand", Failure: costsField, Field: "brand", Absent: lacking()},
		{Name: "Device.GetMemoryInfo", Use: "the size of the memory", Failure: costsParts, Field: "memoryBytes", Absent: lacking()},
		{
			Name: "Device.GetArchitecture", Use: "the generation; whether MIG mode changes without a reset", Failure: costsParts,
			Field: "architecture", Symbol: "nvmlDeviceGetArchitecture", Absent: lacking(),
		},
		{
			Name: "Device.GetCudaComputeCapability", Use: "which kernels run on the GPU", Failure: costsField,
			Field: "computeCapability", Absent: lacking(),
		},
		{
			Name: "Device.GetNumGpuCores", Use: "the number of multiprocessors", Failure: costsField,
			Field: "multiprocessors", Symbol: "nvmlDeviceGetNumGpuCores", Absent: lacking(),
		},
		{
			Name: "Device.GetMinorNumber", Use: "the device node, where the kernel does not tell it", Failure: costsField,
			Field: "minor", Absent: lacking(),
		},
		{
			Name: "Device.GetAddressingMode", Use: "whether programs can use the machine's memory on the GPU", Failure: costsField,
			Field: "addressingMode", Symbol: "nvmlDeviceGetAddressingMode", Absent: lacking(gonvml.ERROR_ARGUMENT_VERSION_MISMATCH),
		},
		{
			Name: "Device.GetGpuFabricInfo", Use: "which GPUs NVLink connects it with, also of other machines", Failure: costsField,
			Field: "fabric", Symbol: "nvmlDeviceGetGpuFabricInfo", Absent: lacking(),
		},
		{
			Name: "Device.GetMigMode", Use: "whether the GPU is divided", Failure: costsMode,
			Field: nvml.FieldMIGMode, Symbol: "nvmlDeviceGetMigMode", Absent: lacking(),
		},
	}
}

func callsForParts() []Call {
	return []Call{
		{
			Name: "Device.GetMaxMigDeviceCount", Use: "how many MIG devices to ask for", Failure: costsMIG,
			Field: nvml.FieldMIG, Symbol: "nvmlDeviceGetMaxMigDeviceCount",
		},
		{
			Name: "Device.GetGpuInstanceProfileInfo", Use: "the sorts of parts", Failure: costsMIG, Field: nvml.FieldMIG,
			Absent: []gonvml.Return{gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT}, // the GPU, or an older library, has no such profile
		},
		{Name: "Device.GetGpuInstancePossiblePlacements", Use: "where parts can be", Failure: costsMIG, Field: nvml.FieldMIG},
		{Name: "Device.GetGpuInstances", Use: "the parts that are there", Failure: costsMIG, Field: nvml.FieldMIG},
		{
			Name: "GpuInstance.GetInfo", Use: "where a part is", Failure: costsMIG, Field: nvml.FieldMIG,
			Absent: []gonvml.Return{gonvml.ERROR_NOT_FOUND, gonvml.ERROR_INVALID_ARGUMENT}, // somebody destroyed it just now
		},
		{
			Name: "Device.GetMigDeviceHandleByIndex", Use: "the MIG devices", Failure: costsMIG, Field: nvml.FieldMIG,
			Absent: []gonvml.Return{gonvml.ERROR_NOT_FOUND}, // the numbers have gaps
		},
		{Name: "Device.MIG.GetGpuInstanceId", Use: "which part a MIG device is in", Failure: costsMIG, Field: nvml.FieldMIG},
		{Name: "Device.MIG.GetComputeInstanceId", Use: "which compute instance it is", Failure: costsMIG, Field: nvml.FieldMIG},
		{Name: "Device.MIG.GetUUID", Use: "what containers ask for it by", Failure: costsMIG, Field: nvml.FieldMIG},
	}
}

func callsForSettings() []Call {
	return []Call{
		{Name: "Device.SetMigMode", Use: "switches MIG mode", Failure: costsVerb},
		{Name: "Device.CreateGpuInstanceWithPlacement", Use: "makes a part", Failure: costsCreation},
		{Name: "GpuInstance.GetComputeInstanceProfileInfo", Use: "the compute instance that takes all of a part", Failure: costsCreation},
		{Name: "GpuInstance.CreateComputeInstance", Use: "makes it", Failure: costsCreation},
		{
			Name: "GpuInstance.GetComputeInstanceById", Use: "the compute instance that goes", Failure: costsVerb,
			Absent: []gonvml.Return{gonvml.ERROR_NOT_FOUND},
		},
		{Name: "ComputeInstance.Destroy", Use: "ends it", Failure: costsVerb, Absent: []gonvml.Return{gonvml.ERROR_NOT_FOUND}},
		{Name: "GpuInstance.Destroy", Use: "ends a part", Failure: costsVerb, Absent: []gonvml.Return{gonvml.ERROR_NOT_FOUND}},
		{Name: "Device.GetComputeMode", Use: "how many processes may compute", Failure: costsVerb},
		{Name: "Device.SetComputeMode", Use: "sets that", Failure: costsVerb},
	}
}

func callsForHealth() []Call {
	return []Call{
		{Name: "EventSetCreate", Use: "events", Failure: costsWatch},
		{
			Name: "EventSet.Wait", Use: "the next event", Failure: costsWatch,
			Absent: []gonvml.Return{gonvml.ERROR_TIMEOUT, gonvml.ERROR_GPU_IS_LOST},
		},
		{
			Name: "Device.GetSupportedEventTypes", Use: "whether the GPU tells of its errors", Failure: costsEvents,
			Field: "events", Absent: lacking(),
		},
		{Name: "Device.RegisterEvents", Use: "the GPU's critical errors (Xid)", Failure: costsEvents, Field: "events", Absent: lacking()},
		{
			Name: "Device.GetTotalEccErrors", Use: "errors of the memory, corrected and not", Failure: costsCounter,
			Field: "correctedECC, uncorrectedECC", Absent: lacking(),
		},
		{
			Name: "Device.GetRemappedRows", Use: "whether the next reset replaces broken rows of the memory, and whether a replacement failed",
			Failure: costsCounter, Field: "remapPending", Symbol: "nvmlDeviceGetRemappedRows", Absent: lacking(),
		},
		{
			Name: "Device.GetFieldValues", Use: "what the driver wants done to the GPU", Failure: costsCounter, Field: "recoveryAction",
			Symbol: "nvmlDeviceGetFieldValues", Absent: lacking(gonvml.ERROR_INVALID_ARGUMENT), // drivers that are too old do not know the field
		},
	}
}

// callOf is a row of the table.
func callOf(name string) Call {
	rows := Calls()
	return rows[slices.IndexFunc(rows, func(c Call) bool { return c.Name == name })]
}

// there says whether the library has a function.
func there(lib gonvml.Interface, name string) bool {
	symbol := callOf(name).Symbol
	return symbol == "" || lib.Extensions().LookupSymbol(symbol) == nil
}

// absent says whether the answer of a function means that a thing is not there.
func absent(name string, ret gonvml.Return) bool { return slices.Contains(callOf(name).Absent, ret) }

// faultOf is what a report or a state says of a question that failed.
func faultOf(device, field string, ret gonvml.Return) nvml.Fault {
	return nvml.NewFault(device, field, said(ret))
}

// answered says whether an answer of a function can be used. A failure is added to the faults.
func answered(function, device, field string, ret gonvml.Return, faults *[]nvml.Fault) bool {
	if ret != gonvml.SUCCESS && !absent(function, ret) {
		*faults = append(*faults, faultOf(device, field, ret))
	}
	return ret == gonvml.SUCCESS
}

// said is what the library answered, as the error that the child's exit status tells.
func said(ret gonvml.Return) error {
	err, known := map[gonvml.Return]error{
		gonvml.ERROR_IN_USE:                  nvml.ErrInUse,
		gonvml.ERROR_GPU_IS_LOST:             nvml.ErrGone,
		gonvml.ERROR_RESET_REQUIRED:          nvml.ErrNeedsReset,
		gonvml.ERROR_NO_PERMISSION:           nvml.ErrForbidden,
		gonvml.ERROR_INSUFFICIENT_POWER:      nvml.ErrNoPower,
		gonvml.ERROR_IRQ_ISSUE:               nvml.ErrInterrupts,
		gonvml.ERROR_LIB_RM_VERSION_MISMATCH: nvml.ErrVersions,
		gonvml.ERROR_DRIVER_NOT_LOADED:       nvml.ErrNotLoaded,
	}[ret]
	if !known {
		return ret
	}
	return fmt.Errorf("%w: %w", err, ret)
}
