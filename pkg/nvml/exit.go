// SPDX-License-Identifier: Apache-2.0

package nvml

import "errors"

// What the library refuses about instances and the MIG mode. The child says each with an exit status of its own.
var (
	// ErrInUse: a process, or a monitor such as DCGM, has the instance or the GPU open (NVML_ERROR_IN_USE).
	ErrInUse = errors.New("it is in use")
	// ErrOccupied: another instance is in the place, or takes what an instance there needs (NVML_ERROR_INSUFFICIENT_RESOURCES). Nothing was
	// made.
	ErrOccupied = errors.New("the place is occupied")
	// ErrNeedsReset: the mode was set, and holds only after the next reset of the GPU (NVML_ERROR_RESET_REQUIRED).
	ErrNeedsReset = errors.New("the GPU needs a reset first")
	// ErrMIGOff: the GPU is not in MIG mode, so there is no instance on it.
	ErrMIGOff = errors.New("the GPU is not in MIG mode")
	// ErrGone: the GPU is not on the node, or is another one, or fell off the bus. No instance outlives that.
	ErrGone = errors.New("the GPU is gone")
)

// What is wrong with a whole GPU, or with the driver, whatever was asked.
var (
	// ErrNoPower: a power cable of the GPU is not as it should be (NVML_ERROR_INSUFFICIENT_POWER).
	ErrNoPower = errors.New("the GPU lacks power: look at its power cables")
	// ErrInterrupts: the kernel gets no interrupts from the GPU (NVML_ERROR_IRQ_ISSUE).
	ErrInterrupts = errors.New("the kernel gets no interrupts from the GPU: look at the kernel log")
	// ErrVersions: the library and the kernel module are of two drivers (NVML_ERROR_LIB_RM_VERSION_MISMATCH).
	ErrVersions = errors.New("the library and the kernel module are of different versions: load the module of the library's version " +
		"(reboot the node)")
	// ErrNotLoaded: the kernel module does not run (NVML_ERROR_DRIVER_NOT_LOADED).
	ErrNotLoaded = errors.New("NVIDIA's kernel module does not run: load the module nvidia, or look at the kernel log for why it refused")
)

// The exit statuses of the child. 1 is any other failure, 2 wrong usage.
const (
	exitFailed = 1
	// ExitNoLibrary is the exit status with which the child says ErrNoLibrary.
	ExitNoLibrary = 3
	// ExitNoDriver is the exit status with which the child says ErrNoDriver.
	ExitNoDriver = 4

	exitInUse      = 5
	exitOccupied   = 6
	exitNeedsReset = 7
	exitMIGOff     = 8
	exitGone       = 9

	exitUnsupported = 10
	exitForbidden   = 11
	exitMIGOn       = 12

	exitNoPower    = 13
	exitInterrupts = 14
	exitVersions   = 15
	exitNotLoaded  = 16
)

// exits is the table of what the child says by its exit status.
func exits() map[int]error {
	return map[int]error{
		ExitNoLibrary: ErrNoLibrary, ExitNoDriver: ErrNoDriver, exitInUse: ErrInUse, exitOccupied: ErrOccupied,
		exitNeedsReset: ErrNeedsReset, exitMIGOff: ErrMIGOff, exitGone: ErrGone,
		exitUnsupported: ErrUnsupported, exitForbidden: ErrForbidden, exitMIGOn: ErrMIGOn,
		exitNoPower: ErrNoPower, exitInterrupts: ErrInterrupts, exitVersions: ErrVersions, exitNotLoaded: ErrNotLoaded,
	}
}

// ExitStatus is the exit status with which the child says an error, 0 for none.
func ExitStatus(err error) int {
	if err == nil {
		return 0
	}
	for status, said := range exits() {
		if errors.Is(err, said) {
			return status
		}
	}
	return exitFailed
}

// NewFault is what a report or a state says of a question that failed.
func NewFault(device, field string, err error) Fault {
	fault := Fault{Device: device, Field: field, Message: err.Error()}
	if status := ExitStatus(err); status != exitFailed {
		fault.Status = status
	}
	return fault
}

// Err is what the answer means, one of the errors of this package, nil where it means no more than that the question failed.
func (f Fault) Err() error { return exits()[f.Status] }

// Unusable says whether the GPU cannot be used at all, whatever was asked.
func (f Fault) Unusable() bool {
	err := f.Err()
	return errors.Is(err, ErrGone) || errors.Is(err, ErrNeedsReset) || errors.Is(err, ErrNoPower) || errors.Is(err, ErrInterrupts)
}
