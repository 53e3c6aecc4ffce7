// SPDX-License-Identifier: Apache-2.0

// Package backend holds what all ways of programming an FPGA share: the kinds of errors, the image, and the lock that lets one caller at a
// time program a chip.
package backend

import (
	"errors"
	"fmt"
)

// Kind says in which state an error leaves the region, and so what the caller may do next.
type Kind int

const (
	// Unknown: the region may hold anything, or not work. It is quarantined until something proves that it works.
	Unknown Kind = iota
	// Retryable: the region was not touched, for example because another caller uses it. The same request may succeed later.
	Retryable
	// Terminal: the region was not touched, and the same request will fail again.
	Terminal
)

func (k Kind) String() string {
	switch k {
	case Retryable:
		return "retryable"
	case Terminal:
		return "terminal"
	default:
		return "unknown state"
	}
}

// Error says how an operation on a device failed.
type Error struct {
	Kind Kind
	// Device is the name of the device. Op is the operation, such as "program".
	Device, Op string
	// Status is the text of the driver or the vendor's program, empty if it gave none.
	Status string
	// Next tells people what to do.
	Next string
	Err  error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Device, e.Err)
	if e.Status != "" {
		text += fmt.Sprintf(" (it says %q)", e.Status)
	}
	if e.Next != "" {
		text += ": " + e.Next
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error of the backends, and Unknown for any other error.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unknown
}

// Causes that callers may ask for with errors.Is.
var (
	// ErrInterface: the image's interface id is not the region's.
	ErrInterface = errors.New("interface id")
	// ErrReleased: the lease is over.
	ErrReleased = errors.New("the lease was released")
	// ErrNoParam: the driver or the hardware has no such parameter.
	ErrNoParam = errors.New("this driver has no such parameter")
)

// What to do next, where several backends say the same.
const (
	NextRetry   = "try again later"
	NextRequest = "change the request"
	NextAcquire = "acquire a new one"
)
