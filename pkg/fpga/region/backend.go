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

// Backend is one way of programming regions. backend.KindOf tells in which state its errors leave a region.
type Backend interface {
	// State reads what a region holds and changes nothing, so callers may use it while a pod uses the region.
	State(r *fpga.Region) (State, error)
	// Params reads the present values of driver parameters.
	Params(ctx context.Context, r *fpga.Region, names []string) (map[string]int32, error)
	// Acquire waits for the chip and takes a region for this caller alone. interfaceID is the id of the images to program; it is empty for a
	// lease that programs nothing.
	Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (Lease, error)
}

// State is what a region shows about itself.
type State struct {
	// AFU is the id of what the region holds. It is empty while the region shows none, as a disabled port does.
	AFU string
	// NoReadback says that the region never shows what it holds. Fettle then knows only what it programmed, and whether the region works.
	NoReadback bool
	// Fault says why the region does not work; nil if it works.
	Fault error
}

// shows reports whether the region can hold an image with that id. A region without readback can, as long as it works.
func (s State) shows(afu string) bool {
	if s.NoReadback {
		return s.Fault == nil
	}
	return s.AFU == afu
}

// Load is one image for one region.
type Load struct {
	Image *backend.Sealed
	// Offset and Size are the part of the image that goes to the card, without a header before it.
	Offset, Size int64
	// AFU is the id that the region must show afterwards, if it has a readback.
	AFU string
}

// ErrNoReset says that only programming resets this region.
var ErrNoReset = errors.New("the region is reset by programming it alone")

// Lease is a region that no other caller can open or program.
type Lease interface {
	// Program loads an image once. It returns nil if the region works and shows the image's id, as far as the region has a readback.
	Program(ctx context.Context, load Load) (time.Duration, error)
	SetParams(ctx context.Context, params []Param) error
	// Reset resets the region's logic and keeps it. ErrNoReset: only Program resets the region.
	Reset() error
	// ResetForRelease resets the region at the end of a claim, even if the region loses its logic by that. ErrNoReset: the region has no
	// reset.
	ResetForRelease(ctx context.Context) error
	Release() error
}

// closeQuietly closes a reader and ignores the error.
func closeQuietly(c io.Closer) { _ = c.Close() }

// noParams refuses parameters of a region that has none.
func noParams(r *fpga.Region, op string, names int) error {
	if names == 0 {
		return nil
	}
	return &backend.Error{
		Kind: backend.Terminal, Device: r.Card, Op: op, Err: backend.ErrNoParam,
		Next: "leave driverParams out, or use a card that has them",
	}
}
