// SPDX-License-Identifier: Apache-2.0

// Package backend is what the ways of programming an FPGA have in common: what an error leaves behind, the image, and the lock that
// lets one caller at a time program a chip.
package backend

import (
	"errors"
	"fmt"
)

// Kind is what an error leaves behind, and so what may come next.
type Kind int

const (
	// Unknown: the region may hold anything, or nothing that works. It is set aside until somebody proves the contrary.
	Unknown Kind = iota
	// Retryable: nothing was touched, somebody else was there first; the same request may succeed later.
	Retryable
	// Terminal: nothing was touched, and the same request fails again.
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

// Error is how an operation on a device failed.
type Error struct {
	Kind Kind
	// Device is the device's name, Op what was tried, such as "program".
	Device, Op string
	// Status is what the driver or the vendor's program says of it. It is empty where that says nothing.
	Status string
	// Next is what to do about it.
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

// KindOf is the kind of an error of the backends. Any other error is Unknown.
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
	// ErrNoParam: the device's driver or its hardware has no such parameter.
	ErrNoParam = errors.New("this driver has no such parameter")
)

// What to do next, where several backends say the same.
const (
	NextRetry   = "try again later"
	NextRequest = "change the request"
	NextAcquire = "acquire a new one"
)
