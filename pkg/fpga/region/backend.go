// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Backend is one way of programming regions. Its errors say by backend.KindOf what they leave behind.
type Backend interface {
	// State reads what a region holds and changes nothing, so that it may be asked while a pod uses the region.
	State(r *fpga.Region) (State, error)
	// Params reads what driver parameters are now.
	Params(ctx context.Context, r *fpga.Region, names []string) (map[string]int32, error)
	// Acquire waits for the chip and takes a region for the caller alone. interfaceID is that of the images to program; empty for a
	// lease that programs nothing.
	Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (Lease, error)
}

// State is what a region says of itself.
type State struct {
	// AFU is the id of what the region holds; empty while it does not tell, as a port that is disabled.
	AFU string
	// Mute is a region that never tells what it holds. What it was programmed with, and that it works, is all that can be known.
	Mute bool
	// Fault says why the region does not work as it is. Nil: it does.
	Fault error
}

// shows says whether a region can hold an image with that id. One that is mute can as long as it works.
func (s State) shows(afu string) bool {
	if s.Mute {
		return s.Fault == nil
	}
	return s.AFU == afu
}

// Load is one image for one region.
type Load struct {
	Image *backend.Sealed
	// Offset and Size are the part of the image that goes to the card; a header before it does not.
	Offset, Size int64
	// AFU is the id that the region must show afterwards, unless it is mute.
	AFU string
}

// ErrNoReset is about a region that has no reset beside being programmed.
var ErrNoReset = errors.New("the region is reset by programming it alone")

// Lease is a region that nobody else can open or program.
type Lease interface {
	// Program loads an image once; nil means that the region works and, unless it is mute, shows the image's id.
	Program(ctx context.Context, load Load) (time.Duration, error)
	SetParams(ctx context.Context, params []Param) error
	// Reset resets what the region holds and leaves it there. ErrNoReset: only Program does that.
	Reset() error
	// Leave resets the region for who gives it back, at the price of what it holds if it must be. ErrNoReset: nothing can be done.
	Leave(ctx context.Context) error
	Release() error
}

// closeQuietly closes what was only read from.
func closeQuietly(c io.Closer) { _ = c.Close() }

// noParams are the parameters of regions that have none.
func noParams(r *fpga.Region, op string, names int) error {
	if names == 0 {
		return nil
	}
	return &backend.Error{
		Kind: backend.Terminal, Device: r.Card, Op: op, Err: backend.ErrNoParam,
		Next: "leave driverParams out, or use a card that has them",
	}
}
