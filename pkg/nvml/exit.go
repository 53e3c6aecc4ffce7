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
)

// exits is the table of what the child says by its exit status.
func exits() map[int]error {
	return map[int]error{
		ExitNoLibrary: ErrNoLibrary, ExitNoDriver: ErrNoDriver, exitInUse: ErrInUse, exitOccupied: ErrOccupied,
		exitNeedsReset: ErrNeedsReset, exitMIGOff: ErrMIGOff, exitGone: ErrGone,
		exitUnsupported: ErrUnsupported, exitForbidden: ErrForbidden, exitMIGOn: ErrMIGOn,
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
